//! One life of the cursor, as its driver holds it: the production cursor, and the read that is outstanding.

use std::fmt;
use std::hash::{Hash, Hasher};

use tailwater_node::fanout::batch::Cutter;
use tailwater_node::fanout::cursor::message::{Action, Event, ParentVerdict, RequestId, Slab};
use tailwater_node::fanout::cursor::state::{Cursor, CursorConfig};
use tailwater_node::fanout::rekey::Rekey;
use tailwater_wire::ids::{CommitTime, Epoch, Offset, OriginId, PartitionId};
use tailwater_wire::partitioner::Partitioner;

use super::child::Ask;
use super::model::Fault;
use super::parent::Parent;

/// The origin of every batch here: one attachment, one parent partition.
pub const ORIGIN: OriginId = OriginId {
    epoch: Epoch([7; 8]),
    partition: PartitionId(0),
};

/// Records of a slab: seldom all that there are, so that several slabs come to be in flight.
pub const SLAB_RECORDS_MAX: usize = 2;

/// A request to a child partition.
pub type Request = (RequestId, PartitionId, Ask);

/// See the module.
#[derive(Clone)]
pub struct Life {
    cursor: Cursor,
    /// Reads that are unanswered: which, and from where.
    pub reads: Vec<(RequestId, Offset)>,
    /// Requests to children that are unanswered. They can come to nothing.
    pub asked: Vec<(RequestId, PartitionId)>,
    child_partitions: u32,
    /// What the cursor is, as text: the whole of it but what it has counted. Kept, because it is what states are told
    /// apart by, and they are compared more often than they change.
    face: String,
}

impl Life {
    /// A cursor that starts here; its first requests.
    #[must_use]
    pub fn start(
        parent: &Parent,
        at: Offset,
        child_partitions: u32,
        now: CommitTime,
        fault: Option<Fault>,
    ) -> (Life, Vec<Request>) {
        let config = CursorConfig {
            slab_records_max: SLAB_RECORDS_MAX,
            ..CursorConfig::new(ORIGIN, parent.lineage(), child_partitions, at)
        };
        let mut life = Life {
            cursor: Cursor::new(config, now),
            reads: Vec::new(),
            asked: Vec::new(),
            child_partitions,
            face: String::new(),
        };
        let requests = life.step(Event::Tick, parent, now, fault);
        (life, requests)
    }

    /// Tells the cursor, and does all that needs no child: compares the parent, stores the position.
    pub fn step(
        &mut self,
        event: Event,
        parent: &Parent,
        now: CommitTime,
        fault: Option<Fault>,
    ) -> Vec<Request> {
        let (mut requests, mut events) = (Vec::new(), vec![event]);
        while let Some(event) = events.pop() {
            let mut out = Vec::new();
            self.cursor.step(event, now, &mut out);
            for action in out {
                match action {
                    Action::OpenOrigin { request, bucket } => requests.push((request, bucket, Ask::Open)),
                    Action::Commit {
                        request,
                        bucket,
                        batch,
                    } => {
                        requests.push((request, bucket, Ask::Commit(batch.bytes)));
                    }
                    Action::Read { request, from, .. } => self.reads.push((request, from)),
                    Action::VerifyParent {
                        request,
                        bucket,
                        offset,
                        mark,
                    } => {
                        let verdict = match fault {
                            Some(Fault::SkipVerify) => ParentVerdict::Same,
                            _ => parent.verify(offset, &mark),
                        };
                        events.push(Event::Verified {
                            request,
                            bucket,
                            verdict,
                        });
                    }
                    Action::Persist(persist) => events.push(Event::Persisted(persist.next_offset())),
                    Action::ConfirmEpoch
                    | Action::Stall { .. }
                    | Action::Unstall { .. }
                    | Action::Dropped { .. }
                    | Action::Stop => {}
                }
            }
        }
        self.asked
            .extend(requests.iter().map(|(request, bucket, _)| (*request, *bucket)));
        self.face = face(&self.cursor);
        requests
    }

    /// A read came back with everything below `next`.
    pub fn read_done(
        &mut self,
        which: usize,
        next: Offset,
        parent: &Parent,
        now: CommitTime,
        fault: Option<Fault>,
    ) -> Vec<Request> {
        let (request, from) = self.reads.remove(which);
        let high_water_mark = parent.end();
        if from > high_water_mark {
            let ahead = Event::Ahead {
                request,
                high_water_mark,
            };
            return self.step(ahead, parent, now, fault);
        }
        let slab = Slab {
            request,
            next,
            full: next < parent.end(),
            next_commit: None,
        };
        let Some(plan) = self.cursor.plan(&slab, now) else {
            return self.step(Event::Tick, parent, now, fault);
        };
        let rekey = Rekey {
            partitioner: Partitioner::Murmur2,
            partitions: self.child_partitions,
            parent: ORIGIN.partition,
        };
        let cut = Cutter::new(rekey, 4_096).cut(&parent.batches(from, next), &plan, None);
        let cut = cut.expect("these batches are sound");
        self.step(Event::Slab { slab, cut }, parent, now, fault)
    }

    /// A child was heard, or was waited for in vain. False when nobody waits for that any more.
    pub fn heard(&mut self, request: RequestId) -> bool {
        let before = self.asked.len();
        self.asked.retain(|(asked, _)| *asked != request);
        self.asked.len() < before
    }

    /// The production cursor.
    #[must_use]
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }
}

/// Two cursors with the same text do the same ever after: the text is derived and shows every field. What they have
/// counted alone may differ, which decides nothing.
fn face(cursor: &Cursor) -> String {
    let text = format!("{cursor:?}");
    match text.split_once("probe: Probe {") {
        Some((before, counts)) => before.to_owned() + counts.split_once('}').map_or("", |(_, after)| after),
        None => text,
    }
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.face)
    }
}

impl PartialEq for Life {
    fn eq(&self, other: &Life) -> bool {
        self.face == other.face && self.reads == other.reads && self.asked == other.asked
    }
}

impl Eq for Life {}

impl Hash for Life {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.face, &self.reads, &self.asked).hash(state);
    }
}
