//! The cursors of a shard: started and stopped as the reconciler decides, once a second and on every change; their
//! positions stored, the oldest first, at most 50 a second (SPEC.md F5, F8).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{CommitTime, Epoch, Incarnation, Offset, PartitionId, TopicName};
use tailwater_wire::message::{CursorStatus, LinkDetail, LinkStatus};
use tailwater_wire::meta::{AttachFrom, Link, MetaSnapshot};

use crate::clock::system::elapsed_since_boot;
use crate::config::FanoutConfig;
use crate::fanout::desired::{CursorKey, CursorSpec, Identity};
use crate::fanout::diff::{Pass, Reconciler, Running};
use crate::fanout::runner::{Positions, Runner};
use crate::fanout::shared::Shared;
use crate::fanout::starting::Starter;
use crate::fanout::sweeper;
use crate::partition::owner::Partition;
use crate::partition::refusal;
use crate::signal::Signal;

/// How often cursors are compared with what should run.
const RECONCILE_EVERY: Duration = Duration::from_secs(1);
/// Every so many passes, partitions that found no room are opened again.
const OPEN_AGAIN_PASSES: u64 = 5;
/// One position is stored in this time at most: 50 a second.
const STORE_EVERY: Duration = Duration::from_millis(20);

/// The shard's cursors.
pub struct Cursors {
    shared: Rc<Shared>,
    starter: Rc<Starter>,
    positions: Rc<Positions>,
    reconciler: RefCell<Reconciler>,
    running: RefCell<BTreeMap<CursorKey, Entry>>,
    /// Counted up when partitions were opened or closed, or a cursor ended by itself.
    owned_version: Cell<u64>,
    changed: Signal,
    draining: Cell<bool>,
}

struct Entry {
    identity: Identity,
    stopping: bool,
    runner: Rc<Runner>,
}

impl Cursors {
    /// No cursors yet.
    #[must_use]
    pub fn new(shared: Rc<Shared>, config: FanoutConfig) -> Cursors {
        let positions = Rc::new(Positions::default());
        let starter = Starter {
            shared: Rc::clone(&shared),
            config,
            positions: Rc::clone(&positions),
        };
        Cursors {
            shared,
            starter: Rc::new(starter),
            positions,
            reconciler: RefCell::default(),
            running: RefCell::default(),
            owned_version: Cell::new(0),
            changed: Signal::default(),
            draining: Cell::new(false),
        }
    }

    /// What they share.
    #[must_use]
    pub fn shared(&self) -> &Rc<Shared> {
        &self.shared
    }

    /// Compares once a second and on every change, for the life of the shard.
    pub async fn reconcile_loop(self: Rc<Cursors>) {
        for pass in 0u64.. {
            if self.draining.get() {
                return;
            }
            if pass.is_multiple_of(OPEN_AGAIN_PASSES) && self.shared.partitions.open_again().await {
                self.owned_version.set(self.owned_version.get() + 1);
            }
            self.pass().await;
            let changed = async {
                self.changed.wait().await;
                Ok(())
            };
            let _a_second_or_a_change = glommio::timer::timeout(RECONCILE_EVERY, changed).await;
        }
    }

    /// Partitions were opened or closed, or metadata changed: compares at once.
    pub fn owned_changed(&self) {
        self.owned_version.set(self.owned_version.get() + 1);
        self.changed.notify();
    }

    async fn pass(self: &Rc<Cursors>) {
        let began = elapsed_since_boot();
        let pass = self.compare();
        for key in &pass.stop {
            self.stop(key);
        }
        let took = elapsed_since_boot().saturating_sub(began);
        let counters = self.shared.partitions.counters();
        counters.reconcile.record(took.as_nanos() as u64);
        counters.slab_bytes.set(self.shared.budget.used_bytes() as u64);
        if !pass.start.is_empty() {
            let (wanted, started) = (Rc::clone(self), Rc::clone(self));
            Rc::clone(&self.starter)
                .start_all(
                    pass.start,
                    move |key, spec| wanted.is_wanted(key, spec),
                    move |key, spec, runner| started.started(key, spec, runner),
                )
                .await;
        }
        if pass.sweep {
            // Looked up anew at each question: cursors come and go while it goes on.
            sweeper::sweep(&self.shared, |key| {
                self.running.borrow().contains_key(key)
                    || self.reconciler.borrow().desired().contains_key(key)
            })
            .await;
        }
    }

    fn compare(&self) -> Pass {
        let (snapshot, owned_version) = (self.shared.metadata(), self.owned_version.get());
        let mut reconciler = self.reconciler.borrow_mut();
        if let Some(quiet) = reconciler.quiet_pass(snapshot.version, owned_version) {
            return quiet;
        }
        let running: BTreeMap<CursorKey, Running> = self.running.borrow().iter().map(described).collect();
        let owns = |topic: &TopicName, partition| self.shared.partitions.find(topic, None, partition).is_ok();
        reconciler.pass(&snapshot, owned_version, owns, &running)
    }

    /// Whether a cursor that was to start still is, by the metadata in force now.
    fn is_wanted(&self, key: &CursorKey, spec: &CursorSpec) -> bool {
        let metadata = self.shared.metadata();
        let link = metadata.link(&key.parent, &key.child);
        !self.draining.get() && link.is_some_and(|link| link.epoch == spec.identity.epoch)
    }

    fn started(self: &Rc<Cursors>, key: CursorKey, spec: &CursorSpec, runner: Rc<Runner>) {
        let entry = Entry {
            identity: spec.identity,
            stopping: false,
            runner: Rc::clone(&runner),
        };
        self.running.borrow_mut().insert(key.clone(), entry);
        self.count();
        let this = Rc::clone(self);
        glommio::spawn_local(async move {
            runner.ended().await;
            this.running.borrow_mut().remove(&key);
            this.count();
            this.owned_changed();
        })
        .detach();
    }

    fn count(&self) {
        let running = self.running.borrow().len() as u64;
        self.shared.partitions.counters().fanout_cursors.set(running);
    }

    fn stop(self: &Rc<Cursors>, key: &CursorKey) {
        let mut running = self.running.borrow_mut();
        if let Some(entry) = running.get_mut(key) {
            entry.stopping = true;
            entry.runner.stop();
        }
    }

    /// The cursor that runs for a life of a link, unless it was told to stop.
    #[must_use]
    pub fn runner(&self, key: &CursorKey, identity: &Identity) -> Option<Rc<Runner>> {
        let running = self.running.borrow();
        let entry = running.get(key).filter(|entry| entry.identity == *identity);
        entry
            .filter(|entry| !entry.stopping)
            .map(|entry| Rc::clone(&entry.runner))
    }

    /// Stores positions, one at a time, whoever has waited longest first. While no file lags, it sleeps.
    pub async fn store_loop(self: Rc<Cursors>) {
        loop {
            let oldest = self.positions.unsaved.next().await;
            if oldest.store().await {
                glommio::timer::sleep(STORE_EVERY).await;
            }
        }
    }

    /// Where a new link would start in each partition of the parent that this shard owns. Every cursor of the pair here
    /// has stopped before the ends are read (SPEC.md F6).
    ///
    /// # Errors
    /// `POSITION_AHEAD`, `UNKNOWN_TOPIC`, or what the disk says.
    pub async fn attach_point(
        &self,
        parent: &TopicName,
        incarnation: Incarnation,
        child: &TopicName,
        from: AttachFrom,
    ) -> Result<Vec<(PartitionId, Offset)>, Refusal> {
        self.stop_those(|key, _| key.parent == *parent && key.child == *child)
            .await;
        let partitions = self
            .shared
            .metadata()
            .topic(parent)
            .map_or(0, |topic| topic.spec.partitions);
        let mut offsets = Vec::new();
        let placement = self.shared.partitions.placement();
        for number in (0..partitions).map(PartitionId) {
            if placement.is_mine(incarnation, number) {
                let found = self.shared.partitions.find(parent, Some(incarnation), number)?;
                offsets.push((number, attach_offset(&found, from).await?));
            }
        }
        Ok(offsets)
    }

    /// Returns when no cursor of an epoch runs any more.
    pub async fn settled(&self, epoch: Epoch) {
        while self.stop_those(|_, entry| entry.identity.epoch == epoch).await > 0 {
            // Their entries go when their own tasks have seen the end.
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Stops every cursor that reads from a topic or writes to it, and waits.
    pub async fn settle_topic(&self, topic: &TopicName) {
        self.stop_those(|key, _| key.parent == *topic || key.child == *topic)
            .await;
    }

    /// Stops all cursors, and waits: positions are stored.
    pub async fn stop_all(&self) {
        self.draining.set(true);
        self.changed.notify();
        self.stop_those(|_, _| true).await;
    }

    /// Tells all of these to stop, then waits for each: they settle and store their positions side by side. Returns how
    /// many there were.
    async fn stop_those(&self, which: impl Fn(&CursorKey, &Entry) -> bool) -> usize {
        let runners: Vec<_> = {
            let running = self.running.borrow();
            let those = running.iter().filter(|(key, entry)| which(key, entry));
            those.map(|(_, entry)| Rc::clone(&entry.runner)).collect()
        };
        runners.iter().for_each(|runner| runner.stop());
        for runner in &runners {
            runner.ended().await;
        }
        runners.len()
    }

    /// Live links and their cursors on this shard, of one parent or of all.
    #[must_use]
    pub fn link_status(&self, parent: Option<&TopicName>) -> Vec<LinkStatus> {
        let snapshot: Arc<MetaSnapshot> = self.shared.metadata();
        let running = self.running.borrow();
        let mut by_link: HashMap<(&TopicName, &TopicName), Vec<CursorStatus>> = HashMap::new();
        for (key, entry) in running.iter() {
            if parent.is_none_or(|name| key.parent == *name) {
                let of_link = by_link.entry((&key.parent, &key.child)).or_default();
                of_link.push(entry.runner.status());
            }
        }
        let wanted = snapshot
            .all_links()
            .filter(|link| parent.is_none_or(|name| link.parent == *name));
        wanted
            .map(|link| {
                let mut cursors = by_link.remove(&(&link.parent, &link.child)).unwrap_or_default();
                self.add_unstarted(&snapshot, link, &mut cursors);
                LinkStatus {
                    link: link.clone(),
                    cursors,
                }
            })
            .collect()
    }

    /// A cursor that should run here and does not yet has copied nothing that anybody could vouch for: it is shown at its
    /// attach point, with all that lies above as its lag, never as a link without any.
    fn add_unstarted(&self, snapshot: &MetaSnapshot, link: &Link, cursors: &mut Vec<CursorStatus>) {
        let parent = snapshot.topic(&link.parent);
        let Some(parent) = parent.filter(|topic| topic.incarnation == link.parent_incarnation) else {
            return;
        };
        let (partitions, incarnation) = (&self.shared.partitions, link.parent_incarnation);
        let mine = (0..parent.spec.partitions)
            .map(PartitionId)
            .filter(|id| partitions.placement().is_mine(incarnation, *id));
        let running: BTreeSet<PartitionId> = cursors.iter().map(|cursor| cursor.partition).collect();
        for partition in mine.filter(|id| !running.contains(id)) {
            let found = partitions.find(&link.parent, Some(incarnation), partition);
            let (high_water_mark, why) = match found {
                Ok(found) => (found.log.high_water_mark(), "starting".to_owned()),
                Err(refusal) => (Offset::ZERO, format!("parent: {}", refusal.code.name())),
            };
            let position = link.attach_offset(partition.0);
            cursors.push(CursorStatus {
                partition,
                epoch: link.epoch,
                position,
                parent_high_water_mark: high_water_mark.max(position),
                due_lag_millis: 0,
                next_due: None,
                committed: 0,
                filtered: 0,
                dropped: 0,
                duplicates: 0,
                stalled: Some(why),
            });
        }
        cursors.sort_by_key(|cursor| cursor.partition);
    }

    /// One link in detail, as far as its cursors run on this shard.
    #[must_use]
    pub fn link_detail(&self, parent: &TopicName, child: &TopicName) -> Option<LinkDetail> {
        let of_parent = self.link_status(Some(parent));
        let status = of_parent.into_iter().find(|status| status.link.child == *child)?;
        let running = self.running.borrow();
        let of = |cursor: &CursorStatus| {
            let key = CursorKey {
                parent: parent.clone(),
                partition: cursor.partition,
                child: child.clone(),
            };
            running
                .get(&key)
                .map(|entry| entry.runner.buckets())
                .unwrap_or_default()
        };
        let buckets = status.cursors.iter().map(of).collect();
        Some(LinkDetail { status, buckets })
    }
}

fn described((key, entry): (&CursorKey, &Entry)) -> (CursorKey, Running) {
    (
        key.clone(),
        Running {
            identity: entry.identity,
            stopping: entry.stopping,
        },
    )
}

async fn attach_offset(partition: &Partition, from: AttachFrom) -> Result<Offset, Refusal> {
    let log = &partition.log;
    let end = log.high_water_mark();
    match from {
        AttachFrom::Tail => Ok(end),
        AttachFrom::Earliest => Ok(log.log_start()),
        AttachFrom::Offset(offset) if offset <= end => Ok(offset.max(log.log_start())),
        AttachFrom::Offset(offset) => {
            let what = format!(
                "partition {} of `{}` ends at {end}, below {offset}",
                partition.id, partition.topic
            );
            Err(Refusal::new(ErrorCode::PositionAhead, what))
        }
        AttachFrom::Time(at) => log
            .find_time(CommitTime(at))
            .await
            .map_err(|error| refusal::read(partition, &error)),
    }
}
