//! The task behind a producer: asks for producer ids, sends batches, and settles deliveries, as the batcher says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::client::config::Idempotence;
use crate::client::connection::{Connection, Sink};
use crate::client::delivery::BatchOutcome;
use crate::client::error::ClientError;
use crate::client::handle::{Client, unexpected};
use crate::ids::{PartitionId, Writer};
use crate::message::{OpenProducer, ProduceRequest, Produced, ProducerKey, Reply, Request};
use crate::meta::Topic;
use crate::producer::action::{Action, BatchId, Event};
use crate::producer::batcher::Batcher;
use crate::session::action::{Failure, Outcome};

/// When a driver wakes that has nothing to wait for, after its start.
const IDLE: Duration = Duration::from_secs(365 * 24 * 3_600);

/// What a producer and its task share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) started: Instant,
    pub(crate) state: Mutex<State>,
    /// Free bytes of the buffer.
    pub(crate) space: Semaphore,
    /// For the driver: records, a flush, or the end.
    pub(crate) wake: Notify,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) batcher: Batcher,
    pub(crate) open: HashMap<BatchId, OpenBatch>,
    pub(crate) flush: bool,
    pub(crate) closing: bool,
    /// Why the last answered batch was not committed, until one is.
    pub(crate) trouble: Option<ClientError>,
}

#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub(crate) outcome: Arc<BatchOutcome>,
    /// Bytes of the buffer that it holds.
    pub(crate) cost: usize,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the batcher is a defect of ours that must not spread to every sender.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an answer is to.
enum Asked {
    Open(PartitionId),
    Batch(PartitionId, BatchId),
}

/// The connection that a partition's requests take.
struct Way {
    connection: Connection,
    in_flight: usize,
}

/// The task of one producer: performs what its batcher says.
pub(crate) struct Driver {
    client: Client,
    topic: Topic,
    idempotence: Idempotence,
    /// The random id of each partition.
    ids: HashMap<PartitionId, [u8; 16]>,
    shared: Arc<Shared>,
    /// By tag.
    asked: HashMap<u64, Asked>,
    next_tag: u64,
    /// The connection of each partition that has something in flight: what follows takes the same, so that no batch
    /// overtakes another on its way.
    ways: HashMap<PartitionId, Way>,
    /// Wakes when another connection may be the right one.
    changes: watch::Receiver<u64>,
    /// Bounded by the batches in flight.
    answers: mpsc::UnboundedSender<(u64, Outcome)>,
    answered: mpsc::UnboundedReceiver<(u64, Outcome)>,
}

impl Driver {
    pub(crate) fn new(client: Client, topic: Topic, idempotence: Idempotence, shared: Arc<Shared>) -> Driver {
        let (answers, answered) = mpsc::unbounded_channel();
        Driver {
            changes: client.changes(),
            client,
            topic,
            idempotence,
            ids: HashMap::new(),
            shared,
            asked: HashMap::new(),
            next_tag: 0,
            ways: HashMap::new(),
            answers,
            answered,
        }
    }

    /// Runs until the producer is dropped and nothing is open any more.
    pub(crate) async fn run(mut self) {
        let wake = sleep_until(self.shared.started + IDLE);
        tokio::pin!(wake);
        let shared = self.shared.clone();
        loop {
            let (actions, done) = {
                let mut state = shared.lock();
                let flush = std::mem::take(&mut state.flush) || state.closing;
                let event = if flush { Event::Flush } else { Event::Tick };
                let actions = state.batcher.step(event, shared.started.elapsed());
                let until = shared.started + state.batcher.wake_at().unwrap_or(IDLE);
                if until != wake.deadline() {
                    wake.as_mut().reset(until);
                }
                (actions, state.closing && state.batcher.is_idle())
            };
            self.perform(actions).await;
            if done {
                return;
            }
            tokio::select! {
                () = shared.wake.notified() => {}
                () = &mut wake => {}
                Ok(()) = self.changes.changed() => self.reroute().await,
                Some((tag, outcome)) = self.answered.recv() => {
                    self.answer(tag, outcome).await;
                    while let Ok((tag, outcome)) = self.answered.try_recv() {
                        self.answer(tag, outcome).await;
                    }
                }
            }
        }
    }

    async fn answer(&mut self, tag: u64, outcome: Outcome) {
        let Outcome { result, resent } = outcome;
        let Some(asked) = self.asked.remove(&tag) else {
            return;
        };
        let (Asked::Open(partition) | Asked::Batch(partition, _)) = asked;
        let was_straight = self.returned(partition);
        if let Err(Failure::Refused(refusal)) = &result {
            self.client.refused(&self.topic, partition, refusal, was_straight);
        }
        let trouble = result.as_ref().err().map(|failure| {
            let what = format!("produce to {}", self.topic.spec.name);
            ClientError::of(failure.clone(), &self.client.config().server, &what)
        });
        let result = result.map(|(reply, _)| reply);
        let event = match asked {
            Asked::Open(_) => Event::Opened {
                partition,
                result: result.and_then(opened),
            },
            Asked::Batch(_, batch) => Event::Settled {
                partition,
                batch,
                resent,
                result: result.and_then(produced),
            },
        };
        let actions = {
            let mut state = self.shared.lock();
            state.trouble = trouble;
            state.batcher.step(event, self.shared.started.elapsed())
        };
        self.perform(actions).await;
    }

    async fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open { partition, renew } => {
                    let key = self.key(partition, renew);
                    let request = open_request(&self.topic, partition, key);
                    self.ask(Asked::Open(partition), partition, request, Bytes::new())
                        .await;
                }
                Action::Produce {
                    partition,
                    batch,
                    bytes,
                } => {
                    let request = Request::Produce(ProduceRequest {
                        topic: self.topic.spec.name.clone(),
                        incarnation: self.topic.incarnation,
                        partition,
                    });
                    self.ask(Asked::Batch(partition, batch), partition, request, bytes)
                        .await;
                }
                Action::Done {
                    partition,
                    batch,
                    result,
                } => self.done(partition, batch, result),
            }
        }
    }

    fn key(&mut self, partition: PartitionId, renew: bool) -> ProducerKey {
        if let Idempotence::Named(name) = &self.idempotence {
            return ProducerKey::Named(name.clone());
        }
        let id = self.ids.entry(partition).or_insert_with(rand::random);
        if renew {
            *id = rand::random();
        }
        ProducerKey::Random(*id)
    }

    async fn ask(&mut self, asked: Asked, partition: PartitionId, request: Request, payload: Bytes) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.asked.insert(tag, asked);
        let sink = Sink::Many(tag, self.answers.clone());
        let limit = self.client.limit_of(&request);
        // Asked every time: that is also what makes the client look for a better one.
        let best = self.client.connection_to(&self.topic, partition);
        let way = self.ways.entry(partition).or_insert(Way {
            connection: best,
            in_flight: 0,
        });
        way.in_flight += 1;
        let connection = way.connection.clone();
        if let Err(failure) = connection.submit(request, payload, limit, sink).await {
            let outcome = Outcome {
                result: Err(failure),
                resent: false,
            };
            // Our own receiver is there as long as we are.
            drop(self.answers.send((tag, outcome)));
        }
    }

    /// One request of a partition has come back; with the last one its connection is free to change. Says whether it
    /// was one beside the first.
    fn returned(&mut self, partition: PartitionId) -> bool {
        let Some(way) = self.ways.get_mut(&partition) else {
            return false;
        };
        way.in_flight -= 1;
        let (was_straight, is_last) = (way.connection.is_beside(), way.in_flight == 0);
        if is_last {
            self.ways.remove(&partition);
        }
        was_straight
    }

    /// Lets the partitions that would now take another connection finish what they have in flight, and then change.
    async fn reroute(&mut self) {
        let moved: Vec<PartitionId> = self
            .ways
            .iter()
            .filter(|(partition, way)| {
                let best = self.client.connection_to(&self.topic, **partition);
                !best.is_same(&way.connection)
            })
            .map(|(partition, _)| *partition)
            .collect();
        for partition in moved {
            let actions = {
                let mut state = self.shared.lock();
                let now = self.shared.started.elapsed();
                state.batcher.step(Event::Reroute { partition }, now)
            };
            self.perform(actions).await;
        }
    }

    fn done(&self, partition: PartitionId, batch: BatchId, result: Result<Produced, Failure>) {
        let Some(open) = self.shared.lock().open.remove(&batch) else {
            return;
        };
        self.shared.space.add_permits(open.cost);
        let server = &self.client.config().server;
        let what = format!("produce to {} partition {partition}", self.topic.spec.name);
        let result = result.map_err(|failure| ClientError::of(failure, server, &what));
        open.outcome.settle(result);
    }
}

impl Drop for Driver {
    /// Only after a panic, or when the runtime goes, is anything still open: nobody is to wait for it.
    fn drop(&mut self) {
        self.shared.space.close();
        let mut state = self.shared.lock();
        state.closing = true;
        let open: Vec<OpenBatch> = state.open.drain().map(|(_, open)| open).collect();
        drop(state);
        for open in open {
            open.outcome.settle(Err(ClientError::OutcomeUnknown {
                what: format!("produce to {}", self.topic.spec.name),
                why: "the producer's task ended".to_owned(),
            }));
        }
    }
}

fn opened(reply: Reply) -> Result<(Writer, u64), Failure> {
    match reply {
        Reply::ProducerOpened(opened) => Ok((opened.writer, opened.last_sequence)),
        other => Err(Failure::Protocol(unexpected(&other))),
    }
}

fn produced(reply: Reply) -> Result<Produced, Failure> {
    match reply {
        Reply::Produced(produced) => Ok(produced),
        other => Err(Failure::Protocol(unexpected(&other))),
    }
}

/// The request that opens a producer on a partition.
pub(crate) fn open_request(topic: &Topic, partition: PartitionId, producer: ProducerKey) -> Request {
    Request::OpenProducer(OpenProducer {
        topic: topic.spec.name.clone(),
        incarnation: topic.incarnation,
        partition,
        producer,
    })
}
