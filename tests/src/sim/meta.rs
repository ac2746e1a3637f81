//! The metadata leader: the true sequence of snapshots, which every other part sees late.

use tailwater_storage::proof::{EpochGone, LeaderConfirmed};
use tailwater_wire::ids::{Epoch, Incarnation, Offset, OwnerEpoch, TopicName};
use tailwater_wire::meta::{Durability, Link, LinkOptions, MetaSnapshot, Retention, Topic, TopicSpec};

use super::options::Scenario;
use super::rng::Rng;

/// See the module. Version `n` is `snapshots[n]`.
#[derive(Debug)]
pub(super) struct Meta {
    pub parent: TopicName,
    pub child: TopicName,
    pub snapshots: Vec<MetaSnapshot>,
    /// Every link that ever was, in order.
    pub links: Vec<Link>,
    /// Whether it answers.
    pub reachable: bool,
}

impl Meta {
    pub fn new(scenario: &Scenario) -> Meta {
        let name = |text: &str| text.parse::<TopicName>().expect("a name");
        let topic = |text: &str, partitions: u32, partitioner, n: u8| Topic {
            spec: TopicSpec {
                name: name(text),
                partitions,
                partitioner,
                retention: Retention::default(),
                durability: Durability::Fsync,
            },
            incarnation: Incarnation([n; 8]),
            owner_epochs: vec![OwnerEpoch(1); partitions as usize],
        };
        let topics = [
            topic(
                "orders",
                scenario.parent_partitions,
                scenario.parent_partitioner,
                1,
            ),
            topic("copies", scenario.child_partitions, scenario.child_partitioner, 2),
        ];
        let snapshot = MetaSnapshot {
            topics: topics
                .into_iter()
                .map(|topic| (topic.spec.name.clone(), topic))
                .collect(),
            ..MetaSnapshot::default()
        };
        Meta {
            parent: name("orders"),
            child: name("copies"),
            snapshots: vec![snapshot],
            links: Vec::new(),
            reachable: true,
        }
    }

    pub fn version(&self) -> u64 {
        self.snapshots.len() as u64 - 1
    }

    pub fn truth(&self) -> &MetaSnapshot {
        self.snapshots.last().expect("there is a first one")
    }

    pub fn link(&self) -> Option<&Link> {
        self.truth().link(&self.parent, &self.child)
    }

    pub fn detach(&mut self) {
        let mut next = self.truth().clone();
        next.version += 1;
        next.links.clear();
        self.snapshots.push(next);
    }

    pub fn attach(&mut self, attach_offsets: Vec<Offset>, scenario: &Scenario, rng: &mut Rng) {
        let mut next = self.truth().clone();
        next.version += 1;
        let incarnation = |name: &TopicName| next.topics[name].incarnation;
        let link = Link {
            parent: self.parent.clone(),
            child: self.child.clone(),
            epoch: Epoch::from_u64(rng.next()),
            parent_incarnation: incarnation(&self.parent),
            child_incarnation: incarnation(&self.child),
            options: LinkOptions {
                delay: scenario.delay,
                filter: scenario.filter.map(str::to_owned),
                linger_millis: scenario.linger_millis,
                ..LinkOptions::default()
            },
            attach_offsets,
            index: next.version,
        };
        self.links.push(link.clone());
        let children = next.links.entry(self.parent.clone()).or_default();
        children.insert(self.child.clone(), link);
        self.snapshots.push(next);
    }

    /// What a linearizable read says of the pair now.
    pub fn confirm(&self) -> LeaderConfirmed {
        let current = self.link().map(|link| link.epoch);
        LeaderConfirmed::by_leader(self.parent.clone(), self.child.clone(), current, self.version())
    }

    /// The leader's word on epochs that are gone.
    pub fn gone(&self) -> Vec<EpochGone> {
        let current = self.link().map(|link| link.epoch);
        let dead = self.links.iter().filter(|link| Some(link.epoch) != current);
        dead.map(|link| EpochGone::by_leader(link.epoch, self.version()))
            .collect()
    }
}
