//! One shard's partitions and cursors, without clients, without a control thread and without the loops that a test does
//! not ask for.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tailwater_node::budget::Budget;
use tailwater_node::clock::keeper::Keeper;
use tailwater_node::clock::source::ClockSource;
use tailwater_node::config::{FanoutConfig, LogConfig};
use tailwater_node::control::request::{CONTROL_QUEUE, ControlRequest};
use tailwater_node::fanout::cursors::Cursors;
use tailwater_node::fanout::shared::Shared;
use tailwater_node::partition::owner::Partitions;
use tailwater_node::partition::{commit, group};
use tailwater_node::router::mesh::{self, Mesh};
use tailwater_node::telemetry::counters::ShardCounters;
use tailwater_storage::disk::device::Disk;
use tailwater_storage::disk::executor::{ExecutorOptions, spawn};
use tailwater_storage::disk::flush_watch::FailedFlushes;
use tailwater_storage::disk::uring::UringDisk;
use tailwater_storage::disk::watchdog::{Watchdog, WatchdogOptions};
use tailwater_storage::layout;
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::ids::{Epoch, Incarnation, Offset, OwnerEpoch, PartitionId, TopicName, Writer};
use tailwater_wire::meta::{Durability, Link, LinkOptions, MetaSnapshot, Retention, Topic, TopicSpec};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

/// The life of every topic here.
pub const LIFE: Incarnation = Incarnation([1; 8]);

/// See the module.
pub struct Shard {
    /// What its cursors share.
    pub shared: Rc<Shared>,
    /// Its cursors; none runs before [`Cursors::reconcile_loop`] does.
    pub cursors: Rc<Cursors>,
    /// What it asks of the control thread.
    pub requests: flume::Receiver<ControlRequest>,
}

/// Runs a test on the first of so many shards; the others are not there.
pub fn on_a_shard<F: Future<Output = ()> + 'static>(
    shards: u32,
    test: impl FnOnce(Shard) -> F + Send + 'static,
) {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().to_path_buf();
    let watchdog = Watchdog::start(WatchdogOptions::default(), Box::new(|_, _| {})).expect("a thread");
    let options = ExecutorOptions {
        io_memory_bytes: 1 << 20,
        ..ExecutorOptions::default()
    };
    let main = move || async move { test(Shard::start(root, shards).await).await };
    let executor = spawn(&options, &watchdog, main).expect("an executor");
    executor.join().expect("the test's outcome");
}

impl Shard {
    async fn start(root: PathBuf, shards: u32) -> Shard {
        let disk = UringDisk::start(&root, FailedFlushes::default())
            .await
            .expect("a disk");
        let topics = disk.create_dir_all(&layout::topics_dir(&root)).await;
        topics.expect("a directory");
        let (clock, _keeper) = Keeper::open(&root, ClockSource::System);
        let mesh = Mesh::new(mesh::ends(shards, 16).remove(0));
        let next = Cell::new(0);
        let random = Rc::new(move || {
            next.set(next.get() + 1);
            next.get()
        });
        let log = LogConfig {
            segment_bytes_first: 64 << 10,
            ..LogConfig::default()
        };
        let counters = Arc::new(ShardCounters::default());
        let partitions = Partitions::new(mesh.placement(), disk, root, log, clock, random, counters);
        let partitions = Rc::new(partitions);
        glommio::spawn_local(group::commit_loop(Rc::clone(&partitions))).detach();
        let (control, requests) = flume::bounded(CONTROL_QUEUE);
        let shared = Rc::new(Shared::new(partitions, Budget::new(64 << 20), mesh, control));
        let cursors = Rc::new(Cursors::new(Rc::clone(&shared), FanoutConfig::default()));
        Shard {
            shared,
            cursors,
            requests,
        }
    }

    /// Opens what a snapshot has.
    pub async fn open(&self, snapshot: &MetaSnapshot) {
        for topic in snapshot.topics.values() {
            self.shared.partitions.open_topic(topic).await;
        }
    }

    /// Brings metadata into force, as the control thread's word does.
    pub async fn bring(&self, snapshot: &MetaSnapshot) {
        self.shared.set_metadata(Arc::new(snapshot.clone()));
        self.open(snapshot).await;
        self.shared.set_in_force(snapshot.version);
        self.cursors.owned_changed();
    }

    /// Commits so many records, one to a batch.
    pub async fn produce(&self, topic: &str, partition: u32, count: u64) {
        let partitions = &self.shared.partitions;
        let found = partitions.find(&name(topic), None, PartitionId(partition));
        let found = found.expect("a partition of this shard");
        for _ in 0..count {
            let accepted = commit::accept(partitions, &found, record()).expect("taken");
            commit::settle(partitions, accepted).await.expect("committed");
        }
    }

    /// Where a partition of this shard ends.
    pub fn end(&self, topic: &str, partition: u32) -> Offset {
        let found = self
            .shared
            .partitions
            .find(&name(topic), None, PartitionId(partition));
        found.expect("a partition of this shard").log.next_offset()
    }
}

fn record() -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    builder.push(&Record::default()).expect("fits");
    builder.finish(Writer::Anonymous, 0).expect("a record")
}

/// A topic's name.
pub fn name(text: &str) -> TopicName {
    text.parse().expect("a topic name")
}

/// Metadata of this version, with topics of so many partitions, and `links`.
pub fn metadata(version: u64, topics: &[(&str, u32)], links: &[Link]) -> MetaSnapshot {
    let topic = |&(topic, partitions): &(&str, u32)| {
        let spec = TopicSpec {
            name: name(topic),
            partitions,
            partitioner: Partitioner::Murmur2,
            retention: Retention::default(),
            durability: Durability::Fsync,
        };
        let live = Topic {
            spec,
            incarnation: LIFE,
            owner_epochs: vec![OwnerEpoch::default(); partitions as usize],
        };
        (name(topic), live)
    };
    let mut snapshot = MetaSnapshot {
        version,
        topics: topics.iter().map(topic).collect(),
        ..MetaSnapshot::default()
    };
    for link in links {
        let children = snapshot.links.entry(link.parent.clone()).or_default();
        children.insert(link.child.clone(), link.clone());
    }
    snapshot
}

/// The attachment of `copy` to `ticks` with this epoch, made at this index.
pub fn link(epoch: u8, index: u64, attach_offsets: &[u64]) -> Link {
    Link {
        parent: name("ticks"),
        child: name("copy"),
        epoch: Epoch([epoch; 8]),
        parent_incarnation: LIFE,
        child_incarnation: LIFE,
        options: LinkOptions::default(),
        attach_offsets: attach_offsets.iter().copied().map(Offset).collect(),
        index,
    }
}
