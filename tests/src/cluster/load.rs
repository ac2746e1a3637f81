//! Records that say who they are, and a producer that keeps account of what was acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::delivery::Delivery;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::TopicName;
use tailwater_wire::record::Record;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Keys that records are spread over.
const KEYS: u64 = 1_009;
/// A load with a rate looks at the time after so many records.
const PACED_RECORDS: u64 = 50;
/// A value's first bytes are its record's number.
const NUMBER_BYTES: usize = 8;

/// A name that is valid.
///
/// # Panics
/// When it is not.
#[must_use]
pub fn topic(name: &str) -> TopicName {
    name.parse().expect("a topic's name")
}

/// The key of a record.
#[must_use]
pub fn key_of(number: u64) -> String {
    format!("k{:04}", number % KEYS)
}

/// A record whose key and value follow from its number.
#[must_use]
pub fn record(number: u64, value_bytes: usize) -> Record {
    let mut value = vec![filler(number); value_bytes.max(NUMBER_BYTES)];
    value[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    Record {
        key: Some(Bytes::from(key_of(number))),
        value: Bytes::from(value),
        ..Record::default()
    }
}

fn filler(number: u64) -> u8 {
    (number % 251) as u8
}

/// The number of a record that was read; none when key or value are not what was produced.
#[must_use]
pub fn number_of(key: Option<&[u8]>, value: &[u8]) -> Option<u64> {
    let (number, rest) = value.split_first_chunk::<NUMBER_BYTES>()?;
    let number = u64::from_le_bytes(*number);
    let whole = key == Some(key_of(number).as_bytes()) && rest.iter().all(|&byte| byte == filler(number));
    whole.then_some(number)
}

/// An acknowledged record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// Which.
    pub number: u64,
    /// Where.
    pub partition: u32,
    /// At which offset; none for a repeat whose original lies too far back.
    pub offset: Option<u64>,
}

/// What became of a load.
#[derive(Debug, Default)]
pub struct Account {
    /// In the order in which they were sent.
    pub acknowledged: Vec<Acknowledged>,
    /// Records that failed, and how.
    pub failed: Vec<(u64, ClientError)>,
}

/// What to produce.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The number of the first record.
    pub first: u64,
    /// How many, unless it is stopped before.
    pub count: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Records a second at most; as fast as it goes without.
    pub rate: Option<u64>,
    /// How it is sent.
    pub producer: ProducerOptions,
}

impl LoadOptions {
    /// Values of 100 bytes, batches of 1,000.
    #[must_use]
    pub fn new(first: u64, count: u64) -> LoadOptions {
        let producer = ProducerOptions {
            batch_records: 1_000,
            ..ProducerOptions::default()
        };
        LoadOptions {
            first,
            count,
            value_bytes: 100,
            rate: None,
            producer,
        }
    }

    /// At most so many records a second.
    #[must_use]
    pub fn at_rate(self, rate: u64) -> LoadOptions {
        LoadOptions {
            rate: Some(rate),
            ..self
        }
    }
}

/// A producer at full speed, in the background.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    feed: JoinHandle<u64>,
    account: JoinHandle<Account>,
}

impl Load {
    /// Begins to produce.
    pub async fn start(client: &Client, topic: &TopicName, options: LoadOptions) -> Load {
        let producer = client
            .producer(topic, options.producer.clone())
            .await
            .expect("a producer");
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (sent, deliveries) = mpsc::unbounded_channel::<(u64, Delivery)>();
        let stopped = Arc::clone(&stop);
        let feed = tokio::spawn(async move {
            let mut number = options.first;
            let started = tokio::time::Instant::now();
            while number < options.first + options.count && !stopped.load(Ordering::Relaxed) {
                let delivery = producer.send(record(number, options.value_bytes)).await;
                let unheard = sent.send((number, delivery.expect("an open producer takes a record")));
                unheard.expect("the account is kept");
                number += 1;
                let sent = number - options.first;
                if let Some(rate) = options.rate.filter(|_| sent.is_multiple_of(PACED_RECORDS)) {
                    tokio::time::sleep_until(started + Duration::from_nanos(sent * 1_000_000_000 / rate))
                        .await;
                }
            }
            number
        });
        let account = tokio::spawn(keep_account(deliveries, Arc::clone(&acknowledged)));
        Load {
            stop,
            acknowledged,
            feed,
            account,
        }
    }

    /// How many records were acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until so many were acknowledged.
    ///
    /// # Panics
    /// When it ends before.
    pub async fn reached(&self, count: u64) {
        while self.acknowledged() < count {
            assert!(
                !self.account.is_finished(),
                "the load ended at {} of {count}",
                self.acknowledged()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Sends nothing more.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until all is sent, or it was stopped, and everything was answered.
    pub async fn ended(self) -> Account {
        self.feed.await.expect("the feed does not panic");
        self.account.await.expect("the account does not panic")
    }
}

async fn keep_account(
    mut deliveries: mpsc::UnboundedReceiver<(u64, Delivery)>,
    count: Arc<AtomicU64>,
) -> Account {
    let mut account = Account::default();
    while let Some((number, delivery)) = deliveries.recv().await {
        match delivery.await {
            Ok(delivered) => {
                let (partition, offset) = (delivered.partition.0, delivered.offset.map(|offset| offset.0));
                account.acknowledged.push(Acknowledged {
                    number,
                    partition,
                    offset,
                });
                count.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => account.failed.push((number, error)),
        }
    }
    account
}

impl Account {
    /// Everything must have been acknowledged.
    ///
    /// # Panics
    /// When something was not.
    #[track_caller]
    pub fn complete(self) -> Account {
        let first = self.failed.first();
        assert!(
            first.is_none(),
            "{} records failed, the first: {first:?}",
            self.failed.len()
        );
        self
    }
}

/// Produces and waits for all acknowledgements.
pub async fn produce(client: &Client, topic: &TopicName, options: LoadOptions) -> Account {
    Load::start(client, topic, options).await.ended().await.complete()
}
