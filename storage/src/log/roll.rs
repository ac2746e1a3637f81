//! Making the next segment ready in the background, and beginning it when the active one is full.

use std::rc::Rc;

use tailwater_wire::ids::CommitTime;

use crate::disk::device::{Disk, DiskResult};
use crate::disk::latch::LatchStep;
use crate::eras::{Era, Eras};
use crate::error::{CommitError, is_full};
use crate::group_commit::Take;
use crate::layout;
use crate::log::PartitionLog;
use crate::log::era::EndEraError;
use crate::log::segments::Sealed;
use crate::segment::appender::{BeginError, Prepared, begin, chunk_len, prepare};
use crate::segment::format::{SegmentHeader, data_start};
use crate::segment::index::IndexedSegment;

/// Segments up to this size are made ready at full speed.
const HURRY_BYTES: u64 = 8 << 20;

impl<D: Disk> PartitionLog<D> {
    /// Whether [`prepare_next`](Self::prepare_next) has something to do: the active segment is more than half full and no
    /// next one is ready, or a sealed segment's index is not on disk yet.
    pub fn needs_preparation(&self) -> bool {
        let state = self.state.borrow();
        let working = state.latch.is_open() && !state.closed && !state.preparing;
        working
            && (self.wants_segment()
                || state
                    .segments
                    .sealed
                    .iter()
                    .rev()
                    .take(2)
                    .any(|s| s.index_unsaved))
    }

    fn wants_segment(&self) -> bool {
        let state = self.state.borrow();
        let active = &state.segments.active;
        state.prepared.is_none() && (state.full || active.position > active.capacity / 2)
    }

    /// Makes the next segment ready and writes the index files of sealed ones, beside rounds. After a full disk call it
    /// again after a while: appends are refused with `DiskFull` as soon as the active segment has no room.
    ///
    /// # Errors
    /// The disk's. A full disk is not a failure of the log; any other one latches it.
    pub async fn prepare_next(&self) -> DiskResult<()> {
        {
            let mut state = self.state.borrow_mut();
            if state.preparing || state.closed || !state.latch.is_open() {
                return Ok(());
            }
            state.preparing = true;
        }
        let prepared = self.prepare_segment().await;
        self.state.borrow_mut().preparing = false;
        prepared?;
        self.save_indexes().await;
        Ok(())
    }

    async fn prepare_segment(&self) -> DiskResult<()> {
        if !self.wants_segment() {
            return Ok(());
        }
        let (capacity, hurry) = {
            let state = self.state.borrow();
            // Small ones are soon filled, and soon made.
            let capacity = state.options.next_segment_bytes(state.segments.active.capacity);
            state.hurry.set(capacity <= HURRY_BYTES);
            (capacity, Rc::clone(&state.hurry))
        };
        let prepared = match prepare(&self.disk, &self.dir, (self.random)(), capacity, Some(hurry)).await {
            Ok(prepared) => prepared,
            Err(error) => {
                // The caller logs or counts it; what it means for the log stands in its state.
                let _meaning = self.refuse_room(error.clone(), LatchStep::Prepare);
                return Err(error);
            }
        };
        let surplus = {
            let mut state = self.state.borrow_mut();
            state.full = false;
            if state.closed {
                Some(prepared)
            } else {
                state.prepared.replace(prepared)
            }
        };
        match surplus {
            Some(surplus) => self.disk.remove_file(&surplus.path).await,
            None => Ok(()),
        }
    }

    /// Writes the index files that sealed segments lack. One that cannot be written is made again from the segment when
    /// it is needed, so an error here harms nothing but speed and, until the log rolls again, the proof that the segment
    /// was followed by another: a segment is sealed here only when the next one is durable under its name, never before.
    pub(super) async fn save_indexes(&self) {
        loop {
            let unsaved = {
                let mut state = self.state.borrow_mut();
                let segment = state.segments.sealed.iter_mut().find(|s| s.index_unsaved);
                segment.and_then(|s| {
                    s.index_unsaved = false;
                    let index = s.loaded.as_ref()?.index.encode(&s.indexed());
                    Some((layout::index_name(s.base), index))
                })
            };
            let Some((name, bytes)) = unsaved else {
                return;
            };
            let written = self.disk.write_small(&self.dir.join(name), &bytes).await;
            if let Err(error) = written {
                tracing::warn!(topic = %self.identity.topic, partition = %self.identity.partition, "{error}");
                return;
            }
        }
    }

    /// Whether the next round would have to begin a segment here before it writes.
    pub fn needs_roll(&self) -> bool {
        matches!(self.state.borrow().next_take(), Take::Roll { .. })
    }

    /// Begins the segment that the next round needs, if it needs one. That takes several flushes, for which nobody else has
    /// to wait: rounds pass this log over meanwhile.
    ///
    /// # Errors
    /// What it means for what was pending; whoever waits for that has been told.
    pub async fn roll_if_needed(&self, now: CommitTime) -> Option<Result<(), CommitError>> {
        let take = self.state.borrow().next_take();
        let Take::Roll { bytes } = take else {
            return None;
        };
        Some(self.roll(bytes, now).await)
    }

    /// Begins a segment with room for `bytes` at least. Everything in the old one is flushed: no round is under way.
    /// When the disk is full, what is pending is taken back and its waiters are told.
    async fn roll(&self, bytes: u64, now: CommitTime) -> Result<(), CommitError> {
        self.roll_with(bytes, now, None).await
    }

    /// Begins a segment that ends the era of everything before it. Nothing is pending.
    pub(super) async fn roll_to_era(&self, now: CommitTime) -> Result<(), EndEraError> {
        let eras = {
            let state = self.state.borrow();
            assert!(state.pending.is_empty() && state.flushed == state.next_offset);
            let era = Era {
                below: state.flushed,
                end: now,
            };
            state.eras.and(era)?
        };
        Ok(self.roll_with(0, now, Some(eras)).await?)
    }

    async fn roll_with(&self, bytes: u64, now: CommitTime, ended: Option<Eras>) -> Result<(), CommitError> {
        let (ready, capacity) = {
            let mut state = self.state.borrow_mut();
            assert!(!state.in_round && state.written == state.flushed);
            state.in_round = true;
            state.hurry.set(true);
            let capacity = state.options.next_segment_bytes(state.segments.active.capacity);
            (state.prepared.take(), capacity)
        };
        let guard = self.unless_abandoned(&self.dir);
        let begun = self
            .begin_next(ready, capacity, chunk_len(bytes), now, ended)
            .await;
        guard.end();
        self.end_round();
        if let Err(CommitError::DiskFull) = begun {
            self.state.borrow_mut().take_back_pending();
            self.fail_waiters(&CommitError::DiskFull);
        }
        begun
    }

    async fn begin_next(
        &self,
        ready: Option<Prepared<D::File>>,
        capacity: u64,
        room: u64,
        now: CommitTime,
        ended: Option<Eras>,
    ) -> Result<(), CommitError> {
        let (header, checkpoint) = self.next_header(now, ended.as_ref());
        let capacity = capacity.max(data_start(checkpoint.len()) + room);
        let prepared = match ready {
            Some(prepared) => prepared,
            None => prepare(&self.disk, &self.dir, (self.random)(), capacity, None)
                .await
                .map_err(|error| self.refuse_room(error, LatchStep::Prepare))?,
        };
        let begun = begin(&self.disk, &self.dir, prepared, header, &checkpoint, &[], room).await;
        let active = begun.map_err(|error| match error {
            BeginError::Full(reason) => {
                debug_assert!(is_full(&reason));
                self.refuse_room(reason, LatchStep::Prepare)
            }
            BeginError::Failed(reason) => {
                let latched = crate::disk::latch::Latched {
                    at: LatchStep::Prepare,
                    reason,
                };
                self.latch(latched.clone());
                CommitError::OutcomeUnknown(latched)
            }
        })?;
        let mut state = self.state.borrow_mut();
        if let Some(eras) = ended {
            state.adopt(eras);
        }
        let (last, interval) = (state.flushed_commit_time, state.options.index_interval_bytes);
        state.full = false;
        state.stated = state.flushed;
        state.frontier_wanted = false;
        state.tail_is_open = false;
        state.segments.roll(active, last, interval);
        Ok(())
    }

    fn next_header(&self, now: CommitTime, ended: Option<&Eras>) -> (SegmentHeader, Vec<u8>) {
        let state = self.state.borrow();
        let eras = ended.unwrap_or(&state.eras);
        let checkpoint = state.dedup.checkpoint();
        let active = &state.segments.active.header;
        let header = SegmentHeader {
            checkpoint_bytes: checkpoint.len() as u32,
            incarnation: self.identity.incarnation,
            partition: self.identity.partition,
            lineage: state.lineage,
            base_offset: state.flushed,
            nonce: (self.random)(),
            proved_through: state.flushed,
            created_at: now,
            commit_time_floor: eras.counted_below(state.flushed, state.flushed_commit_time),
            previous_base: if active.base_offset < state.flushed {
                Some(active.base_offset)
            } else {
                active.previous_base
            },
            owner_epoch: state.options.owner_epoch,
            // What retention has removed needs no era any more.
            eras: eras.reaching(state.segments.log_start()),
        };
        (header, checkpoint)
    }

    /// The index of a sealed segment from its file, if that is the one that belongs to it.
    pub(super) async fn saved_index(
        &self,
        segment: &Sealed<D::File>,
    ) -> Option<Rc<crate::segment::index::SparseIndex>> {
        let path = self.dir.join(layout::index_name(segment.base));
        let bytes = self.disk.read_small(&path).await.ok()??;
        let (of, index) = crate::segment::index::SparseIndex::decode(&bytes).ok()?;
        // It may have been written before the era of its segment ended.
        let eras = self.state.borrow().eras.clone();
        let of = IndexedSegment {
            last_commit_time: eras.counted_below(of.end, of.last_commit_time),
            ..of
        };
        (of == segment.indexed()).then(|| Rc::new(index.counted(&eras)))
    }
}
