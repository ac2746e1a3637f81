//! The mesh: one bounded mailbox a shard, requests out and answers back. It holds no policy: credits say what may be sent,
//! and the handler what is answered.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tailwater_wire::code::{ErrorCode, Refusal};

use crate::router::credit::{Credits, Submit};
use crate::router::message::{ShardReply, ShardRequest};
use crate::router::placement::Placement;
use crate::signal::Signal;

/// Letters that are taken from the mailbox before other tasks get their turn.
const LETTERS_A_TURN: usize = 256;

/// What lies in a mailbox.
struct Letter {
    /// The shard that asked, or answers.
    from: u32,
    /// The asker's number for it.
    ticket: u64,
    body: Body,
}

enum Body {
    Request(ShardRequest),
    /// With the kind of the request, whose credit comes back.
    Reply(Kind, ShardReply),
}

/// Requests of a kind share credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Work,
    Wait,
}

/// One shard's end of the mesh, on its way to the shard's thread.
pub struct MeshEnd {
    placement: Placement,
    credits: usize,
    inbox: flume::Receiver<Letter>,
    /// By shard; its own is never used.
    peers: Vec<flume::Sender<Letter>>,
}

/// The ends of a mesh between so many shards, with so many credits for each pair and kind.
#[must_use]
pub fn ends(shards: u32, credits: usize) -> Vec<MeshEnd> {
    let credits = credits.max(1);
    // Two kinds; for each, the neighbour's requests and its answers to ours.
    let places = 4 * credits * shards as usize;
    let boxes: Vec<_> = (0..shards).map(|_| flume::bounded(places)).collect();
    let peers: Vec<_> = boxes.iter().map(|(sender, _)| sender.clone()).collect();
    let inboxes = boxes.into_iter().map(|(_, inbox)| inbox);
    let end = |(shard, inbox)| MeshEnd {
        placement: Placement { shard, shards },
        credits,
        inbox,
        peers: peers.clone(),
    };
    (0..shards).zip(inboxes).map(end).collect()
}

/// A shard's side of the mesh. Shard-local.
pub struct Mesh {
    placement: Placement,
    inbox: flume::Receiver<Letter>,
    peers: Vec<Peer>,
    waiting: RefCell<HashMap<u64, Rc<Slot>>>,
    next_ticket: Cell<u64>,
}

struct Peer {
    mailbox: flume::Sender<Letter>,
    work: RefCell<Credits<Letter>>,
    wait: RefCell<Credits<Letter>>,
}

impl Peer {
    fn credits(&self, kind: Kind) -> &RefCell<Credits<Letter>> {
        match kind {
            Kind::Work => &self.work,
            Kind::Wait => &self.wait,
        }
    }
}

/// Where an answer is put, and awaited.
#[derive(Default)]
struct Slot {
    answer: RefCell<Option<ShardReply>>,
    arrived: Signal,
}

/// A request that has been sent, or waits for its turn to be.
pub struct Call(Rc<Slot>);

impl Call {
    /// The answer. Dropping it changes nothing for the other side.
    pub async fn answer(self) -> ShardReply {
        let slot = &self.0;
        slot.arrived.until(|| slot.answer.borrow().is_some()).await;
        let answer = slot.answer.borrow_mut().take();
        answer.expect("it has arrived")
    }
}

/// Where the answer to a neighbour's request goes; it is owed exactly once.
pub struct Responder {
    mesh: Rc<Mesh>,
    to: u32,
    ticket: u64,
    kind: Kind,
}

impl Responder {
    /// Sends the answer. There is always room for it: the request's credit reserved it.
    pub fn reply(self, reply: ShardReply) {
        let body = Body::Reply(self.kind, reply);
        self.mesh.post(self.to, self.ticket, body);
    }
}

impl Mesh {
    /// This shard's side.
    #[must_use]
    pub fn new(end: MeshEnd) -> Rc<Mesh> {
        let peer = |mailbox| Peer {
            mailbox,
            work: RefCell::new(Credits::new(end.credits)),
            wait: RefCell::new(Credits::new(end.credits)),
        };
        Rc::new(Mesh {
            placement: end.placement,
            inbox: end.inbox,
            peers: end.peers.into_iter().map(peer).collect(),
            waiting: RefCell::default(),
            next_ticket: Cell::new(0),
        })
    }

    /// Where this shard stands.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Asks another shard. The request is on its way, in order, when this returns.
    ///
    /// # Errors
    /// `BUSY`, when too many requests wait for that shard already; nothing was sent.
    ///
    /// # Panics
    /// When the other shard is this one.
    pub fn ask(&self, shard: u32, request: ShardRequest) -> Result<Call, Refusal> {
        assert!(shard != self.placement.shard, "a shard does not ask itself");
        let kind = if request.waits() { Kind::Wait } else { Kind::Work };
        let ticket = self.next_ticket.get();
        self.next_ticket.set(ticket + 1);
        let letter = Letter {
            from: self.placement.shard,
            ticket,
            body: Body::Request(request),
        };
        let peer = &self.peers[shard as usize];
        let slot = Rc::new(Slot::default());
        self.waiting.borrow_mut().insert(ticket, Rc::clone(&slot));
        let submitted = peer.credits(kind).borrow_mut().submit(letter);
        match submitted {
            Submit::Send(letter) => peer.put(letter),
            Submit::Queued => {}
            Submit::Busy(_) => {
                self.waiting.borrow_mut().remove(&ticket);
                let what = format!("too many requests wait for shard {shard} already");
                return Err(Refusal::new(ErrorCode::Busy, what));
            }
        }
        Ok(Call(slot))
    }

    /// Takes letters for the life of the shard: answers go to whoever waits, requests to `handle`, in order of arrival.
    pub async fn run(self: Rc<Mesh>, handle: impl Fn(ShardRequest, Responder)) {
        let take = |letter: Letter| match letter.body {
            Body::Request(request) => {
                let kind = if request.waits() { Kind::Wait } else { Kind::Work };
                let responder = Responder {
                    mesh: Rc::clone(&self),
                    to: letter.from,
                    ticket: letter.ticket,
                    kind,
                };
                handle(request, responder);
            }
            Body::Reply(kind, reply) => self.answered(letter.from, letter.ticket, kind, reply),
        };
        while let Ok(letter) = self.inbox.recv_async().await {
            take(letter);
            let more = self.inbox.try_iter().take(LETTERS_A_TURN - 1);
            if more.map(take).count() == LETTERS_A_TURN - 1 {
                futures_lite::future::yield_now().await;
            }
        }
    }

    fn answered(&self, from: u32, ticket: u64, kind: Kind, reply: ShardReply) {
        let peer = &self.peers[from as usize];
        let next = peer.credits(kind).borrow_mut().answered();
        if let Some(letter) = next {
            peer.put(letter);
        }
        let slot = self.waiting.borrow_mut().remove(&ticket);
        if let Some(slot) = slot {
            slot.answer.replace(Some(reply));
            slot.arrived.notify();
        }
    }

    fn post(&self, to: u32, ticket: u64, body: Body) {
        let from = self.placement.shard;
        self.peers[to as usize].put(Letter { from, ticket, body });
    }
}

impl Peer {
    fn put(&self, letter: Letter) {
        match self.mailbox.try_send(letter) {
            Ok(()) => {}
            Err(flume::TrySendError::Full(_)) => unreachable!("credits reserve a place for every letter"),
            // The neighbour has ended: the node is stopping, and whoever still waits is dropped with this shard.
            Err(flume::TrySendError::Disconnected(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, or, zip};

    use super::*;
    use tailwater_wire::ids::Offset;
    use tailwater_wire::message::{FetchRequest, Request};

    fn work() -> ShardRequest {
        ShardRequest::Part(Request::Ping)
    }

    fn wait(from: u64) -> ShardRequest {
        ShardRequest::Wait(FetchRequest {
            topic: "ticks".parse().expect("a name"),
            incarnation: None,
            lineage: None,
            partition: tailwater_wire::ids::PartitionId(0),
            from: Offset(from),
            bytes_max: 1,
            wait_millis: 1,
        })
    }

    fn pair(credits: usize) -> (Rc<Mesh>, Rc<Mesh>) {
        let mut ends = ends(2, credits).into_iter().map(Mesh::new);
        (ends.next().expect("one"), ends.next().expect("two"))
    }

    async fn ask_often(mesh: &Mesh, shard: u32, times: usize) {
        let calls: Vec<Call> = (0..times)
            .map(|_| mesh.ask(shard, work()).expect("the backlog holds them"))
            .collect();
        for call in calls {
            assert!(matches!(call.answer().await, ShardReply::Waited));
        }
    }

    #[test]
    fn two_shards_that_ask_each_other_at_full_load_never_block() {
        for credits in [1, 2, 64] {
            let (one, two) = pair(credits);
            let answer = |_: ShardRequest, responder: Responder| responder.reply(ShardReply::Waited);
            let serve = zip(Rc::clone(&one).run(answer), Rc::clone(&two).run(answer));
            let asking = zip(ask_often(&one, 1, 5_000), ask_often(&two, 0, 5_000));
            block_on(or(
                async {
                    asking.await;
                },
                async {
                    serve.await;
                },
            ));
            assert!(one.waiting.borrow().is_empty() && two.waiting.borrow().is_empty());
        }
    }

    #[test]
    fn requests_that_wait_do_not_hold_up_work_and_arrive_in_order() {
        let (one, two) = pair(1);
        let (held, seen) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let serve = Rc::clone(&two).run(|request, responder| match request {
            ShardRequest::Wait(fetch) => {
                seen.borrow_mut().push(fetch.from.0);
                held.borrow_mut().push(responder);
            }
            _ => responder.reply(ShardReply::Waited),
        });
        let asking = async {
            let waits: Vec<Call> = (0..3)
                .map(|n| one.ask(1, wait(n)).expect("there is room"))
                .collect();
            ask_often(&one, 1, 100).await;
            for call in waits {
                let responder = held.borrow_mut().pop().expect("one at a time is out");
                responder.reply(ShardReply::Waited);
                assert!(matches!(call.answer().await, ShardReply::Waited));
                ask_often(&one, 1, 1).await;
            }
        };
        let answers = Rc::clone(&one).run(|_, _| unreachable!("nobody asks it"));
        block_on(or(asking, async {
            zip(serve, answers).await;
        }));
        assert_eq!(*seen.borrow(), [0, 1, 2]);
    }
}
