//! One partition's way to the merge: a task that reads ahead by one batch, and says what it knows of the rest.

use std::time::Duration;

use tailwater_wire::client::config::{ConsumerOptions, StartAt};
use tailwater_wire::client::consumer::{Consumed, ConsumedBatch, Consumer, Gap};
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Offset, PartitionId, TopicName};
use tailwater_wire::message::Place;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::output;

/// How long a lane that should have more may bring nothing before it is looked at again: control batches have no records.
const DOUBT: Duration = Duration::from_millis(100);
/// How often a partition is looked at that ends before the offset that was asked for.
const AHEAD_POLL: Duration = Duration::from_millis(100);

/// What a lane tells.
#[derive(Debug)]
pub enum Told {
    /// Its next batch; since when it is known to be committed; and whether more is known.
    Batch(ConsumedBatch, Instant, bool),
    /// Records that cannot be read, and whether more is known behind them.
    Gap(Gap, bool),
    /// Nothing more is known.
    Quiet,
    /// Nothing more comes.
    End,
    /// It cannot be read.
    Failed(ClientError),
}

/// What to read of a topic.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The topic.
    pub topic: TopicName,
    /// Where to begin in each partition.
    pub from: StartAt,
    /// Whether to go on at the end.
    pub follow: bool,
    /// About how many bytes one fetch brings.
    pub bytes_max: u32,
    /// How long a fetch waits at the end.
    pub wait: Duration,
}

/// Opens a partition and reads it in a task. Everything that can be refused is refused here.
///
/// # Errors
/// `UNKNOWN_PARTITION`; `POSITION_AHEAD` for an offset beyond the end, unless the end is followed.
pub async fn open(
    client: &Client,
    reading: &Reading,
    partition: PartitionId,
) -> Result<mpsc::Receiver<Told>, ClientError> {
    let consumer = consumer(client, reading, partition).await?;
    let (sender, receiver) = mpsc::channel(1);
    match (reading.from, consumer.position(partition)) {
        (StartAt::Offset(wanted), Some((_, end))) if wanted > end => {
            if !reading.follow {
                let topic = &reading.topic;
                let what = format!(
                    "topic {topic}: partition {partition} ends at offset {end}, and was to be read from {wanted}"
                );
                return Err(ClientError::Refused(Refusal::new(ErrorCode::PositionAhead, what)));
            }
            output::note(&format!(
                "waiting: partition {partition} ends at offset {end}, and is read from {wanted}"
            ));
            let (client, reading) = (client.clone(), reading.clone());
            tokio::spawn(async move {
                let opened = reach(&client, &reading, partition, wanted, &sender).await;
                follow(opened, &sender, partition).await;
            });
        }
        _ => {
            tokio::spawn(async move { follow(Ok(consumer), &sender, partition).await });
        }
    }
    Ok(receiver)
}

async fn consumer(
    client: &Client,
    reading: &Reading,
    partition: PartitionId,
) -> Result<Consumer, ClientError> {
    let options = ConsumerOptions {
        partitions: Some(vec![partition]),
        from: reading.from,
        bytes_max: reading.bytes_max,
        wait: reading.wait,
        stop_at_end: !reading.follow,
    };
    client.consumer(&reading.topic, options).await
}

/// Waits until a partition has grown to an offset, and opens it there.
async fn reach(
    client: &Client,
    reading: &Reading,
    partition: PartitionId,
    wanted: Offset,
    sender: &mpsc::Sender<Told>,
) -> Result<Consumer, ClientError> {
    // Whoever merges may be gone; the task then ends with its first batch.
    let _gone = sender.send(Told::Quiet).await;
    loop {
        let found = client.find_offset(&reading.topic, partition, Place::Tail).await?;
        if found.high_water_mark >= wanted {
            return consumer(client, reading, partition).await;
        }
        sleep(AHEAD_POLL).await;
    }
}

/// Reads to the end, or for as long as somebody listens.
async fn follow(opened: Result<Consumer, ClientError>, sender: &mpsc::Sender<Told>, partition: PartitionId) {
    let mut consumer = match opened {
        Ok(consumer) => consumer,
        Err(error) => {
            let _gone = sender.send(Told::Failed(error)).await;
            return;
        }
    };
    let (next, end) = consumer.position(partition).unwrap_or_default();
    let mut frontier = Frontier {
        end,
        since: Instant::now(),
    };
    let mut more = next < end;
    if !more && sender.send(Told::Quiet).await.is_err() {
        return;
    }
    loop {
        let told = if more {
            match timeout(DOUBT, consumer.next()).await {
                Ok(next) => next,
                Err(_) => {
                    let (next, end) = consumer.position(partition).unwrap_or_default();
                    if next < end {
                        continue;
                    }
                    more = false;
                    if sender.send(Told::Quiet).await.is_err() {
                        return;
                    }
                    continue;
                }
            }
        } else {
            consumer.next().await
        };
        let (_, end) = consumer.position(partition).unwrap_or_default();
        let told = match told {
            Ok(Some(Consumed::Batch(batch))) => {
                let since = frontier.known_since(batch.end, end);
                more = batch.end < end;
                Told::Batch(batch, since, more)
            }
            Ok(Some(Consumed::Gap(gap))) => {
                more = gap.to < end;
                Told::Gap(gap, more)
            }
            Ok(None) => Told::End,
            Err(error) => Told::Failed(error),
        };
        let is_last = matches!(told, Told::End | Told::Failed(_));
        if sender.send(told).await.is_err() || is_last {
            return;
        }
    }
}

/// What is known to be committed, and since when: it moves only when something beyond it comes, so that a long backlog is
/// known since one time.
#[derive(Debug)]
struct Frontier {
    end: Offset,
    since: Instant,
}

impl Frontier {
    fn known_since(&mut self, batch_end: Offset, committed_end: Offset) -> Instant {
        if batch_end > self.end {
            *self = Frontier {
                end: committed_end.max(batch_end),
                since: Instant::now(),
            };
        }
        self.since
    }
}
