//! The way of a batch into a partition: verified, given its offset, committed with others, acknowledged.
//!
//! `accept` decides at once and in order of arrival; `settle` waits for the flush. Cursors take the same way as
//! producers (SPEC.md F2).

use std::rc::Rc;

use bytes::Bytes;

use tailwater_storage::error::{AppendError, CommitError};
use tailwater_storage::log::Appended;
use tailwater_wire::batch::header::BatchKind;
use tailwater_wire::batch::view::{BatchError, BatchView};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Offset, Writer};
use tailwater_wire::message::Produced;

use crate::clock::system::elapsed_since_boot;
use crate::partition::owner::{Partition, Partitions};

/// A batch that has its place in the log and waits for the flush.
pub struct Accepted {
    partition: Rc<Partition>,
    appended: Appended,
    arrived_ns: u64,
}

/// Verifies a producer's batch and gives it its place.
///
/// # Errors
/// `CORRUPT_BATCH` and the other reasons of [`AppendError`]; nothing was appended then.
pub fn accept(partitions: &Partitions, partition: &Rc<Partition>, payload: Bytes) -> Result<Accepted, Refusal> {
    let view = match BatchView::parse(&payload) {
        Ok(view) if view.bytes().len() == payload.len() => view,
        Ok(_) => return Err(Refusal::new(ErrorCode::InvalidRequest, "a produce carries exactly one batch")),
        Err(error) => {
            partitions.counters().corrupt_batches.add(1);
            return Err(corrupt(partition, &error));
        }
    };
    let header = view.header();
    let forged = matches!(header.writer, Writer::Origin(_)) || view.body().is_none_or(|body| body.origin.is_some());
    if forged || header.kind != BatchKind::Data {
        let what = "only the fan-out engine writes batches with an origin, and only the node writes control batches";
        return Err(Refusal::new(ErrorCode::InvalidRequest, what));
    }
    append(partitions, partition, &view, payload.clone(), None)
        .map_err(|error| append_refusal(partition, &error))
}

/// Gives a child batch of a cursor its place. `floor` is where the link was attached: the watermark of a child
/// partition that has nothing of this origin yet.
///
/// # Errors
/// [`AppendError`], among them `Expected` with the watermark that the child has.
pub fn accept_copy(
    partitions: &Partitions,
    partition: &Rc<Partition>,
    batch: Bytes,
    floor: Offset,
) -> Result<Accepted, AppendError> {
    let view = BatchView::parse(&batch).expect("the cursor builds sound batches");
    append(partitions, partition, &view, batch.clone(), Some(floor))
}

fn append(
    partitions: &Partitions,
    partition: &Rc<Partition>,
    view: &BatchView<'_>,
    bytes: Bytes,
    floor: Option<Offset>,
) -> Result<Accepted, AppendError> {
    let arrived_ns = elapsed_since_boot().as_nanos() as u64;
    let appended = partition.log.append(view, bytes, partitions.clock().now(), floor)?;
    if !appended.duplicate {
        let counters = partitions.counters();
        counters.batches.add(1);
        counters.records.add(view.len() as u64);
        partitions.mark_dirty(partition);
    }
    Ok(Accepted { partition: Rc::clone(partition), appended, arrived_ns })
}

/// Waits until the batch is durable, as the topic understands it.
///
/// # Errors
/// [`CommitError`]: the flush failed, and nobody can say whether the batch survives.
pub async fn settle(partitions: &Partitions, accepted: Accepted) -> Result<Produced, CommitError> {
    let Accepted { partition, appended, arrived_ns } = accepted;
    partition.log.committed(appended.end).await?;
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

fn corrupt(partition: &Partition, error: &BatchError) -> Refusal {
    let what = format!("the batch for partition {} of `{}` is damaged: {error}", partition.id, partition.topic);
    Refusal::new(ErrorCode::CorruptBatch, what)
}

/// A refused append in words for the client.
#[must_use]
pub fn append_refusal(partition: &Partition, error: &AppendError) -> Refusal {
    Refusal::new(error.code(), format!("partition {} of `{}`: {error}", partition.id, partition.topic))
}

/// A failed commit in words for the client.
#[must_use]
pub fn commit_refusal(partition: &Partition, error: &CommitError) -> Refusal {
    let what = format!("partition {} of `{}`: {error}", partition.id, partition.topic);
    Refusal::new(ErrorCode::OutcomeUnknown, what)
}
