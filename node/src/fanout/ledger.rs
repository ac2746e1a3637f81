//! A cursor's gap ledger as the shard's drivers find it, make it, and sweep it (SPEC.md F7, F9).

use tailwater_storage::cursor_file::CursorFile;
use tailwater_storage::disk::device::DiskError;
use tailwater_storage::error::ReadError;
use tailwater_storage::gap_file::{self, GapFile, GapFileError};
use tailwater_storage::gaps::Gaps;
use tailwater_storage::layout::CursorPath;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Epoch, Offset};

use crate::fanout::cursor::message::{Event, RequestId};
use crate::fanout::desired::CursorKey;
use crate::fanout::diff::{self, Sweep};
use crate::fanout::gaps::first_ledger;
use crate::fanout::shared::Shared;

/// Why a removal waits for the next pass.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// A link came, went or changed meanwhile.
    #[error("the topic's links have changed meanwhile")]
    LinksChanged,
    /// A cursor that should run does not run yet, or is ending.
    #[error("the cursor of `{0}` does not run yet")]
    NotRunning(String),
    /// A cursor's own files could not be read.
    #[error("a cursor's files cannot be read")]
    Files(#[source] DiskError),
    /// What is about to go could not be read.
    #[error("what is about to go cannot be read")]
    Read(#[from] ReadError),
    /// The metadata leader could not be asked.
    #[error("the metadata leader could not be asked: {}", .0.what)]
    Unconfirmed(Refusal),
    /// A ledger could not be stored.
    #[error(transparent)]
    Ledger(#[from] GapFileError),
}

/// The ledger that a cursor starts with, or goes on with when a read from `from` finds that the log starts later. A link
/// whose records went before it was live has its first ledger written.
///
/// # Errors
/// [`AccountError`]: not now.
pub async fn ledger(
    shared: &Shared,
    at: &CursorPath,
    epoch: Epoch,
    from: Offset,
    log_start: Offset,
) -> Result<Gaps, AccountError> {
    let seen = gap_file::read(shared.partitions.disk(), at)
        .await
        .map_err(AccountError::Files)?;
    if let Some(gaps) = seen.of(epoch) {
        return Ok(gaps.clone());
    }
    let gaps = first_ledger(from, log_start);
    if gaps.through > Offset::ZERO {
        put(shared, at, epoch, &gaps, &seen).await?;
    }
    Ok(gaps)
}

/// What a cursor is told whose read from `from` found that the log starts later: what is gone is in the ledger, which is
/// read anew, because it was stored before anything went.
pub async fn behind(
    shared: &Shared,
    at: &CursorPath,
    epoch: Epoch,
    request: RequestId,
    from: Offset,
    log_start: Offset,
) -> Event {
    match ledger(shared, at, epoch, from, log_start).await {
        Ok(gaps) => Event::Behind {
            request,
            log_start,
            gaps,
        },
        Err(error) => {
            tracing::warn!(file = %at.gaps().display(), %error, "what retention took cannot be told yet; trying again");
            Event::ReadFailed {
                request,
                code: ErrorCode::PositionBehind,
            }
        }
    }
}

/// Stores a ledger; over one that is not of its epoch only with the leader's word.
///
/// # Errors
/// [`AccountError`]: not now.
pub async fn put(
    shared: &Shared,
    at: &CursorPath,
    epoch: Epoch,
    gaps: &Gaps,
    seen: &GapFile,
) -> Result<(), AccountError> {
    if let GapFile::Damaged(why) = seen {
        tracing::error!(file = %at.gaps().display(), why, "a gap ledger is damaged: what it counted is lost");
    }
    let proof = match seen {
        GapFile::Absent => None,
        seen if seen.of(epoch).is_some() => None,
        _ => {
            let word = shared.confirm_link(at.parent(), at.child()).await;
            Some(word.map_err(AccountError::Unconfirmed)?)
        }
    };
    let (disk, unique) = (shared.partitions.disk(), shared.unique());
    Ok(gap_file::store(disk, at, unique, epoch, gaps, seen, proof.as_ref()).await?)
}

/// Removes a ledger that no live link has a use for, with the leader's word, as a cursor file is.
pub async fn sweep(shared: &Shared, key: &CursorKey, in_use: bool) {
    let (disk, data) = (shared.partitions.disk(), shared.partitions.data());
    let at = CursorPath::new(data, &key.parent, key.partition, &key.child);
    let Ok(seen) = gap_file::read(disk, &at).await else {
        return;
    };
    let file = match &seen {
        GapFile::Absent => CursorFile::Absent,
        GapFile::Damaged(why) => CursorFile::Damaged(why),
        GapFile::Present { epoch, gaps } => CursorFile::Present {
            epoch: *epoch,
            next_offset: gaps.through,
        },
    };
    if diff::sweep(key, &file, in_use, None) != Sweep::Ask {
        return;
    }
    let Ok(word) = shared.confirm_link(&key.parent, &key.child).await else {
        return;
    };
    let Sweep::Remove(proof) = diff::sweep(key, &file, in_use, Some(&word)) else {
        return;
    };
    match gap_file::remove(disk, &at, &seen, proof).await {
        Ok(()) => tracing::info!(file = %at.gaps().display(), "removed the gap ledger of a dead link"),
        Err(GapFileError::NotConfirmed | GapFileError::Changed) => {}
        Err(error) => tracing::warn!(%error, "cannot remove a gap ledger; trying again later"),
    }
}
