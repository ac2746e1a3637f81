//! Removing whole sealed segments, oldest first, as retention decided (SPEC.md D8).

use tailwater_wire::ids::CommitTime;
use tailwater_wire::meta::Retention;

use crate::disk::device::{Disk, DiskErrorKind, DiskResult};
use crate::layout;
use crate::log::PartitionLog;
use crate::log::options::RemovedSegment;
use crate::retention::segments_to_remove;

impl<D: Disk> PartitionLog<D> {
    /// Removes what retention lets go of. `now` is the owner's clock, or `None` while that is held and nothing goes by
    /// age. Readers that are in a removed segment finish what they read.
    ///
    /// Each removal is made durable before the next one: a power cut between two of them must not keep the older file
    /// and lose the newer one, because that looks like a lost segment.
    ///
    /// # Errors
    /// The disk's, at the first file that could not be removed; it and all later ones are still in the log.
    pub async fn apply_retention(
        &self,
        now: impl Into<Option<CommitTime>>,
        retention: Retention,
    ) -> DiskResult<Vec<RemovedSegment>> {
        let now = now.into();
        let mut removed = Vec::new();
        let count = {
            let mut state = self.state.borrow_mut();
            if state.retaining || state.closed {
                return Ok(removed);
            }
            let active_bytes = state.segments.active.position;
            let count = segments_to_remove(&state.segments.for_retention(), active_bytes, now, retention);
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
