//! What can happen next, how often each misfortune may, and what has to hold.

use stateright::Property;

use super::meta::Op;
use super::owner::{Asking, File};
use super::steps::step;
use super::world::{Change, Harm, Message, World};

/// Records are from the attach point on, in one attachment each, and none from in between.
pub const ONLY_ATTACHED: &str = "only records from an attach point on, each once, none from in between";
/// Nothing is appended under an epoch whose detach was answered.
pub const NO_DEAD_COMMIT: &str = "no commit of an epoch after its detach was answered";
/// A cursor begins at the attach point or at what its child has.
pub const NO_SKIP: &str = "no cursor begins above what its child has";
/// A live link's cursor file stays.
pub const FILES_STAY: &str = "no cursor file of a live link is removed or overwritten";
/// A live topic's data stays.
pub const DATA_STAYS: &str = "no data of a live topic is removed";
const DELIVERS: &str = "a link delivers";
const DELIVERS_AGAIN: &str = "a second attachment delivers";
const DELIVERS_ANEW: &str = "a topic that was made anew is copied";

/// Cursors that are looked at, beside one for each restart: a stale replica starts one of a dead epoch again and again.
const RUNS_MAX: u8 = 2;
/// Requests of one cursor that are looked at, beside those after a time-out and for each record.
const REQUESTS_MAX: u8 = 2;

/// Something that goes wrong on purpose, so that a property can be seen to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The child takes what it is sent, whatever the epoch.
    ChildIgnoresEpoch,
    /// Without a file a cursor starts at the parent's end.
    AnchorAtTail,
    /// A file is resumed whatever its epoch.
    ResumeOtherEpoch,
    /// A sweep takes the local replica's word for the leader's.
    ReplicaIsTheWord,
    /// An attach reads the end before every shard knows of the detach and has stopped the older cursor.
    AttachWithoutStop,
    /// Data that the local replica does not know is removed.
    RemoveByReplica,
    /// A shard on which a deleted topic is not open takes whatever lies there for its data.
    RemoveUnmarked,
}

/// The bounds of a world.
#[derive(Debug, Clone)]
pub struct Model {
    /// How often each thing may come.
    pub most: Spent,
    /// The node waits for every shard before it makes the next change. It does, for 30 s.
    pub waits_for_shards: bool,
    /// What goes wrong on purpose.
    pub fault: Option<Fault>,
}

/// How often what has been wished, or has gone wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Spent {
    /// Records that were produced.
    pub produced: u8,
    /// Attaches that were asked for, each with an id of its own.
    pub attaches: u8,
    /// Attaches that were asked for again.
    pub repeats: u8,
    /// Detaches that were asked for.
    pub detaches: u8,
    /// Deletions of the parent.
    pub parents_deleted: u8,
    /// Deletions of the child.
    pub children_deleted: u8,
    /// Answers that were given up.
    pub time_outs: u8,
    /// Messages that arrived twice.
    pub doubles: u8,
    /// Restarts of the owner.
    pub restarts: u8,
    /// Leaders that lost what they had not committed.
    pub leaders: u8,
    /// Cursor files that were lost.
    pub files_lost: u8,
}

/// What can happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// The parent gets a record.
    Produced,
    /// A client asks for an attach, with this id, for the first time or again.
    AttachAsked(u8, bool),
    /// The end was read, and the attach is proposed.
    AttachProposed,
    /// A client asks for a detach, which is proposed.
    DetachAsked,
    /// Every shard has settled, and the client hears it.
    DetachAnswered,
    /// The client does not wait any more.
    GivenUp,
    /// A client deletes the parent, or the child.
    DeleteAsked(bool),
    /// Its shards are told to remove what lies there.
    RemovalSent,
    /// A client makes the parent, or the child.
    CreateAsked(bool),
    /// The oldest proposal is committed.
    Committed,
    /// A leader is lost, and with it what was not committed.
    LeaderLost,
    /// The node's replica comes to this place of the log.
    ReplicaSees(usize),
    /// The parent's shard does.
    OwnerSees(usize),
    /// The child's shard does.
    ChildSees(usize),
    /// The reconciler compares.
    Reconciled,
    /// The leader's word on a start arrives at its asker, and is used later.
    StartWord,
    /// The start goes on.
    Starts,
    /// A sweep finds the file.
    SweepBegins,
    /// The leader's word on it arrives, and is used later.
    SweepWord,
    /// The sweep goes on.
    Sweeps,
    /// The cursor sends.
    Asks,
    /// The cursor ends.
    Ends,
    /// The leader tells a refused cursor whether its epoch lives.
    EpochConfirmed,
    /// A message arrives.
    Arrives(Message),
    /// A message arrives, and will do so again.
    ArrivesTwice(Message),
    /// The cursor gives up on an answer.
    TimesOut,
    /// The owner dies, and comes back at this place of the log.
    Restarts(usize),
    /// The cursor's file is lost.
    FileLost,
    /// The child lets go of an epoch that the leader says is over.
    Forgets(u8),
    /// A planted fault: data goes without a proof.
    Swept,
}

impl Model {
    fn clients(&self, world: &World, out: &mut Vec<Happening>) {
        let (spent, most) = (&world.spent, &self.most);
        if spent.produced < most.produced && world.owner.open(&world.log).is_some() {
            out.push(Happening::Produced);
        }
        match &world.change {
            Change::None => {}
            Change::Attaching { .. } => {
                let stopped = world.is_published() && world.owner.cursor.is_none();
                if stopped || self.fault == Some(Fault::AttachWithoutStop) {
                    out.push(Happening::AttachProposed);
                }
                return;
            }
            Change::Settling(epoch) => {
                let over = world.log.ops()[..world.replica].contains(&Op::Detach { epoch: *epoch });
                let runs = world
                    .owner
                    .cursor
                    .as_ref()
                    .is_some_and(|cursor| cursor.identity.epoch == *epoch);
                if over && world.is_published() && !runs {
                    out.push(Happening::DetachAnswered);
                }
                out.push(Happening::GivenUp);
                return;
            }
            Change::Removing(gone) => {
                let is_of = |message: &Message| matches!(message, Message::Remove { .. });
                let told = world.net.iter().any(is_of);
                let deleted = world.log.topic_gone(true, *gone).is_some() && world.is_published();
                if deleted && !told {
                    out.push(Happening::RemovalSent);
                }
                let refused = world.log.topic_gone(true, *gone).is_none() && world.pending.is_empty();
                if refused || (!self.waits_for_shards && told) {
                    out.push(Happening::GivenUp);
                }
                return;
            }
        }
        if spent.attaches < most.attaches && world.begin_attach(spent.attaches).is_some() {
            out.push(Happening::AttachAsked(spent.attaches, false));
        }
        if spent.repeats < most.repeats
            && spent.attaches > 0
            && world.begin_attach(spent.attaches - 1).is_some()
        {
            out.push(Happening::AttachAsked(spent.attaches - 1, true));
        }
        let linked = world.log.epoch_at(world.replica);
        if spent.detaches < most.detaches && linked.is_some() {
            out.push(Happening::DetachAsked);
        }
        if !world.pending.is_empty() {
            return;
        }
        for (parent, spent, most) in [
            (true, spent.parents_deleted, most.parents_deleted),
            (false, spent.children_deleted, most.children_deleted),
        ] {
            match world.log.life_at(world.replica, parent) {
                Some(_) if spent < most && linked.is_none() => out.push(Happening::DeleteAsked(parent)),
                None => out.push(Happening::CreateAsked(parent)),
                Some(_) => {}
            }
        }
    }

    fn nodes(&self, world: &World, out: &mut Vec<Happening>) {
        let (log, owner) = (&world.log, &world.owner);
        if !world.pending.is_empty() {
            out.push(Happening::Committed);
        }
        out.extend((world.replica + 1..=log.end()).map(Happening::ReplicaSees));
        out.extend((owner.view + 1..=world.replica).map(Happening::OwnerSees));
        out.extend((world.child.view + 1..=world.replica).map(Happening::ChildSees));
        let pass = owner.pass(log);
        let starts =
            !pass.start.is_empty() && owner.starting.is_none() && owner.runs < RUNS_MAX + self.most.restarts;
        if !pass.stop.is_empty() || starts {
            out.push(Happening::Reconciled);
        }
        if let Some(starting) = owner.starting {
            out.push(if starting.word.is_none() {
                Happening::StartWord
            } else {
                Happening::Starts
            });
        }
        match owner.sweeping {
            Some(Asking { word: None, .. }) => out.push(Happening::SweepWord),
            Some(Asking { word: Some(_), .. }) => out.push(Happening::Sweeps),
            None => {
                let unused = owner.cursor.is_none() && owner.desired(log).is_empty();
                if owner.file != File::Absent && unused && owner.open(log).is_some() {
                    out.push(Happening::SweepBegins);
                }
            }
        }
        let requests_max = REQUESTS_MAX + 2 * self.most.time_outs + self.most.produced.saturating_sub(1);
        if let Some(cursor) = &owner.cursor {
            let more = cursor.watermark.is_none() || cursor.position < owner.end();
            match (cursor.asked, cursor.refused, cursor.stopping) {
                (Some(_), _, _) => {}
                (None, true, _) => out.push(Happening::EpochConfirmed),
                (None, false, true) => out.push(Happening::Ends),
                (None, false, false) if more && cursor.requests < requests_max => out.push(Happening::Asks),
                (None, false, false) => {}
            }
        }
        let arrives = |message: &&Message| match message {
            // A shard does what it is told in order: it knows of the deletion by then.
            Message::Remove {
                parents_shard, since, ..
            } => {
                let view = if *parents_shard {
                    owner.view
                } else {
                    world.child.view
                };
                view >= *since
            }
            _ => true,
        };
        out.extend(world.net.iter().filter(arrives).cloned().map(Happening::Arrives));
        if let Some(data) = &world.child.data {
            let unknown = data.epochs().into_iter().filter(|number| {
                let view = log.snapshot(world.child.view);
                view.all_links()
                    .all(|link| link.epoch != super::meta::epoch(*number))
            });
            let over = unknown.filter(|number| log.epoch_gone(*number).is_some());
            out.extend(over.map(Happening::Forgets));
        }
    }

    fn misfortunes(&self, world: &World, out: &mut Vec<Happening>) {
        let (spent, most) = (&world.spent, &self.most);
        if spent.leaders < most.leaders && !world.pending.is_empty() {
            out.push(Happening::LeaderLost);
        }
        if spent.doubles < most.doubles {
            let requests = world
                .net
                .iter()
                .filter(|message| matches!(message, Message::Request(..)));
            out.extend(requests.cloned().map(Happening::ArrivesTwice));
        }
        if spent.time_outs < most.time_outs && world.owner.cursor.as_ref().is_some_and(|c| c.asked.is_some())
        {
            out.push(Happening::TimesOut);
        }
        if spent.restarts < most.restarts {
            out.extend((2..=world.owner.view).map(Happening::Restarts));
        }
        if spent.files_lost < most.files_lost && world.owner.file != File::Absent {
            out.push(Happening::FileLost);
        }
        if self.fault == Some(Fault::RemoveByReplica)
            && world.owner.data.is_some()
            && world.owner.open(&world.log).is_none()
        {
            out.push(Happening::Swept);
        }
    }
}

impl stateright::Model for Model {
    type State = World;
    type Action = Happening;

    fn init_states(&self) -> Vec<World> {
        vec![World::new()]
    }

    fn actions(&self, world: &World, out: &mut Vec<Happening>) {
        if world.harm.is_none() {
            self.clients(world, out);
            self.nodes(world, out);
            self.misfortunes(world, out);
        }
    }

    fn next_state(&self, last: &World, happening: Happening) -> Option<World> {
        let mut world = last.clone();
        step(&mut world, happening, self);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Model>> {
        let mut all = vec![
            Property::always(ONLY_ATTACHED, |_, world: &World| only_attached(world)),
            Property::always(NO_DEAD_COMMIT, |_, world: &World| {
                world.harm != Some(Harm::DeadCommit)
            }),
            Property::always(NO_SKIP, |_, world: &World| world.harm != Some(Harm::Skipped)),
            Property::always(FILES_STAY, |_, world: &World| {
                world.harm != Some(Harm::FileDestroyed)
            }),
            Property::always(DATA_STAYS, |_, world: &World| {
                world.harm != Some(Harm::DataDestroyed)
            }),
            Property::sometimes(DELIVERS, |_, world: &World| delivered(world, |_, _| true)),
        ];
        if self.most.attaches > 1 && self.most.detaches > 0 {
            let again = |_: &Model, world: &World| {
                delivered(world, |epoch, _| world.ended.iter().any(|ended| *ended < epoch))
            };
            all.push(Property::sometimes(DELIVERS_AGAIN, again));
        }
        if self.most.parents_deleted > 0 {
            let anew = |_: &Model, world: &World| delivered(world, |_, parent| parent > 1);
            all.push(Property::sometimes(DELIVERS_ANEW, anew));
        }
        all
    }
}

fn only_attached(world: &World) -> bool {
    let Some(data) = &world.child.data else {
        return true;
    };
    let records: Vec<(u8, u8, u64)> = data.records().collect();
    let sound = |n: usize| {
        let (epoch, parent, offset) = records[n];
        let attached = world
            .log
            .attached(epoch)
            .is_some_and(|(at, its_parent, its_child)| {
                offset >= at && its_parent == parent && its_child == data.incarnation
            });
        let again = records[..n]
            .iter()
            .any(|(_, life, other)| (*life, *other) == (parent, offset));
        let produced = world.owner.data.as_ref().filter(|(life, _)| *life == parent);
        let between = produced.is_some_and(|(_, between)| between.get(offset as usize) == Some(&true));
        attached && !again && !between
    };
    (0..records.len()).all(sound)
}

fn delivered(world: &World, which: impl Fn(u8, u8) -> bool) -> bool {
    let data = world.child.data.as_ref();
    data.is_some_and(|data| data.records().any(|(epoch, parent, _)| which(epoch, parent)))
}
