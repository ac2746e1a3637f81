//! The child's side of a link, as a cursor reaches it: what the child has of an origin, and the commit of a batch.
//! On this shard a call, on another one a message.

use std::rc::Rc;
use std::sync::Arc;

use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_storage::error::AppendError;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Offset, OriginId, PartitionId, TopicName};
use tailwater_wire::meta::MetaSnapshot;

use crate::fanout::batch::ChildBatch;
use crate::fanout::cursor::receipt::Receipt;
use crate::partition::commit;
use crate::partition::owner::{Partition, Partitions};
use crate::partition::refusal;

/// What became of a commit.
pub enum Committed {
    /// The batch is flushed in the child.
    Acked {
        /// The proof.
        receipt: Receipt,
        /// Whether it had been there before.
        duplicate: bool,
    },
    /// The child has another watermark, flushed; nothing was appended.
    Expected(Offset),
    /// It failed, or nobody knows.
    Failed(ErrorCode),
}

/// Finds the child partition, if this epoch may still write to it: a child owner refuses what its metadata does not
/// know as current (SPEC.md F8, F12).
fn child(
    partitions: &Partitions,
    metadata: &MetaSnapshot,
    name: &TopicName,
    origin: OriginId,
    bucket: PartitionId,
) -> Result<Rc<Partition>, Refusal> {
    let link = metadata.link_by_epoch(name, origin.epoch);
    let link =
        link.ok_or_else(|| Refusal::new(ErrorCode::StaleEpoch, format!("{} is not current", origin.epoch)))?;
    partitions.find(name, Some(link.child_incarnation), bucket)
}

/// What a child partition has of an origin: the flushed watermark, and what it remembers of the parent. Waits for the
/// flush of what is appended, so that the answer cannot be taken back.
///
/// # Errors
/// The code of the refusal.
pub async fn open_origin(
    partitions: &Partitions,
    metadata: Arc<MetaSnapshot>,
    name: &TopicName,
    origin: OriginId,
    bucket: PartitionId,
) -> Result<(Offset, Option<OriginMark>), ErrorCode> {
    let child = child(partitions, &metadata, name, origin, bucket).map_err(|refusal| refusal.code)?;
    flushed_watermark(&child, origin).await
}

async fn flushed_watermark(
    child: &Partition,
    origin: OriginId,
) -> Result<(Offset, Option<OriginMark>), ErrorCode> {
    let Some(entry) = child.log.origin_watermark(origin) else {
        return Ok((Offset::ZERO, None));
    };
    if entry.flushed < entry.appended {
        let flushed = commit::until_flushed(child, entry.end_offset).await;
        flushed.map_err(|error| refusal::commit_code(&error))?;
    }
    Ok((Offset(entry.appended), entry.mark))
}

/// Commits a child batch: the same fsync-and-verify as any produce, in every child, also a `written` one (D11).
pub async fn commit(
    partitions: &Partitions,
    metadata: Arc<MetaSnapshot>,
    name: &TopicName,
    origin: OriginId,
    bucket: PartitionId,
    batch: ChildBatch,
) -> Committed {
    let child = match child(partitions, &metadata, name, origin, bucket) {
        Ok(child) => child,
        Err(refusal) => return Committed::Failed(refusal.code),
    };
    let end = batch.end;
    let accepted = loop {
        match commit::accept_copy(partitions, &child, batch.bytes.clone()) {
            // Its queue is full: there is something to flush, and room after that.
            Err(AppendError::Busy) => child.log.flushed_beyond(child.log.flushed()).await,
            accepted => break accepted,
        }
    };
    match accepted {
        Ok(accepted) => match commit::settle_flushed(accepted).await {
            Ok(duplicate) => Committed::Acked {
                receipt: Receipt::flushed(end),
                duplicate,
            },
            Err(error) => Committed::Failed(refusal::commit_code(&error)),
        },
        Err(AppendError::Expected { .. }) => match flushed_watermark(&child, origin).await {
            Ok((watermark, _)) => Committed::Expected(watermark),
            Err(code) => Committed::Failed(code),
        },
        Err(error) => Committed::Failed(refusal::append_code(&error)),
    }
}
