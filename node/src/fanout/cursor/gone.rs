//! What a cursor does about parent records that are gone, or about to go, before it has copied them (SPEC.md F9).
//!
//! Retention asks first ([`Cursor::doom`]): from then on nothing below is read, until the cursor hears that what its
//! child partitions lose is counted and stored, or that it is spared. A count that is stored stands, also when the
//! segments are still there after a crash: everything below is passed by notices, one for each child partition that
//! lost something, in the chain of its other batches.

use tailwater_storage::gaps::Gaps;
use tailwater_wire::batch::builder::OriginStamp;
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::ids::{CommitTime, Offset};
use tailwater_wire::message::BucketStatus;
use tailwater_wire::partitioner::Partitioner;

use crate::fanout::batch::ChildBatch;
use crate::fanout::cursor::bucket::Bucket;
use crate::fanout::cursor::lane::{RETRY_NANOS, after};
use crate::fanout::cursor::message::{Action, RequestId};
use crate::fanout::cursor::state::{Cursor, Life};
use crate::fanout::gaps::{self, Doomed};
use crate::fanout::rekey::Rekey;

impl Cursor {
    /// Retention is about to remove everything below `to`: where the child partitions stand. Unless all have passed it,
    /// they take nothing from below until an [`Accounted`](super::message::Event::Accounted) or
    /// [`Spared`](super::message::Event::Spared) is stepped. `None` when the cursor is ending: nothing can be
    /// said before it has ended.
    #[must_use]
    pub fn doom(&mut self, to: Offset) -> Option<Doomed> {
        if !matches!(self.life, Life::Running | Life::Halted(_)) {
            return None;
        }
        let doomed = Doomed {
            to,
            // Also where a bucket will be that has yet to pass what is gone already.
            buckets: self
                .buckets
                .iter()
                .map(|bucket| bucket.standing(self.floor))
                .collect(),
            counted_to: self.counted_to,
        };
        if !doomed.is_passed() {
            self.gate = to;
            self.buckets.iter_mut().for_each(|bucket| bucket.gate = to);
            self.recount();
        }
        Some(doomed)
    }

    pub(super) fn on_spared(&mut self) {
        self.gate = Offset::ZERO;
        self.buckets
            .iter_mut()
            .for_each(|bucket| bucket.gate = Offset::ZERO);
        self.recount();
    }

    pub(super) fn on_accounted(&mut self, gaps: Gaps, filtered: u64, now: CommitTime, out: &mut Vec<Action>) {
        self.on_spared();
        self.probe.filtered += filtered;
        self.pass_floor(gaps, Offset::ZERO, now, out);
    }

    pub(super) fn on_behind(
        &mut self,
        request: RequestId,
        log_start: Offset,
        gaps: Gaps,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let Some((name, reading)) = self.answered(request) else {
            return;
        };
        if log_start <= reading.from {
            // The read contradicts itself; trying again at once would spin.
            self.lane(name).not_before = after(now, RETRY_NANOS);
            return;
        }
        self.pass_floor(gaps, log_start, now, out);
    }

    /// Takes a newer ledger over: everything below it, and below `log_start`, is gone.
    fn pass_floor(&mut self, gaps: Gaps, log_start: Offset, now: CommitTime, out: &mut Vec<Action>) {
        self.floor = self.floor.max(gaps.through).max(log_start);
        self.gaps = gaps;
        self.counted_to = self.counted_to.max(self.floor);
        if !matches!(self.life, Life::Running | Life::Halted(_)) {
            return;
        }
        self.front = self.front.map(|front| front.max(self.floor));
        for index in 0..self.buckets.len() {
            self.pass_gone(index, now, out);
        }
        self.recount();
        if self.life == Life::Running {
            for index in 0..self.buckets.len() {
                self.ship(index, now, out);
            }
        }
    }

    /// A bucket that is open passes what is gone, with a notice of what it lost. The census is not kept up.
    pub(super) fn pass_gone(&mut self, index: usize, now: CommitTime, out: &mut Vec<Action>) {
        let (bucket, floor) = (&mut self.buckets[index], self.floor);
        if !bucket.is_open() || bucket.read_to() >= floor {
            return;
        }
        let (partition, from, to) = (bucket.partition, bucket.read_to(), floor);
        let rekey = Rekey {
            partitioner: Partitioner::Murmur2,
            partitions: self.config.child_partitions,
            parent: self.config.origin.partition,
        };
        let lost = gaps::lost(&self.gaps, &rekey, partition, from, to);
        let from = lost.from.unwrap_or(from);
        let dropped = Dropped {
            from,
            to,
            records: lost.records,
            filtered: lost.filtered,
        };
        let stamp = OriginStamp {
            released_at: now.0,
            lineage: self.config.lineage.as_u64(),
            ..OriginStamp::default()
        };
        let origin = self.config.origin;
        bucket.lose(to, |previous| {
            (lost.records > 0).then(|| ChildBatch::notice(&dropped, origin, previous, stamp))
        });
        if lost.records > 0 {
            out.push(Action::Dropped {
                bucket: partition,
                from,
                to,
                records: lost.records,
                at_most: lost.at_most,
            });
        }
        self.positioned(index, now);
    }

    /// What each child partition knows.
    #[must_use]
    pub fn progress(&self) -> Vec<BucketStatus> {
        let of = |bucket: &Bucket| BucketStatus {
            partition: bucket.partition,
            position: bucket.position(),
            committed: bucket.committed,
            dropped: bucket.dropped,
            stalled: bucket.stall.map(|reason| reason.to_string()),
        };
        self.buckets.iter().map(of).collect()
    }
}
