//! One group commit over the partitions of a shard: the driver of `group_commit`.

use std::rc::Rc;
use std::time::Duration;

use tailwater_wire::ids::{CommitTime, Offset};
use tailwater_wire::mutant::{Mutant, planted};

use crate::disk::device::{Disk, DiskError, DiskResult, File, FlushScope, WriteOp};
use crate::disk::flush_watch::FlushWatch;
use crate::disk::latch::{LatchStep, Latched};
use crate::error::CommitError;
use crate::group_commit::{Fate, fates};
use crate::log::state::Taken;
use crate::log::{AbandonGuard, PartitionLog};
use crate::segment::appender::pack;
use crate::tail_cache::CachedChunk;

/// What a round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundOutcome {
    /// Partitions whose chunk was written and flushed.
    pub partitions: usize,
    /// Partitions that latched.
    pub latched: usize,
    /// Partitions whose pending batches were taken back because the disk is full.
    pub full: usize,
    /// Segments begun.
    pub rolled: usize,
    /// Batches with records that were committed.
    pub batches: u64,
    /// Records that were committed.
    pub records: u64,
    /// Bytes written, padding not counted.
    pub bytes: u64,
    /// How long beginning segments took.
    pub roll_time: Duration,
    /// How long the writes took, packing included.
    pub write_time: Duration,
    /// How long the flush took.
    pub flush_time: Duration,
}

/// One log's part of a round.
struct Part<'a, D: Disk> {
    log: &'a Rc<PartitionLog<D>>,
    taken: Taken,
    chunk: <D::File as File>::Shared,
    guard: AbandonGuard<'a, D>,
}

/// Commits what is pending in these logs (up to 1 MiB of each): begins segments where needed, one after another (see
/// [`PartitionLog::roll_if_needed`], which does it beforehand and beside the rounds of others), writes all chunks at once,
/// flushes once (or each file, where a flush covers no more: `Disk::flush_scope`), publishes the new frontiers, wakes who
/// waits. One round of a log runs at a time; a log that is in another round is passed over. All logs lie on `disk`'s one
/// filesystem.
///
/// To be awaited to its end: dropping it half-way latches the logs it covers.
pub async fn commit_round<D: Disk>(disk: &D, logs: &[Rc<PartitionLog<D>>], now: CommitTime) -> RoundOutcome {
    commit_round_timed(disk, logs, now, &|| Duration::ZERO).await
}

/// [`commit_round`], with its steps timed by a monotonic clock.
pub async fn commit_round_timed<D: Disk>(
    disk: &D,
    logs: &[Rc<PartitionLog<D>>],
    now: CommitTime,
    clock: &dyn Fn() -> Duration,
) -> RoundOutcome {
    let mut outcome = RoundOutcome::default();
    let begun = clock();
    for log in logs {
        match log.roll_if_needed(now).await {
            None => {}
            Some(Ok(())) => outcome.rolled += 1,
            Some(Err(CommitError::DiskFull)) => outcome.full += 1,
            Some(Err(_)) => outcome.latched += 1,
        }
    }
    let rolled = clock();
    outcome.roll_time = rolled.saturating_sub(begun);
    let parts: Vec<Part<'_, D>> = logs.iter().filter_map(part).collect();
    if parts.is_empty() {
        return outcome;
    }
    let watch = FlushWatch::begin(disk);
    let writes = disk.write_many(parts.iter().map(write_op::<D>).collect()).await;
    let written = clock();
    outcome.write_time = written.saturating_sub(rolled);
    for (part, write) in parts.iter().zip(&writes) {
        if write.is_ok() {
            part.log.publish_written(&part.taken);
        }
    }
    let written_logs: Vec<_> = parts
        .iter()
        .zip(&writes)
        .filter(|(_, write)| write.is_ok())
        .map(|(part, _)| part.log)
        .collect();
    let flush = match written_logs.first() {
        Some(log) => Some(
            flush(disk, &written_logs)
                .await
                .and_then(|()| watch.check(disk, &log.dir)),
        ),
        None => None,
    };
    let flush = match flush {
        Some(Err(_)) if planted(Mutant::RetryFailedFlush) => Some(self::flush(disk, &written_logs).await),
        flush => flush,
    };
    outcome.flush_time = clock().saturating_sub(written);
    for (part, fate) in parts.into_iter().zip(fates(writes, flush)) {
        part.guard.end();
        match fate {
            Fate::Flushed => {
                outcome.partitions += 1;
                outcome.records += part.taken.records;
                outcome.bytes += part.taken.bytes;
                if part.taken.records > 0 {
                    outcome.batches += part.taken.batches.len() as u64;
                }
                part.log.publish_flushed(&part.taken, D::File::bytes(&part.chunk));
            }
            Fate::Unknown(latched) => {
                outcome.latched += 1;
                part.log.latch(latched);
                part.log.end_round();
            }
        }
    }
    outcome
}

/// Makes what was written to these logs durable. One failure is everyone's, also where each file is flushed by itself: it
/// may be the device's, and then the other flushes succeeded over what is gone.
async fn flush<D: Disk>(disk: &D, logs: &[&Rc<PartitionLog<D>>]) -> DiskResult<()> {
    let wanted = match disk.flush_scope() {
        FlushScope::Device => 1, // through any file that was written to
        FlushScope::File => logs.len(),
    };
    let files: Vec<D::File> = logs.iter().take(wanted).map(|log| log.active_file()).collect();
    // A flush begins with its call, so these run at the same time; each is awaited, whatever became of the others.
    let flushes: Vec<_> = files.iter().map(File::sync).collect();
    let mut result = Ok(());
    for flush in flushes {
        result = result.and(flush.await);
    }
    result
}

fn part<D: Disk>(log: &Rc<PartitionLog<D>>) -> Option<Part<'_, D>> {
    let mut state = log.state.borrow_mut();
    let mut taken = state.take()?;
    let chunk = pack(&state.segments.active.file, &mut taken.batches, taken.stamp);
    Some(Part {
        log,
        taken,
        chunk,
        guard: log.unless_abandoned(&log.dir),
    })
}

fn write_op<D: Disk>(part: &Part<'_, D>) -> WriteOp<D::File> {
    WriteOp {
        file: part.log.active_file(),
        position: part.taken.position,
        buf: part.chunk.clone(),
    }
}

impl<D: Disk> PartitionLog<D> {
    fn active_file(&self) -> D::File {
        self.state.borrow().segments.active.file.clone()
    }

    fn publish_written(&self, taken: &Taken) {
        let high_water_mark = {
            let mut state = self.state.borrow_mut();
            state.written(taken);
            state.high_water_mark()
        };
        if planted(Mutant::AcknowledgeBeforeFlush) {
            self.committed.reached(taken.end);
        }
        self.committed.reached(high_water_mark);
    }

    fn publish_flushed(&self, taken: &Taken, chunk: bytes::Bytes) {
        let (high_water_mark, flushed) = {
            let mut state = self.state.borrow_mut();
            let base = state.flushed;
            state.flushed(taken);
            if taken.records > 0 {
                let cached = CachedChunk {
                    base,
                    end: taken.end,
                    bytes: chunk.slice(..taken.bytes as usize),
                };
                let cache = state.options.tail_cache.clone();
                cache.borrow_mut().push(self.cache_slot, cached);
            }
            (state.high_water_mark(), state.flushed)
        };
        self.committed.reached(high_water_mark);
        self.flushed.reached(flushed);
        if let Some(number) = taken.opened {
            self.opened.reached(Offset(number));
        }
        self.end_round();
    }

    /// Whether a failure to make room is one of space alone; anything else latches.
    pub(super) fn refuse_room(&self, reason: DiskError, at: LatchStep) -> CommitError {
        if crate::error::is_full(&reason) {
            self.state.borrow_mut().full = true;
            return CommitError::DiskFull;
        }
        let latched = Latched { at, reason };
        self.latch(latched.clone());
        CommitError::OutcomeUnknown(latched)
    }
}
