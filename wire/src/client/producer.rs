//! The producer: takes records, waits only for buffer space, and drives the batcher from a task of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, TryAcquireError};
use tokio::time::Instant;

use crate::batch::builder::PushError;
use crate::client::config::{Idempotence, ProducerOptions};
use crate::client::delivery::{BatchOutcome, Delivery};
use crate::client::error::ClientError;
use crate::client::handle::Client;
use crate::client::sender::{Driver, OpenBatch, Shared, State, open_request};
use crate::code::{ErrorCode, Refusal};
use crate::ids::PartitionId;
use crate::limits::{PRODUCER_NAME_BYTES_MAX, RECORD_BYTES_MAX};
use crate::message::{ProducerKey, Reply};
use crate::meta::Topic;
use crate::producer::action::{BatcherConfig, WriterKind};
use crate::producer::batcher::Batcher;
use crate::record::Record;

/// What a waiting record costs beyond its own bytes.
const RECORD_OVERHEAD_BYTES: usize = 64;
/// Sends records to one topic. Dropping it lets what was accepted go out; [`Producer::close`] waits for that.
#[derive(Debug)]
pub struct Producer {
    client: Client,
    topic: Topic,
    options: ProducerOptions,
    shared: Arc<Shared>,
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
                trouble: None,
            }),
            space: Semaphore::new(options.buffer_bytes),
            wake: Notify::new(),
        });
        let driver = Driver::new(
            client.clone(),
            topic.clone(),
            options.idempotence.clone(),
            shared.clone(),
        );
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

    /// Why the last answered batch was not committed; `None` once one is. It may be tried again until its time is up,
    /// so this is what a producer waits for that seems to stand still.
    #[must_use]
    pub fn trouble(&self) -> Option<ClientError> {
        self.shared.lock().trouble.clone()
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

    /// As [`Producer::send`], without waiting.
    ///
    /// # Errors
    /// As [`Producer::send`]; and `BUSY` when the buffer is full.
    pub fn try_send(&self, record: Record) -> Result<Delivery, ClientError> {
        let cost = self.cost_of(&record)?;
        let space = self.shared.space.try_acquire_many(cost as u32);
        let space = space.map_err(|error| match error {
            TryAcquireError::Closed => ClientError::Closed { what: "the producer" },
            TryAcquireError::NoPermits => {
                let bytes = self.options.buffer_bytes;
                let what = format!("the producer's buffer of {bytes} bytes is full (buffer_bytes)");
                ClientError::Refused(Refusal::new(ErrorCode::Busy, what))
            }
        })?;
        self.take(self.options.partition, &record, cost, space)
    }

    async fn accept(&self, partition: Option<PartitionId>, record: Record) -> Result<Delivery, ClientError> {
        let cost = self.cost_of(&record)?;
        let space = self.shared.space.acquire_many(cost as u32).await;
        let space = space.map_err(|_| ClientError::Closed { what: "the producer" })?;
        self.take(partition, &record, cost, space)
    }

    /// The bytes of the buffer that a record takes.
    fn cost_of(&self, record: &Record) -> Result<usize, ClientError> {
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
        Ok(cost)
    }

    fn take(
        &self,
        partition: Option<PartitionId>,
        record: &Record,
        cost: usize,
        space: SemaphorePermit<'_>,
    ) -> Result<Delivery, ClientError> {
        let now = self.shared.started.elapsed();
        let mut state = self.shared.lock();
        if state.closing {
            return Err(ClientError::Closed { what: "the producer" });
        }
        let partition = partition.unwrap_or_else(|| state.batcher.route(record));
        let (batch, index) = state
            .batcher
            .push(partition, record, now)
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

fn check_partition(topic: &Topic, partition: PartitionId) -> Result<(), ClientError> {
    if partition.0 < topic.spec.partitions {
        return Ok(());
    }
    Err(ClientError::no_partition(topic, partition))
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
