//! Bytes that are no request: the connection that sent them is told why and closed; nobody else notices.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tailwater_tests::cluster::load::{LoadOptions, produce, record, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::{share_machine, take_machine};
use tailwater_tests::cluster::raw::{RawConnection, hello};
use tailwater_tests::cluster::reading::ends;
use tailwater_tests::cluster::witness::{Witness, spec};
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::frame::{FrameKind, PROTOCOL_VERSION, encode};
use tailwater_wire::ids::{Offset, PartitionId, Writer};
use tailwater_wire::limits::{BATCH_BYTES_MAX, FETCH_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX};
use tailwater_wire::message::{FetchRequest, ProduceRequest, Request};
use tailwater_wire::partitioner::Partitioner;

const SOON: Duration = Duration::from_secs(5);

fn ping(correlation: u64) -> Vec<u8> {
    encode(FrameKind::Request, correlation, &Request::Ping, 0)
}

/// A frame with some bytes changed.
fn altered(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_named_and_closes_its_own_connection_only() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    let mut bystander = RawConnection::greeted(node.listen()).await;
    // Variant and field order of a request, with a text where only names are allowed.
    let dotted = encode(FrameKind::Request, 1, &(2u32, Some(vec!["a..b"])), 0);
    let no_such_request = encode(FrameKind::Request, 1, &(250u32, 1u8), 0);
    let garbage: Vec<u8> = (0..4_096u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let cases: Vec<(&str, Vec<u8>, ErrorCode)> = vec![
        ("garbage", garbage, ErrorCode::BadFrame),
        (
            "another protocol",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            ErrorCode::BadFrame,
        ),
        (
            "a newer protocol",
            altered(ping(1), 2, &[PROTOCOL_VERSION + 1]),
            ErrorCode::UnsupportedVersion,
        ),
        ("an unknown kind", altered(ping(1), 3, &[9]), ErrorCode::BadFrame),
        (
            "a reply",
            encode(FrameKind::Reply, 1, &Request::Ping, 0),
            ErrorCode::BadFrame,
        ),
        (
            "a wrong checksum",
            altered(ping(1), 20, &[0, 0, 0, 0]),
            ErrorCode::BadFrame,
        ),
        (
            "a meta of 4 GiB",
            altered(ping(1), 4, &u32::MAX.to_le_bytes()),
            ErrorCode::BadFrame,
        ),
        (
            "a payload over the limit",
            altered(ping(1), 16, &(FRAME_PAYLOAD_BYTES_MAX as u32 + 1).to_le_bytes()),
            ErrorCode::BadFrame,
        ),
        ("a name with `..`", dotted, ErrorCode::BadFrame),
        (
            "a request that does not exist",
            no_such_request,
            ErrorCode::BadFrame,
        ),
    ];
    for (what, bytes, code) in &cases {
        let mut connection = RawConnection::greeted(node.listen()).await;
        connection.send(bytes).await;
        let refusal = connection.closed_with(SOON).await;
        assert_eq!(refusal.code, *code, "{what}: {refusal:?}");
        assert!(!refusal.what.is_empty(), "{what}");
    }
    // As the very first bytes, too; and a request before the greeting.
    let first = [cases[0].1.clone(), cases[2].1.clone(), ping(1)];
    for (bytes, code) in first.iter().zip([cases[0].2, cases[2].2, ErrorCode::BadFrame]) {
        let mut connection = RawConnection::open(node.listen()).await;
        connection.send(bytes).await;
        assert_eq!(connection.closed_with(SOON).await.code, code);
    }
    bystander.send(&ping(7)).await;
    let answer = bystander
        .frame(SOON)
        .await
        .expect("an older connection is still served");
    assert_eq!(
        (answer.header.kind, answer.header.correlation),
        (FrameKind::Reply, 7)
    );
    witness.was_served().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_frame_and_silence_ends_after_ten_seconds() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    let half = |bytes: Vec<u8>| bytes[..bytes.len() / 2].to_vec();
    let mut silent = Vec::new();
    for (greets, bytes) in [
        (true, half(ping(1))),
        (false, half(hello())),
        (false, Vec::new()),
        (true, ping(1)[..1].to_vec()),
    ] {
        let mut connection = match greets {
            true => RawConnection::greeted(node.listen()).await,
            false => RawConnection::open(node.listen()).await,
        };
        connection.send(&bytes).await;
        silent.push(connection);
    }
    // A greeted client that waits between two requests is not in the middle of anything.
    let mut patient = RawConnection::greeted(node.listen()).await;
    let started = Instant::now();
    for (number, mut connection) in silent.into_iter().enumerate() {
        let refusal = connection.closed_with(Duration::from_secs(20)).await;
        assert_eq!(refusal.code, ErrorCode::BadFrame, "{number}: {refusal:?}");
        let after = started.elapsed();
        let in_time = Duration::from_secs(8)..Duration::from_secs(15);
        assert!(in_time.contains(&after), "{number}: closed after {after:?}");
    }
    patient.send(&ping(3)).await;
    assert!(
        patient.frame(SOON).await.is_some(),
        "a silent client that owes nothing keeps its connection"
    );
    assert!(witness.was_served().await > 50, "others are served all the while");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_trickles_in_is_ended_too() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    let mut connection = RawConnection::greeted(node.listen()).await;
    let many = vec![topic("of-a-name"); 100];
    let frame = encode(FrameKind::Request, 1, &Request::DescribeTopics(Some(many)), 0);
    let started = Instant::now();
    let mut bytes = frame.iter();
    let refusal = loop {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "a frame may take for ever"
        );
        connection
            .send(&[*bytes.next().expect("a frame that is long enough")])
            .await;
        if let Some(frame) = connection.frame_within(Duration::from_millis(500)).await {
            break frame;
        }
    };
    assert_eq!(refusal.header.kind, FrameKind::Refusal);
    witness.was_served().await;
}

/// Answers that nobody reads must not pile up. All of a slow reader's answers come when it reads at last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_and_does_not_read_costs_bounded_memory() {
    const CONNECTIONS: usize = 2;
    const REQUESTS: u64 = 250;
    const GROWTH_MAX: u64 = 256 << 20;
    let _alone = take_machine().await;
    let mut node = TestNode::start().await;
    let (client, ticks) = (node.client().await, topic("ticks"));
    client.create_topic(spec(&ticks, 1)).await.expect("a topic");
    let mut options = LoadOptions {
        value_bytes: 8 << 10,
        ..LoadOptions::new(0, 2_000)
    };
    options.producer.batch_records = 100;
    produce(&client, &ticks, options).await;
    // From here on nothing of it is in memory.
    node.stop().await;
    node.restart().await;
    let witness = Witness::start(&node).await;
    let before = node.resident_bytes();
    let mut requests = Vec::new();
    for correlation in 2..2 + REQUESTS {
        let fetch = FetchRequest {
            topic: ticks.clone(),
            incarnation: None,
            lineage: None,
            partition: PartitionId(0),
            from: Offset(0),
            bytes_max: FETCH_BYTES_MAX as u32,
            wait_millis: 0,
        };
        requests.extend(encode(FrameKind::Request, correlation, &Request::Fetch(fetch), 0));
    }
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = RawConnection::greeted(node.listen()).await;
        connection.send(&requests).await;
        connections.push(connection);
    }
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let growth = node.resident_bytes().saturating_sub(before);
        assert!(
            growth < GROWTH_MAX,
            "{} MiB more for answers that nobody reads",
            growth >> 20
        );
    }
    witness.was_served().await;
    for connection in &mut connections {
        let mut answered = BTreeSet::new();
        for _ in 0..REQUESTS {
            let frame = connection
                .frame(Duration::from_secs(10))
                .await
                .expect("an answer to each request");
            // It may be told to come again later; it must be told.
            if frame.header.kind == FrameKind::Reply {
                assert!(!frame.payload.is_empty(), "a slab");
            }
            answered.insert(frame.header.correlation);
        }
        assert_eq!(answered, (2..2 + REQUESTS).collect());
    }
}

/// Batches of the greatest size, as many as a connection may have unanswered, from several connections at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_batches_in_flight_cost_bounded_memory() {
    const CONNECTIONS: usize = 3;
    const BATCHES: u64 = 40;
    const GROWTH_MAX: u64 = 512 << 20;
    let _alone = take_machine().await;
    let node = TestNode::start().await;
    let (client, ticks) = (node.client().await, topic("ticks"));
    let incarnation = client
        .create_topic(spec(&ticks, 1))
        .await
        .expect("a topic")
        .incarnation;
    let witness = Witness::start(&node).await;
    let mut builder = BatchBuilder::new(Partitioner::default(), BATCH_BYTES_MAX);
    builder
        .push(&record(1, RECORD_BYTES_MAX - 100))
        .expect("a record that fits");
    let batch = builder.finish(Writer::Anonymous, 0).expect("a batch");
    let before = node.resident_bytes();
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = RawConnection::greeted(node.listen()).await;
        let (batch, topic) = (batch.clone(), ticks.clone());
        senders.push(tokio::spawn(async move {
            for correlation in 0..BATCHES {
                let produce = ProduceRequest {
                    topic: topic.clone(),
                    incarnation,
                    partition: PartitionId(0),
                };
                let head = encode(
                    FrameKind::Request,
                    correlation,
                    &Request::Produce(produce),
                    batch.len(),
                );
                connection.send(&head).await;
                connection.send(&batch).await;
            }
            let mut acknowledged = 0;
            for _ in 0..BATCHES {
                let frame = connection
                    .frame(Duration::from_secs(60))
                    .await
                    .expect("an answer to each request");
                acknowledged += u64::from(frame.header.kind == FrameKind::Reply);
            }
            acknowledged
        }));
    }
    let mut growth = 0;
    while !senders.iter().all(tokio::task::JoinHandle::is_finished) {
        growth = growth.max(node.resident_bytes().saturating_sub(before));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut acknowledged = 0;
    for sender in senders {
        acknowledged += sender.await.expect("a sender does not panic");
    }
    assert!(
        growth < GROWTH_MAX,
        "{} MiB more for batches on their way",
        growth >> 20
    );
    assert!(acknowledged > 0, "none was taken");
    assert_eq!(ends(&client, &ticks).await, [acknowledged]);
    witness.was_served().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_too_many_is_refused_by_name_until_another_leaves() {
    let _shared = share_machine().await;
    let node = TestNode::start_with("connections_max = 10\n").await;
    let mut connections = Vec::new();
    for _ in 0..10 {
        connections.push(RawConnection::greeted(node.listen()).await);
    }
    let mut one_more = RawConnection::open(node.listen()).await;
    one_more.send(&hello()).await;
    let refusal = one_more.closed_with(SOON).await;
    assert_eq!(refusal.code, ErrorCode::Busy, "{refusal:?}");
    for connection in &mut connections {
        connection.send(&ping(5)).await;
        let answer = connection
            .frame(SOON)
            .await
            .expect("those that were first are served");
        assert_eq!(answer.header.kind, FrameKind::Reply);
    }
    connections.pop();
    tokio::time::sleep(Duration::from_millis(300)).await;
    RawConnection::greeted(node.listen()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_hostile_connections_leave_the_node_as_it_was() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    for round in 0..1_000u32 {
        let mut connection = RawConnection::open(node.listen()).await;
        match round % 4 {
            0 => {}
            1 => connection.send(&[round as u8; 100]).await,
            2 => connection.send(&hello()).await,
            // A payload is announced and never sent.
            _ => {
                connection
                    .send(&encode(FrameKind::Request, 1, &Request::Ping, 1 << 20))
                    .await
            }
        }
    }
    let mut last = RawConnection::greeted(node.listen()).await;
    last.send(&ping(1)).await;
    assert!(last.frame(SOON).await.is_some(), "the node still serves");
    let (_, metrics) = node.get("/metrics").await;
    let open = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tailwater_client_connections "));
    let open: f64 = open
        .and_then(|open| open.parse().ok())
        .expect("the number of open connections");
    assert!(open < 50.0, "{open} connections are open");
    witness.was_served().await;
}
