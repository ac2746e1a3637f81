//! Producers: exactly once, never twice, and bounded.

use std::time::Duration;

use bytes::Bytes;
use tailwater_wire::client::{Client, Idempotence, Producer, ProducerOptions};
use tailwater_wire::code::{ErrorCode, Retry};
use tailwater_wire::ids::{Offset, PartitionId};
use tailwater_wire::record::Record;
use tokio::time::timeout;

use crate::fake::{Fake, Fault, topic_name};
use crate::{client, record};

async fn producer(client: &Client, options: ProducerOptions) -> Producer {
    client.producer(&topic_name(), options).await.expect("a producer")
}

fn anonymous() -> ProducerOptions {
    ProducerOptions {
        idempotence: Idempotence::None,
        ..ProducerOptions::default()
    }
}

#[tokio::test]
async fn records_come_back_with_their_offsets_and_keep_to_their_keys() {
    let fake = Fake::start(4).await;
    let client = client(&fake).await;
    let producer = producer(&client, ProducerOptions::default()).await;
    let mut deliveries = Vec::new();
    for value in 0..500 {
        deliveries.push((value, producer.send(record(value)).await.expect("accepted")));
    }
    for (value, delivery) in deliveries {
        let delivered = delivery.await.expect("committed");
        let offset = delivered.offset.expect("known").0 as usize;
        let values = fake.values(delivered.partition.0 as usize);
        assert_eq!(values[offset], value.to_string());
    }
    let total: usize = (0..4)
        .map(|p| fake.values(p).len())
        .collect::<Vec<_>>()
        .iter()
        .sum();
    assert_eq!(total, 500);
    assert!(fake.state().produces < 500, "batched");
    producer.close().await.expect("all is acknowledged");
}

async fn survives_drops() {
    let fake = Fake::start(2).await;
    fake.state().drop_every = 7;
    let client = client(&fake).await;
    let options = ProducerOptions {
        batch_records: 10,
        ..ProducerOptions::default()
    };
    let producer = producer(&client, options).await;
    let mut deliveries = Vec::new();
    for value in 0..1_000 {
        deliveries.push(producer.send(record(value)).await.expect("accepted"));
    }
    for delivery in deliveries {
        delivery.await.expect("committed");
    }
    let mut values: Vec<u32> = (0..2)
        .flat_map(|partition| fake.values(partition))
        .map(|value| {
            std::str::from_utf8(&value)
                .expect("digits")
                .parse()
                .expect("digits")
        })
        .collect();
    values.sort_unstable();
    assert_eq!(values, (0..1_000).collect::<Vec<_>>(), "each record once");
    let state = fake.state();
    assert!(
        state.duplicates > 0 && state.connections > 5,
        "the drops were real"
    );
}

#[tokio::test]
async fn idempotent_batches_are_sent_again_and_committed_once() {
    survives_drops().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotent_batches_are_committed_once_on_many_threads_too() {
    survives_drops().await;
}

#[tokio::test]
async fn anonymous_batches_are_never_sent_twice() {
    for (fault, kept) in [(Fault::DropAfter, 1), (Fault::DropBefore, 0)] {
        let fake = Fake::start(1).await;
        let client = client(&fake).await;
        let producer = producer(&client, anonymous()).await;
        fake.state().produce_faults.push_back(fault);
        let delivery = producer.send(record(0)).await.expect("accepted");
        let error = delivery.await.expect_err("nobody knows");
        assert_eq!(error.code(), ErrorCode::OutcomeUnknown, "{error}");
        assert_eq!(error.retry(), Retry::OutcomeUnknown);
        let delivery = producer.send(record(1)).await.expect("accepted");
        assert_eq!(delivery.await.expect("committed").offset, Some(Offset(kept)));
        assert_eq!(fake.state().produces, 2);
    }
}

#[tokio::test]
async fn what_was_not_done_is_tried_again() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    for options in [anonymous(), ProducerOptions::default()] {
        let producer = producer(&client, options).await;
        let before = fake.state().produces;
        for code in [ErrorCode::Busy, ErrorCode::NotOwner, ErrorCode::DiskFull] {
            fake.state().produce_faults.push_back(Fault::Refuse(code));
        }
        let delivery = producer.send(record(0)).await.expect("accepted");
        assert!(!delivery.await.expect("committed").duplicate);
        assert_eq!(fake.state().produces, before + 4);
    }
}

#[tokio::test]
async fn a_partition_that_is_latched_fails_at_once() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let producer = producer(&client, ProducerOptions::default()).await;
    fake.state()
        .faults
        .push_back(Fault::Refuse(ErrorCode::PartitionLatched));
    let delivery = producer.send(record(0)).await.expect("accepted");
    let outcome = timeout(Duration::from_secs(5), delivery).await;
    let error = outcome.expect("at once").expect_err("it takes nothing");
    assert_eq!(
        (error.code(), error.exit_code()),
        (ErrorCode::PartitionLatched, 1)
    );
    let later = producer.send(record(1)).await.expect("accepted");
    later.await.expect("it was recovered");
}

#[tokio::test]
async fn a_producer_that_is_not_opened_in_time_says_what_kept_it() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let options = ProducerOptions {
        delivery_timeout: Duration::from_millis(300),
        ..ProducerOptions::default()
    };
    let producer = producer(&client, options).await;
    let refusals = std::iter::repeat_n(Fault::Refuse(ErrorCode::DiskFull), 100);
    fake.state().faults.extend(refusals);
    let delivery = producer.send(record(0)).await.expect("accepted");
    let error = delivery.await.expect_err("never opened");
    assert_eq!((error.code(), error.exit_code()), (ErrorCode::TimedOut, 4));
    let text = error.to_string();
    assert!(text.contains("DISK_FULL") && text.contains("300ms"), "{text}");
    assert_eq!(fake.state().produces, 0);
}

#[tokio::test]
async fn a_refusal_for_good_reaches_the_delivery_and_the_flush() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let producer = producer(&client, ProducerOptions::default()).await;
    let refuse = Fault::Refuse(ErrorCode::StaleIncarnation);
    fake.state().produce_faults.push_back(refuse);
    fake.hold(true);
    let delivery = producer.send(record(0)).await.expect("accepted");
    let behind = producer.send(record(1)).await.expect("accepted");
    let flush = async {
        tokio::task::yield_now().await;
        fake.hold(false);
        producer.flush().await
    };
    flush.await.expect_err("a batch failed");
    for failed in [delivery, behind] {
        assert_eq!(
            failed.await.expect_err("refused").code(),
            ErrorCode::StaleIncarnation
        );
    }
    let later = producer.send(record(2)).await.expect("accepted");
    later.await.expect("under a new producer id");
}

#[tokio::test]
async fn sends_wait_while_the_buffer_is_full_and_go_on_when_it_empties() {
    let fake = Fake::start(2).await;
    let client = client(&fake).await;
    let options = ProducerOptions {
        buffer_bytes: 64 << 10,
        ..ProducerOptions::default()
    };
    let producer = producer(&client, options).await;
    fake.hold(true);
    let big = |value: u32| Record {
        value: Bytes::from(vec![b'x'; 1_000]),
        ..record(value)
    };
    let mut deliveries = Vec::new();
    for value in 0.. {
        match timeout(Duration::from_millis(100), producer.send(big(value))).await {
            Ok(delivery) => deliveries.push(delivery.expect("accepted")),
            Err(_) => break,
        }
        assert!(value < 100, "the buffer never fills");
    }
    assert!((50..=64).contains(&deliveries.len()), "{}", deliveries.len());
    assert!(fake.state().produce_bytes <= 96 << 10);
    let full = producer.try_send(big(998)).expect_err("it would have to wait");
    assert_eq!((full.code(), full.retry()), (ErrorCode::Busy, Retry::Later));
    assert!(full.to_string().contains("buffer_bytes"), "{full}");
    fake.hold(false);
    let last = timeout(Duration::from_secs(5), producer.send(big(999))).await;
    deliveries.push(last.expect("there is room again").expect("accepted"));
    while let Err(full) = producer.try_send(big(1_000)) {
        assert_eq!(full.code(), ErrorCode::Busy);
        tokio::task::yield_now().await;
    }
    for delivery in deliveries {
        delivery.await.expect("committed");
    }
    let error = producer
        .send(Record {
            value: Bytes::from(vec![0; 65 << 10]),
            ..record(0)
        })
        .await
        .expect_err("never fits");
    assert_eq!(error.code(), ErrorCode::RecordTooLarge);
}

#[tokio::test]
async fn a_dropped_producer_still_sends_what_it_took() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let producer = producer(&client, ProducerOptions::default()).await;
    let mut deliveries = Vec::new();
    for value in 0..100 {
        deliveries.push(producer.send(record(value)).await.expect("accepted"));
    }
    drop(producer);
    drop(client);
    for delivery in deliveries {
        delivery.await.expect("committed");
    }
    assert_eq!(fake.values(0).len(), 100);
}

#[tokio::test]
async fn a_named_producer_resumes_after_its_last_sequence() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let options = ProducerOptions {
        idempotence: Idempotence::Named("feed".to_owned()),
        ..ProducerOptions::default()
    };
    for round in 0..2 {
        let producer = producer(&client, options.clone()).await;
        let last = producer.last_sequence(PartitionId(0)).await.expect("known");
        assert_eq!(last, round * 10);
        for value in 0..10 {
            producer.send(record(value)).await.expect("accepted");
        }
        producer.close().await.expect("all is acknowledged");
    }
    assert_eq!(fake.values(0).len(), 20);
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let good = ProducerOptions::default;
    for (bad, code) in [
        (
            ProducerOptions {
                batch_records: 0,
                ..good()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            ProducerOptions {
                batch_bytes: 1 << 30,
                ..good()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            ProducerOptions {
                in_flight_per_partition: 0,
                ..good()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            ProducerOptions {
                buffer_bytes: 0,
                ..good()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            ProducerOptions {
                idempotence: Idempotence::Named(String::new()),
                ..good()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            ProducerOptions {
                partition: Some(PartitionId(1)),
                ..good()
            },
            ErrorCode::UnknownPartition,
        ),
    ] {
        let error = client.producer(&topic_name(), bad).await.expect_err("no sense");
        assert_eq!(error.code(), code, "{error}");
    }
}
