//! Many connections: those that are idle cost memory and nothing else, and one too many is refused by name.

use std::time::{Duration, Instant};

use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::{share_machine, take_machine};
use tailwater_tests::cluster::raw::{RawConnection, hello};
use tailwater_tests::cluster::witness::Witness;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::frame::{FrameKind, encode};
use tailwater_wire::message::Request;
use tokio::net::TcpStream;

const IDLE: usize = 1_000;
/// Of a node with its defaults.
const CONNECTIONS_MAX: usize = 1_024;
/// For each connection, at most.
const BYTES_EACH: u64 = 64 << 10;
const SOON: Duration = Duration::from_secs(10);
const OBSERVED: Duration = Duration::from_secs(3);

async fn open(node: &TestNode) -> Result<RawConnection, ErrorCode> {
    let mut connection = RawConnection::open(node.listen()).await;
    connection.send(&hello()).await;
    let frame = connection.frame(SOON).await.expect("an answer");
    match frame.header.kind {
        FrameKind::Reply => Ok(connection),
        _ => Err(
            tailwater_wire::frame::decode_meta::<tailwater_wire::code::Refusal>(&frame.meta)
                .expect("a refusal that can be read")
                .code,
        ),
    }
}

/// The share of one processor that the node uses.
async fn busy(node: &TestNode) -> f64 {
    let (before, started) = (node.processor_time(), Instant::now());
    tokio::time::sleep(OBSERVED).await;
    (node.processor_time() - before).as_secs_f64() / started.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_connections_cost_memory_only_and_one_too_many_is_refused_by_name() {
    let _alone = take_machine().await;
    let node = TestNode::start().await;
    let (memory, idle) = (node.resident_bytes(), busy(&node).await);
    let mut connections = Vec::new();
    for _ in 0..IDLE {
        connections.push(open(&node).await.expect("room for a thousand"));
    }
    let (memory_after, idle_after) = (node.resident_bytes(), busy(&node).await);
    let each = memory_after.saturating_sub(memory) / IDLE as u64;
    assert!(each < BYTES_EACH, "{each} bytes for each connection");
    assert!(
        idle_after < idle + 0.05,
        "{idle_after:.3} of a processor, {idle:.3} without them"
    );

    let witness = Witness::start(&node).await;
    let refused = loop {
        match open(&node).await {
            Ok(connection) => connections.push(connection),
            Err(code) => break code,
        }
        assert!(
            connections.len() <= CONNECTIONS_MAX,
            "more than {CONNECTIONS_MAX} are taken"
        );
    };
    assert_eq!(refused, ErrorCode::Busy);
    // Those that are there are served: the witness, and each of the idle ones when it speaks up.
    for connection in connections.iter_mut().step_by(10) {
        connection
            .send(&encode(FrameKind::Request, 2, &Request::Ping, 0))
            .await;
        let answer = connection.frame(SOON).await.expect("an answer");
        assert_eq!(answer.header.kind, FrameKind::Reply);
    }
    drop(connections);
    let started = Instant::now();
    while open(&node).await.is_err() {
        assert!(started.elapsed() < SOON, "connections that ended still count");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    witness.was_served().await;
}

/// Sixty-four connections to the admin port that said nothing kept a probe waiting for 30 s, and a supervisor would have
/// taken the node for dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_to_the_admin_port_do_not_keep_probes_waiting() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(node.admin()).await.expect("a connection"));
    }
    let began = Instant::now();
    assert_eq!(node.get("/healthz").await.0, 200);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}
