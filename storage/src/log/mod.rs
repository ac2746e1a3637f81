//! One partition's log: the handle that appends, commits, reads and retention go through.
//!
//! `state` decides (pure); `open`, `round`, `roll`, `read` and `retain` do what it decided on the disk. A log lives on the
//! shard that owns its partition and is used as `Rc<PartitionLog<D>>`. It never spawns, asks no clock and draws no
//! random number: `now` and a source of numbers come in. No state is borrowed while a step on the disk is awaited.
//!
//! The shard's duties: run [`commit_round`](round::commit_round) while anything is pending, one at a time;
//! [`PartitionLog::prepare_next`] in a task of its own when [`PartitionLog::needs_preparation`];
//! [`PartitionLog::push_frontier`] when [`PartitionLog::needs_frontier`]; [`PartitionLog::close`] at the end.

use std::cell::RefCell;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::{CommitTime, Lineage, Offset, OriginId};
use tailwater_wire::message::ProducerKey;

use crate::dedup::verdict::{Opened, OriginWatermark};
use crate::disk::device::{Disk, DiskError, DiskErrorKind};
use crate::disk::latch::{LatchStep, Latched};
use crate::error::{AppendError, CommitError, ProducerError};
use crate::group_commit::Take;
use crate::log::options::{Appended, LogIdentity};
use crate::log::state::LogState;
use crate::log::waiters::{Wait, Waiters};
use crate::proof::EpochGone;
use crate::segment::scan::origin_mark;
use crate::tail_cache::CacheSlot;

pub mod options;

mod opens;
mod segments;
mod state;
mod waiters;

mod open;
mod recover;

mod read;
mod retain;
mod roll;

pub mod era;

pub mod round;

/// See the module.
pub struct PartitionLog<D: Disk> {
    disk: D,
    dir: PathBuf,
    identity: LogIdentity,
    random: Rc<dyn Fn() -> u64>,
    cache_slot: CacheSlot,
    state: RefCell<LogState<D::File>>,
    /// Of the high-water mark.
    committed: Waiters,
    /// Of the flushed frontier.
    flushed: Waiters,
    /// Of the opens that are on the disk, by their numbers.
    opened: Waiters,
    /// Of the end of the round under way.
    round_ends: Waiters,
}

impl<D: Disk> PartitionLog<D> {
    /// Takes one whole batch: assigns its offsets and commit time and queues it for the next round. Never waits.
    ///
    /// `view` is `bytes`, parsed and thereby verified, and `bytes` is exactly that batch, padding included; they are
    /// kept, not copied, until the round. `origin_floor` is the attach offset of an origin's link: the watermark of an
    /// origin that has none here. Ask [`committed`](Self::committed) before acknowledging.
    ///
    /// # Errors
    /// [`AppendError`]; nothing was taken then.
    pub fn append(
        &self,
        bytes: Bytes,
        view: &BatchView<'_>,
        now: CommitTime,
        origin_floor: Option<Offset>,
    ) -> Result<Appended, AppendError> {
        debug_assert_eq!(view.bytes(), &bytes[..]);
        let mut state = self.state.borrow_mut();
        state.append(bytes, view.header(), origin_mark(view), now, origin_floor)
    }

    /// Waits until the high-water mark is at least `end`.
    ///
    /// It counts from this call, not from the first poll: call it in the same breath as `append`, without an await in
    /// between, because a pending batch that is taken back (disk full) frees its offsets for others.
    ///
    /// # Errors
    /// [`CommitError`]: what is known about the records instead.
    pub fn committed(&self, end: Offset) -> impl Future<Output = Result<(), CommitError>> + use<D> {
        let state = self.state.borrow();
        if state.high_water_mark() >= end {
            Wait::Ended(Some(Ok(())))
        } else if let Err(latched) = state.latch.check() {
            Wait::Ended(Some(Err(CommitError::OutcomeUnknown(latched))))
        } else if state.closed || end > state.next_offset {
            Wait::Ended(Some(Err(CommitError::Closed)))
        } else {
            self.committed.wait(end)
        }
    }

    /// Waits until something behind `offset` can be read by consumers, or until the log latches or is closed.
    pub fn beyond(&self, offset: Offset) -> impl Future<Output = ()> + use<D> {
        let at = self.state.borrow().high_water_mark();
        self.wait_beyond(&self.committed, at, offset)
    }

    /// Waits until the flushed frontier, which cursors read up to, is above `offset`, or until the log latches or is
    /// closed.
    pub fn flushed_beyond(&self, offset: Offset) -> impl Future<Output = ()> + use<D> {
        let at = self.state.borrow().flushed;
        self.wait_beyond(&self.flushed, at, offset)
    }

    fn wait_beyond(
        &self,
        waiters: &Waiters,
        at: Offset,
        offset: Offset,
    ) -> impl Future<Output = ()> + use<D> {
        let state = self.state.borrow();
        let over = at > offset || state.closed || !state.latch.is_open();
        let wait = if over {
            Wait::Ended(Some(Ok(())))
        } else {
            waiters.wait(offset.plus(1))
        };
        async move {
            // A failure ends the wait as well: the caller looks at the log again and finds out.
            let _ended = wait.await;
        }
    }

    /// What may be read: flushed, or in a `written` topic written.
    pub fn high_water_mark(&self) -> Offset {
        self.state.borrow().high_water_mark()
    }

    /// What is flushed.
    pub fn flushed(&self) -> Offset {
        self.state.borrow().flushed
    }

    /// The first offset that retention has left.
    pub fn log_start(&self) -> Offset {
        self.state.borrow().segments.log_start()
    }

    /// What the next record gets.
    pub fn next_offset(&self) -> Offset {
        self.state.borrow().next_offset
    }

    /// The history of this log's offsets.
    pub fn lineage(&self) -> Lineage {
        self.state.borrow().lineage
    }

    /// The failure that made it read-only.
    pub fn latched(&self) -> Option<Latched> {
        self.state.borrow().latch.latched().cloned()
    }

    /// No later batch gets an earlier commit time.
    pub fn last_commit_time(&self) -> CommitTime {
        self.state.borrow().last_commit_time
    }

    /// Bytes of its segments.
    pub fn size_bytes(&self) -> u64 {
        self.state.borrow().segments.bytes()
    }

    /// Bytes that wait for a round.
    pub fn pending_bytes(&self) -> u64 {
        self.state.borrow().pending_bytes
    }

    /// Whether the next round has something to do here.
    pub fn needs_round(&self) -> bool {
        self.state.borrow().next_take() != Take::Nothing
    }

    /// Topic, incarnation and partition.
    pub fn identity(&self) -> &LogIdentity {
        &self.identity
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How far an origin has come; `None` when it has written nothing here.
    pub fn origin_watermark(&self, id: OriginId) -> Option<OriginWatermark> {
        self.state.borrow().dedup.origin(id)
    }

    /// The origins that have written here.
    pub fn origins(&self) -> Vec<OriginId> {
        self.state.borrow().dedup.origins().collect()
    }

    /// Lets go of the origins of an epoch that is gone.
    pub fn forget_origins(&self, gone: &EpochGone) -> usize {
        self.state.borrow_mut().dedup.forget_origins(gone)
    }

    /// Begins or resumes a producer. The answer may be passed on when the returned wait is over: then no crash takes
    /// back that the producer is known, nor its last sequence. A producer that was not known makes the log need a round.
    ///
    /// # Errors
    /// [`ProducerError`]; nothing has changed then. The wait fails as [`committed`](Self::committed) does.
    pub fn open_producer(
        &self,
        key: &ProducerKey,
        now: CommitTime,
    ) -> Result<(Opened, impl Future<Output = Result<(), CommitError>> + use<D>), ProducerError> {
        let (opened, number) = self.state.borrow_mut().open_producer(key, now)?;
        let batch = opened.unflushed_until.map(|end| self.committed(end));
        let written_down = number.map(|number| self.opened.wait(Offset(number)));
        let wait = async move {
            if let Some(written_down) = written_down {
                written_down.await?;
            }
            match batch {
                Some(batch) => batch.await,
                None => Ok(()),
            }
        };
        Ok((opened, wait))
    }

    /// Whether the last flush is still unproved after the log has been idle for a while.
    pub fn needs_frontier(&self, now: CommitTime) -> bool {
        self.state.borrow().needs_frontier(now)
    }

    /// Lets the next round write a frontier batch, if it has nothing else to write.
    pub fn push_frontier(&self) {
        self.state.borrow_mut().frontier_wanted = true;
    }

    /// Commits what is pending, proves it with a frontier batch, and ends the log. Idempotent.
    ///
    /// # Errors
    /// What stands against it; the log is closed all the same.
    pub async fn close(self: &Rc<Self>, now: CommitTime) -> Result<(), CommitError> {
        let outcome = self.settle(now).await;
        if outcome.is_ok() {
            // So that a segment that goes missing while the node is stopped is noticed.
            self.save_indexes().await;
        }
        let prepared = {
            let mut state = self.state.borrow_mut();
            if !state.closed {
                state.closed = true;
                state.options.tail_cache.borrow_mut().leave(self.cache_slot);
            }
            state.prepared.take()
        };
        if let Some(prepared) = prepared {
            // Left behind, it would be removed when the log is next opened.
            drop(self.disk.remove_file(&prepared.path).await);
        }
        self.fail_waiters(&CommitError::Closed);
        outcome
    }

    async fn settle(self: &Rc<Self>, now: CommitTime) -> Result<(), CommitError> {
        loop {
            self.round_end().await;
            self.push_frontier();
            let (nothing_left, refused) = {
                let state = self.state.borrow();
                let refused = state.latch.check().map_err(CommitError::OutcomeUnknown);
                (state.closed || state.next_take() == Take::Nothing, refused)
            };
            refused?;
            if nothing_left {
                return Ok(());
            }
            let outcome = round::commit_round(&self.disk, std::slice::from_ref(self), now).await;
            if outcome.full > 0 {
                return Err(CommitError::DiskFull);
            }
        }
    }

    /// Waits until no round is under way: another one may have begun before this task was woken.
    async fn round_end(&self) {
        while self.state.borrow().in_round {
            // Its outcome stands in the state.
            let _ended = self.round_ends.wait(Offset::ZERO).await;
        }
    }

    /// Makes the log read-only because a flush failed that may have covered its writes although it was asked for through
    /// another file: by another partition's segment being prepared, a cursor file, another core. A drive whose flush
    /// failed may have dropped what it held for everyone, and the next flush succeeds all the same.
    pub fn latch_shared_failure(&self, reason: &DiskError) {
        self.latch(Latched {
            at: LatchStep::Flush,
            reason: reason.clone(),
        });
    }

    /// Makes the log read-only, wakes everyone who waits for it, and tells them why.
    fn latch(&self, latched: Latched) {
        let first = self
            .state
            .borrow_mut()
            .latch
            .close(latched.at, latched.reason.clone());
        if first {
            tracing::error!(topic = %self.identity.topic, partition = %self.identity.partition, "{latched}");
        }
        self.fail_waiters(&CommitError::OutcomeUnknown(latched));
    }

    /// Makes sure that a step which is dropped half-way leaves a latched log, not one that waits for its end for ever.
    fn unless_abandoned(&self, path: &Path) -> AbandonGuard<'_, D> {
        AbandonGuard {
            log: self,
            path: path.to_owned(),
            ended: false,
        }
    }

    fn end_round(&self) {
        self.state.borrow_mut().in_round = false;
        self.round_ends.reached(Offset::ZERO);
    }

    fn fail_waiters(&self, error: &CommitError) {
        self.committed.fail(error);
        self.flushed.fail(error);
        self.opened.fail(error);
    }
}

/// Latches the log when it is dropped before its step ended: what that step did to the disk is unknown then.
struct AbandonGuard<'a, D: Disk> {
    log: &'a PartitionLog<D>,
    path: PathBuf,
    ended: bool,
}

impl<D: Disk> AbandonGuard<'_, D> {
    fn end(mut self) {
        self.ended = true;
    }
}

impl<D: Disk> Drop for AbandonGuard<'_, D> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.log.latch(Latched {
            at: LatchStep::Write,
            reason: DiskError {
                op: "write",
                path: std::mem::take(&mut self.path),
                kind: DiskErrorKind::Io,
                detail: "abandoned half-way".into(),
            },
        });
        self.log.end_round();
    }
}
