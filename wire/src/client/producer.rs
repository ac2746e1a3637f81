//! The producer: takes records, waits only for buffer space, and drives the batcher from a task of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};

use crate::batch::builder::PushError;
use crate::client::config::{Idempotence, ProducerOptions};
use crate::client::connection::Sink;
use crate::client::delivery::{BatchOutcome, Delivery};
use crate::client::error::ClientError;
use crate::client::handle::{Client, unexpected};
use crate::code::{ErrorCode, Refusal, Retry};
use crate::ids::{PartitionId, Writer};
use crate::limits::{PRODUCER_NAME_BYTES_MAX, RECORD_BYTES_MAX};
use crate::message::{OpenProducer, ProduceRequest, Produced, ProducerKey, Reply, Request};
use crate::meta::Topic;
use crate::producer::action::{Action, BatchId, BatcherConfig, Event, WriterKind};
use crate::producer::batcher::Batcher;
use crate::record::Record;
use crate::session::{Failure, Outcome};

/// What a waiting record costs beyond its own bytes.
const RECORD_OVERHEAD_BYTES: usize = 64;
/// When a driver wakes that has nothing to wait for, after its start.
const IDLE: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Sends records to one topic. Dropping it lets what was accepted go out; [`Producer::close`] waits for that.
#[derive(Debug)]
pub struct Producer {
    client: Client,
    topic: Topic,
    options: ProducerOptions,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    state: Mutex<State>,
    /// Free bytes of the buffer.
    space: Semaphore,
    /// For the driver: records, a flush, or the end.
    wake: Notify,
}

#[derive(Debug)]
struct State {
    batcher: Batcher,
    open: HashMap<BatchId, OpenBatch>,
    flush: bool,
    closing: bool,
}

#[derive(Debug)]
struct OpenBatch {
    outcome: Arc<BatchOutcome>,
    /// Bytes of the buffer that it holds.
    cost: usize,
}

impl Producer {
    pub(crate) fn open(
        client: Client,
        topic: Topic,
        options: ProducerOptions,
    ) -> Result<Producer, ClientError> {
        if let Some(fault) = options.fault() {
            return Err(ClientError::invalid(format!("producer: {fault}")));
        }
        if let Idempotence::Named(name) = &options.idempotence
            && (name.is_empty() || name.len() > PRODUCER_NAME_BYTES_MAX)
        {
            let what = format!("producer: a name has 1 to {PRODUCER_NAME_BYTES_MAX} bytes");
            return Err(ClientError::invalid(what));
        }
        if topic.spec.partitions == 0 {
            return Err(ClientError::invalid("producer: the topic has no partitions"));
        }
        if let Some(partition) = options.partition {
            check_partition(&topic, partition)?;
        }
        let batcher = Batcher::new(BatcherConfig {
            partitioner: topic.spec.partitioner,
            partitions: topic.spec.partitions,
            idempotence: match options.idempotence {
                Idempotence::Random => WriterKind::Random,
                Idempotence::Named(_) => WriterKind::Named,
                Idempotence::None => WriterKind::Anonymous,
            },
            batch_records: options.batch_records,
            batch_bytes: options.batch_bytes,
            linger: options.linger,
            in_flight: options.in_flight_per_partition,
            delivery_timeout: options.delivery_timeout,
            first_keyless: rand::random(),
        });
        let shared = Arc::new(Shared {
            started: Instant::now(),
            state: Mutex::new(State {
                batcher,
                open: HashMap::new(),
                flush: false,
                closing: false,
            }),
            space: Semaphore::new(options.buffer_bytes),
            wake: Notify::new(),
        });
        let (answers, answered) = mpsc::unbounded_channel();
        let driver = Driver {
            client: client.clone(),
            topic: topic.clone(),
            idempotence: options.idempotence.clone(),
            ids: HashMap::new(),
            shared: shared.clone(),
            asked: HashMap::new(),
            next_tag: 0,
            answers,
            answered,
        };
        tokio::spawn(driver.run());
        Ok(Producer {
            client,
            topic,
            options,
            shared,
        })
    }

    /// The topic as it was when the producer was made.
    #[must_use]
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Accepts a record; waits only for buffer space. It goes to its key's partition; without a key, to the
    /// partition whose turn it is, which changes with every batch.
    ///
    /// # Errors
    /// A record over a limit, or a closed producer. What becomes of the record, the delivery says.
    pub async fn send(&self, record: Record) -> Result<Delivery, ClientError> {
        self.accept(self.options.partition, record).await
    }

    /// As [`Producer::send`], to a partition of the caller's choice.
    ///
    /// # Errors
    /// As [`Producer::send`]; and a partition that the topic does not have.
    pub async fn send_to(&self, partition: PartitionId, record: Record) -> Result<Delivery, ClientError> {
        check_partition(&self.topic, partition)?;
        self.accept(Some(partition), record).await
    }

    async fn accept(&self, partition: Option<PartitionId>, record: Record) -> Result<Delivery, ClientError> {
        let size = record.size();
        let cost = size + RECORD_OVERHEAD_BYTES;
        if size > RECORD_BYTES_MAX || cost > self.options.buffer_bytes {
            let most = RECORD_BYTES_MAX.min(self.options.buffer_bytes.saturating_sub(RECORD_OVERHEAD_BYTES));
            let what = format!("record of {size} bytes: at most {most} are allowed");
            return Err(ClientError::Refused(Refusal::new(
                ErrorCode::RecordTooLarge,
                what,
            )));
        }
        let space = self.shared.space.acquire_many(cost as u32).await;
        let space = space.map_err(|_| ClientError::Closed { what: "the producer" })?;
        let now = self.shared.started.elapsed();
        let mut state = self.shared.lock();
        if state.closing {
            return Err(ClientError::Closed { what: "the producer" });
        }
        let partition = partition.unwrap_or_else(|| state.batcher.route(&record));
        let (batch, index) = state
            .batcher
            .push(partition, &record, now)
            .map_err(|error| refused(&self.topic, partition, error))?;
        space.forget();
        let open = state.open.entry(batch).or_insert_with(|| OpenBatch {
            outcome: Arc::new(BatchOutcome::new(partition)),
            cost: 0,
        });
        open.cost += cost;
        let outcome = open.outcome.clone();
        drop(state);
        self.shared.wake.notify_one();
        Ok(Delivery::new(outcome, index))
    }

    /// Sends what lingers, and waits until everything that was accepted before has ended.
    ///
    /// # Errors
    /// The first failure among what it waited for; the deliveries say which records it hit.
    pub async fn flush(&self) -> Result<(), ClientError> {
        let outcomes: Vec<Arc<BatchOutcome>> = {
            let mut state = self.shared.lock();
            state.flush = true;
            state.open.values().map(|open| open.outcome.clone()).collect()
        };
        self.shared.wake.notify_one();
        let mut first = Ok(());
        for outcome in outcomes {
            let ended = outcome.ended().await;
            first = first.and(ended);
        }
        first
    }

    /// Flushes and ends.
    ///
    /// # Errors
    /// As [`Producer::flush`].
    pub async fn close(self) -> Result<(), ClientError> {
        self.flush().await
    }

    /// The sequence of the last record that a partition holds of this producer's name, counted from 1; 0 for none.
    /// An application that resumes sends what comes after it.
    ///
    /// # Errors
    /// A producer without a name, or any [`ClientError`].
    pub async fn last_sequence(&self, partition: PartitionId) -> Result<u64, ClientError> {
        check_partition(&self.topic, partition)?;
        let Idempotence::Named(name) = &self.options.idempotence else {
            return Err(ClientError::invalid(
                "last sequence: only a named producer has one",
            ));
        };
        let request = open_request(&self.topic, partition, ProducerKey::Named(name.clone()));
        match self.client.request(request, Bytes::new()).await?.0 {
            Reply::ProducerOpened(opened) => Ok(opened.last_sequence),
            other => Err(self.client.unexpected(&other)),
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the batcher is a defect of ours that must not spread to every sender.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an answer is to.
enum Asked {
    Open(PartitionId),
    Batch(PartitionId, BatchId),
}

struct Driver {
    client: Client,
    topic: Topic,
    idempotence: Idempotence,
    /// The random id of each partition.
    ids: HashMap<PartitionId, [u8; 16]>,
    shared: Arc<Shared>,
    /// By tag.
    asked: HashMap<u64, Asked>,
    next_tag: u64,
    /// Bounded by the batches in flight.
    answers: mpsc::UnboundedSender<(u64, Outcome)>,
    answered: mpsc::UnboundedReceiver<(u64, Outcome)>,
}

impl Driver {
    async fn run(mut self) {
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
        if let Err(Failure::Refused(refusal)) = &result
            && refusal.code.retry() == Retry::Refresh
        {
            self.client.forget(&self.topic.spec.name);
        }
        let result = result.map(|(reply, _)| reply);
        let event = match self.asked.remove(&tag) {
            Some(Asked::Open(partition)) => Event::Opened {
                partition,
                result: result.and_then(opened),
            },
            Some(Asked::Batch(partition, batch)) => Event::Settled {
                partition,
                batch,
                resent,
                result: result.and_then(produced),
            },
            None => return,
        };
        let actions = {
            let mut state = self.shared.lock();
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
        let connection = self.client.connection_to(&self.topic, partition);
        if let Err(failure) = connection.submit(request, payload, limit, sink).await {
            let outcome = Outcome {
                result: Err(failure),
                resent: false,
            };
            // Our own receiver is there as long as we are.
            drop(self.answers.send((tag, outcome)));
        }
    }

    fn done(&self, partition: PartitionId, batch: BatchId, result: Result<Produced, Failure>) {
        let Some(open) = self.shared.lock().open.remove(&batch) else {
            return;
        };
        self.shared.space.add_permits(open.cost);
        let server = self.client.connection_to(&self.topic, partition).server();
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

fn open_request(topic: &Topic, partition: PartitionId, producer: ProducerKey) -> Request {
    Request::OpenProducer(OpenProducer {
        topic: topic.spec.name.clone(),
        incarnation: topic.incarnation,
        partition,
        producer,
    })
}

fn check_partition(topic: &Topic, partition: PartitionId) -> Result<(), ClientError> {
    if partition.0 < topic.spec.partitions {
        return Ok(());
    }
    let (name, count) = (&topic.spec.name, topic.spec.partitions);
    let what = format!("topic {name}: it has {count} partitions, and no {partition}");
    Err(ClientError::Refused(Refusal::new(
        ErrorCode::UnknownPartition,
        what,
    )))
}

fn refused(topic: &Topic, partition: PartitionId, error: Option<PushError>) -> ClientError {
    let Some(error) = error else {
        return check_partition(topic, partition)
            .err()
            .unwrap_or(ClientError::Closed { what: "the producer" });
    };
    let code = match error {
        PushError::RecordTooLarge(_) => ErrorCode::RecordTooLarge,
        PushError::HeaderName | PushError::Full => ErrorCode::InvalidRequest,
    };
    ClientError::Refused(Refusal::new(code, error.to_string()))
}
