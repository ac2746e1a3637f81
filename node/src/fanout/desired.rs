//! Which cursors should run on a core: live links, times the parent partitions that the core owns.

use std::collections::BTreeMap;

use tailwater_wire::ids::{Epoch, Incarnation, Offset, OwnerEpoch, PartitionId, TopicName};
use tailwater_wire::meta::{Link, LinkOptions, MetaSnapshot};
use tailwater_wire::partitioner::Partitioner;

/// Which cursor: at most one runs for each at any time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CursorKey {
    /// The topic that is copied.
    pub parent: TopicName,
    /// Its partition.
    pub partition: PartitionId,
    /// The topic that receives the copies.
    pub child: TopicName,
}

/// Which life of it: what was started for another identity is another cursor, and has to end first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The attachment.
    pub epoch: Epoch,
    /// The parent's life.
    pub parent_incarnation: Incarnation,
    /// The child's life.
    pub child_incarnation: Incarnation,
    /// The ownership of the parent partition.
    pub owner_epoch: OwnerEpoch,
}

/// A cursor that should run, with what it needs to know of the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorSpec {
    /// Which life.
    pub identity: Identity,
    /// Where the link attached to this partition.
    pub attach_offset: Offset,
    /// Delay, filter, linger.
    pub options: LinkOptions,
    /// The child's partitions.
    pub child_partitions: u32,
    /// The child's partitioner.
    pub child_partitioner: Partitioner,
    /// The metadata index of the link, which its commits carry.
    pub index: u64,
}

/// The cursors that should run where `owns` says that this core owns a partition of a topic. A link whose parent or
/// child is gone or re-created is dead, though it may not have been removed yet.
#[must_use]
pub fn desired(
    snapshot: &MetaSnapshot,
    owns: impl Fn(&TopicName, PartitionId) -> bool,
) -> BTreeMap<CursorKey, CursorSpec> {
    let mut cursors = BTreeMap::new();
    for link in snapshot.all_links() {
        for (partition, spec) in of_link(snapshot, link) {
            if owns(&link.parent, partition) {
                let key = CursorKey {
                    parent: link.parent.clone(),
                    partition,
                    child: link.child.clone(),
                };
                cursors.insert(key, spec);
            }
        }
    }
    cursors
}

/// The cursors of one partition that should run: one for each live link of its topic.
#[must_use]
pub fn of_partition(
    snapshot: &MetaSnapshot,
    topic: &TopicName,
    partition: PartitionId,
) -> BTreeMap<CursorKey, CursorSpec> {
    desired(snapshot, |name, number| name == topic && number == partition)
}

fn of_link<'a>(
    snapshot: &'a MetaSnapshot,
    link: &'a Link,
) -> impl Iterator<Item = (PartitionId, CursorSpec)> + 'a {
    let parent = snapshot
        .topic(&link.parent)
        .filter(|topic| topic.incarnation == link.parent_incarnation);
    let child = snapshot
        .topic(&link.child)
        .filter(|topic| topic.incarnation == link.child_incarnation);
    parent.zip(child).into_iter().flat_map(move |(parent, child)| {
        (0..parent.spec.partitions).map(move |partition| {
            let owner_epoch = parent.owner_epochs.get(partition as usize).copied();
            let identity = Identity {
                epoch: link.epoch,
                parent_incarnation: link.parent_incarnation,
                child_incarnation: link.child_incarnation,
                owner_epoch: owner_epoch.unwrap_or_default(),
            };
            let spec = CursorSpec {
                identity,
                attach_offset: link.attach_offset(partition),
                options: link.options.clone(),
                child_partitions: child.spec.partitions,
                child_partitioner: child.spec.partitioner,
                index: link.index,
            };
            (PartitionId(partition), spec)
        })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tailwater_wire::meta::{Retention, Topic, TopicSpec};

    pub(crate) fn name(text: &str) -> TopicName {
        text.parse().expect("a name")
    }

    pub(crate) fn add_topic(snapshot: &mut MetaSnapshot, topic: &str, partitions: u32, incarnation: u64) {
        let spec = TopicSpec {
            name: name(topic),
            partitions,
            partitioner: Partitioner::Murmur2,
            retention: Retention::default(),
            durability: Default::default(),
        };
        let topic = Topic {
            incarnation: Incarnation::from_u64(incarnation),
            owner_epochs: vec![OwnerEpoch(1); partitions as usize],
            spec,
        };
        snapshot.topics.insert(topic.spec.name.clone(), topic);
    }

    pub(crate) fn add_link(snapshot: &mut MetaSnapshot, parent: &str, child: &str, epoch: u64) {
        let incarnation = |topic: &str| snapshot.topics[&name(topic)].incarnation;
        let link = Link {
            parent: name(parent),
            child: name(child),
            epoch: Epoch::from_u64(epoch),
            parent_incarnation: incarnation(parent),
            child_incarnation: incarnation(child),
            options: LinkOptions::default(),
            attach_offsets: vec![Offset(7)],
            index: 3,
        };
        let children = snapshot.links.entry(name(parent)).or_default();
        children.insert(name(child), link);
    }

    pub(crate) fn snapshot() -> MetaSnapshot {
        let mut snapshot = MetaSnapshot {
            version: 1,
            ..MetaSnapshot::default()
        };
        add_topic(&mut snapshot, "orders", 2, 1);
        add_topic(&mut snapshot, "analytics", 5, 2);
        add_topic(&mut snapshot, "trades", 3, 3);
        add_link(&mut snapshot, "orders", "analytics", 10);
        add_link(&mut snapshot, "orders", "trades", 11);
        snapshot
    }

    #[test]
    fn one_cursor_for_each_owned_parent_partition_and_child() {
        let cursors = desired(&snapshot(), |topic, partition| {
            topic.as_str() == "orders" && partition == PartitionId(1)
        });
        let found: Vec<_> = cursors
            .iter()
            .map(|(key, spec)| (key.child.as_str(), key.partition.0, spec.child_partitions))
            .collect();
        assert_eq!(found, [("analytics", 1, 5), ("trades", 1, 3)]);
        let attach: Vec<_> = desired(&snapshot(), |_, _| true)
            .values()
            .map(|spec| spec.attach_offset.0)
            .collect();
        assert_eq!(
            attach,
            [7, 7, 0, 0],
            "a partition added after the attach starts at 0"
        );
    }

    #[test]
    fn a_link_of_a_dead_topic_wants_nothing() {
        for (topic, incarnation) in [("orders", 9), ("trades", 9)] {
            let mut recreated = snapshot();
            add_topic(&mut recreated, topic, 2, incarnation);
            let cursors = desired(&recreated, |_, _| true);
            let alive = if topic == "orders" { 0 } else { 2 };
            assert_eq!(cursors.len(), alive, "{topic} was re-created");
            let mut deleted = snapshot();
            deleted.topics.remove(&name(topic));
            assert_eq!(desired(&deleted, |_, _| true).len(), alive, "{topic} was deleted");
        }
    }
}
