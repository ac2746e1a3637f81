//! The way of a batch into a partition: verified, given its offset, committed with others, acknowledged.
//!
//! `accept` decides at once and in order of arrival; `settle` waits for the flush. Cursors take the same way as
//! producers (SPEC.md F2).

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;

use tailwater_storage::error::{AppendError, CommitError};
use tailwater_storage::log::options::Appended;
use tailwater_wire::batch::header::BatchKind;
use tailwater_wire::batch::view::{BatchError, BatchView};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Offset, Writer};
use tailwater_wire::message::{Produced, ProducerKey, ProducerOpened};

use crate::budget::Charge;
use crate::clock::system::elapsed_since_boot;
use crate::partition::owner::{Partition, Partitions};
use crate::partition::refusal;

/// A batch that has its place in the log and waits for the flush.
pub struct Accepted {
    partition: Rc<Partition>,
    appended: Appended,
    /// Asked for in the same breath as the append: a batch that is taken back frees its offsets for others.
    committed: Pin<Box<dyn Future<Output = Result<(), CommitError>>>>,
    arrived_ns: u64,
    /// What a producer's batch takes of the shard's memory until it is settled.
    _waiting: Option<Charge>,
}

/// Verifies a producer's batch and gives it its place.
///
/// # Errors
/// `CORRUPT_BATCH` and the other reasons of [`AppendError`]; nothing was appended then.
pub fn accept(
    partitions: &Partitions,
    partition: &Rc<Partition>,
    payload: Bytes,
) -> Result<Accepted, Refusal> {
    let view = match BatchView::parse(&payload) {
        Ok(view) if view.bytes().len() == payload.len() => view,
        Ok(_) => {
            return Err(Refusal::new(
                ErrorCode::InvalidRequest,
                "a produce carries exactly one batch",
            ));
        }
        Err(error) => {
            partitions.counters().corrupt_batches.add(1);
            return Err(corrupt(partition, &error));
        }
    };
    let header = view.header();
    let forged =
        matches!(header.writer, Writer::Origin(_)) || view.body().is_none_or(|body| body.origin.is_some());
    if forged || header.kind != BatchKind::Data {
        let what =
            "only the fan-out engine writes batches with an origin, and only the node writes control batches";
        return Err(Refusal::new(ErrorCode::InvalidRequest, what));
    }
    let Some(waiting) = partitions.waiting().try_take(payload.len()) else {
        return Err(refusal::append(partition, &AppendError::Busy));
    };
    let accepted = append(partitions, partition, &view, payload.clone(), None);
    let accepted = accepted.map_err(|error| refusal::append(partition, &error))?;
    Ok(Accepted {
        _waiting: Some(waiting),
        ..accepted
    })
}

/// Gives a child batch of a cursor its place. A child partition that has nothing of this origin yet has the watermark 0.
///
/// # Errors
/// [`AppendError`], among them `Expected` with the watermark that the child has.
pub fn accept_copy(
    partitions: &Partitions,
    partition: &Rc<Partition>,
    batch: Bytes,
) -> Result<Accepted, AppendError> {
    let view = BatchView::parse(&batch).expect("the cursor builds sound batches");
    append(partitions, partition, &view, batch.clone(), Some(Offset::ZERO))
}

fn append(
    partitions: &Partitions,
    partition: &Rc<Partition>,
    view: &BatchView<'_>,
    bytes: Bytes,
    floor: Option<Offset>,
) -> Result<Accepted, AppendError> {
    let arrived_ns = elapsed_since_boot().as_nanos() as u64;
    let appended = partition
        .log
        .append(bytes, view, partitions.clock().now(), floor)?;
    let committed = Box::pin(partition.log.committed(appended.end));
    if !appended.duplicate {
        let counters = partitions.counters();
        counters.batches.add(1);
        counters.records.add(view.len() as u64);
        partitions.mark_dirty(partition);
    }
    Ok(Accepted {
        partition: Rc::clone(partition),
        appended,
        committed,
        arrived_ns,
        _waiting: None,
    })
}

/// Waits until the batch is durable, as the topic understands it.
///
/// # Errors
/// [`CommitError`]: the flush failed, and nobody can say whether the batch survives.
pub async fn settle(partitions: &Partitions, accepted: Accepted) -> Result<Produced, CommitError> {
    let Accepted {
        partition,
        appended,
        committed,
        arrived_ns,
        _waiting,
    } = accepted;
    committed.await?;
    let took_ns = elapsed_since_boot().as_nanos() as u64 - arrived_ns;
    partitions.counters().append.record(took_ns);
    Ok(Produced {
        base_offset: appended.base_offset,
        commit_time: appended.commit_time.map(|time| time.0),
        durability: partition.durability,
        lineage: partition.log.lineage(),
        duplicate: appended.duplicate,
    })
}

/// Waits until a child batch is flushed, also in a `written` topic. Says whether it had been there before.
///
/// # Errors
/// [`CommitError`], as for [`settle`].
pub async fn settle_flushed(accepted: Accepted) -> Result<bool, CommitError> {
    let Accepted {
        partition,
        appended,
        committed,
        ..
    } = accepted;
    committed.await?;
    until_flushed(&partition, appended.end).await?;
    Ok(appended.duplicate)
}

/// Waits until a partition's flushed frontier is at least `end`.
///
/// # Errors
/// [`CommitError`]: it will not get there.
pub async fn until_flushed(partition: &Partition, end: Offset) -> Result<(), CommitError> {
    let log = &partition.log;
    if log.flushed() < end {
        log.flushed_beyond(Offset(end.0 - 1)).await;
    }
    if log.flushed() < end {
        return Err(log
            .latched()
            .map_or(CommitError::Closed, CommitError::OutcomeUnknown));
    }
    Ok(())
}

/// Begins or resumes a producer; returns when no crash can take back what the answer says.
///
/// # Errors
/// `PRODUCER_NAME_TAKEN`, and what keeps a partition from taking a batch.
pub async fn open_producer(
    partitions: &Partitions,
    partition: &Rc<Partition>,
    key: &ProducerKey,
) -> Result<ProducerOpened, Refusal> {
    let log = &partition.log;
    let (opened, proved) = log
        .open_producer(key, partitions.clock().now())
        .map_err(|error| refusal::producer(partition, &error))?;
    if opened.is_new {
        partitions.mark_dirty(partition);
    }
    proved.await.map_err(|error| refusal::commit(partition, &error))?;
    Ok(ProducerOpened {
        writer: opened.writer,
        last_sequence: opened.last_sequence,
        lineage: log.lineage(),
    })
}

fn corrupt(partition: &Partition, error: &BatchError) -> Refusal {
    let what = format!(
        "the batch for partition {} of `{}` is damaged: {error}",
        partition.id, partition.topic
    );
    Refusal::new(ErrorCode::CorruptBatch, what)
}
