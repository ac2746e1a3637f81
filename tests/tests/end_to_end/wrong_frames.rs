//! Bytes that are no request: the connection that sent them is told why and closed; nobody else notices.

use std::time::{Duration, Instant};

use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::raw::{RawConnection, hello};
use tailwater_tests::cluster::witness::Witness;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::frame::{FrameKind, PROTOCOL_VERSION, encode};
use tailwater_wire::limits::FRAME_PAYLOAD_BYTES_MAX;
use tailwater_wire::message::Request;

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
