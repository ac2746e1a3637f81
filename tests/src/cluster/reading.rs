//! What is in a topic, read by a consumer and by nothing that the node says of itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tailwater_wire::batch::view::{BatchView, RecordView};
use tailwater_wire::client::config::{ConsumerOptions, StartAt};
use tailwater_wire::client::consumer::{Consumed, ConsumedBatch};
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::{Epoch, Offset, PartitionId, TopicName, Writer};
use tailwater_wire::message::{LinkStatus, Place};

use crate::cluster::load::{Acknowledged, number_of};

/// How long a link may take to catch up.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// One record of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Which record it is.
    pub number: u64,
    /// When it was committed, nanoseconds since the epoch.
    pub commit_time: u64,
}

/// A topic's records, by partition, then offset.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// The first offset that was read, by partition.
    pub starts: Vec<u64>,
    /// By partition.
    pub partitions: Vec<Vec<Stored>>,
}

/// One record that a link copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// The attachment that copied it.
    pub epoch: Epoch,
    /// The parent's partition.
    pub parent_partition: u32,
    /// Its offset there.
    pub parent_offset: u64,
    /// The child's partition.
    pub partition: u32,
    /// Its offset there.
    pub offset: u64,
    /// When the delay gate let it pass, nanoseconds since the epoch.
    pub released_at: u64,
    /// The record and when the child committed it.
    pub stored: Stored,
}

/// Reads batches up to what is committed now.
///
/// # Panics
/// At a gap, and at anything that cannot be read.
async fn each_batch(
    client: &Client,
    topic: &TopicName,
    options: ConsumerOptions,
    mut take: impl FnMut(&ConsumedBatch),
) {
    let options = ConsumerOptions {
        stop_at_end: true,
        ..options
    };
    let mut consumer = client.consumer(topic, options).await.expect("a consumer");
    while let Some(consumed) = consumer.next().await.expect("a readable topic") {
        match consumed {
            Consumed::Batch(batch) => take(&batch),
            Consumed::Gap(gap) => panic!("topic {topic}: {gap:?}"),
        }
    }
}

fn stored(batch: &ConsumedBatch, record: &RecordView<'_>) -> Stored {
    let (partition, offset) = (batch.partition, record.offset);
    let number = number_of(record.key, record.value);
    let number =
        number.unwrap_or_else(|| panic!("the record at {partition}/{offset} was altered: {record:?}"));
    Stored {
        number,
        commit_time: batch.header.commit_time.0,
    }
}

/// The whole log of a topic.
///
/// # Panics
/// As [`log_from`].
pub async fn log(client: &Client, topic: &TopicName) -> Log {
    let partitions = client.topic(topic).await.expect("a topic").spec.partitions;
    log_from(client, topic, &vec![0; partitions as usize]).await
}

/// The log of a topic from these offsets, by partition.
///
/// # Panics
/// When an offset is skipped, a record was altered, or commit times step back.
pub async fn log_from(client: &Client, topic: &TopicName, starts: &[u64]) -> Log {
    let mut log = Log {
        starts: starts.to_vec(),
        partitions: vec![Vec::new(); starts.len()],
    };
    for (number, (records, &start)) in log.partitions.iter_mut().zip(starts).enumerate() {
        let partition = PartitionId(number as u32);
        let from = StartAt::Offset(Offset(start));
        let options = ConsumerOptions {
            partitions: Some(vec![partition]),
            from,
            ..ConsumerOptions::default()
        };
        each_batch(client, topic, options, |batch| {
            for record in batch.records() {
                let next = start + records.len() as u64;
                assert_eq!(
                    record.offset.0, next,
                    "offsets have no gaps in partition {partition}"
                );
                let stored = stored(batch, &record);
                let last = records.last().map_or(0, |last: &Stored| last.commit_time);
                assert!(
                    last <= stored.commit_time,
                    "commit times of partition {partition} step back"
                );
                records.push(stored);
            }
        })
        .await;
    }
    log
}

/// All records of a topic that links have copied, in the order of the child's partitions.
///
/// # Panics
/// When a record was altered, or a copy does not name its origin.
pub async fn copies(client: &Client, child: &TopicName) -> Vec<Copied> {
    read_copies(client, child, ConsumerOptions::default(), StartAt::Earliest).await
}

/// As [`copies`], from these offsets, by partition.
pub async fn copies_from(client: &Client, child: &TopicName, starts: &[u64]) -> Vec<Copied> {
    let mut copies = Vec::new();
    for (partition, &start) in starts.iter().enumerate() {
        let options = ConsumerOptions {
            partitions: Some(vec![PartitionId(partition as u32)]),
            ..ConsumerOptions::default()
        };
        copies.extend(read_copies(client, child, options, StartAt::Offset(Offset(start))).await);
    }
    copies
}

async fn read_copies(
    client: &Client,
    child: &TopicName,
    options: ConsumerOptions,
    from: StartAt,
) -> Vec<Copied> {
    let mut copies = Vec::new();
    let options = ConsumerOptions { from, ..options };
    each_batch(client, child, options, |batch| {
        let Writer::Origin(origin) = batch.header.writer else {
            return;
        };
        let view = BatchView::parse(&batch.bytes).expect("a batch that the consumer has checked");
        let stamp = view
            .body()
            .and_then(|body| body.origin.as_ref())
            .expect("a copy names its origin");
        let released_at = stamp.released_at.to_native();
        copies.extend(batch.records().map(|record| Copied {
            epoch: origin.epoch,
            parent_partition: origin.partition.0,
            parent_offset: record.origin.expect("a copy names its origin").0,
            partition: batch.partition.0,
            offset: record.offset.0,
            released_at,
            stored: stored(batch, &record),
        }));
    })
    .await;
    copies
}

impl Log {
    /// How many records it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.partitions
            .iter()
            .map(|partition| partition.len() as u64)
            .sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The end of each partition.
    #[must_use]
    pub fn ends(&self) -> Vec<u64> {
        self.starts
            .iter()
            .zip(&self.partitions)
            .map(|(start, records)| start + records.len() as u64)
            .collect()
    }

    /// The record at a place, if it was read.
    #[must_use]
    pub fn at(&self, partition: u32, offset: u64) -> Option<&Stored> {
        let index = offset.checked_sub(self.starts[partition as usize])?;
        self.partitions[partition as usize].get(index as usize)
    }

    /// How often each record is there.
    #[must_use]
    pub fn occurrences(&self) -> HashMap<u64, u32> {
        let mut occurrences = HashMap::new();
        for stored in self.partitions.iter().flatten() {
            *occurrences.entry(stored.number).or_default() += 1;
        }
        occurrences
    }

    /// Every acknowledged record must be there, at its offset, with its content.
    ///
    /// # Panics
    /// When one is not.
    #[track_caller]
    pub fn holds(&self, acknowledged: &[Acknowledged]) {
        let lost: Vec<&Acknowledged> = acknowledged
            .iter()
            .filter(|record| {
                let found = record.offset.and_then(|offset| self.at(record.partition, offset));
                found.is_none_or(|stored| stored.number != record.number)
            })
            .collect();
        let ends = self.ends();
        assert!(
            lost.is_empty(),
            "{} acknowledged records are lost; ends {ends:?}, first {:?}",
            lost.len(),
            lost[0]
        );
    }
}

/// The committed end of each partition.
pub async fn ends(client: &Client, topic: &TopicName) -> Vec<u64> {
    let partitions = client.topic(topic).await.expect("a topic").spec.partitions;
    let mut ends = Vec::new();
    for partition in (0..partitions).map(PartitionId) {
        let found = client
            .find_offset(topic, partition, Place::Tail)
            .await
            .expect("a partition's end");
        ends.push(found.high_water_mark.0);
    }
    ends
}

/// One link and how far it is; none when the pair is not attached.
pub async fn link(client: &Client, parent: &TopicName, child: &TopicName) -> Option<LinkStatus> {
    let links = client.list_links(Some(parent)).await.expect("a list of links");
    links.into_iter().find(|status| status.link.child == *child)
}

/// Waits until a link has copied everything that is in its parent now.
///
/// # Panics
/// When it does not.
pub async fn drained(client: &Client, parent: &TopicName, child: &TopicName) {
    let goals = ends(client, parent).await;
    let started = Instant::now();
    loop {
        let status = link(client, parent, child).await.expect("an attached pair");
        let reached = |(partition, goal): (usize, &u64)| {
            let cursor = status
                .cursors
                .iter()
                .find(|cursor| cursor.partition.0 as usize == partition);
            cursor.is_some_and(|cursor| cursor.position.0 >= *goal)
        };
        if goals.iter().enumerate().all(reached) {
            return;
        }
        assert!(
            started.elapsed() < DRAINED_WITHIN,
            "{parent} -> {child} did not catch up with {goals:?} within {DRAINED_WITHIN:?}: {status:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
