//! What a cursor does about its child partitions: watermarks, acknowledgements, refusals and doubt.

use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};

use crate::fanout::cursor::bucket::{Phase, Word};
use crate::fanout::cursor::lane::{RETRY_NANOS, after};
use crate::fanout::cursor::message::{Action, ParentVerdict, RequestId, StallReason};
use crate::fanout::cursor::receipt::Receipt;
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
        let floor = self.floor;
        let word = self.buckets[index].told(watermark, floor);
        self.probe.committed += self.buckets[index].resolve();
        self.positioned(index, now);
        match word {
            Word::Regressed { acknowledged } => self.regressed(index, acknowledged, watermark, out),
            Word::Further => self.verify(index, mark, out),
            Word::Known => self.opened(index, out),
        }
        self.recount();
    }

    pub(super) fn verify(&mut self, index: usize, mark: Option<OriginMark>, out: &mut Vec<Action>) {
        let offset = Offset(self.buckets[index].watermark().0.saturating_sub(1));
        if mark.is_some_and(|mark| mark.lineage != self.config.lineage) {
            self.buckets[index].phase = Phase::Halted;
            self.halt(StallReason::Diverged { offset }, out);
            return;
        }
        let request = self.request();
        match self.buckets[index].verify(request, mark) {
            Some((offset, mark)) => out.push(Action::VerifyParent {
                request,
                bucket: self.buckets[index].partition,
                offset,
                mark,
            }),
            None => self.opened(index, out),
        }
    }

    pub(super) fn on_verified(
        &mut self,
        request: RequestId,
        partition: PartitionId,
        verdict: ParentVerdict,
        out: &mut Vec<Action>,
    ) {
        let index = partition.0 as usize;
        if self.buckets.get(index).map(|bucket| bucket.phase) != Some(Phase::Verifying(request)) {
            return;
        }
        match verdict {
            ParentVerdict::Same | ParentVerdict::Gone => self.opened(index, out),
            ParentVerdict::Differs => {
                let offset = Offset(self.buckets[index].watermark().0.saturating_sub(1));
                self.buckets[index].phase = Phase::Halted;
                self.halt(StallReason::Diverged { offset }, out);
            }
        }
        self.recount();
    }

    pub(super) fn opened(&mut self, index: usize, out: &mut Vec<Action>) {
        self.buckets[index].phase = Phase::Open;
        // What stalled it may be the commit, not the asking: it goes on once a commit shows that, or when there is none.
        if self
            .front
            .is_some_and(|front| self.buckets[index].read_to() >= front)
        {
            self.goes_on(index, out);
        }
    }

    pub(super) fn on_acked(
        &mut self,
        request: RequestId,
        partition: PartitionId,
        receipt: &Receipt,
        duplicate: bool,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let index = partition.0 as usize;
        let Some(bucket) = self.buckets.get_mut(index) else {
            return;
        };
        let Some(sent) = bucket.sent(request) else {
            return;
        };
        self.census.leave(bucket, self.front);
        let covered = bucket.acked(receipt);
        self.census.join(bucket, self.front);
        if !covered {
            self.fail(index, ErrorCode::Internal, now, out);
            return;
        }
        if duplicate {
            self.probe.duplicates += u64::from(sent.records);
        } else {
            self.probe.committed += u64::from(sent.records);
        }
        self.positioned(index, now);
        self.goes_on(index, out);
        if self.life == Life::Running {
            self.ship(index, now, out);
        }
    }

    pub(super) fn on_expected(
        &mut self,
        request: RequestId,
        partition: PartitionId,
        watermark: Offset,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let index = partition.0 as usize;
        let Some(sent) = self.buckets.get(index).and_then(|bucket| bucket.sent(request)) else {
            return;
        };
        if watermark == sent.end {
            // The batch is there; its acknowledgement was lost. What waits behind it still follows.
            let receipt = Receipt::flushed(watermark);
            self.on_acked(request, partition, &receipt, true, now, out);
            return;
        }
        let floor = self.floor;
        let word = self.buckets[index].told(watermark, floor);
        self.positioned(index, now);
        match word {
            Word::Regressed { acknowledged } => self.regressed(index, acknowledged, watermark, out),
            // A child that refuses what follows its own watermark: as any other refusal.
            Word::Known => self.fail(index, ErrorCode::Internal, now, out),
            Word::Further if watermark > sent.end => self.probe.duplicates += u64::from(sent.records),
            Word::Further => {}
        }
        self.recount();
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
        let Some(bucket) = self.buckets.get(index) else {
            return;
        };
        let current = match bucket.phase {
            Phase::Opening(asked) | Phase::Verifying(asked) => asked == request,
            Phase::Open | Phase::Halted => bucket.sent(request).is_some(),
            Phase::Closed { .. } => false,
        };
        if current {
            self.fail(index, code, now, out);
        }
    }

    /// The bucket is in doubt: it is asked for its watermark again after a second, and reads again above it.
    pub(super) fn fail(&mut self, index: usize, code: ErrorCode, now: CommitTime, out: &mut Vec<Action>) {
        let bucket = &mut self.buckets[index];
        bucket.doubt();
        bucket.phase = Phase::Closed {
            retry_at: after(now, RETRY_NANOS),
        };
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
