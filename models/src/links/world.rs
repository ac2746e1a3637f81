//! Everything that exists at one moment, and what each happening does to it.

use tailwater_node::fanout::anchor::{Anchor, Confirmation, Facts, anchor};
use tailwater_node::fanout::diff::{Sweep, sweep};
use tailwater_node::metastore::rules;
use tailwater_wire::ids::Offset;
use tailwater_wire::meta::LinkOptions;

use super::child::{Answer, Ask, Child, Data};
use super::meta::{Log, Op, epoch_number, incarnation, name};
use super::model::{Fault, Model, Spent};
use super::owner::{Asking, File, Identity, Owner};

/// A message on its way. The channel keeps no order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// From a cursor, with the metadata index of its link.
    Request(Identity, u8, Ask),
    /// To it.
    Reply(Identity, u8, Answer),
    /// To a shard, the parent's or the child's: the leader says that this life of the parent is over, since that place of
    /// the log.
    Remove {
        parents_shard: bool,
        incarnation: u8,
        since: usize,
    },
}

/// The change that the node is making; one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// None.
    None,
    /// Attach: the older cursors are being stopped.
    Attaching { request: u8, parent: u8, child: u8 },
    /// Detach: proposed, and every shard is to settle.
    Settling(u8),
    /// Delete: proposed, and every shard is to remove what lies there.
    Removing(u8),
}

/// What must never come to be, and is seen when it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Harm {
    /// Something was appended under an epoch after its detach was answered.
    DeadCommit,
    /// A cursor began above what its child has.
    Skipped,
    /// A live link's cursor file was removed or overwritten.
    FileDestroyed,
    /// A live topic's data was removed.
    DataDestroyed,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// Committed commands.
    pub log: Log,
    /// Proposed ones, in order, that a leader has and has not committed.
    pub pending: Vec<Op>,
    /// How much of the log the node's replica has seen: no shard of it has seen more.
    pub replica: usize,
    /// What the node's control thread does.
    pub change: Change,
    /// The parent's shard.
    pub owner: Owner,
    /// The child's shard.
    pub child: Child,
    /// Messages on their way, sorted.
    pub net: Vec<Message>,
    /// A detach was answered, and no end was read since.
    pub between: bool,
    /// Epochs whose detach was answered.
    pub ended: Vec<u8>,
    /// What was seen.
    pub harm: Option<Harm>,
    /// Epochs and incarnations drawn.
    pub drawn: u8,
    /// Faults, and clients' wishes, so far.
    pub spent: Spent,
}

impl World {
    /// Both topics are there, everybody knows, and nothing is attached.
    #[must_use]
    pub fn new() -> World {
        let log = Log::new();
        let view = log.end();
        let (parent, child) = (1, 2);
        World {
            pending: Vec::new(),
            replica: view,
            change: Change::None,
            owner: Owner {
                view,
                data: Some((parent, vec![false])),
                file: File::Absent,
                cursor: None,
                starting: None,
                sweeping: None,
                runs: 0,
            },
            child: Child {
                view,
                data: Some(Data::new(child)),
            },
            net: Vec::new(),
            between: false,
            ended: Vec::new(),
            harm: None,
            drawn: child,
            spent: Spent::default(),
            log,
        }
    }

    /// A number that nobody has.
    pub fn draw(&mut self) -> u8 {
        self.drawn += 1;
        self.drawn
    }

    /// A client asks for an attach: what the control thread says at once, by its replica. None: refused, or a repeat whose
    /// first result is known.
    #[must_use]
    pub fn begin_attach(&self, request: u8) -> Option<Change> {
        let state = self.log.state(self.replica);
        if state.result_of(&[request; 16]).is_some() {
            return None;
        }
        let snapshot = self.log.snapshot(self.replica);
        rules::check_link(snapshot, &name(true), &name(false), &LinkOptions::default()).ok()?;
        let (parent, child) = (
            self.log.life_at(self.replica, true)?,
            self.log.life_at(self.replica, false)?,
        );
        Some(Change::Attaching {
            request,
            parent,
            child,
        })
    }

    /// Whether what the replica knows is in force on both shards.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.owner.view >= self.replica && self.child.view >= self.replica
    }

    /// The end is read and the attach proposed.
    pub fn propose_attach(&mut self, request: u8, parent: u8, child: u8) {
        if self.owner.open(&self.log) == Some(parent) {
            let epoch = self.draw();
            self.pending.push(Op::Attach {
                request,
                epoch,
                at: self.owner.end(),
                parent_incarnation: parent,
                child_incarnation: child,
            });
            self.between = false;
        }
        self.change = Change::None;
    }

    /// The oldest proposal is committed.
    pub fn commit(&mut self) {
        self.log.apply(self.pending.remove(0));
    }

    /// The reconciler's pass: the cursor that is there is told to stop, or the one that is not is begun.
    pub fn reconcile(&mut self, model: &Model) {
        let pass = self.owner.pass(&self.log);
        if !pass.stop.is_empty()
            && let Some(cursor) = &mut self.owner.cursor
        {
            cursor.stopping = true;
        }
        if !pass.start.is_empty() {
            let seen = self.owner.file;
            self.start(Asking { seen, word: None }, model);
        }
    }

    /// Anchors the cursor that should run, as far as can be said.
    pub fn start(&mut self, asking: Asking, model: &Model) {
        self.owner.starting = None;
        let desired = self.owner.desired(&self.log);
        let Some(spec) = desired.get(&Owner::key()) else {
            return;
        };
        let number = epoch_number(spec.identity.epoch);
        let (parent, child, file) = (name(true), name(false), asking.seen.says());
        let facts = Facts {
            parent: &parent,
            child: &child,
            epoch: spec.identity.epoch,
            attach_offset: spec.attach_offset,
            high_water_mark: Offset(self.owner.end()),
            file: &file,
        };
        let word = asking.word.map(Log::word);
        let mut decided = anchor(
            &facts,
            word.as_ref().map_or(Confirmation::NotAsked, Confirmation::Leader),
        );
        match (model.fault, asking.seen) {
            (Some(Fault::ResumeOtherEpoch), File::At(_, next)) => decided = Anchor::Resume(Offset(next)),
            (Some(Fault::AnchorAtTail), File::Absent) => {
                if let Anchor::StartAt { offset, .. } = &mut decided {
                    *offset = Offset(self.owner.end());
                }
            }
            _ => {}
        }
        match decided {
            Anchor::Resume(at) => self.run(number, at.0, spec),
            Anchor::StartAt { offset, proof } => {
                let before = self.owner.file;
                if self.owner.write_start(number, offset.0, asking.seen, proof) {
                    self.look_at_file(before, number);
                    self.run(number, offset.0, spec);
                }
            }
            Anchor::Ask => self.owner.starting = Some(asking),
            Anchor::Defer | Anchor::StaleEpoch | Anchor::PositionAhead(_) => {}
        }
    }

    fn run(&mut self, number: u8, at: u64, spec: &tailwater_node::fanout::desired::CursorSpec) {
        let has = self.child.data.as_ref().map_or(0, |data| data.reached(number));
        if at > spec.attach_offset.0 && at > has {
            self.harm = Some(Harm::Skipped);
        }
        self.owner.run(spec, at);
    }

    /// A file that was there gave way to one of this epoch, or to none.
    fn look_at_file(&mut self, before: File, for_epoch: u8) {
        let live = self.log.epoch_at(self.log.end());
        if let File::At(number, _) = before
            && live == Some(number)
            && number != for_epoch
        {
            self.harm = Some(Harm::FileDestroyed);
        }
    }

    /// A sweep finds a file that nobody seems to use, or decides about it with the leader's word.
    pub fn sweep(&mut self, asking: Asking, model: &Model) {
        self.owner.sweeping = None;
        let key = Owner::key();
        let in_use = self.owner.cursor.is_some() || self.owner.desired(&self.log).contains_key(&key);
        let mut word = asking.word.map(Log::word);
        if model.fault == Some(Fault::ReplicaIsTheWord) {
            word = Some(Log::word(self.log.epoch_at(self.owner.view)));
        }
        match sweep(&key, &asking.seen.says(), in_use, word.as_ref()) {
            Sweep::Keep => {}
            Sweep::Ask => self.owner.sweeping = Some(asking),
            Sweep::Remove(proof) => {
                let before = self.owner.file;
                self.owner.remove_file(asking.seen, proof);
                if self.owner.file != before {
                    self.look_at_file(before, 0);
                }
            }
        }
    }

    /// The cursor asks its child for the next step.
    pub fn ask(&mut self) {
        let end = self.owner.end();
        let Some(cursor) = self.owner.cursor.as_mut() else {
            return;
        };
        let ask = match cursor.watermark {
            None => Ask::Open,
            Some(previous) if cursor.position < end => Ask::Commit {
                previous,
                from: cursor.position,
                end: cursor.position + 1,
            },
            Some(_) => return,
        };
        cursor.requests += 1;
        cursor.asked = Some(cursor.requests);
        self.net
            .push(Message::Request(cursor.identity, cursor.requests, ask));
        self.net.sort();
    }

    /// A cursor that was told to stop, and waits for nothing, stores its position and ends.
    pub fn end_cursor(&mut self) {
        if let Some(persist) = self.owner.persist() {
            self.owner.store(persist);
        }
        self.owner.cursor = None;
    }

    /// A refused cursor hears the leader: it ends and leaves the file alone, or asks its child again.
    pub fn confirm_epoch(&mut self) {
        let live = self.log.epoch_at(self.log.end());
        let Some(cursor) = self.owner.cursor.as_mut() else {
            return;
        };
        cursor.refused = false;
        if live != Some(cursor.identity.epoch) {
            self.owner.cursor = None;
        }
    }

    /// A message arrives; whether it stays on its way as well is the caller's.
    pub fn deliver(&mut self, message: &Message, model: &Model) {
        match *message {
            Message::Request(identity, request, ask) => {
                let (answer, appended) = self.child.handle(&identity, ask, &self.log, model.fault);
                if appended && self.ended.contains(&identity.epoch) {
                    self.harm = Some(Harm::DeadCommit);
                }
                let lives = self
                    .owner
                    .cursor
                    .as_ref()
                    .is_some_and(|cursor| cursor.identity == identity);
                if lives {
                    self.net.push(Message::Reply(identity, request, answer));
                    self.net.sort();
                }
            }
            Message::Reply(identity, request, answer) => self.hear(identity, request, answer),
            Message::Remove {
                parents_shard,
                incarnation: gone,
                ..
            } => self.remove(parents_shard, gone, model.fault),
        }
    }

    fn hear(&mut self, identity: Identity, request: u8, answer: Answer) {
        let cursor = self.owner.cursor.as_mut();
        let cursor = cursor.filter(|cursor| cursor.identity == identity && cursor.asked == Some(request));
        let Some(cursor) = cursor else { return };
        cursor.asked = None;
        match answer {
            Answer::Watermark(watermark) => {
                cursor.watermark = Some(watermark);
                cursor.position = cursor.position.max(watermark);
            }
            Answer::Stale => {
                cursor.watermark = None;
                cursor.refused = true;
            }
        }
    }

    /// A shard removes a deleted parent's data, as the node does it: its own life that is open tells it whether another
    /// one has begun; a shard on which the topic is not open looks for the mark of the life that is meant.
    fn remove(&mut self, parents_shard: bool, gone: u8, fault: Option<Fault>) {
        let view = if parents_shard {
            self.owner.view
        } else {
            self.child.view
        };
        let open = self.log.life_at(view, true);
        let proof = self
            .log
            .topic_gone(true, gone)
            .filter(|proof| proof.incarnation() == incarnation(gone));
        if proof.is_none() || open.is_some_and(|open| open != gone) {
            return;
        }
        let is_marked = self.owner.data.as_ref().is_some_and(|(life, _)| *life == gone);
        if open.is_none() && !is_marked && fault != Some(Fault::RemoveUnmarked) {
            return;
        }
        self.remove_data();
    }

    /// Whatever lies in the parent's place goes, and the cursor's file with it.
    pub fn remove_data(&mut self) {
        let live = self.log.life_at(self.log.end(), true);
        if let Some((life, _)) = self.owner.data.take()
            && live == Some(life)
        {
            self.harm = Some(Harm::DataDestroyed);
        }
        self.owner.file = File::Absent;
        self.owner.cursor = None;
        self.owner.learn(self.owner.view, &self.log);
    }
}

impl Default for World {
    fn default() -> World {
        World::new()
    }
}
