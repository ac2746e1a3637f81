//! The log's refusals in the protocol's words: which code, and a sentence that names the partition.

use tailwater_storage::dedup::verdict::OpenError as KeyError;
use tailwater_storage::disk::device::{DiskError, DiskErrorKind};
use tailwater_storage::error::{AppendError, CommitError, ProducerError, ReadError};
use tailwater_wire::code::{ErrorCode, Refusal};

use crate::partition::owner::Partition;

/// The code of a refused append.
#[must_use]
pub fn append_code(error: &AppendError) -> ErrorCode {
    match error {
        AppendError::Latched(_) => ErrorCode::PartitionLatched,
        AppendError::Closed => ErrorCode::Draining,
        AppendError::Busy => ErrorCode::Busy,
        AppendError::DiskFull => ErrorCode::DiskFull,
        AppendError::UnknownProducer => ErrorCode::UnknownProducer,
        AppendError::OutOfOrder { .. } | AppendError::Expected { .. } => ErrorCode::OutOfOrderSequence,
        AppendError::Malformed(_) => ErrorCode::InvalidRequest,
    }
}

/// The code of a commit that failed.
#[must_use]
pub fn commit_code(error: &CommitError) -> ErrorCode {
    match error {
        CommitError::OutcomeUnknown(_) => ErrorCode::OutcomeUnknown,
        CommitError::DiskFull => ErrorCode::DiskFull,
        // It was queued when the log was closed: whether it was flushed before that, nobody has said.
        CommitError::Closed => ErrorCode::OutcomeUnknown,
    }
}

/// The code of a read that failed.
#[must_use]
pub fn read_code(error: &ReadError) -> ErrorCode {
    match error {
        ReadError::Behind { .. } => ErrorCode::PositionBehind,
        ReadError::Ahead { .. } => ErrorCode::PositionAhead,
        ReadError::Disk(error) => disk_code(error),
        ReadError::Unstable { .. } => ErrorCode::Quarantined,
    }
}

fn disk_code(error: &DiskError) -> ErrorCode {
    match error.kind {
        DiskErrorKind::NoSpace => ErrorCode::DiskFull,
        _ => ErrorCode::Internal,
    }
}

/// A refused append for the client.
#[must_use]
pub fn append(partition: &Partition, error: &AppendError) -> Refusal {
    said(partition, append_code(error), error)
}

/// A failed commit for the client.
#[must_use]
pub fn commit(partition: &Partition, error: &CommitError) -> Refusal {
    said(partition, commit_code(error), error)
}

/// A failed read for the client.
#[must_use]
pub fn read(partition: &Partition, error: &ReadError) -> Refusal {
    said(partition, read_code(error), error)
}

/// A producer that could not be opened, for the client.
#[must_use]
pub fn producer(partition: &Partition, error: &ProducerError) -> Refusal {
    let code = match error {
        ProducerError::Key(KeyError::ProducerNameTaken) => ErrorCode::ProducerNameTaken,
        ProducerError::Key(KeyError::InvalidName) => ErrorCode::InvalidRequest,
        ProducerError::Refused(error) => append_code(error),
    };
    said(partition, code, error)
}

fn said(partition: &Partition, code: ErrorCode, error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(
        code,
        format!("partition {} of `{}`: {error}", partition.id, partition.topic),
    )
}
