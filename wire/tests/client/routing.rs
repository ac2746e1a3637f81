//! Straight to the owning shard, and no worse off without it.

use std::time::Duration;

use tailwater_wire::client::{
    Client, Consumed, ConsumerOptions, Delivery, Idempotence, Producer, ProducerOptions, StartAt,
};
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::PartitionId;
use tailwater_wire::message::Place;
use tailwater_wire::record::Record;
use tokio::time::{sleep, timeout};

use crate::fake::{Fake, Fault, topic_name};
use crate::{client, record};

const SHARDS: usize = 4;

async fn producer(client: &Client, options: ProducerOptions) -> Producer {
    client.producer(&topic_name(), options).await.expect("a producer")
}

fn keyless(value: u32) -> Record {
    Record {
        key: None,
        ..record(value)
    }
}

/// One record to each partition, one after another, until every one goes to its owner.
async fn until_straight(fake: &Fake, producer: &Producer, partitions: u32) {
    for _ in 0..200 {
        fake.state().arrivals.clear();
        for partition in 0..partitions {
            let delivery = producer.send_to(PartitionId(partition), keyless(0)).await;
            delivery.expect("accepted").await.expect("committed");
        }
        if (0..partitions).all(|partition| fake.ways_of(partition) == [fake.owner_of(partition)]) {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("it never goes straight: {:?}", fake.state().arrivals);
}

/// Every value of every partition, sorted, is this.
#[track_caller]
fn check_once(fake: &Fake, partitions: usize, values: std::ops::Range<u32>) {
    let mut found: Vec<u32> = (0..partitions)
        .flat_map(|partition| fake.values(partition))
        .map(|value| {
            std::str::from_utf8(&value)
                .expect("digits")
                .parse()
                .expect("digits")
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, values.collect::<Vec<_>>(), "each record once");
}

/// The values of each partition rise: no batch overtook another.
#[track_caller]
fn check_order(fake: &Fake, partitions: usize) {
    for partition in 0..partitions {
        let values = fake.values(partition).into_iter();
        let values: Vec<u32> = values
            .map(|value| {
                std::str::from_utf8(&value)
                    .expect("digits")
                    .parse()
                    .expect("digits")
            })
            .collect();
        assert!(values.is_sorted(), "partition {partition}: {values:?}");
    }
}

#[tokio::test]
async fn each_partition_is_asked_at_its_owner_over_one_connection_a_shard() {
    let fake = Fake::with_shards(8, SHARDS).await;
    let client = client(&fake).await;
    assert_eq!(
        fake.state().connections,
        1,
        "the others are opened when they are wanted"
    );
    let producer = producer(&client, ProducerOptions::default()).await;
    until_straight(&fake, &producer, 8).await;
    fake.state().arrivals.clear();
    let options = ConsumerOptions {
        from: StartAt::Earliest,
        stop_at_end: true,
        ..ConsumerOptions::default()
    };
    let mut consumer = client.consumer(&topic_name(), options).await.expect("a consumer");
    let mut batches = 0;
    while let Some(Consumed::Batch(_)) = consumer.next().await.expect("readable") {
        batches += 1;
    }
    assert!(batches >= 8);
    for partition in 0..8 {
        assert_eq!(fake.ways_of(partition), [fake.owner_of(partition)]);
    }
    client.ping().await.expect("pong");
    assert_eq!(
        fake.state().connections,
        SHARDS,
        "one a shard, the first among them"
    );
}

#[tokio::test]
async fn a_port_behind_a_firewall_costs_a_hop_and_no_error() {
    let fake = Fake::with_shards(4, 2).await;
    let shut = fake.state().ports[1];
    fake.close_door(shut).await;
    let client = client(&fake).await;
    let producer = producer(&client, ProducerOptions::default()).await;
    for value in 0..40 {
        let delivery = producer.send_to(PartitionId(value % 4), keyless(value)).await;
        delivery
            .expect("accepted")
            .await
            .expect("over the first connection");
    }
    let found = client
        .find_offset(&topic_name(), PartitionId(1), Place::Tail)
        .await;
    assert_eq!(found.expect("forwarded").offset.0, 10);
    check_once(&fake, 4, 0..40);
    // It opens later: the pause is over within two seconds.
    fake.open_door(shut).await;
    let straight = timeout(Duration::from_secs(10), until_straight(&fake, &producer, 4)).await;
    straight.expect("tried again");
}

#[tokio::test]
async fn a_port_that_closes_in_between_loses_and_repeats_nothing() {
    for idempotence in [Idempotence::Random, Idempotence::Named("feed".to_owned())] {
        let fake = Fake::with_shards(4, 2).await;
        let client = client(&fake).await;
        let options = ProducerOptions {
            idempotence,
            batch_records: 5,
            ..ProducerOptions::default()
        };
        let producer = producer(&client, options).await;
        until_straight(&fake, &producer, 4).await;
        let before: Vec<usize> = (0..4).map(|p| fake.values(p).len()).collect();
        let shut = fake.state().ports[1];
        let mut deliveries: Vec<Delivery> = Vec::new();
        for value in 1..=400 {
            if value == 200 {
                fake.close_door(shut).await;
            }
            let sent = producer.send_to(PartitionId(value % 4), keyless(value)).await;
            deliveries.push(sent.expect("accepted"));
        }
        for delivery in deliveries {
            delivery.await.expect("committed");
        }
        check_order(&fake, 4);
        for (partition, before) in before.into_iter().enumerate() {
            assert_eq!(
                fake.values(partition).len(),
                before + 100,
                "partition {partition}"
            );
        }
    }
}

#[tokio::test]
async fn a_reader_whose_shard_goes_reads_on_without_an_error() {
    let fake = Fake::with_shards(4, 2).await;
    let client = client(&fake).await;
    let options = ConsumerOptions {
        from: StartAt::Earliest,
        // The fake answers one request after another.
        wait: Duration::from_millis(20),
        ..ConsumerOptions::default()
    };
    let mut consumer = client.consumer(&topic_name(), options).await.expect("a consumer");
    let producer = producer(&client, ProducerOptions::default()).await;
    until_straight(&fake, &producer, 4).await;
    let total = |fake: &Fake| (0..4).map(|p| fake.values(p).len()).sum::<usize>();
    let mut seen = 0;
    for round in 0..3 {
        if round == 1 {
            let shut = fake.state().ports[1];
            fake.close_door(shut).await;
        }
        for value in 0..40 {
            let sent = producer.send_to(PartitionId(value % 4), keyless(value)).await;
            sent.expect("accepted").await.expect("committed");
        }
        while seen < total(&fake) {
            let next = timeout(Duration::from_secs(5), consumer.next()).await;
            match next.expect("in time").expect("no error for a hop") {
                Some(Consumed::Batch(batch)) => seen += batch.len(),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(seen, total(&fake));
}

#[tokio::test]
async fn a_restart_with_another_number_of_shards_changes_the_ways() {
    let fake = Fake::with_shards(8, 3).await;
    let client = client(&fake).await;
    let options = ProducerOptions {
        batch_records: 3,
        ..ProducerOptions::default()
    };
    let producer = producer(&client, options).await;
    until_straight(&fake, &producer, 8).await;
    let first = fake.address.port();
    let spare = fake.state().ports[1];
    let mut value = 0;
    for ports in [vec![first, spare], vec![first], vec![first, 0, 0, 0]] {
        let mut drawn = Vec::new();
        for port in ports {
            // A port that is free now.
            drawn.push(match port {
                0 => {
                    let port = fake.open_door(0).await;
                    fake.close_door(port).await;
                    port
                }
                port => port,
            });
        }
        let mut deliveries = Vec::new();
        for step in 0..80 {
            value += 1;
            let sent = producer.send_to(PartitionId(step % 8), keyless(value)).await;
            deliveries.push(sent.expect("accepted"));
            if step == 40 {
                fake.restart(drawn.clone()).await;
            }
        }
        for delivery in deliveries {
            delivery.await.expect("committed");
        }
        until_straight(&fake, &producer, 8).await;
        let open: usize = fake.state().open.values().sum();
        assert!(
            open <= drawn.len(),
            "{open} connections to {} shards",
            drawn.len()
        );
    }
}

#[tokio::test]
async fn a_wrong_shard_is_a_reason_to_ask_again_and_not_to_fail() {
    let fake = Fake::with_shards(4, 2).await;
    fake.state().refuses_strangers = true;
    let client = client(&fake).await;
    client.topic(&topic_name()).await.expect("it is there");
    let found = client
        .find_offset(&topic_name(), PartitionId(1), Place::Tail)
        .await;
    found.expect("at the second attempt");
    let producer = producer(&client, ProducerOptions::default()).await;
    until_straight(&fake, &producer, 4).await;
    // The owner itself says that it is none: over the first connection it goes on.
    fake.state().refuses_strangers = false;
    for code in [ErrorCode::NotOwner, ErrorCode::NotOwner] {
        fake.state().produce_faults.push_back(Fault::Refuse(code));
    }
    fake.state().arrivals.clear();
    for partition in 0..4 {
        let sent = producer.send_to(PartitionId(partition), keyless(0)).await;
        sent.expect("accepted").await.expect("committed");
    }
    let first = fake.address.port();
    let strays = (0..4).filter(|p| fake.owner_of(*p) != first && fake.ways_of(*p).contains(&first));
    assert_eq!(strays.count(), 1, "{:?}", fake.state().arrivals);
}

#[tokio::test]
async fn another_node_behind_a_shard_s_port_is_never_written_to() {
    let (fake, other) = (Fake::with_shards(4, 1).await, Fake::start(4).await);
    other.state().cluster = "another".to_owned();
    let first = fake.address.port();
    fake.state().ports = vec![first, other.address.port()];
    let client = client(&fake).await;
    let producer = producer(&client, ProducerOptions::default()).await;
    for value in 0..40 {
        let sent = producer.send_to(PartitionId(value % 4), keyless(value)).await;
        sent.expect("accepted").await.expect("committed");
        sleep(Duration::from_millis(2)).await;
    }
    check_once(&fake, 4, 0..40);
    assert!(other.state().connections > 0, "it was tried");
    assert!(other.state().arrivals.is_empty());
}

/// Under a load that never pauses the way still changes, and no batch overtakes another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_lane_changes_its_way_between_two_batches() {
    for idempotence in [Idempotence::Random, Idempotence::None] {
        let fake = Fake::with_shards(2, 2).await;
        let client = client(&fake).await;
        let options = ProducerOptions {
            idempotence,
            batch_records: 1,
            ..ProducerOptions::default()
        };
        let producer = producer(&client, options).await;
        let busy = (0..2).find(|p| fake.owner_of(*p) != fake.address.port());
        let busy = busy.expect("one is the second shard's");
        let mut deliveries = Vec::new();
        for value in 0..2_000 {
            let sent = producer.send_to(PartitionId(busy), keyless(value)).await;
            deliveries.push(sent.expect("accepted"));
        }
        for delivery in deliveries {
            delivery.await.expect("committed");
        }
        let owner = fake.owner_of(busy);
        assert_eq!(
            fake.ways_of(busy),
            [fake.address.port(), owner],
            "it changed once"
        );
        check_order(&fake, 2);
        check_once(&fake, 2, 0..2_000);
    }
}
