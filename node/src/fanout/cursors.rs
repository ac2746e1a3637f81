//! The cursors of a shard: started and stopped as the reconciler decides, once a second and on every change; their
//! positions stored, the oldest first, at most 50 a second (SPEC.md F5, F8).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tailwater_storage::cursor_file::{self, CursorFile};
use tailwater_storage::layout::CursorPath;
use tailwater_storage::proof::LeaderConfirmed;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{CommitTime, Epoch, Incarnation, Offset, OriginId, PartitionId, TopicName};
use tailwater_wire::limits::BATCH_BYTES_MAX;
use tailwater_wire::message::LinkStatus;
use tailwater_wire::meta::{AttachFrom, MetaSnapshot};

use crate::config::FanoutConfig;
use crate::fanout::accounting;
use crate::fanout::anchor::{Anchor, Confirmation, Facts, anchor};
use crate::fanout::batch::Cutter;
use crate::fanout::cursor::state::CursorConfig;
use crate::fanout::desired::{CursorKey, CursorSpec, Identity};
use crate::fanout::diff::{Reconciler, Running};
use crate::fanout::filter::Filter;
use crate::fanout::rekey::Rekey;
use crate::fanout::runner::{Runner, RunnerSetup};
use crate::fanout::shared::Shared;
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
    config: FanoutConfig,
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
        Cursors {
            shared,
            config,
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
        let snapshot = self.shared.metadata();
        let running: BTreeMap<CursorKey, Running> = self.running.borrow().iter().map(described).collect();
        let owns = |topic: &TopicName, partition| self.shared.partitions.find(topic, None, partition).is_ok();
        let pass = self
            .reconciler
            .borrow_mut()
            .pass(&snapshot, self.owned_version.get(), owns, &running);
        for key in &pass.stop {
            self.stop(key);
        }
        let mut words = Words::default();
        for (key, spec) in &pass.start {
            self.start(key, spec, &mut words).await;
        }
        if pass.sweep {
            let desired: BTreeSet<CursorKey> = self.reconciler.borrow().desired().keys().cloned().collect();
            crate::fanout::sweeper::sweep(&self.shared, |key| {
                desired.contains(key) || self.running.borrow().contains_key(key)
            })
            .await;
        }
    }

    fn stop(self: &Rc<Cursors>, key: &CursorKey) {
        let mut running = self.running.borrow_mut();
        if let Some(entry) = running.get_mut(key) {
            entry.stopping = true;
            entry.runner.stop();
        }
    }

    /// Anchors a cursor and starts it; what cannot be decided yet is tried again by a later pass.
    async fn start(self: &Rc<Cursors>, key: &CursorKey, spec: &CursorSpec, words: &mut Words) {
        let incarnation = Some(spec.identity.parent_incarnation);
        let Ok(parent) = self
            .shared
            .partitions
            .find(&key.parent, incarnation, key.partition)
        else {
            return;
        };
        let filter = match spec.options.filter.as_deref().map(Filter::parse).transpose() {
            Ok(filter) => filter,
            Err(error) => {
                tracing::error!(parent = %key.parent, child = %key.child, %error, "a link's filter cannot be read");
                return;
            }
        };
        let at = CursorPath::new(
            self.shared.partitions.data(),
            &key.parent,
            key.partition,
            &key.child,
        );
        let Some(start) = self.anchor(key, spec, &parent, &at, words).await else {
            return;
        };
        let epoch = spec.identity.epoch;
        let log_start = parent.log.log_start();
        let gaps = match accounting::ledger(&self.shared, &at, epoch, start, log_start).await {
            Ok(gaps) => gaps,
            Err(error) => {
                tracing::warn!(%error, parent = %key.parent, child = %key.child, "a cursor's gap ledger cannot be used; trying again");
                return;
            }
        };
        if self.draining.get() {
            return;
        }
        let origin = OriginId {
            epoch: spec.identity.epoch,
            partition: key.partition,
        };
        let config = CursorConfig {
            delay: spec.options.delay,
            linger_millis: spec.options.linger_millis,
            slab_records_max: self.config.max_batch_records,
            slab_bytes_max: self.config.max_batch_bytes,
            gaps,
            ..CursorConfig::new(origin, parent.log.lineage(), spec.child_partitions, start)
        };
        let rekey = Rekey {
            partitioner: spec.child_partitioner,
            partitions: spec.child_partitions,
            parent: key.partition,
        };
        let setup = RunnerSetup {
            parent,
            child: key.child.clone(),
            file: at,
            filter,
            cutter: Cutter::new(rekey, BATCH_BYTES_MAX),
            config,
        };
        let runner = Runner::start(Rc::clone(&self.shared), setup);
        let entry = Entry {
            identity: spec.identity,
            stopping: false,
            runner: Rc::clone(&runner),
        };
        self.running.borrow_mut().insert(key.clone(), entry);
        let (this, key) = (Rc::clone(self), key.clone());
        glommio::spawn_local(async move {
            runner.ended().await;
            this.running.borrow_mut().remove(&key);
            this.owned_changed();
        })
        .detach();
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

    /// Where a cursor starts, which is what its file then holds; `None` when that cannot be said yet.
    async fn anchor(
        &self,
        key: &CursorKey,
        spec: &CursorSpec,
        parent: &Partition,
        at: &CursorPath,
        words: &mut Words,
    ) -> Option<Offset> {
        let counters = self.shared.partitions.counters();
        let disk = self.shared.partitions.disk();
        let file = match cursor_file::read(disk, at).await {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(%error, "a cursor file cannot be read; trying again");
                return None;
            }
        };
        if let CursorFile::Damaged(why) = &file {
            tracing::warn!(parent = %key.parent, partition = key.partition.0, child = %key.child, why, "a cursor file is damaged");
        }
        let (epoch, attach_offset) = (spec.identity.epoch, spec.attach_offset);
        let facts = Facts {
            parent: &key.parent,
            child: &key.child,
            epoch,
            attach_offset,
            high_water_mark: parent.log.high_water_mark(),
            file: &file,
        };
        let word;
        let mut decided = anchor(&facts, Confirmation::NotAsked);
        if decided == Anchor::Ask {
            word = words.of(&self.shared, &key.parent, &key.child).await;
            let said = word
                .as_ref()
                .map_or(Confirmation::Unavailable, Confirmation::Leader);
            decided = anchor(&facts, said);
        }
        match decided {
            Anchor::Resume(offset) => {
                counters.anchor_resumed.add(1);
                Some(offset)
            }
            Anchor::StartAt { offset, proof } => {
                let unique = self.shared.unique();
                match cursor_file::start(disk, at, unique, epoch, offset, &file, proof).await {
                    Ok(()) => {
                        counters.anchor_started.add(1);
                        Some(offset)
                    }
                    Err(error) => {
                        tracing::warn!(%error, parent = %key.parent, child = %key.child, "a cursor file cannot be written; trying again");
                        None
                    }
                }
            }
            Anchor::PositionAhead(offset) => {
                // The cursor runs, stands still, and says why: `link list` shows it.
                counters.anchor_stale.add(1);
                Some(offset)
            }
            Anchor::StaleEpoch => {
                counters.anchor_stale.add(1);
                None
            }
            Anchor::Ask | Anchor::Defer => {
                counters.anchor_deferred.add(1);
                None
            }
        }
    }

    /// Stores positions, one at a time, whoever has waited longest first.
    pub async fn store_loop(self: Rc<Cursors>) {
        loop {
            glommio::timer::sleep(STORE_EVERY).await;
            let oldest = {
                let running = self.running.borrow();
                let waiting = running
                    .values()
                    .filter_map(|entry| Some((entry.runner.unsaved_since()?, &entry.runner)));
                waiting
                    .min_by_key(|(since, _)| *since)
                    .map(|(_, runner)| Rc::clone(runner))
            };
            if let Some(runner) = oldest {
                runner.store().await;
            }
        }
    }

    /// Where a new link would start in each partition of the parent. Every cursor of the pair has stopped before the
    /// ends are read (SPEC.md F6).
    ///
    /// # Errors
    /// `POSITION_AHEAD`, `UNKNOWN_TOPIC`, or what the disk says.
    pub async fn attach_point(
        &self,
        parent: &TopicName,
        incarnation: Incarnation,
        child: &TopicName,
        from: AttachFrom,
    ) -> Result<Vec<Offset>, Refusal> {
        let of_pair = |key: &CursorKey| key.parent == *parent && key.child == *child;
        let older: Vec<_> = {
            let running = self.running.borrow();
            running
                .iter()
                .filter(|(key, _)| of_pair(key))
                .map(|(_, entry)| Rc::clone(&entry.runner))
                .collect()
        };
        for runner in older {
            runner.stop();
            runner.ended().await;
        }
        let partitions = self
            .shared
            .metadata()
            .topic(parent)
            .map_or(0, |topic| topic.spec.partitions);
        let mut offsets = Vec::with_capacity(partitions as usize);
        for number in 0..partitions {
            let partition = self
                .shared
                .partitions
                .find(parent, Some(incarnation), PartitionId(number))?;
            offsets.push(attach_offset(&partition, from).await?);
        }
        Ok(offsets)
    }

    /// Returns when no cursor of an epoch runs any more.
    pub async fn settled(&self, epoch: Epoch) {
        loop {
            let runner = {
                let running = self.running.borrow();
                running
                    .values()
                    .find(|entry| entry.identity.epoch == epoch)
                    .map(|entry| Rc::clone(&entry.runner))
            };
            let Some(runner) = runner else { return };
            runner.stop();
            runner.ended().await;
            // Its entry goes when its own task has seen the end.
            glommio::yield_if_needed().await;
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Stops every cursor that reads from a topic or writes to it, and waits.
    pub async fn settle_topic(&self, topic: &TopicName) {
        let of_topic = |key: &CursorKey| key.parent == *topic || key.child == *topic;
        let runners: Vec<_> = {
            let running = self.running.borrow();
            running
                .iter()
                .filter(|(key, _)| of_topic(key))
                .map(|(_, entry)| Rc::clone(&entry.runner))
                .collect()
        };
        for runner in runners {
            runner.stop();
            runner.ended().await;
        }
    }

    /// Stops all cursors, and waits: positions are stored.
    pub async fn stop_all(&self) {
        self.draining.set(true);
        self.changed.notify();
        let runners: Vec<_> = self
            .running
            .borrow()
            .values()
            .map(|entry| Rc::clone(&entry.runner))
            .collect();
        runners.iter().for_each(|runner| runner.stop());
        for runner in runners {
            runner.ended().await;
        }
    }

    /// Live links and their cursors on this shard, of one parent or of all.
    #[must_use]
    pub fn link_status(&self, parent: Option<&TopicName>) -> Vec<LinkStatus> {
        let snapshot: Arc<MetaSnapshot> = self.shared.metadata();
        let running = self.running.borrow();
        let wanted = snapshot
            .all_links()
            .filter(|link| parent.is_none_or(|name| link.parent == *name));
        wanted
            .map(|link| {
                let of_link = running
                    .iter()
                    .filter(|(key, _)| key.parent == link.parent && key.child == link.child);
                let cursors = of_link.map(|(_, entry)| entry.runner.status()).collect();
                LinkStatus {
                    link: link.clone(),
                    cursors,
                }
            })
            .collect()
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

/// The leader's word on each pair, asked at most once in a pass.
#[derive(Default)]
struct Words(BTreeMap<(TopicName, TopicName), Option<LeaderConfirmed>>);

impl Words {
    async fn of(
        &mut self,
        shared: &Shared,
        parent: &TopicName,
        child: &TopicName,
    ) -> Option<LeaderConfirmed> {
        let pair = (parent.clone(), child.clone());
        if let Some(word) = self.0.get(&pair) {
            return word.clone();
        }
        let word = shared.confirm_link(parent, child).await.ok();
        self.0.insert(pair, word.clone());
        word
    }
}
