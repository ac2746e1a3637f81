//! The partitions that this shard owns: opened and closed as the metadata says, looked up by every request.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use tailwater_storage::disk::device::{Disk, DiskError, DiskErrorKind};
use tailwater_storage::disk::uring::UringDisk;
use tailwater_storage::error::{OpenError, RecoveryReport};
use tailwater_storage::layout;
use tailwater_storage::log::PartitionLog;
use tailwater_storage::log::options::{LogIdentity, LogOptions};
use tailwater_storage::proof::TopicGone;
use tailwater_storage::tail_cache::{SharedTailCache, TailCache};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Incarnation, PartitionId, TopicName};
use tailwater_wire::meta::{Durability, Retention, Topic};

use crate::budget::Budget;
use crate::clock::system::SystemClock;
use crate::config::LogConfig;
use crate::partition::leftovers;
use crate::router::placement::Placement;
use crate::signal::Signal;
use crate::telemetry::counters::ShardCounters;

/// Partitions of a topic that are opened at the same time.
const OPEN_AT_ONCE: usize = 32;

/// A partition's log on the shard's disk.
pub type ShardLog = PartitionLog<UringDisk>;

/// A partition that this shard owns and serves.
pub struct Partition {
    /// Its topic.
    pub topic: TopicName,
    /// The topic's life.
    pub incarnation: Incarnation,
    /// Its number.
    pub id: PartitionId,
    /// When acknowledgements are given.
    pub durability: Durability,
    /// How long records are kept; changed by metadata.
    pub retention: Cell<Retention>,
    /// Its log.
    pub log: Rc<ShardLog>,
    /// Whether it is in the list of those with something to commit.
    dirty: Cell<bool>,
    /// Whether a segment is being prepared for it.
    pub preparing: Cell<bool>,
}

/// All partitions of the shard, by topic; those of other shards answer with their owner's name.
pub struct Partitions {
    placement: Placement,
    disk: UringDisk,
    data: PathBuf,
    config: LogConfig,
    clock: SystemClock,
    random: Rc<dyn Fn() -> u64>,
    counters: Arc<ShardCounters>,
    tail_cache: SharedTailCache,
    waiting: Rc<Budget>,
    topics: RefCell<BTreeMap<TopicName, OpenTopic>>,
    dirty: RefCell<Vec<Rc<Partition>>>,
    commit: Signal,
}

struct OpenTopic {
    topic: Topic,
    partitions: Vec<Result<Rc<Partition>, Refusal>>,
}

impl Partitions {
    /// No partitions yet, under a data directory.
    pub fn new(
        placement: Placement,
        disk: UringDisk,
        data: PathBuf,
        config: LogConfig,
        clock: SystemClock,
        random: Rc<dyn Fn() -> u64>,
        counters: Arc<ShardCounters>,
    ) -> Partitions {
        let tail_cache = TailCache::shared(config.tail_cache_bytes);
        let waiting = Budget::new(config.waiting_bytes_max);
        let (topics, dirty, commit) = (RefCell::default(), RefCell::default(), Signal::default());
        Partitions {
            placement,
            disk,
            data,
            config,
            clock,
            random,
            counters,
            tail_cache,
            waiting,
            topics,
            dirty,
            commit,
        }
    }

    /// Where this shard stands among its node's.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The shard's disk.
    #[must_use]
    pub fn disk(&self) -> &UringDisk {
        &self.disk
    }

    /// Where topics live.
    #[must_use]
    pub fn data(&self) -> &PathBuf {
        &self.data
    }

    /// Memory for producers' batches that wait for their flush.
    #[must_use]
    pub fn waiting(&self) -> &Rc<Budget> {
        &self.waiting
    }

    /// The owner's clock.
    #[must_use]
    pub fn clock(&self) -> &SystemClock {
        &self.clock
    }

    /// What this shard counts.
    #[must_use]
    pub fn counters(&self) -> &ShardCounters {
        &self.counters
    }

    /// A partition to serve.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, `UNKNOWN_PARTITION`, `STALE_INCARNATION` when the client means another life of the name,
    /// `NOT_OWNER`, or the reason why the partition could not be opened.
    pub fn find(
        &self,
        topic: &TopicName,
        incarnation: Option<Incarnation>,
        partition: PartitionId,
    ) -> Result<Rc<Partition>, Refusal> {
        let topics = self.topics.borrow();
        let Some(open) = topics.get(topic) else {
            return Err(Refusal::new(
                ErrorCode::UnknownTopic,
                format!("there is no topic `{topic}`"),
            ));
        };
        if incarnation.is_some_and(|wanted| wanted != open.topic.incarnation) {
            let what = format!("`{topic}` was deleted and created anew since this position was handed out");
            return Err(Refusal::new(ErrorCode::StaleIncarnation, what));
        }
        match open.partitions.get(partition.0 as usize) {
            Some(found) => found.clone(),
            None => {
                let count = open.partitions.len();
                let what = format!(
                    "`{topic}` has partitions 0 to {}, not {partition}",
                    count.saturating_sub(1)
                );
                Err(Refusal::new(ErrorCode::UnknownPartition, what))
            }
        }
    }

    /// Every partition that is open, topic by topic.
    #[must_use]
    pub fn all(&self) -> Vec<Rc<Partition>> {
        let topics = self.topics.borrow();
        topics
            .values()
            .flat_map(|open| &open.partitions)
            .filter_map(|p| p.as_ref().ok())
            .cloned()
            .collect()
    }

    /// Every partition that this shard owns, of one topic or of all, also those that could not be opened.
    #[must_use]
    pub fn mine(
        &self,
        topic: Option<&TopicName>,
    ) -> Vec<(TopicName, PartitionId, Result<Rc<Partition>, Refusal>)> {
        let topics = self.topics.borrow();
        let wanted = topics
            .iter()
            .filter(|(name, _)| topic.is_none_or(|topic| topic == *name));
        let of = |(name, open): (&TopicName, &OpenTopic)| {
            let numbered = (0u32..).map(PartitionId).zip(&open.partitions);
            let mine = numbered.filter(|(id, _)| self.placement.is_mine(open.topic.incarnation, *id));
            mine.map(|(id, found)| (name.clone(), id, found.clone()))
                .collect::<Vec<_>>()
        };
        wanted.flat_map(of).collect()
    }

    /// The life of a topic that is open here.
    #[must_use]
    pub fn incarnation(&self, topic: &TopicName) -> Option<Incarnation> {
        self.topics.borrow().get(topic).map(|open| open.topic.incarnation)
    }

    /// Names and lives of what is open here.
    #[must_use]
    pub fn open_topics(&self) -> Vec<(TopicName, Incarnation)> {
        self.topics
            .borrow()
            .iter()
            .map(|(name, open)| (name.clone(), open.topic.incarnation))
            .collect()
    }

    /// The shard that owns a partition of a topic that is open here; `None` without that topic or partition.
    #[must_use]
    pub fn owner(&self, topic: &TopicName, partition: PartitionId) -> Option<u32> {
        let topics = self.topics.borrow();
        let open = topics.get(topic)?;
        let there = (partition.0 as usize) < open.partitions.len();
        there.then(|| self.placement.owner(open.topic.incarnation, partition))
    }

    /// Opens the partitions of a topic that this shard owns, those that were added, or takes over changed settings. A
    /// partition that cannot be opened answers with the reason; its siblings serve.
    pub async fn open_topic(self: &Rc<Self>, topic: &Topic) {
        let name = &topic.spec.name;
        let present = {
            let topics = self.topics.borrow();
            let open = topics
                .get(name)
                .filter(|open| open.topic.incarnation == topic.incarnation);
            open.map_or(0, |open| open.partitions.len() as u32)
        };
        let mut added = Vec::new();
        let numbers: Vec<u32> = (present..topic.spec.partitions).collect();
        for some in numbers.chunks(OPEN_AT_ONCE) {
            let opening: Vec<_> = some
                .iter()
                .map(|&number| self.start_opening(topic, PartitionId(number)))
                .collect();
            for opened in opening {
                added.push(opened.await);
            }
        }
        let mut topics = self.topics.borrow_mut();
        match topics.get_mut(name) {
            Some(open) if present > 0 => {
                open.topic = topic.clone();
                open.partitions.extend(added);
                let partitions = open.partitions.iter().filter_map(|p| p.as_ref().ok());
                partitions.for_each(|partition| partition.retention.set(topic.spec.retention));
            }
            _ => {
                let open = OpenTopic {
                    topic: topic.clone(),
                    partitions: added,
                };
                topics.insert(name.clone(), open);
            }
        }
    }

    /// Opens a partition in a task of its own.
    fn start_opening(
        self: &Rc<Self>,
        topic: &Topic,
        id: PartitionId,
    ) -> impl Future<Output = Result<Rc<Partition>, Refusal>> + use<> {
        let (this, topic) = (Rc::clone(self), topic.clone());
        glommio::spawn_local(async move {
            let owner = this.placement.owner(topic.incarnation, id);
            if owner != this.placement.shard {
                return Err(elsewhere(&topic.spec.name, id, owner));
            }
            this.open_partition(&topic, id).await
        })
    }

    async fn open_partition(&self, topic: &Topic, id: PartitionId) -> Result<Rc<Partition>, Refusal> {
        let name = topic.spec.name.clone();
        let identity = LogIdentity {
            topic: name.clone(),
            incarnation: topic.incarnation,
            partition: id,
        };
        let options = LogOptions {
            owner_epoch: topic.owner_epochs.get(id.0 as usize).copied().unwrap_or_default(),
            durability: topic.spec.durability,
            segment_bytes_first: self.config.segment_bytes_first,
            segment_bytes_max: self.config.segment_bytes_max,
            tail_cache: SharedTailCache::clone(&self.tail_cache),
            ..LogOptions::default()
        };
        let dir = layout::partition_dir(&self.data, &name, id);
        let opened = PartitionLog::open(
            self.disk.clone(),
            dir,
            identity,
            options,
            self.clock.now(),
            Rc::clone(&self.random),
        );
        match opened.await {
            Ok((log, report)) => {
                tell(&name, id, &report);
                self.counters.corrupt_batches.add(report.quarantined.len() as u64);
                Ok(Rc::new(Partition {
                    topic: name,
                    incarnation: topic.incarnation,
                    id,
                    durability: topic.spec.durability,
                    retention: Cell::new(topic.spec.retention),
                    log,
                    dirty: Cell::new(false),
                    preparing: Cell::new(false),
                }))
            }
            Err(error) => {
                tracing::error!(topic = %name, partition = id.0, %error, "cannot open a partition; it is not served");
                let refusal = unopened(&name, id, &error);
                if refusal.code != ErrorCode::DiskFull {
                    self.counters.latched.add(1);
                }
                Err(refusal)
            }
        }
    }

    /// Opens partitions again that could not be opened for want of room. Says whether any was.
    pub async fn open_again(self: &Rc<Self>) -> bool {
        let full = |found: &Result<Rc<Partition>, Refusal>| {
            found
                .as_ref()
                .is_err_and(|refusal| refusal.code == ErrorCode::DiskFull)
        };
        let waiting: Vec<(Topic, u32)> = {
            let topics = self.topics.borrow();
            let of = |open: &OpenTopic| {
                let numbers = (0u32..).zip(&open.partitions).filter(|(_, found)| full(found));
                numbers
                    .map(|(number, _)| (open.topic.clone(), number))
                    .collect::<Vec<_>>()
            };
            topics.values().flat_map(of).take(OPEN_AT_ONCE).collect()
        };
        let mut any = false;
        for (topic, number) in waiting {
            let opened = self.open_partition(&topic, PartitionId(number)).await;
            let mut topics = self.topics.borrow_mut();
            let open = topics
                .get_mut(&topic.spec.name)
                .filter(|open| open.topic.incarnation == topic.incarnation);
            if let (Ok(partition), Some(open)) = (opened, open) {
                open.partitions[number as usize] = Ok(partition);
                any = true;
            }
        }
        any
    }

    /// Closes a topic's partitions: what was accepted is committed, and proved by a frontier batch.
    pub async fn close_topic(&self, topic: &TopicName) {
        let closing = self.topics.borrow_mut().remove(topic);
        for partition in closing.into_iter().flat_map(|open| open.partitions).flatten() {
            self.close(&partition).await;
        }
    }

    async fn close(&self, partition: &Partition) {
        if let Err(error) = partition.log.close(self.clock.now()).await {
            let (topic, partition) = (&partition.topic, partition.id.0);
            tracing::error!(%topic, partition, %error, "a partition did not close cleanly; it is recovered at the next start");
        }
    }

    /// Closes everything that is open.
    pub async fn close_all(&self) {
        for (topic, _) in self.open_topics() {
            self.close_topic(&topic).await;
        }
    }

    /// Removes the data of a life that the metadata leader has confirmed to be over: first renamed, so that a crash in
    /// between leaves no half topic. Data of another life under the same name is not touched.
    ///
    /// # Errors
    /// [`DiskError`]; what remains is removed at a later start.
    pub async fn remove_topic(&self, gone: &TopicGone) -> Result<(), DiskError> {
        let (topic, incarnation) = (gone.topic(), gone.incarnation());
        match self.incarnation(topic) {
            Some(open) if open == incarnation => self.close_topic(topic).await,
            Some(_) => return Ok(()),
            // Not open here, so nothing here says which life it is of: only the mark that the deletion left does.
            None if !leftovers::is_marked(&self.disk, &self.data, topic, incarnation).await => return Ok(()),
            None => {}
        }
        let dir = layout::topic_dir(&self.data, topic);
        let aside = layout::deleted_topic_dir(&self.data, topic, incarnation);
        match self.disk.rename(&dir, &aside).await {
            Ok(()) => self.disk.sync_dir(&layout::topics_dir(&self.data)).await?,
            Err(error) if error.kind == DiskErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.disk.remove_dir_all(&aside).await
    }

    /// Says that a partition has something to commit.
    pub fn mark_dirty(&self, partition: &Rc<Partition>) {
        if !partition.dirty.replace(true) {
            self.dirty.borrow_mut().push(Rc::clone(partition));
            self.commit.notify();
        }
    }

    /// Waits for partitions with something to commit, and takes them.
    pub async fn take_dirty(&self) -> Vec<Rc<Partition>> {
        loop {
            let dirty = self.dirty.take();
            if !dirty.is_empty() {
                dirty.iter().for_each(|partition| partition.dirty.set(false));
                return dirty;
            }
            self.commit.wait().await;
        }
    }
}

/// A start after a clean end is not worth a line.
fn tell(topic: &TopicName, id: PartitionId, report: &RecoveryReport) {
    let (partition, copied_batches, dropped_batches) = (id.0, report.copied_batches, report.dropped_batches);
    for range in &report.quarantined {
        let (from, to) = (range.start.0, range.end.0);
        tracing::error!(%topic, partition, from, to, "records have rotted on disk: they are lost, counted, and never served");
    }
    if let Some(cut_at) = report.cut_at {
        let cut_at = cut_at.0;
        tracing::warn!(%topic, partition, cut_at, copied_batches, dropped_batches, "the log was not closed: recovered");
    }
}

fn elsewhere(topic: &TopicName, id: PartitionId, owner: u32) -> Refusal {
    let what = format!("partition {id} of `{topic}` belongs to shard {owner}");
    Refusal::new(ErrorCode::NotOwner, what)
}

fn unopened(topic: &TopicName, id: PartitionId, error: &OpenError) -> Refusal {
    let what = format!("partition {id} of `{topic}` could not be opened: {error}");
    let code = match error {
        OpenError::Disk(error) if error.kind == DiskErrorKind::NoSpace => ErrorCode::DiskFull,
        _ => ErrorCode::PartitionLatched,
    };
    Refusal::new(code, what)
}
