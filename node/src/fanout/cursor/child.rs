//! What a cursor does about its child partitions: watermarks, acknowledgements, refusals and doubt.

use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};

use crate::fanout::cursor::bucket::{Counted, Outcome, Phase, Refused, Word};
use crate::fanout::cursor::lane::{RETRY_NANOS, after};
use crate::fanout::cursor::message::{Action, ParentVerdict, RequestId, StallReason};
use crate::fanout::cursor::state::{Cursor, EpochState, Life};

impl Cursor {
    pub(super) fn on_opened(
        &mut self,
        request: RequestId,
        partition: PartitionId,
        watermark: Offset,
        mark: Option<OriginMark>,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let index = partition.0 as usize;
        if self.buckets.get(index).map(|bucket| bucket.phase) != Some(Phase::Opening(request)) {
            return;
        }
        let word = self.buckets[index].told(watermark);
        let resolved = self.buckets[index].resolve();
        self.count(resolved);
        self.positioned(index, now);
        match word {
            Word::Regressed { acknowledged } => self.regressed(index, acknowledged, watermark, out),
            Word::Further => self.verify(index, mark, now, out),
            Word::Known => self.opened(index, now, out),
        }
        self.recount();
        self.ship_notice(index, now, out);
    }

    /// Compares the parent's log with what the child remembers of it. Also under another lineage than the parent has
    /// now: a `written` parent gets a new one with every crash, and has kept what was copied, because a cursor reads
    /// what is flushed (SPEC.md D11, D12). So the lineage alone proves neither, and the record decides.
    pub(super) fn verify(
        &mut self,
        index: usize,
        mark: Option<OriginMark>,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        // Behind a notice of dropped records there is no parent batch to compare with: its mark has no time. In one
        // history that is no doubt. Under a new one nothing is left to show, also while the records that the notice
        // speaks of are still there.
        let is_notice = |mark: &OriginMark| mark.parent_commit_time == CommitTime::default();
        if mark.is_some_and(|mark| is_notice(&mark) && mark.lineage != self.config.lineage) {
            let offset = self.buckets[index].copied_last();
            return self.stands(index, StallReason::Unproved { offset }, out);
        }
        let mark = mark.filter(|mark| !is_notice(mark));
        let request = self.request();
        match self.buckets[index].verify(request, mark) {
            Some((offset, mark)) => out.push(Action::VerifyParent {
                request,
                bucket: self.buckets[index].partition,
                offset,
                mark,
            }),
            None => self.opened(index, now, out),
        }
    }

    pub(super) fn on_verified(
        &mut self,
        request: RequestId,
        partition: PartitionId,
        verdict: ParentVerdict,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let index = partition.0 as usize;
        let phase = self.buckets.get(index).map(|bucket| bucket.phase);
        let Some(Phase::Verifying { lineage, .. }) = phase.filter(|phase| phase.asked() == Some(request))
        else {
            return;
        };
        let offset = self.buckets[index].copied_last();
        match verdict {
            ParentVerdict::Same => self.opened(index, now, out),
            // In one history an offset is given once: what is gone was what was copied.
            ParentVerdict::Gone if lineage == self.config.lineage => self.opened(index, now, out),
            // Nothing is left to show that the new history goes on from what was copied, and nothing is guessed.
            ParentVerdict::Gone => self.stands(index, StallReason::Unproved { offset }, out),
            ParentVerdict::Differs => self.stands(index, StallReason::Diverged { offset }, out),
        }
        self.recount();
        self.ship_notice(index, now, out);
    }

    fn stands(&mut self, index: usize, reason: StallReason, out: &mut Vec<Action>) {
        self.buckets[index].phase = Phase::Halted;
        self.halt(reason, out);
    }

    /// Sends what a bucket that has just opened passed with a notice.
    fn ship_notice(&mut self, index: usize, now: CommitTime, out: &mut Vec<Action>) {
        if self.life == Life::Running {
            self.ship(index, now, out);
        }
    }

    /// The bucket takes records from here on; what is gone by now it passes first.
    pub(super) fn opened(&mut self, index: usize, now: CommitTime, out: &mut Vec<Action>) {
        self.buckets[index].phase = Phase::Open;
        self.pass_gone(index, now, out);
        // What stalled it may be the commit, not the asking: it goes on once a commit shows that, or when there is none.
        if self
            .front
            .is_some_and(|front| self.buckets[index].read_to() >= front)
        {
            self.goes_on(index, out);
        }
    }

    /// A batch was answered; what that means shows when everything before it was answered too.
    pub(super) fn on_answered(
        &mut self,
        request: RequestId,
        partition: PartitionId,
        outcome: Outcome,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let index = partition.0 as usize;
        let Some(bucket) = self.buckets.get_mut(index) else {
            return;
        };
        self.census.leave(bucket, self.front);
        let expected = bucket.answered(request, outcome);
        let (passed, refused) = bucket.pass();
        self.census.join(bucket, self.front);
        if !expected {
            return;
        }
        if let Some(counted) = passed {
            self.count(counted);
            self.positioned(index, now);
            self.goes_on(index, out);
        }
        match refused {
            Some(Refused::Failed(code)) => self.fail(index, code, now, out),
            Some(Refused::AskAgain) => {
                self.buckets[index].doubt(now);
                self.recount();
            }
            None if self.life == Life::Running => self.ship(index, now, out),
            None => {}
        }
    }

    fn count(&mut self, counted: Counted) {
        self.probe.committed += counted.committed;
        self.probe.duplicates += counted.repeated;
        self.probe.dropped += counted.dropped;
    }

    pub(super) fn on_failed(
        &mut self,
        request: RequestId,
        partition: PartitionId,
        code: ErrorCode,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let index = partition.0 as usize;
        let asked = self.buckets.get(index).and_then(|bucket| bucket.phase.asked());
        if asked == Some(request) {
            self.fail(index, code, now, out);
        } else {
            self.on_answered(request, partition, Outcome::Failed(code), now, out);
        }
    }

    /// The bucket is in doubt: it is asked for its watermark again after a second, once everything that was sent is
    /// answered, and reads again above it.
    pub(super) fn fail(&mut self, index: usize, code: ErrorCode, now: CommitTime, out: &mut Vec<Action>) {
        self.buckets[index].doubt(after(now, RETRY_NANOS));
        self.stalls(index, StallReason::Child(code), out);
        if code == ErrorCode::StaleEpoch && self.epoch == EpochState::Sure {
            self.epoch = EpochState::AskAt(now);
        }
        self.recount();
    }

    pub(super) fn regressed(
        &mut self,
        index: usize,
        acknowledged: Offset,
        watermark: Offset,
        out: &mut Vec<Action>,
    ) {
        self.buckets[index].phase = Phase::Halted;
        self.stalls(
            index,
            StallReason::ChildRegressed {
                acknowledged,
                watermark,
            },
            out,
        );
    }

    pub(super) fn stalls(&mut self, index: usize, reason: StallReason, out: &mut Vec<Action>) {
        let bucket = &mut self.buckets[index];
        if bucket.stall != Some(reason) {
            self.probe.stalls += u64::from(bucket.stall.is_none());
            bucket.stall = Some(reason);
            out.push(Action::Stall {
                bucket: Some(bucket.partition),
                reason,
            });
        }
    }

    pub(super) fn goes_on(&mut self, index: usize, out: &mut Vec<Action>) {
        let bucket = &mut self.buckets[index];
        if bucket.stall.take().is_some() {
            out.push(Action::Unstall {
                bucket: Some(bucket.partition),
            });
        }
    }
}
