//! What a cursor does about its parent partition: slabs, drop-behind, and reads that fail.

use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};

use crate::fanout::batch::{ChildBatch, Cut};
use crate::fanout::cursor::lane::{RETRY_NANOS, after};
use crate::fanout::cursor::message::{Action, RequestId, Slab, StallReason};
use crate::fanout::cursor::state::{Cursor, LaneName, Life};
use crate::fanout::delay_gate::{self, Gate};

impl Cursor {
    pub(super) fn on_slab(&mut self, slab: Slab, cut: Cut, now: CommitTime, out: &mut Vec<Action>) {
        let Some((name, reading)) = self.answered(slab.request) else {
            return;
        };
        if self.life != Life::Running {
            return;
        }
        assert!(slab.next >= reading.from, "a read goes forward");
        let gate = slab
            .next_commit
            .map(|commit| delay_gate::decide(self.config.delay, now, self.gate_held, commit));
        let lane = self.lane(name);
        lane.full = slab.full;
        lane.gather_until = None;
        lane.not_before = match gate {
            Some(Gate::SleepUntil(due)) => due,
            // Below the front everything was readable once: an empty answer is no reason to ask at once again.
            _ if name == LaneName::Behind && slab.next == reading.from => after(now, RETRY_NANOS),
            _ => CommitTime::default(),
        };
        self.parent_goes_on(out);
        self.probe.filtered += cut.filtered;
        if slab.next > self.gate {
            self.counted_to = self.counted_to.max(slab.next);
        }
        if name == LaneName::Level {
            self.front = self.front.max(Some(slab.next));
            self.next_due = slab.next_commit.map(|commit| commit.plus(self.config.delay));
        }
        self.reads_served += 1;
        let mut took = Vec::with_capacity(cut.parts.len());
        for part in cut.parts {
            let index = part.take.bucket.0 as usize;
            let Some(bucket) = self.buckets.get_mut(index) else {
                continue;
            };
            let notices: Vec<Action> = part
                .batches
                .iter()
                .filter_map(notice_of(part.take.bucket))
                .collect();
            if bucket.took(part, slab.next) {
                out.extend(notices);
                bucket.served = self.reads_served;
                took.push(index);
                self.positioned(index, now);
            }
        }
        self.recount();
        for index in took {
            if !self.buckets[index].has_queue() && !self.buckets[index].has_unanswered() {
                self.goes_on(index, out);
            }
            self.ship(index, now, out);
        }
    }

    pub(super) fn on_ahead(&mut self, request: RequestId, high_water_mark: Offset, out: &mut Vec<Action>) {
        if let Some((_, reading)) = self.answered(request) {
            self.halt(
                StallReason::PositionAhead {
                    position: reading.from,
                    high_water_mark,
                },
                out,
            );
        }
    }

    pub(super) fn on_read_failed(
        &mut self,
        request: RequestId,
        code: ErrorCode,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let Some((name, _)) = self.answered(request) else {
            return;
        };
        self.lane(name).not_before = after(now, RETRY_NANOS);
        let reason = StallReason::Parent(code);
        if self.parent_stall != Some(reason) {
            self.probe.stalls += u64::from(self.parent_stall.is_none());
            self.parent_stall = Some(reason);
            out.push(Action::Stall { bucket: None, reason });
        }
    }

    pub(super) fn parent_goes_on(&mut self, out: &mut Vec<Action>) {
        if self.parent_stall.take().is_some() {
            out.push(Action::Unstall { bucket: None });
        }
    }

    /// Stands still for good: no reads, no new commits.
    pub(super) fn halt(&mut self, reason: StallReason, out: &mut Vec<Action>) {
        if self.life == Life::Running {
            self.life = Life::Halted(reason);
            self.probe.stalls += 1;
            out.push(Action::Stall { bucket: None, reason });
        }
    }
}

/// What is to be logged of a batch that says that damaged records were passed.
fn notice_of(bucket: PartitionId) -> impl Fn(&ChildBatch) -> Option<Action> {
    move |batch| {
        (batch.dropped > 0).then_some(Action::Dropped {
            bucket,
            from: batch.previous,
            to: batch.end,
            records: batch.dropped,
            at_most: false,
        })
    }
}
