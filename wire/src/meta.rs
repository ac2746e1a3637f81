//! What the cluster knows of topics and links, as the metastore keeps it and as clients see it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{Delay, Epoch, Incarnation, Offset, OwnerEpoch, TopicName};
use crate::partitioner::Partitioner;

/// When an acknowledgement is given (SPEC.md D11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// After a flush that covers the record.
    #[default]
    Fsync,
    /// After the write completed; a power cut may take it back.
    Written,
}

impl Durability {
    /// The label as it is printed in acknowledgements.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Durability::Fsync => "fsync",
            Durability::Written => "written",
        }
    }
}

/// How long a topic's records are kept; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Retention {
    /// By age of the commit time, in milliseconds.
    pub millis: Option<u64>,
    /// By size of a partition's log, in bytes.
    pub bytes: Option<u64>,
}

/// What a topic is made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicSpec {
    /// Its name.
    pub name: TopicName,
    /// 1..=1,024.
    pub partitions: u32,
    /// Fixed at creation.
    pub partitioner: Partitioner,
    /// How long records are kept.
    pub retention: Retention,
    /// When acknowledgements are given.
    pub durability: Durability,
}

/// A live topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// Name and settings.
    pub spec: TopicSpec,
    /// This life of the name.
    pub incarnation: Incarnation,
    /// The owner epoch of each partition, by number. On one node every partition is owned by shard 0.
    pub owner_epochs: Vec<OwnerEpoch>,
}

/// Where a new link starts reading each parent partition (F6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum AttachFrom {
    /// The end at the time of the attach: no backfill.
    #[default]
    Tail,
    /// The oldest record that is still there.
    Earliest,
    /// The same offset in every partition, at most the tail.
    Offset(Offset),
    /// The first record committed at or after this time, in nanoseconds since the epoch.
    Time(u64),
}

/// What a link does with records.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkOptions {
    /// How long records are held back.
    pub delay: Delay,
    /// Where it starts.
    pub from: AttachFrom,
    /// Which records pass, as the filter's text (F13); all without one.
    pub filter: Option<String>,
    /// A fixed time to gather before each commit, in milliseconds (F3); by default only while a commit is in flight.
    pub linger_millis: Option<u64>,
    /// Allow a byte limit on the parent that retention may reach before the delay is over (G4).
    pub allow_drop: bool,
}

/// A live link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The topic that is copied.
    pub parent: TopicName,
    /// The topic that receives the copies.
    pub child: TopicName,
    /// This attachment.
    pub epoch: Epoch,
    /// The parent's life that it was attached to.
    pub parent_incarnation: Incarnation,
    /// The child's life that it was attached to.
    pub child_incarnation: Incarnation,
    /// What it does.
    pub options: LinkOptions,
    /// The first offset to be copied, by parent partition; a partition added later starts at 0.
    pub attach_offsets: Vec<Offset>,
    /// The metadata index of the attach: a child owner with an older view catches up first (F8).
    pub index: u64,
}

impl Link {
    /// The first offset of a parent partition that this link copies.
    #[must_use]
    pub fn attach_offset(&self, parent_partition: u32) -> Offset {
        self.attach_offsets
            .get(parent_partition as usize)
            .copied()
            .unwrap_or(Offset::ZERO)
    }
}

/// All metadata at one version; shards and clients read it, only the metastore makes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MetaSnapshot {
    /// The index of the last applied command; equal versions are equal snapshots.
    pub version: u64,
    /// By name.
    pub topics: BTreeMap<TopicName, Topic>,
    /// By (parent, child).
    pub links: BTreeMap<TopicName, BTreeMap<TopicName, Link>>,
}

impl MetaSnapshot {
    /// A live topic by name.
    #[must_use]
    pub fn topic(&self, name: &TopicName) -> Option<&Topic> {
        self.topics.get(name)
    }

    /// A live link by its pair.
    #[must_use]
    pub fn link(&self, parent: &TopicName, child: &TopicName) -> Option<&Link> {
        self.links.get(parent)?.get(child)
    }

    /// The live link of a child that has this epoch.
    #[must_use]
    pub fn link_by_epoch(&self, child: &TopicName, epoch: Epoch) -> Option<&Link> {
        self.links
            .values()
            .filter_map(|children| children.get(child))
            .find(|link| link.epoch == epoch)
    }

    /// All live links, by parent, then child.
    pub fn all_links(&self) -> impl Iterator<Item = &Link> {
        self.links.values().flat_map(BTreeMap::values)
    }
}
