//! Everything that exists at one moment, and what each happening does to it.

use tailwater_node::fanout::cursor::message::{Event, RequestId};
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};
use tailwater_wire::partitioner::keyless;

use super::child::{Answer, Ask, Child};
use super::life::{Life, ORIGIN, Request};
use super::model::{Model, Spent};
use super::parent::{Copied, Parent};

/// A message on its way. The channel keeps no order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// To a child partition, from one life of the cursor.
    Request(u8, RequestId, PartitionId, Ask),
    /// Back to it.
    Reply(u8, RequestId, PartitionId, Answer),
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// The parent's partition.
    pub parent: Parent,
    /// The child's partitions.
    pub children: Vec<Child>,
    /// The lives of the cursor by number; those that are over are gone.
    pub lives: Vec<Option<Life>>,
    /// Messages on their way, sorted.
    pub net: Vec<Message>,
    /// The owner's clock.
    pub now: CommitTime,
    /// Faults so far.
    pub spent: Spent,
    /// The longest history of the parent before it was restored, and what was kept of it.
    pub before: Option<(usize, usize)>,
}

impl World {
    /// A cursor that has just been attached to a parent with records.
    #[must_use]
    pub fn new(model: &Model) -> World {
        let mut world = World {
            parent: Parent::new(model.records),
            children: vec![Child::default(); model.child_partitions as usize],
            lives: Vec::new(),
            net: Vec::new(),
            now: CommitTime(10_000),
            spent: Spent::default(),
            before: None,
        };
        world.begin_life(Offset::ZERO, model);
        world
    }

    fn begin_life(&mut self, at: Offset, model: &Model) {
        let (life, requests) = Life::start(&self.parent, at, model.child_partitions, self.now, model.fault);
        self.lives.push(Some(life));
        self.send(self.lives.len() - 1, requests);
    }

    fn send(&mut self, life: usize, requests: Vec<Request>) {
        let message = |(request, bucket, ask)| Message::Request(life as u8, request, bucket, ask);
        self.net.extend(requests.into_iter().map(message));
        self.net.sort();
    }

    /// The cursor that runs.
    #[must_use]
    pub fn current(&self) -> Option<&Life> {
        self.lives.last().and_then(Option::as_ref)
    }

    /// A message arrives; whether it stays on its way as well is the caller's.
    pub fn deliver(&mut self, message: &Message, model: &Model) {
        match message {
            Message::Request(life, request, bucket, ask) => {
                let child = &mut self.children[bucket.0 as usize];
                let answer = child.handle(ask, (*life, *request), ORIGIN, model.fault);
                self.reply(*bucket, answer.map(|answer| ((*life, *request), answer)));
            }
            Message::Reply(life, request, bucket, answer) => {
                if let Some(living) = self.lives[usize::from(*life)].as_mut() {
                    // A cursor tells by itself what is no answer any more.
                    living.heard(*request);
                    let event = answer.event(*request, *bucket);
                    let requests = living.step(event, &self.parent, self.now, model.fault);
                    self.send(usize::from(*life), requests);
                }
            }
        }
    }

    fn reply(&mut self, bucket: PartitionId, answers: impl IntoIterator<Item = ((u8, RequestId), Answer)>) {
        for ((life, request), answer) in answers {
            // Nobody hears what is said to the dead.
            if self.lives[usize::from(life)].is_some() {
                self.net.push(Message::Reply(life, request, bucket, answer));
            }
        }
        self.net.sort();
    }

    /// A child partition flushes.
    pub fn flush(&mut self, bucket: PartitionId) {
        let answers = self.children[bucket.0 as usize].flush();
        self.reply(bucket, answers);
    }

    /// A child partition loses what was not flushed.
    pub fn crash(&mut self, bucket: PartitionId) {
        let answers = self.children[bucket.0 as usize].crash();
        self.reply(bucket, answers);
    }

    /// A read comes back with everything below `next`.
    pub fn read(&mut self, life: usize, which: usize, next: Offset, model: &Model) {
        if let Some(living) = self.lives[life].as_mut() {
            let requests = living.read_done(which, next, &self.parent, self.now, model.fault);
            self.send(life, requests);
        }
    }

    /// Time passes until a cursor has waited long enough.
    pub fn wait(&mut self, life: usize, until: CommitTime, model: &Model) {
        self.now = until;
        if let Some(living) = self.lives[life].as_mut() {
            let requests = living.step(Event::Tick, &self.parent, self.now, model.fault);
            self.send(life, requests);
        }
    }

    /// A cursor gives up on an answer; what it asked may arrive yet.
    pub fn time_out(&mut self, life: usize, request: RequestId, bucket: PartitionId, model: &Model) {
        self.deliver(
            &Message::Reply(life as u8, request, bucket, Answer::Failed),
            model,
        );
    }

    /// The owner begins anew, where a file stood that may lag. The cursor before it dies, or lives on elsewhere without
    /// knowing of the new one.
    pub fn restart(&mut self, at: Offset, model: &Model) {
        if !model.zombie_lives {
            self.bury();
        }
        self.begin_life(at, model);
    }

    fn bury(&mut self) {
        self.lives.iter_mut().for_each(|life| *life = None);
        // Answers to the dead change nothing; their requests are still on their way.
        self.net.retain(|message| matches!(message, Message::Request(..)));
    }

    /// The parent loses its end, and its owner begins anew under another lineage.
    pub fn restore(&mut self, kept: usize, at: Offset, model: &Model) {
        self.before = Some((self.parent.records.len(), kept));
        self.parent.restore(kept);
        self.bury();
        if !model.messages_outlive_restore {
            self.net.clear();
        }
        self.begin_life(at, model);
    }

    /// The parent gets a record.
    pub fn produce(&mut self) {
        self.parent.produce();
    }

    /// What a child partition should hold in the end, of the history now.
    #[must_use]
    pub fn wanted(&self, bucket: PartitionId) -> Vec<Copied> {
        self.placed(self.parent.records.clone(), bucket)
    }

    /// What it should have held in the end, of the history before.
    #[must_use]
    pub fn wanted_before(&self, bucket: PartitionId) -> Option<Vec<Copied>> {
        self.before
            .map(|(records, _)| self.placed(vec![0; records], bucket))
    }

    fn placed(&self, records: Vec<u8>, bucket: PartitionId) -> Vec<Copied> {
        let partitions = self.children.len() as u32;
        let all = records.into_iter().zip(0u64..);
        all.filter(|(_, offset)| keyless(ORIGIN.partition, Offset(*offset), partitions) == bucket)
            .collect()
    }
}
