//! The child's side of a link, as a cursor reaches it: what the child has of an origin, and the commit of a batch.
//! On this shard a call, on another one a letter to its owner, who does the same.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_storage::error::AppendError;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Offset, OriginId};

use crate::fanout::batch::ChildBatch;
use crate::fanout::cursor::receipt::Receipt;
use crate::fanout::shared::Shared;
use crate::partition::commit;
use crate::partition::fetch::at_most;
use crate::partition::owner::Partition;
use crate::partition::refusal;
use crate::router::message::{Child, CommitReply, ShardReply, ShardRequest};

/// How long a child's owner waits for metadata that a cursor has and it has not; then the cursor's epoch is refused, and
/// the cursor asks the metadata leader.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(1);

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

/// What a child partition has of an origin: the flushed watermark, and what it remembers of the parent. Waits for the
/// flush of what is appended, so that the answer cannot be taken back.
///
/// # Errors
/// The code of the refusal.
pub async fn open_origin(shared: &Shared, child: Child) -> Result<(Offset, Option<OriginMark>), ErrorCode> {
    let Some(owner) = other_owner(shared, &child) else {
        return open_origin_here(shared, &child).await;
    };
    match ask(shared, owner, ShardRequest::OpenOrigin(child)).await? {
        ShardReply::Opened(opened) => opened,
        _ => Err(ErrorCode::Internal),
    }
}

/// Commits a child batch: the same fsync-and-verify as any produce, in every child, also a `written` one (D11).
pub async fn commit(shared: &Shared, child: Child, batch: ChildBatch) -> Committed {
    let end = batch.end;
    let committed = match other_owner(shared, &child) {
        None => commit_here(shared, &child, batch.bytes).await,
        Some(owner) => {
            // The batch counts in this shard's memory until it is answered; what crosses cores is a copy of its own.
            let batch = Bytes::copy_from_slice(&batch.bytes);
            match ask(shared, owner, ShardRequest::Commit { child, batch }).await {
                Ok(ShardReply::Committed(committed)) => committed,
                Ok(_) => CommitReply::Failed(ErrorCode::Internal),
                Err(code) => CommitReply::Failed(code),
            }
        }
    };
    match committed {
        CommitReply::Acked { duplicate } => Committed::Acked {
            receipt: Receipt::flushed(end),
            duplicate,
        },
        CommitReply::Expected(watermark) => Committed::Expected(watermark),
        CommitReply::Failed(code) => Committed::Failed(code),
    }
}

async fn ask(shared: &Shared, owner: u32, request: ShardRequest) -> Result<ShardReply, ErrorCode> {
    let call = shared.mesh.ask(owner, request).map_err(|refusal| refusal.code)?;
    Ok(call.answer().await)
}

/// The other shard that owns a child partition. A child that is not known here is looked for here, and refused.
fn other_owner(shared: &Shared, child: &Child) -> Option<u32> {
    let owner = shared.partitions.owner(&child.topic, child.bucket)?;
    (owner != shared.mesh.placement().shard).then_some(owner)
}

/// As [`open_origin`], at the owner.
///
/// # Errors
/// The code of the refusal.
pub async fn open_origin_here(
    shared: &Shared,
    child: &Child,
) -> Result<(Offset, Option<OriginMark>), ErrorCode> {
    let partition = find(shared, child).await.map_err(|refusal| refusal.code)?;
    flushed_watermark(&partition, child.origin).await
}

/// As [`commit()`], at the owner.
pub async fn commit_here(shared: &Shared, child: &Child, batch: Bytes) -> CommitReply {
    let partition = match find(shared, child).await {
        Ok(partition) => partition,
        Err(refusal) => return CommitReply::Failed(refusal.code),
    };
    let accepted = loop {
        match commit::accept_copy(&shared.partitions, &partition, batch.clone()) {
            // Its queue is full: there is something to flush, and room after that.
            Err(AppendError::Busy) => partition.log.flushed_beyond(partition.log.flushed()).await,
            accepted => break accepted,
        }
    };
    match accepted {
        Ok(accepted) => match commit::settle_flushed(accepted).await {
            Ok(duplicate) => CommitReply::Acked { duplicate },
            Err(error) => CommitReply::Failed(refusal::commit_code(&error)),
        },
        Err(AppendError::Expected { .. }) => match flushed_watermark(&partition, child.origin).await {
            Ok((watermark, _)) => CommitReply::Expected(watermark),
            Err(code) => CommitReply::Failed(code),
        },
        Err(error) => CommitReply::Failed(refusal::append_code(&error)),
    }
}

/// Finds the child partition, if this epoch may still write to it: an owner with an older view of the metadata catches
/// up first, then refuses what it does not know as current (SPEC.md F8, F12).
async fn find(shared: &Shared, child: &Child) -> Result<Rc<Partition>, Refusal> {
    if shared.in_force().is_none_or(|version| version < child.index) {
        at_most(CATCH_UP_WITHIN, shared.until_in_force(child.index)).await;
    }
    let metadata = shared.metadata();
    let link = metadata.link_by_epoch(&child.topic, child.origin.epoch);
    let not_current = || {
        let what = format!("{} is not current", child.origin.epoch);
        Refusal::new(ErrorCode::StaleEpoch, what)
    };
    let link = link.ok_or_else(not_current)?;
    let incarnation = Some(link.child_incarnation);
    shared.partitions.find(&child.topic, incarnation, child.bucket)
}

async fn flushed_watermark(
    partition: &Partition,
    origin: OriginId,
) -> Result<(Offset, Option<OriginMark>), ErrorCode> {
    let Some(entry) = partition.log.origin_watermark(origin) else {
        return Ok((Offset::ZERO, None));
    };
    if entry.flushed < entry.appended {
        let flushed = commit::until_flushed(partition, entry.end_offset).await;
        flushed.map_err(|error| refusal::commit_code(&error))?;
    }
    Ok((Offset(entry.appended), entry.mark))
}
