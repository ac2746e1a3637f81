//! What can happen next, how often each misfortune may, and what has to hold.

use std::fmt;

use stateright::Property;
use tailwater_node::fanout::cursor::message::{RequestId, StallReason};
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};

use super::child::Ask;
use super::life::SLAB_RECORDS_MAX;
use super::parent::Copied;
use super::world::{Message, World};

/// Each record of one history is in its child partition once, in order, and none is missing in between.
pub const ONCE: &str = "each record once, in order, none left out, none of another history";
/// What a cursor says is copied is flushed in the child.
pub const POSITION: &str = "a position never leads what is flushed";
/// When nothing more can happen, all is copied, or an operator is waited for because the parent is another one.
pub const COMPLETE: &str = "what comes to rest is complete";
const SEVERAL: &str = "several batches of a bucket are in flight";
const STANDS: &str = "a diverged parent stands for an operator";

/// Something that goes wrong on purpose, so that a property can be seen to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A child appends what it has.
    IgnoreDedup,
    /// A child appends what does not follow its watermark.
    IgnorePrevious,
    /// A child answers before the flush.
    AckBeforeFlush,
    /// The parent is not compared with what the child remembers.
    SkipVerify,
    /// The cursor file is written at the parent's end, before the child has answered.
    FileLeads,
}

/// The bounds of a world.
#[derive(Debug, Clone)]
pub struct Model {
    /// Records of the parent.
    pub records: usize,
    /// Partitions of the child.
    pub child_partitions: u32,
    /// How often each misfortune may come.
    pub most: Spent,
    /// A cursor that was replaced does not know it, and goes on.
    pub zombie_lives: bool,
    /// What an owner sent is on its way still when its parent was restored. Not so while parent and child are of one
    /// process: a restored parent is a new process.
    pub messages_outlive_restore: bool,
    /// What goes wrong on purpose.
    pub fault: Option<Fault>,
}

/// How often what has gone wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Spent {
    /// Answers that were given up.
    pub time_outs: u8,
    /// Messages that arrived twice.
    pub doubles: u8,
    /// Restarts of the owner.
    pub restarts: u8,
    /// Crashes of a child partition.
    pub crashes: u8,
    /// Restores of the parent.
    pub restores: u8,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// A message arrives.
    Arrives(Message),
    /// A message arrives, and will do so again.
    ArrivesTwice(Message),
    /// A cursor gives up on an answer.
    TimesOut(usize, RequestId, PartitionId),
    /// One of a cursor's reads comes back with what lies below an offset.
    Read(usize, usize, Offset),
    /// Time passes for a cursor.
    Waits(usize, CommitTime),
    /// A child partition flushes.
    Flushes(PartitionId),
    /// A child partition loses what it has not flushed.
    Crashes(PartitionId),
    /// The owner begins anew, at this place of its file.
    Restarts(Offset),
    /// The parent keeps so many records; its owner begins anew.
    Restored(usize, Offset),
    /// The parent gets a record.
    Produced,
}

impl Model {
    fn progress(&self, world: &World, out: &mut Vec<Happening>) {
        let mut net: Vec<&Message> = world.net.iter().collect();
        net.dedup();
        out.extend(net.into_iter().cloned().map(Happening::Arrives));
        for (n, child) in world.children.iter().enumerate() {
            if child.is_unflushed() {
                out.push(Happening::Flushes(PartitionId(n as u32)));
            }
        }
        let end = world.parent.end();
        for (n, life) in world.lives.iter().enumerate() {
            let Some(life) = life else { continue };
            for (which, (_, from)) in life.reads.iter().enumerate() {
                if *from > end {
                    out.push(Happening::Read(n, which, *from));
                }
                let most = from.plus(SLAB_RECORDS_MAX as u64).min(end);
                out.extend((from.0 + 1..=most.0).map(|next| Happening::Read(n, which, Offset(next))));
            }
            if let Some(at) = life.cursor().wake_at().filter(|at| *at > world.now) {
                out.push(Happening::Waits(n, at));
            }
        }
        if world.before.is_some() && world.parent.records.len() < self.records {
            out.push(Happening::Produced);
        }
    }

    fn misfortunes(&self, world: &World, out: &mut Vec<Happening>) {
        let (spent, most) = (&world.spent, &self.most);
        if spent.doubles < most.doubles {
            out.extend(world.net.iter().cloned().map(Happening::ArrivesTwice));
        }
        if spent.time_outs < most.time_outs {
            for (n, life) in world.lives.iter().enumerate() {
                let asked = life.iter().flat_map(|life| life.asked.iter());
                out.extend(asked.map(|(request, bucket)| Happening::TimesOut(n, *request, *bucket)));
            }
        }
        let position = world
            .current()
            .map_or(Offset::ZERO, |life| life.cursor().position());
        let last = if self.fault == Some(Fault::FileLeads) {
            world.parent.end()
        } else {
            position
        };
        if spent.restarts < most.restarts {
            out.extend((0..=last.0).map(|at| Happening::Restarts(Offset(at))));
        }
        if spent.restores < most.restores {
            for kept in 0..world.parent.records.len() {
                out.extend((0..=last.0).map(|at| Happening::Restored(kept, Offset(at))));
            }
        }
        if spent.crashes < most.crashes {
            for (n, child) in world.children.iter().enumerate() {
                if child.is_unflushed() {
                    out.push(Happening::Crashes(PartitionId(n as u32)));
                }
            }
        }
    }

    fn is_at_rest(&self, world: &World) -> bool {
        let mut next = Vec::new();
        self.progress(world, &mut next);
        next.is_empty()
    }
}

impl stateright::Model for Model {
    type State = World;
    type Action = Happening;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, out: &mut Vec<Happening>) {
        self.progress(world, out);
        self.misfortunes(world, out);
    }

    fn next_state(&self, last: &World, happening: Happening) -> Option<World> {
        let mut world = last.clone();
        match happening {
            Happening::Arrives(message) => {
                let at = world.net.iter().position(|on_its_way| *on_its_way == message)?;
                world.net.remove(at);
                world.deliver(&message, self);
            }
            Happening::ArrivesTwice(message) => {
                world.spent.doubles += 1;
                world.deliver(&message, self);
            }
            Happening::TimesOut(life, request, bucket) => {
                world.spent.time_outs += 1;
                world.time_out(life, request, bucket, self);
            }
            Happening::Read(life, which, next) => world.read(life, which, next, self),
            Happening::Waits(life, until) => world.wait(life, until, self),
            Happening::Flushes(bucket) => world.flush(bucket),
            Happening::Crashes(bucket) => {
                world.spent.crashes += 1;
                world.crash(bucket);
            }
            Happening::Restarts(at) => {
                world.spent.restarts += 1;
                world.restart(at, self);
            }
            Happening::Restored(kept, at) => {
                world.spent.restores += 1;
                world.restore(kept, at, self);
            }
            Happening::Produced => world.produce(),
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Model>> {
        let mut all = vec![
            Property::always(ONCE, |_, world: &World| each_once(world)),
            Property::always(POSITION, |_, world: &World| positions_are_flushed(world)),
            Property::always(COMPLETE, |model: &Model, world: &World| {
                !model.is_at_rest(world) || is_complete(world)
            }),
            Property::sometimes(SEVERAL, |_, world: &World| has_several_in_flight(world)),
        ];
        if self.most.restores > 0 {
            all.push(Property::sometimes(STANDS, |_, world: &World| is_diverged(world)));
        }
        all
    }
}

fn buckets(world: &World) -> impl Iterator<Item = PartitionId> {
    (0..world.children.len() as u32).map(PartitionId)
}

fn each_once(world: &World) -> bool {
    buckets(world).all(|bucket| {
        let copied = world.children[bucket.0 as usize].records();
        let before = world.wanted_before(bucket);
        world.wanted(bucket).starts_with(&copied) || before.is_some_and(|wanted| wanted.starts_with(&copied))
    })
}

fn positions_are_flushed(world: &World) -> bool {
    let positions = world.lives.iter().flatten().map(|life| life.cursor().position());
    positions.max().is_none_or(|position| {
        buckets(world).all(|bucket| {
            let durable = world.children[bucket.0 as usize].durable();
            let mut wanted = world.wanted(bucket).into_iter();
            wanted.all(|(_, offset)| {
                Offset(offset) >= position || durable.iter().any(|(_, there)| *there == offset)
            })
        })
    })
}

fn is_complete(world: &World) -> bool {
    let all = |bucket: PartitionId| world.children[bucket.0 as usize].durable() == world.wanted(bucket);
    buckets(world).all(all) || is_diverged(world)
}

/// The cursor stands for an operator, and has a reason to: a child has records that the parent lost.
fn is_diverged(world: &World) -> bool {
    let stands = world.current().and_then(|life| life.cursor().stalled());
    let stands = stands.is_some_and(|reason| {
        matches!(
            reason,
            StallReason::Diverged { .. } | StallReason::PositionAhead { .. }
        )
    });
    let kept = world.before.map_or(u64::MAX, |(_, kept)| kept as u64);
    let lost = |copy: &Copied| copy.0 == 0 && copy.1 >= kept;
    stands
        && world
            .children
            .iter()
            .any(|child| child.records().iter().any(lost))
}

fn has_several_in_flight(world: &World) -> bool {
    let commits = world.net.iter().filter(|message| match message {
        Message::Request(life, _, bucket, Ask::Commit(_)) => {
            usize::from(*life) == world.lives.len() - 1 && bucket.0 == 0
        }
        _ => false,
    });
    commits.count() > 1
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Open => f.write_str("Open"),
            Ask::Commit(bytes) => match BatchHeader::decode(bytes) {
                Ok(header) => write!(f, "Commit({} -> {})", header.previous, header.sequence),
                Err(_) => f.write_str("Commit(unreadable)"),
            },
        }
    }
}
