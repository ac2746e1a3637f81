//! Consumers: every record once and in order, and a word about each that is missing.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tailwater_wire::batch::builder::{BatchBuilder, frontier_batch};
use tailwater_wire::client::{
    Client, ClientError, Consumed, Consumer, ConsumerOptions, Gap, GapReason, StartAt,
};
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Offset, PartitionId, Writer};
use tailwater_wire::partitioner::Partitioner;
use tokio::time::timeout;

use crate::fake::{Fake, Fault, topic_name};
use crate::{client, record};

fn batch(values: std::ops::Range<u32>, control: bool) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    for value in values {
        builder.push(&record(value)).expect("fits");
    }
    match control {
        true => builder.finish_control(),
        false => builder.finish(Writer::Anonymous, 0),
    }
    .expect("not empty")
}

/// A node whose partition 0 holds the offsets 0 to 99 in batches of 10, each record's value its offset.
async fn filled() -> (Fake, Client) {
    let fake = Fake::start(1).await;
    for first in (0..100).step_by(10) {
        fake.append(0, &batch(first..first + 10, false));
    }
    let client = client(&fake).await;
    (fake, client)
}

fn from(from: StartAt) -> ConsumerOptions {
    ConsumerOptions {
        from,
        stop_at_end: true,
        bytes_max: 2_000,
        ..ConsumerOptions::default()
    }
}

async fn consumer(client: &Client, options: ConsumerOptions) -> Consumer {
    client.consumer(&topic_name(), options).await.expect("a consumer")
}

/// All offsets up to the end, checked against the values, and the gaps between them.
async fn read(consumer: &mut Consumer) -> (Vec<u64>, Vec<Gap>) {
    let (mut offsets, mut gaps) = (Vec::new(), Vec::new());
    while let Some(item) = consumer.next().await.expect("readable") {
        match item {
            Consumed::Gap(gap) => gaps.push(gap),
            Consumed::Batch(batch) => {
                assert_eq!(batch.records().count(), batch.len());
                for record in batch.records() {
                    assert_eq!(record.value, record.offset.to_string().as_bytes());
                    offsets.push(record.offset.0);
                }
            }
        }
    }
    (offsets, gaps)
}

fn gap(from: u64, to: u64, reason: GapReason) -> Gap {
    Gap {
        partition: PartitionId(0),
        from: Offset(from),
        to: Offset(to),
        reason,
    }
}

#[tokio::test]
async fn from_every_place_to_the_end() {
    let (fake, client) = filled().await;
    for (place, first) in [
        (StartAt::Earliest, 0),
        (StartAt::Offset(Offset(37)), 37),
        (StartAt::Time(1_000 + 55), 55),
        (StartAt::Tail, 100),
    ] {
        let mut consumer = consumer(&client, from(place)).await;
        // What comes later is beyond the end that was seen.
        fake.append(0, &batch(200..210, false));
        let (offsets, gaps) = read(&mut consumer).await;
        assert_eq!(offsets, (first..100).collect::<Vec<_>>(), "{place:?}");
        assert_eq!(gaps, []);
        let mut state = fake.state();
        state.partitions[0].batches.pop();
        state.partitions[0].end = 100;
    }
}

#[tokio::test]
async fn the_systems_own_batches_are_passed_over() {
    let (fake, client) = filled().await;
    fake.append(0, &batch(0..1, true));
    fake.append(0, &frontier_batch());
    fake.append(0, &batch(101..103, false));
    let mut consumer = consumer(&client, from(StartAt::Offset(Offset(95)))).await;
    let (offsets, gaps) = read(&mut consumer).await;
    assert_eq!(offsets, [95, 96, 97, 98, 99, 101, 102]);
    assert_eq!(gaps, []);
}

#[tokio::test]
async fn damage_on_disk_is_told_with_its_range() {
    let (fake, client) = filled().await;
    fake.state().partitions[0].quarantined = vec![(Offset(30), Offset(50)), (Offset(90), Offset(100))];
    let mut consumer = consumer(&client, from(StartAt::Offset(Offset(25)))).await;
    let (offsets, gaps) = read(&mut consumer).await;
    assert_eq!(offsets, (25..30).chain(50..90).collect::<Vec<_>>());
    let expected: Vec<Gap> = [(30, 50), (90, 100)]
        .map(|(from, to)| gap(from, to, GapReason::Quarantined))
        .into();
    let mut merged: Vec<Gap> = Vec::new();
    for gap in gaps {
        match merged.last_mut() {
            Some(last) if last.to == gap.from && last.reason == gap.reason => last.to = gap.to,
            _ => merged.push(gap),
        }
    }
    assert_eq!(merged, expected);
}

#[tokio::test]
async fn retention_that_overtakes_is_a_gap_and_a_wrong_start_an_error() {
    let (fake, client) = filled().await;
    let mut early = consumer(&client, from(StartAt::Earliest)).await;
    {
        let mut state = fake.state();
        state.partitions[0].log_start = 40;
        state.partitions[0].batches.drain(..4);
    }
    let (offsets, gaps) = read(&mut early).await;
    assert_eq!(offsets, (40..100).collect::<Vec<_>>());
    assert_eq!(gaps, [gap(0, 40, GapReason::Retention)]);

    let mut wrong = consumer(&client, from(StartAt::Offset(Offset(3)))).await;
    let error = wrong.next().await.expect_err("it is gone");
    assert_eq!((error.code(), error.exit_code()), (ErrorCode::PositionBehind, 3));
    let options = ConsumerOptions {
        stop_at_end: false,
        ..from(StartAt::Offset(Offset(101)))
    };
    let mut ahead = consumer(&client, options).await;
    let error = ahead.next().await.expect_err("not there yet");
    assert_eq!(error.code(), ErrorCode::PositionAhead);
}

#[tokio::test]
async fn a_damaged_batch_is_an_error_after_what_was_sound() {
    let (fake, client) = filled().await;
    {
        let mut state = fake.state();
        let (_, bytes) = &mut state.partitions[0].batches[1];
        let mut bad = BytesMut::from(&bytes[..]);
        bad[200] ^= 1;
        *bytes = bad.freeze();
    }
    let mut consumer = consumer(&client, from(StartAt::Earliest)).await;
    let first = consumer.next().await.expect("sound").expect("not the end");
    assert!(matches!(first, Consumed::Batch(batch) if batch.len() == 10));
    let error = consumer.next().await.expect_err("damaged");
    let ClientError::Corrupt { place, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(place, "topic ticks partition 0 from offset 10");
}

#[tokio::test]
async fn passing_trouble_is_ridden_out() {
    let (fake, client) = filled().await;
    let mut consumer = consumer(&client, from(StartAt::Earliest)).await;
    for fault in [
        Fault::Refuse(ErrorCode::Busy),
        Fault::DropAfter,
        Fault::DropBefore,
        Fault::Refuse(ErrorCode::Draining),
    ] {
        fake.state().faults.push_back(fault);
    }
    let (offsets, gaps) = read(&mut consumer).await;
    assert_eq!(offsets, (0..100).collect::<Vec<_>>());
    assert_eq!(gaps, []);
    assert!(fake.state().connections > 1);
}

#[tokio::test]
async fn after_an_error_the_same_place_is_read_again() {
    let (fake, client) = filled().await;
    let mut consumer = consumer(&client, from(StartAt::Earliest)).await;
    fake.state().faults.push_back(Fault::Garbage);
    consumer.next().await.expect_err("garbage");
    let (offsets, _) = read(&mut consumer).await;
    assert_eq!(offsets, (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn another_life_of_the_topic_is_never_read_on() {
    let (fake, client) = filled().await;
    let mut consumer = consumer(&client, from(StartAt::Earliest)).await;
    fake.state().lineage[0] ^= 1;
    let error = consumer.next().await.expect_err("another history");
    assert_eq!(error.code(), ErrorCode::StaleLineage);
}

/// 100 partitions are more than the fetches that may wait at once; each is still followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_partition_is_followed_at_the_tail() {
    let fake = Fake::start(100).await;
    let client = client(&fake).await;
    let options = ConsumerOptions {
        wait: Duration::from_secs(5),
        ..ConsumerOptions::default()
    };
    let mut consumer = consumer(&client, options).await;
    let followed = tokio::spawn(async move {
        let mut seen = Vec::new();
        while seen.len() < 100 {
            if let Some(Consumed::Batch(batch)) = consumer.next().await.expect("readable") {
                seen.push(batch.partition.0);
            }
        }
        seen
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    for partition in 0..100 {
        fake.append(partition, &batch(0..1, false));
    }
    let followed = timeout(Duration::from_secs(20), followed).await;
    let mut seen = followed.expect("in time").expect("no panic");
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_consumer_that_is_not_read_stops_asking() {
    let (fake, client) = filled().await;
    let mut consumer = consumer(&client, from(StartAt::Earliest)).await;
    consumer.next().await.expect("readable");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(fake.state().fetches <= 2, "one slab in hand, one under way");
}
