//! Runs one cursor: hands its actions on to `perform`, and brings it what happened. Holds no policy.
//!
//! Lives on the core that owns the parent partition. The runner's task alone steps the cursor.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use tailwater_storage::cursor_file;
use tailwater_storage::layout::CursorPath;
use tailwater_storage::proof::Persist;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Delay, Epoch, Offset, TopicName};
use tailwater_wire::message::{BucketStatus, CursorStatus};

use crate::budget::Budget;
use crate::fanout::batch::Cutter;
use crate::fanout::cursor::message::{Action, Event, Slab};
use crate::fanout::cursor::state::{Cursor, CursorConfig};
use crate::fanout::filter::Filter;
use crate::fanout::gaps::Doomed;
use crate::fanout::probe::{self, Probe};
use crate::fanout::shared::Shared;
use crate::fanout::unsaved::Unsaved;
use crate::partition::owner::Partition;
use crate::signal::Signal;
use crate::telemetry::meter::Meter;

/// Cursor files that are replaced at the same time: enough that replacements in one directory share its flush.
const STORE_AT_ONCE: usize = 64;

/// What the cursors of a shard share for storing their positions.
pub struct Positions {
    /// Those that wait for their turn.
    pub unsaved: Unsaved<Runner>,
    /// Bounds how many are stored at the same time: it counts them, not bytes.
    at_once: Rc<Budget>,
}

impl Default for Positions {
    fn default() -> Positions {
        Positions {
            unsaved: Unsaved::default(),
            at_once: Budget::new(STORE_AT_ONCE),
        }
    }
}

/// A cursor that runs, as the reconciler holds it.
pub struct Runner {
    pub(super) shared: Rc<Shared>,
    pub(super) parent: Rc<Partition>,
    pub(super) child: TopicName,
    pub(super) index: u64,
    pub(super) file: CursorPath,
    filter: Option<Filter>,
    cutter: RefCell<Cutter>,
    pub(super) cursor: RefCell<Cursor>,
    arrivals: RefCell<VecDeque<Arrival>>,
    pub(super) arrived: Signal,
    pub(super) ended: Cell<bool>,
    /// Set when the cursor has ended.
    pub(super) end: Signal,
    counted: RefCell<Probe>,
    positions: Rc<Positions>,
    /// Whether it is among the unsaved.
    queued: Cell<bool>,
    /// Whether its file is being replaced: one replacement at a time, so that an older one never comes last.
    storing: Cell<bool>,
    /// Set when a replacement has ended.
    stored: Signal,
    meter: Meter,
}

/// What comes in: a plain event, or a slab that is cut only when the cursor says how.
pub(super) enum Arrival {
    Event(Event),
    Slab { slab: Slab, runs: Vec<Bytes> },
}

/// What a runner is made with.
pub struct RunnerSetup {
    /// The parent partition.
    pub parent: Rc<Partition>,
    /// The child topic.
    pub child: TopicName,
    /// The metadata index of the link.
    pub index: u64,
    /// The position's file.
    pub file: CursorPath,
    /// The link's filter.
    pub filter: Option<Filter>,
    /// Cuts slabs for the child's partitions.
    pub cutter: Cutter,
    /// The cursor's own setup.
    pub config: CursorConfig,
    /// Where it says that its file lags.
    pub positions: Rc<Positions>,
}

impl Runner {
    /// Starts a cursor in a task of its own.
    #[must_use]
    pub fn start(shared: Rc<Shared>, setup: RunnerSetup) -> Rc<Runner> {
        let now = shared.partitions.clock().now();
        let counters = shared.partitions.counters();
        let meter = Meter::new(counters.links.of(&setup.parent.topic, &setup.child));
        let runner = Rc::new(Runner {
            shared,
            parent: setup.parent,
            child: setup.child,
            index: setup.index,
            file: setup.file,
            filter: setup.filter,
            cutter: RefCell::new(setup.cutter),
            cursor: RefCell::new(Cursor::new(setup.config, now)),
            arrivals: RefCell::default(),
            arrived: Signal::default(),
            ended: Cell::new(false),
            end: Signal::default(),
            counted: RefCell::default(),
            positions: setup.positions,
            queued: Cell::new(false),
            storing: Cell::new(false),
            stored: Signal::default(),
            meter,
        });
        let this = Rc::clone(&runner);
        glommio::spawn_local(async move { this.measured(Rc::clone(&this).run()).await }).detach();
        runner
    }

    async fn run(self: Rc<Runner>) {
        let mut actions = Vec::new();
        self.step(Event::Tick, &mut actions);
        while !self.ended.get() {
            for action in actions.drain(..) {
                self.perform(action);
            }
            let Some(arrival) = self.next_arrival().await else {
                self.step(Event::Tick, &mut actions);
                continue;
            };
            match arrival {
                Arrival::Event(event) => self.step(event, &mut actions),
                Arrival::Slab { slab, runs } => self.slab(slab, &runs, &mut actions),
            }
        }
        self.count();
        self.end.notify();
    }

    /// The next thing that happened; `None` when it is time for a tick.
    async fn next_arrival(&self) -> Option<Arrival> {
        loop {
            if let Some(arrival) = self.arrivals.borrow_mut().pop_front() {
                return Some(arrival);
            }
            if self.ended.get() {
                return None;
            }
            let wake_at = self.cursor.borrow().wake_at();
            let Some(wake_at) = wake_at else {
                self.arrived.wait().await;
                continue;
            };
            let wait = Duration::from_nanos(wake_at.0.saturating_sub(self.now().0));
            let wait = self.shared.partitions.clock().real(wait);
            if wait.is_zero() {
                return None;
            }
            let arrived = async {
                self.arrived.wait().await;
                Ok(())
            };
            if glommio::timer::timeout(wait, arrived).await.is_err() {
                return None;
            }
        }
    }

    fn now(&self) -> CommitTime {
        self.shared.partitions.clock().now()
    }

    /// Does work of this cursor's, and counts what it costs.
    pub(super) async fn measured<T>(&self, work: impl Future<Output = T>) -> T {
        let shard = &self.shared.partitions.counters().fanout_busy_ns;
        self.meter.measure(shard, work).await
    }

    fn step(self: &Rc<Runner>, event: Event, actions: &mut Vec<Action>) {
        let (now, held) = (self.now(), self.shared.partitions.clock().is_held());
        {
            let mut cursor = self.cursor.borrow_mut();
            cursor.hold_gate(held);
            cursor.step(event, now, actions);
        }
        self.count();
        self.queue_if_unsaved();
    }

    /// Takes its place among those whose file lags, unless it has one, or is being stored.
    fn queue_if_unsaved(self: &Rc<Runner>) {
        let lags = !self.storing.get() && self.cursor.borrow().persistable().is_some();
        if lags && !self.queued.replace(true) {
            self.positions.unsaved.push(Rc::clone(self));
        }
    }

    /// Cuts a slab as the cursor plans it, and steps the cursor with the result at once.
    fn slab(self: &Rc<Runner>, slab: Slab, runs: &[Bytes], actions: &mut Vec<Action>) {
        let plan = self.cursor.borrow_mut().plan(&slab, self.now());
        let Some(plan) = plan else {
            return self.step(Event::Tick, actions);
        };
        let cut = self.cutter.borrow_mut().cut(runs, &plan, self.filter.as_ref());
        match cut {
            Ok(mut cut) => {
                for batch in cut.parts.iter_mut().flat_map(|part| &mut part.batches) {
                    batch.bytes = self.shared.budget.hold(std::mem::take(&mut batch.bytes));
                }
                self.step(Event::Slab { slab, cut }, actions);
            }
            Err(error) => {
                let (topic, partition) = (&self.parent.topic, self.parent.id.0);
                tracing::error!(%topic, partition, child = %self.child, %error, "a slab cannot be copied");
                self.step(
                    Event::ReadFailed {
                        request: slab.request,
                        code: ErrorCode::CorruptBatch,
                    },
                    actions,
                );
            }
        }
    }

    pub(super) fn push(&self, arrival: Arrival) {
        self.arrivals.borrow_mut().push_back(arrival);
        self.arrived.notify();
    }

    pub(super) async fn persist(&self, persist: Persist) -> Arrival {
        self.stored.until(|| !self.storing.get()).await;
        self.storing.set(true);
        let turn = self.positions.at_once.take(1).await;
        let (partitions, unique) = (&self.shared.partitions, self.shared.unique());
        let stored = cursor_file::advance(partitions.disk(), &self.file, unique, persist);
        let outcome = stored.await;
        drop(turn);
        self.storing.set(false);
        self.stored.notify();
        if self.ended.get() {
            self.end.notify();
        }
        Arrival::Event(match outcome {
            Ok(()) => {
                partitions.counters().fanout_positions.add(1);
                Event::Persisted(persist.next_offset())
            }
            Err(error) => {
                let (topic, partition) = (&self.parent.topic, self.parent.id.0);
                tracing::warn!(%topic, partition, child = %self.child, %error, "a cursor's position is not stored; its children know it");
                Event::PersistFailed
            }
        })
    }

    /// What retention is about to take from the cursor; see [`Cursor::doom`].
    #[must_use]
    pub fn doom(&self, to: Offset) -> Option<Doomed> {
        self.cursor.borrow_mut().doom(to)
    }

    /// Tells the cursor what became of what retention was about to take.
    pub fn doom_decided(&self, event: Event) {
        self.push(Arrival::Event(event));
    }

    /// What it knows of each child partition.
    #[must_use]
    pub fn buckets(&self) -> Vec<BucketStatus> {
        self.cursor.borrow().progress()
    }

    /// Asks the cursor to settle and end.
    pub fn stop(&self) {
        self.push(Arrival::Event(Event::Stop));
    }

    /// Returns when the cursor has ended: nothing is in flight, and nothing touches its file any more.
    pub async fn ended(&self) {
        self.end.until(|| self.ended.get() && !self.storing.get()).await;
    }

    /// Whether the cursor has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// The link's epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.cursor.borrow().config().origin.epoch
    }

    /// Stores the newest position, and waits for it; says whether there was one to store. For whoever took it from the
    /// unsaved.
    pub async fn store(self: &Rc<Runner>) -> bool {
        self.queued.set(false);
        let persist = self.cursor.borrow().persistable();
        let Some(persist) = persist.filter(|_| !self.ended.get() && !self.storing.get()) else {
            return false;
        };
        let arrival = self.measured(self.persist(persist)).await;
        self.push(arrival);
        true
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> CursorStatus {
        let cursor = self.cursor.borrow();
        let (config, probe, log) = (cursor.config(), cursor.probe(), &self.parent.log);
        let due = cursor.next_due();
        let head = due.map(|due| due.minus(config.delay));
        let head = if cursor.position() < log.flushed() {
            head
        } else {
            None
        };
        CursorStatus {
            partition: self.parent.id,
            epoch: config.origin.epoch,
            position: cursor.position(),
            parent_high_water_mark: log.high_water_mark(),
            due_lag_millis: probe::due_lag_millis(self.now(), config.delay, head),
            next_due: due.filter(|_| config.delay != Delay::NONE).map(|due| due.0),
            committed: probe.committed,
            filtered: probe.filtered,
            dropped: probe.dropped,
            duplicates: probe.duplicates,
            stalled: cursor.stalled().map(|reason| reason.to_string()),
        }
    }

    /// Adds what the cursor has counted since the last time to the shard's counters.
    fn count(&self) {
        let (now, counters) = (*self.cursor.borrow().probe(), self.shared.partitions.counters());
        let before = self.counted.replace(now);
        counters.fanout_committed.add(now.committed - before.committed);
        counters.fanout_filtered.add(now.filtered - before.filtered);
        counters.fanout_dropped.add(now.dropped - before.dropped);
        counters.fanout_duplicates.add(now.duplicates - before.duplicates);
    }
}
