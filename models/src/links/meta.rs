//! The log of commands, and the production state after each of them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use tailwater_node::metastore::command::{Attach, Command};
use tailwater_node::metastore::state::MetaState;
use tailwater_storage::proof::{EpochGone, LeaderConfirmed, TopicGone};
use tailwater_wire::ids::{Epoch, Incarnation, Offset, OwnerEpoch, TopicName};
use tailwater_wire::meta::{Durability, LinkOptions, MetaSnapshot, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;

/// A command, in short. What makes its epoch or incarnation is its number in the world's order of proposals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Make the parent, or the child.
    Create { parent: bool, incarnation: u8 },
    /// Delete this life of it.
    Delete { parent: bool, incarnation: u8 },
    /// Attach.
    Attach {
        /// Of the client.
        request: u8,
        /// Drawn by the proposer.
        epoch: u8,
        /// The parent's end when every older cursor had stopped.
        at: u64,
        /// The parent's life then.
        parent_incarnation: u8,
        /// The child's life then.
        child_incarnation: u8,
    },
    /// Detach.
    Detach { epoch: u8 },
}

/// The parent's name, or the child's.
#[must_use]
pub fn name(parent: bool) -> TopicName {
    let text = if parent { "orders" } else { "copies" };
    text.parse().expect("a name")
}

/// An epoch by its number.
#[must_use]
pub fn epoch(number: u8) -> Epoch {
    Epoch::from_u64(100 + u64::from(number))
}

/// An incarnation by its number.
#[must_use]
pub fn incarnation(number: u8) -> Incarnation {
    Incarnation::from_u64(u64::from(number))
}

/// The number of an epoch.
#[must_use]
pub fn epoch_number(of: Epoch) -> u8 {
    (0..=u8::MAX)
        .find(|number| epoch(*number) == of)
        .expect("made here")
}

/// The number of an incarnation.
#[must_use]
pub fn incarnation_number(of: Incarnation) -> u8 {
    (0..=u8::MAX)
        .find(|number| incarnation(*number) == of)
        .expect("made here")
}

impl Op {
    /// The production command.
    #[must_use]
    pub fn command(self) -> Command {
        match self {
            Op::Create {
                parent,
                incarnation: number,
            } => Command::CreateTopic {
                spec: TopicSpec {
                    name: name(parent),
                    partitions: 1,
                    partitioner: Partitioner::Murmur2,
                    retention: Retention::default(),
                    durability: Durability::Fsync,
                },
                incarnation: incarnation(number),
            },
            Op::Delete {
                parent,
                incarnation: number,
            } => Command::DeleteTopic {
                name: name(parent),
                incarnation: Some(incarnation(number)),
            },
            Op::Attach {
                request,
                epoch: number,
                at,
                parent_incarnation,
                child_incarnation,
            } => Command::Attach(Attach {
                request_id: [request; 16],
                parent: name(true),
                child: name(false),
                options: LinkOptions::default(),
                epoch: epoch(number),
                attach_offsets: vec![Offset(at)],
                parent_incarnation: incarnation(parent_incarnation),
                child_incarnation: incarnation(child_incarnation),
                owner_epochs: vec![OwnerEpoch(1)],
            }),
            Op::Detach { epoch: number } => Command::Detach {
                parent: name(true),
                child: name(false),
                epoch: epoch(number),
            },
        }
    }
}

/// See the module. The states follow from the commands, so these alone tell two logs apart.
#[derive(Debug, Clone)]
pub struct Log {
    ops: Vec<Op>,
    states: Vec<Arc<MetaState>>,
}

impl Log {
    /// A log in which both topics were made.
    #[must_use]
    pub fn new() -> Log {
        let mut log = Log {
            ops: Vec::new(),
            states: vec![Arc::default()],
        };
        log.apply(Op::Create {
            parent: true,
            incarnation: 1,
        });
        log.apply(Op::Create {
            parent: false,
            incarnation: 2,
        });
        log
    }

    /// Commits a command; whether it changes something is the production rules'.
    pub fn apply(&mut self, op: Op) {
        let mut state = MetaState::clone(&self.states[self.ops.len()]);
        self.ops.push(op);
        // A refused command changes nothing; whoever proposed it may be gone.
        let _refused = state.apply(self.ops.len() as u64, &op.command());
        self.states.push(Arc::new(state));
    }

    /// Commands so far.
    #[must_use]
    pub fn end(&self) -> usize {
        self.ops.len()
    }

    /// The commands.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The state of a replica that has seen so many of them.
    #[must_use]
    pub fn state(&self, view: usize) -> &MetaState {
        &self.states[view]
    }

    /// The metadata of a replica that has seen so many of them.
    #[must_use]
    pub fn snapshot(&self, view: usize) -> &MetaSnapshot {
        self.states[view].snapshot()
    }

    /// What holds now.
    #[must_use]
    pub fn truth(&self) -> &MetaSnapshot {
        self.snapshot(self.end())
    }

    /// The epoch that links the pair at a place of the log.
    #[must_use]
    pub fn epoch_at(&self, view: usize) -> Option<u8> {
        let link = self.snapshot(view).link(&name(true), &name(false));
        link.map(|link| epoch_number(link.epoch))
    }

    /// The life of a topic at a place of the log.
    #[must_use]
    pub fn life_at(&self, view: usize, parent: bool) -> Option<u8> {
        let topic = self.snapshot(view).topic(&name(parent));
        topic.map(|topic| incarnation_number(topic.incarnation))
    }

    /// The attach that made an epoch live, if any did: its offset, and the lives of parent and child.
    #[must_use]
    pub fn attached(&self, number: u8) -> Option<(u64, u8, u8)> {
        let mut links = self.states.iter().flat_map(|state| state.snapshot().all_links());
        let link = links.find(|link| link.epoch == epoch(number))?;
        let (parent, child) = (link.parent_incarnation, link.child_incarnation);
        let at = link.attach_offset(0).0;
        Some((at, incarnation_number(parent), incarnation_number(child)))
    }

    /// A linearizable read, as it comes to whoever asked.
    #[must_use]
    pub fn word(current: Option<u8>) -> LeaderConfirmed {
        LeaderConfirmed::by_leader(name(true), name(false), current.map(epoch), 0)
    }

    /// The leader's word that an epoch is over.
    #[must_use]
    pub fn epoch_gone(&self, number: u8) -> Option<EpochGone> {
        let lives = self.truth().all_links().any(|link| link.epoch == epoch(number));
        (!lives).then(|| EpochGone::by_leader(epoch(number), self.truth().version))
    }

    /// The leader's word that a topic's life is over.
    #[must_use]
    pub fn topic_gone(&self, parent: bool, number: u8) -> Option<TopicGone> {
        let lives = self.life_at(self.end(), parent) == Some(number);
        let version = self.truth().version;
        (!lives).then(|| TopicGone::by_leader(name(parent), incarnation(number), version))
    }
}

impl Default for Log {
    fn default() -> Log {
        Log::new()
    }
}

impl PartialEq for Log {
    fn eq(&self, other: &Log) -> bool {
        self.ops == other.ops
    }
}

impl Eq for Log {}

impl Hash for Log {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ops.hash(state);
    }
}
