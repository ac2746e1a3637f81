//! The cursor's state, and what each event does to it.
//!
//! Lives on the core that owns the parent partition. A bucket is one child partition; all buckets whose read position
//! is at or above `front` are level and are served by one shared read; the others catch up by reads of their own. The
//! cursor holds no bytes but the batches that are on their way, and no clock: `now` is the owner's clock.

use tailwater_storage::gaps::Gaps;
use tailwater_storage::proof::{Acknowledged, Persist};
use tailwater_wire::ids::{CommitTime, Delay, Lineage, Offset, OriginId, PartitionId};
use tailwater_wire::limits::{FANOUT_BATCH_BYTES, FANOUT_BATCH_RECORDS};

use crate::fanout::batch::CutPlan;
use crate::fanout::cursor::bucket::{Bucket, Outcome};
use crate::fanout::cursor::census::Census;
use crate::fanout::cursor::lane::{Lane, RETRY_NANOS, Reading, after};
use crate::fanout::cursor::message::{Action, EpochVerdict, Event, RequestId, Slab, StallReason};
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
    /// Where the anchor decision put it, which is what the cursor file holds.
    pub start: Offset,
    /// How long records are held back.
    pub delay: Delay,
    /// A fixed time to gather before each commit, in milliseconds; without one records gather only while a commit is
    /// in flight.
    pub linger_millis: Option<u64>,
    /// Records of a slab.
    pub slab_records_max: usize,
    /// Bytes of a slab.
    pub slab_bytes_max: usize,
    /// What its ledger holds: of what retention took, how much each child partition lost.
    pub gaps: Gaps,
}

impl CursorConfig {
    /// With the default bounds, without delay and fixed linger.
    #[must_use]
    pub fn new(origin: OriginId, lineage: Lineage, child_partitions: u32, start: Offset) -> CursorConfig {
        CursorConfig {
            origin,
            lineage,
            child_partitions,
            start,
            delay: Delay::NONE,
            linger_millis: None,
            slab_records_max: FANOUT_BATCH_RECORDS,
            slab_bytes_max: FANOUT_BATCH_BYTES,
            gaps: Gaps::default(),
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

/// See the module. A clone is for models, which look at every way on from one state; a node runs each cursor once.
#[derive(Debug, Clone)]
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
    /// Filtered records below were counted.
    pub(super) counted_to: Offset,
    /// Below, what the filter holds back is counted by whoever accounts for it: retention is about to take it.
    pub(super) gate: Offset,
    /// Everything below is gone, or as good as gone.
    pub(super) floor: Offset,
    /// What of it each child partition lost.
    pub(super) gaps: Gaps,
    pub(super) parent_stall: Option<StallReason>,
    pub(super) next_due: Option<CommitTime>,
    /// The owner's clock is held: a delay lets nothing pass (SPEC.md G6).
    pub(super) gate_held: bool,
    acknowledged: Acknowledged,
    /// The newest position, while the cursor file does not hold it.
    newest: Option<Persist>,
    /// What the cursor file holds, as far as is known.
    pub(super) stored: Offset,
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
            acknowledged: Acknowledged::start(config.origin.epoch, config.start, buckets.len()),
            buckets,
            front: None,
            level: Lane::default(),
            behind: Lane::default(),
            created_at: now,
            next_request: 0,
            reads_served: 0,
            counted_to: config.start.max(config.gaps.through),
            gate: Offset::ZERO,
            floor: config.gaps.through,
            gaps: config.gaps.clone(),
            parent_stall: None,
            next_due: None,
            gate_held: false,
            newest: None,
            stored: config.start,
            unsaved_since: None,
            probe: Probe::default(),
            config,
        }
    }

    /// Whether the owner's clock is held from now on. Told before every step.
    pub fn hold_gate(&mut self, held: bool) {
        self.gate_held = held;
    }

    /// Takes an event, and appends what is to be done to `out`.
    pub fn step(&mut self, event: Event, now: CommitTime, out: &mut Vec<Action>) {
        match event {
            Event::Opened {
                request,
                bucket,
                watermark,
                mark,
            } => self.on_opened(request, bucket, watermark, mark, now, out),
            Event::Verified {
                request,
                bucket,
                verdict,
            } => self.on_verified(request, bucket, verdict, now, out),
            Event::Slab { slab, cut } => self.on_slab(slab, cut, now, out),
            Event::Behind {
                request,
                log_start,
                gaps,
            } => self.on_behind(request, log_start, gaps, now, out),
            Event::Accounted { gaps, filtered } => self.on_accounted(gaps, filtered, now, out),
            Event::Spared => self.on_spared(),
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
            } => {
                let outcome = Outcome::Acked { receipt, duplicate };
                self.on_answered(request, bucket, outcome, now, out);
            }
            Event::Expected {
                request,
                bucket,
                watermark,
            } => self.on_answered(request, bucket, Outcome::Expected(watermark), now, out),
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
            released_at: self.released_at(reading, now),
            from: reading.from,
            next: slab.next,
            count_from: self.counted_to.max(self.gate),
            takes: self.buckets.iter().filter_map(take).collect(),
        })
    }

    /// With a delay, the clock that bounded the read; without one, the read may have waited for what it brings.
    fn released_at(&self, reading: Reading, now: CommitTime) -> CommitTime {
        if self.config.delay.is_none() {
            now
        } else {
            reading.asked_at
        }
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
    pub(super) fn answered(&mut self, request: RequestId) -> Option<(LaneName, Reading)> {
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

    /// Every move of a bucket's position ends here.
    pub(super) fn positioned(&mut self, index: usize, now: CommitTime) {
        let position = self.buckets[index].position();
        if let Some(persist) = self.acknowledged.acknowledge(index, position) {
            self.newest = Some(persist);
            self.unsaved_since.get_or_insert(now);
        }
    }

    fn on_persisted(&mut self, position: Offset, now: CommitTime) {
        self.stored = self.stored.max(position);
        self.newest = self.newest.filter(|newest| newest.next_offset() > position);
        self.unsaved_since = self.newest.map(|_| now);
    }

    /// The newest position, if the cursor file does not hold it yet. Nothing from a cursor that stands for an operator:
    /// its position is what is in doubt.
    #[must_use]
    pub fn persistable(&self) -> Option<Persist> {
        let sound = matches!(self.life, Life::Running | Life::Stopping { persist: true });
        self.newest.filter(|_| sound)
    }

    /// Since when the cursor file may lag; the runner stores the oldest first.
    #[must_use]
    pub fn unsaved_since(&self) -> Option<CommitTime> {
        self.unsaved_since
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &CursorConfig {
        &self.config
    }

    /// Everything below was copied, for every child partition.
    #[must_use]
    pub fn position(&self) -> Offset {
        self.acknowledged.lowest()
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
