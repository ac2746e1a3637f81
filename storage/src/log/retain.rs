//! Removing whole sealed segments, oldest first: what retention decided, once it is accounted for (SPEC.md D8, F9).

use tailwater_wire::ids::{CommitTime, Offset};
use tailwater_wire::meta::Retention;

use crate::disk::device::{Disk, DiskErrorKind, DiskResult};
use crate::layout;
use crate::log::PartitionLog;
use crate::log::options::RemovedSegment;
use crate::proof::Accounted;
use crate::retention::segments_to_remove;

impl<D: Disk> PartitionLog<D> {
    /// Where the log would start if what retention lets go of were gone; `None` when it lets go of nothing. `now` is the
    /// owner's clock, or `None` while that is held and nothing goes by age.
    pub fn expired(&self, now: impl Into<Option<CommitTime>>, retention: Retention) -> Option<Offset> {
        let state = self.state.borrow();
        if state.retaining || state.closed {
            return None;
        }
        let sealed = state.segments.for_retention();
        let count = segments_to_remove(&sealed, state.segments.active.position, now.into(), retention);
        sealed[..count].last().map(|last| last.end)
    }

    /// Removes the segments that end at or below what is accounted for. Readers that are in a removed segment finish
    /// what they read.
    ///
    /// Each removal is made durable before the next one: a power cut between two of them must not keep the older file
    /// and lose the newer one, because that looks like a lost segment.
    ///
    /// # Errors
    /// The disk's, at the first file that could not be removed; it and all later ones are still in the log.
    pub async fn remove_expired(&self, accounted: &Accounted) -> DiskResult<Vec<RemovedSegment>> {
        let mut removed = Vec::new();
        let count = {
            let mut state = self.state.borrow_mut();
            if state.retaining || state.closed {
                return Ok(removed);
            }
            let gone = |end: Offset| end <= accounted.through();
            let count = state.segments.sealed.partition_point(|s| gone(s.end));
            state.retaining = count > 0;
            count
        };
        let mut outcome = Ok(());
        for _ in 0..count {
            outcome = self.remove_oldest(&mut removed).await;
            if outcome.is_err() {
                break;
            }
        }
        self.state.borrow_mut().retaining = false;
        outcome.map(|()| removed)
    }

    async fn remove_oldest(&self, removed: &mut Vec<RemovedSegment>) -> DiskResult<()> {
        let oldest = {
            let state = self.state.borrow();
            let first = state.segments.sealed.front();
            first.map(|s| (s.path.clone(), s.base))
        };
        let Some((path, base)) = oldest else {
            return Ok(());
        };
        let index = self.dir.join(layout::index_name(base));
        // An index without its segment is removed when the log is next opened.
        drop(self.disk.remove_file(&index).await);
        match self.disk.remove_file(&path).await {
            Err(error) if error.kind != DiskErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.disk.sync_dir(&self.dir).await?;
        let gone = self.state.borrow_mut().segments.remove_oldest();
        removed.extend(gone.map(|s| RemovedSegment {
            path: s.path,
            offsets: s.base..s.end,
            bytes: s.bytes,
        }));
        Ok(())
    }
}
