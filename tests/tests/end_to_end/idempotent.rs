//! Idempotent producers by name and by random id, over `kill -9`, restarts and eviction (SPEC.md D9): what a batch's
//! writer sends again is committed once, or refused by name.

use std::time::Duration;

use bytes::Bytes;
use tailwater_tests::cluster::load::{record, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::{share_machine, take_machine};
use tailwater_tests::cluster::reading::log;
use tailwater_tests::cluster::witness::spec;
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{PartitionId, Writer};
use tailwater_wire::limits::PRODUCERS_PER_PARTITION;
use tailwater_wire::message::{
    OpenProducer, ProduceRequest, Produced, ProducerKey, ProducerOpened, Reply, Request,
};
use tailwater_wire::meta::Topic;
use tailwater_wire::partitioner::Partitioner;

const ROUNDS: u64 = 12;
const RECORDS: u64 = 3;

async fn open(client: &Client, topic: &Topic, producer: ProducerKey) -> Result<ProducerOpened, ClientError> {
    let request = Request::OpenProducer(OpenProducer {
        topic: topic.spec.name.clone(),
        incarnation: topic.incarnation,
        partition: PartitionId(0),
        producer,
    });
    match client.request(request, Bytes::new()).await?.0 {
        Reply::ProducerOpened(opened) => Ok(opened),
        other => panic!("{other:?}"),
    }
}

/// The records `previous + 1..=previous + RECORDS` of a writer, numbered from `base`.
async fn send(
    client: &Client,
    topic: &Topic,
    writer: Writer,
    base: u64,
    previous: u64,
) -> Result<Produced, ClientError> {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    for n in previous..previous + RECORDS {
        builder.push(&record(base + n, 20)).expect("fits");
    }
    let request = Request::Produce(ProduceRequest {
        topic: topic.spec.name.clone(),
        incarnation: topic.incarnation,
        partition: PartitionId(0),
    });
    let batch = builder.finish(writer, previous).expect("a batch");
    match client.request(request, batch).await?.0 {
        Reply::Produced(produced) => Ok(produced),
        other => panic!("{other:?}"),
    }
}

fn random(n: u64) -> ProducerKey {
    let mut id = [0xA5; 16];
    id[..8].copy_from_slice(&n.to_le_bytes());
    ProducerKey::Random(id)
}

fn code(result: Result<Produced, ClientError>) -> ErrorCode {
    result.expect_err("refused").code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_kill_left_unanswered_is_sent_again_and_is_there_once() {
    let _alone = take_machine().await;
    let mut node = TestNode::start().await;
    let client = node.client().await;
    let ticks = client
        .create_topic(spec(&topic("ticks"), 1))
        .await
        .expect("a topic");
    let keys = [ProducerKey::Named("feed".to_owned()), random(1)];
    let mut writers = Vec::new();
    for key in &keys {
        let opened = open(&client, &ticks, key.clone()).await.expect("opened");
        assert_eq!(opened.last_sequence, 0);
        writers.push(opened.writer);
    }
    // The open itself outlives a kill: the first batches are taken without another one.
    node.kill();
    node.restart().await;
    for round in 0..ROUNDS {
        let client = node.client().await;
        let mut sending = Vec::new();
        for (at, writer) in writers.iter().copied().enumerate() {
            let (client, ticks) = (client.clone(), ticks.clone());
            sending.push(tokio::spawn(async move {
                send(&client, &ticks, writer, 1_000_000 * at as u64, round * RECORDS).await
            }));
        }
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..4_000))).await;
        node.kill();
        node.restart().await;
        // The session sends again by itself what the kill left unanswered.
        for sent in sending {
            sent.await
                .expect("no panic")
                .expect("committed, before or after the kill");
        }
        let client = node.client().await;
        for (at, writer) in writers.iter().copied().enumerate() {
            let base = 1_000_000 * at as u64;
            let again = send(&client, &ticks, writer, base, round * RECORDS).await;
            assert!(again.expect("acknowledged").duplicate, "round {round}");
            let hole = send(&client, &ticks, writer, base, (round + 2) * RECORDS).await;
            assert_eq!(code(hole), ErrorCode::OutOfOrderSequence);
            let opened = open(&client, &ticks, keys[at].clone()).await.expect("opened");
            assert_eq!(opened.last_sequence, (round + 1) * RECORDS, "round {round}");
        }
    }
    let content = log(&node.client().await, &ticks.spec.name).await;
    let mut numbers: Vec<(u64, u32)> = content.occurrences().into_iter().collect();
    numbers.sort_unstable();
    let each = 0..ROUNDS * RECORDS;
    let expected: Vec<(u64, u32)> = each
        .clone()
        .chain(each.map(|n| 1_000_000 + n))
        .map(|n| (n, 1))
        .collect();
    assert_eq!(numbers, expected, "each record once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ten_thousand_and_first_producer_makes_the_oldest_unknown_for_good() {
    let _shared = share_machine().await;
    let mut node = TestNode::start().await;
    let client = node.client().await;
    let ticks = client
        .create_topic(spec(&topic("ticks"), 1))
        .await
        .expect("a topic");
    let mut writers = Vec::new();
    for key in [ProducerKey::Named("oldest".to_owned()), random(0), random(1)] {
        let opened = open(&client, &ticks, key).await.expect("opened");
        send(&client, &ticks, opened.writer, 0, 0)
            .await
            .expect("committed");
        writers.push(opened.writer);
    }
    let crowd: Vec<u64> = (2..PRODUCERS_PER_PARTITION as u64 + 1).collect();
    for some in crowd.chunks(200) {
        let opens: Vec<_> = some
            .iter()
            .map(|&n| {
                let (client, ticks) = (client.clone(), ticks.clone());
                tokio::spawn(async move { open(&client, &ticks, random(n)).await })
            })
            .collect();
        for opened in opens {
            opened.await.expect("no panic").expect("opened");
        }
    }
    for restart in ["none", "kill", "stop"] {
        match restart {
            "kill" => {
                node.kill();
                node.restart().await;
            }
            "stop" => {
                node.stop().await;
                node.restart().await;
            }
            _ => {}
        }
        let client = node.client().await;
        for (at, writer) in writers[..2].iter().enumerate() {
            for previous in [0, RECORDS] {
                let refused = send(&client, &ticks, *writer, 0, previous).await;
                let said = code(refused);
                assert_eq!(said, ErrorCode::UnknownProducer, "{at} after {restart}");
            }
        }
        let kept = send(&client, &ticks, writers[2], 0, 0).await;
        assert!(
            kept.expect("acknowledged").duplicate,
            "the third is known, after {restart}"
        );
    }
    assert_eq!(
        log(&node.client().await, &ticks.spec.name).await.len(),
        3 * RECORDS
    );
}
