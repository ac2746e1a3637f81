//! The cursor's state, and what each event does to it.
//!
//! Lives on the core that owns the parent partition. A bucket is one child partition; all buckets whose read position
//! is at or above `front` are level and are served by one shared read; the others catch up by reads of their own. The
//! cursor holds no bytes but the batches that are on their way, and no clock: `now` is the owner's clock.

use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Delay, Lineage, Offset, OriginId, PartitionId};
use tailwater_wire::limits::{FANOUT_BATCH_BYTES, FANOUT_BATCH_RECORDS};

use crate::fanout::batch::{Cut, CutPlan};
use crate::fanout::cursor::bucket::{Bucket, Persist, Phase, Receipt, Word};
use crate::fanout::cursor::census::Census;
use crate::fanout::cursor::lane::{Lane, RETRY_NANOS, Reading, after};
use crate::fanout::cursor::message::{
    Action, EpochVerdict, Event, ParentTail, ParentVerdict, RequestId, Slab, StallReason,
};
use crate::fanout::delay_gate::{self, Gate};
use crate::fanout::probe::Probe;

/// What a cursor is made with; nothing of it changes while it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorConfig {
    /// The link's epoch and the parent partition.
    pub origin: OriginId,
    /// The parent partition's lineage.
    pub lineage: Lineage,
    /// The child's partitions: buckets 0 to this.
    pub child_partitions: u32,
    /// Where the anchor decision put it.
    pub start: Offset,
    /// What the cursor file of this epoch holds, if there is one.
    pub stored: Option<Offset>,
    /// How long records are held back.
    pub delay: Delay,
    /// A fixed time to gather before each commit, in milliseconds; without one records gather only while a commit is
    /// in flight.
    pub linger_millis: Option<u64>,
    /// Records of a slab.
    pub slab_records_max: usize,
    /// Bytes of a slab.
    pub slab_bytes_max: usize,
}

impl CursorConfig {
    /// With the default bounds, without delay and fixed linger, and without a file.
    #[must_use]
    pub fn new(origin: OriginId, lineage: Lineage, child_partitions: u32, start: Offset) -> CursorConfig {
        CursorConfig {
            origin,
            lineage,
            child_partitions,
            start,
            stored: None,
            delay: Delay::NONE,
            linger_millis: None,
            slab_records_max: FANOUT_BATCH_RECORDS,
            slab_bytes_max: FANOUT_BATCH_BYTES,
        }
    }
}

/// Where the cursor is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    /// Until an operator decides: no reads, no commits.
    Halted(StallReason),
    /// What is in flight settles; then the position is stored, unless the epoch is dead.
    Stopping {
        persist: bool,
    },
    /// Waiting for the last position to be stored.
    Storing(Offset),
    Stopped,
}

/// What is known of the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EpochState {
    Sure,
    Asking,
    AskAt(CommitTime),
}

/// Which lane a read belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneName {
    Level,
    Behind,
}

/// See the module.
#[derive(Debug)]
pub struct Cursor {
    pub(super) config: CursorConfig,
    pub(super) life: Life,
    pub(super) epoch: EpochState,
    pub(super) buckets: Vec<Bucket>,
    /// The next shared read starts here; none until the buckets were asked for their watermarks.
    pub(super) front: Option<Offset>,
    pub(super) level: Lane,
    pub(super) behind: Lane,
    pub(super) census: Census,
    pub(super) created_at: CommitTime,
    pub(super) next_request: u64,
    pub(super) reads_served: u64,
    /// Filtered and missing records below were counted.
    counted_to: Offset,
    /// Parent records below were counted as dropped, where they were.
    dropped_to: Offset,
    /// Retention took everything below, as far as is known.
    floor: Offset,
    parent_stall: Option<StallReason>,
    next_due: Option<CommitTime>,
    pub(super) stored: Option<Offset>,
    unsaved_since: Option<CommitTime>,
    pub(super) probe: Probe,
}

impl Cursor {
    /// A cursor that has asked for nothing yet: the first `Tick` sets it going.
    ///
    /// # Panics
    /// Without child partitions.
    #[must_use]
    pub fn new(config: CursorConfig, now: CommitTime) -> Cursor {
        assert!(config.child_partitions > 0, "a topic has partitions");
        let bucket = |n| Bucket::new(PartitionId(n), config.start, now);
        let buckets: Vec<Bucket> = (0..config.child_partitions).map(bucket).collect();
        Cursor {
            life: Life::Running,
            epoch: EpochState::Sure,
            census: Census::of(&buckets, None),
            buckets,
            front: None,
            level: Lane::default(),
            behind: Lane::default(),
            created_at: now,
            next_request: 0,
            reads_served: 0,
            counted_to: config.start,
            dropped_to: config.start,
            floor: Offset::ZERO,
            parent_stall: None,
            next_due: None,
            stored: config.stored,
            unsaved_since: None,
            probe: Probe::default(),
            config,
        }
    }

    /// Takes an event, and appends what is to be done to `out`.
    pub fn step(&mut self, event: Event, now: CommitTime, out: &mut Vec<Action>) {
        match event {
            Event::Opened {
                request,
                bucket,
                watermark,
                tail,
            } => self.on_opened(request, bucket, watermark, tail, now, out),
            Event::Verified {
                request,
                bucket,
                verdict,
            } => self.on_verified(request, bucket, verdict, out),
            Event::Slab { slab, cut } => self.on_slab(slab, cut, now, out),
            Event::Behind { request, log_start } => self.on_behind(request, log_start, now, out),
            Event::Ahead {
                request,
                high_water_mark,
            } => self.on_ahead(request, high_water_mark, out),
            Event::ReadFailed { request, code } => self.on_read_failed(request, code, now, out),
            Event::Acked {
                request,
                bucket,
                receipt,
                duplicate,
            } => self.on_acked(request, bucket, &receipt, duplicate, now, out),
            Event::Expected {
                request,
                bucket,
                watermark,
            } => self.on_expected(request, bucket, watermark, now, out),
            Event::Failed {
                request,
                bucket,
                code,
            } => self.on_failed(request, bucket, code, now, out),
            Event::Persisted(position) => self.on_persisted(position, now),
            Event::PersistFailed => {
                if let Life::Storing(_) = self.life {
                    self.stop(out);
                }
            }
            Event::Epoch(verdict) => self.on_epoch(verdict, now),
            Event::Tick => {}
            Event::Stop => match self.life {
                Life::Running => self.life = Life::Stopping { persist: true },
                // What a halted cursor knows of its position is what is in doubt.
                Life::Halted(_) => self.life = Life::Stopping { persist: false },
                Life::Stopping { .. } | Life::Storing(_) | Life::Stopped => {}
            },
        }
        self.pump(now, out);
    }

    /// How a slab that has come back is to be cut; the batches then come in as [`Event::Slab`], with no other event in
    /// between. `None`: the slab is not wanted (late, or its records are left to gather); drop it, and step a `Tick`.
    #[must_use]
    pub fn plan(&mut self, slab: &Slab, now: CommitTime) -> Option<CutPlan> {
        let (name, reading) = self.lane_of(slab.request)?;
        if self.life != Life::Running {
            return None;
        }
        assert!(slab.next >= reading.from, "a read goes forward");
        if name == LaneName::Level && self.leave_to_gather(slab, reading, now) {
            return None;
        }
        let take = |bucket: &Bucket| bucket.take(reading.from, slab.next);
        Some(CutPlan {
            origin: self.config.origin,
            lineage: self.config.lineage,
            released_at: reading.released_at,
            from: reading.from,
            next: slab.next,
            count_from: self.counted_to,
            takes: self.buckets.iter().filter_map(take).collect(),
        })
    }

    fn leave_to_gather(&mut self, slab: &Slab, reading: Reading, now: CommitTime) -> bool {
        let Some(millis) = self.config.linger_millis.filter(|&millis| millis > 0) else {
            return false;
        };
        if self.level.gather_until.is_some() || slab.full || slab.next == reading.from {
            return false;
        }
        self.level.reading = None;
        self.level.gather_until = Some(after(now, millis.saturating_mul(1_000_000)));
        true
    }

    fn lane_of(&self, request: RequestId) -> Option<(LaneName, Reading)> {
        let of = |lane: &Lane| lane.reading.filter(|reading| reading.request == request);
        let level = of(&self.level).map(|reading| (LaneName::Level, reading));
        level.or_else(|| of(&self.behind).map(|reading| (LaneName::Behind, reading)))
    }

    /// Ends the read `request`, if it is outstanding.
    fn answered(&mut self, request: RequestId) -> Option<(LaneName, Reading)> {
        let (name, reading) = self.lane_of(request)?;
        self.lane(name).reading = None;
        Some((name, reading))
    }

    pub(super) fn lane(&mut self, name: LaneName) -> &mut Lane {
        match name {
            LaneName::Level => &mut self.level,
            LaneName::Behind => &mut self.behind,
        }
    }

    // ---- the parent

    fn on_slab(&mut self, slab: Slab, cut: Cut, now: CommitTime, out: &mut Vec<Action>) {
        let Some((name, reading)) = self.answered(slab.request) else {
            return;
        };
        if self.life != Life::Running {
            return;
        }
        assert!(slab.next >= reading.from, "a read goes forward");
        let gate = slab
            .next_commit
            .map(|commit| delay_gate::decide(self.config.delay, now, commit));
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
        if cut.missing > 0 {
            self.probe.dropped += cut.missing;
            out.push(Action::Dropped {
                records: cut.missing,
                next: slab.next,
            });
        }
        self.counted_to = self.counted_to.max(slab.next);
        if name == LaneName::Level {
            self.front = self.front.max(Some(slab.next));
            self.next_due = slab.next_commit.map(|commit| commit.plus(self.config.delay));
        }
        if slab.next > reading.from {
            self.unsaved_since.get_or_insert(now);
        }
        self.reads_served += 1;
        let mut took = Vec::with_capacity(cut.parts.len());
        for part in cut.parts {
            let index = part.take.bucket.0 as usize;
            let Some(bucket) = self.buckets.get_mut(index) else {
                continue;
            };
            if bucket.took(part, slab.next) {
                bucket.served = self.reads_served;
                took.push(index);
            }
        }
        self.recount();
        for index in took {
            if !self.buckets[index].has_queue() && !self.buckets[index].has_in_flight() {
                self.goes_on(index, out);
            }
            self.ship(index, now, out);
        }
    }

    fn on_behind(&mut self, request: RequestId, log_start: Offset, now: CommitTime, out: &mut Vec<Action>) {
        let Some((name, reading)) = self.answered(request) else {
            return;
        };
        if log_start <= reading.from {
            // The read contradicts itself; trying again at once would spin.
            self.lane(name).not_before = after(now, RETRY_NANOS);
            return;
        }
        let lowest = self.buckets.iter().map(Bucket::read_to).min();
        let from = lowest.unwrap_or(log_start).max(self.dropped_to);
        let records = log_start.since(from);
        self.floor = self.floor.max(log_start);
        self.dropped_to = self.dropped_to.max(log_start);
        self.counted_to = self.counted_to.max(log_start);
        self.front = self.front.max(Some(log_start));
        for bucket in &mut self.buckets {
            if bucket.phase != Phase::Halted {
                bucket.skip_to(log_start);
            }
        }
        self.unsaved_since.get_or_insert(now);
        self.recount();
        if records > 0 {
            self.probe.dropped += records;
            out.push(Action::Dropped {
                records,
                next: log_start,
            });
        }
    }

    fn on_ahead(&mut self, request: RequestId, high_water_mark: Offset, out: &mut Vec<Action>) {
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

    fn on_read_failed(
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

    fn parent_goes_on(&mut self, out: &mut Vec<Action>) {
        if self.parent_stall.take().is_some() {
            out.push(Action::Unstall { bucket: None });
        }
    }

    /// Stands still for good: no reads, no new commits.
    fn halt(&mut self, reason: StallReason, out: &mut Vec<Action>) {
        if self.life == Life::Running {
            self.life = Life::Halted(reason);
            self.probe.stalls += 1;
            out.push(Action::Stall { bucket: None, reason });
        }
    }

    // ---- the child

    fn on_opened(
        &mut self,
        request: RequestId,
        partition: PartitionId,
        watermark: Offset,
        tail: Option<ParentTail>,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let index = partition.0 as usize;
        if self.buckets.get(index).map(|bucket| bucket.phase) != Some(Phase::Opening(request)) {
            return;
        }
        let floor = self.floor;
        match self.buckets[index].told(watermark, floor) {
            Word::Regressed { acknowledged } => self.regressed(index, acknowledged, watermark, out),
            Word::Further => {
                self.unsaved_since.get_or_insert(now);
                self.verify(index, tail, out);
            }
            Word::Known => self.opened(index, out),
        }
        self.recount();
    }

    fn verify(&mut self, index: usize, tail: Option<ParentTail>, out: &mut Vec<Action>) {
        let offset = Offset(self.buckets[index].watermark().0.saturating_sub(1));
        if tail.is_some_and(|tail| tail.lineage != self.config.lineage) {
            self.buckets[index].phase = Phase::Halted;
            self.halt(StallReason::Diverged { offset }, out);
            return;
        }
        let request = self.request();
        match self.buckets[index].verify(request, tail) {
            Some((offset, tail)) => out.push(Action::VerifyParent {
                request,
                bucket: self.buckets[index].partition,
                offset,
                tail,
            }),
            None => self.opened(index, out),
        }
    }

    fn on_verified(
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

    fn opened(&mut self, index: usize, out: &mut Vec<Action>) {
        self.buckets[index].phase = Phase::Open;
        // What stalled it may be the commit, not the asking: it goes on once a commit shows that, or when there is none.
        if self
            .front
            .is_some_and(|front| self.buckets[index].read_to() >= front)
        {
            self.goes_on(index, out);
        }
    }

    fn on_acked(
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
        self.unsaved_since.get_or_insert(now);
        self.goes_on(index, out);
        if self.life == Life::Running {
            self.ship(index, now, out);
        }
    }

    fn on_expected(
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
        match self.buckets[index].told(watermark, floor) {
            Word::Regressed { acknowledged } => self.regressed(index, acknowledged, watermark, out),
            // A child that refuses what follows its own watermark: as any other refusal.
            Word::Known => self.fail(index, ErrorCode::Internal, now, out),
            Word::Further if watermark > sent.end => self.probe.duplicates += u64::from(sent.records),
            Word::Further => {}
        }
        self.unsaved_since.get_or_insert(now);
        self.recount();
    }

    fn on_failed(
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
    fn fail(&mut self, index: usize, code: ErrorCode, now: CommitTime, out: &mut Vec<Action>) {
        let bucket = &mut self.buckets[index];
        bucket.forget();
        bucket.phase = Phase::Closed {
            retry_at: after(now, RETRY_NANOS),
        };
        self.stalls(index, StallReason::Child(code), out);
        if code == ErrorCode::StaleEpoch && self.epoch == EpochState::Sure {
            self.epoch = EpochState::AskAt(now);
        }
        self.recount();
    }

    fn regressed(&mut self, index: usize, acknowledged: Offset, watermark: Offset, out: &mut Vec<Action>) {
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

    fn stalls(&mut self, index: usize, reason: StallReason, out: &mut Vec<Action>) {
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

    fn goes_on(&mut self, index: usize, out: &mut Vec<Action>) {
        let bucket = &mut self.buckets[index];
        if bucket.stall.take().is_some() {
            out.push(Action::Unstall {
                bucket: Some(bucket.partition),
            });
        }
    }

    // ---- the epoch and the file

    fn on_epoch(&mut self, verdict: EpochVerdict, now: CommitTime) {
        if self.epoch != EpochState::Asking {
            return;
        }
        self.epoch = match verdict {
            EpochVerdict::Current => EpochState::Sure,
            EpochVerdict::Unconfirmed => EpochState::AskAt(after(now, RETRY_NANOS)),
            EpochVerdict::Gone => {
                // The file may be the next epoch's by now: a dead one leaves it alone (SPEC.md F12).
                if matches!(self.life, Life::Running | Life::Halted(_) | Life::Stopping { .. }) {
                    self.life = Life::Stopping { persist: false };
                }
                EpochState::Sure
            }
        };
    }

    fn on_persisted(&mut self, position: Offset, now: CommitTime) {
        self.stored = self.stored.max(Some(position));
        let saved = Persist::lowest(self.config.origin.epoch, &self.buckets).next_offset() <= position;
        self.unsaved_since = if saved { None } else { Some(now) };
    }

    /// The newest position, if the cursor file does not hold it yet. Nothing from a cursor that stands for an operator:
    /// its position is what is in doubt.
    #[must_use]
    pub fn persistable(&self) -> Option<Persist> {
        let persist = Persist::lowest(self.config.origin.epoch, &self.buckets);
        let newer = self.stored.is_none_or(|stored| persist.next_offset() > stored);
        let sound = matches!(self.life, Life::Running | Life::Stopping { persist: true });
        (newer && sound).then_some(persist)
    }

    /// Since when the cursor file may lag; the runner stores the oldest first.
    #[must_use]
    pub fn unsaved_since(&self) -> Option<CommitTime> {
        self.unsaved_since
    }

    // ---- what can be asked

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &CursorConfig {
        &self.config
    }

    /// Everything below was copied, for every child partition.
    #[must_use]
    pub fn position(&self) -> Offset {
        Persist::lowest(self.config.origin.epoch, &self.buckets).next_offset()
    }

    /// When the record that the shared read comes to next is due, if it is committed and was seen (SPEC.md G5).
    #[must_use]
    pub fn next_due(&self) -> Option<CommitTime> {
        self.next_due
    }

    /// Why it, or one of its child partitions, stands still.
    #[must_use]
    pub fn stalled(&self) -> Option<StallReason> {
        let halted = match self.life {
            Life::Halted(reason) => Some(reason),
            _ => None,
        };
        let unsure = (self.epoch != EpochState::Sure).then_some(StallReason::EpochUnconfirmed);
        let bucket = || self.buckets.iter().find_map(|bucket| bucket.stall);
        halted.or(unsure).or(self.parent_stall).or_else(bucket)
    }

    /// What it counted since it started.
    #[must_use]
    pub fn probe(&self) -> &Probe {
        &self.probe
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.life == Life::Stopped
    }
}
