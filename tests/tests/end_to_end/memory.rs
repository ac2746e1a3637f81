//! A node that is driven over each of its bounds at once: it refuses by name, its memory stays within the sum of the bounds, and
//! those who ask for little are served and lose nothing.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailwater_tests::cluster::load::{Load, LoadOptions, produce, record, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::raw::RawConnection;
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log};
use tailwater_tests::cluster::witness::{Witness, spec};
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::frame::{FrameKind, decode_meta, encode};
use tailwater_wire::ids::{Offset, PartitionId, TopicName, Writer};
use tailwater_wire::limits::{BATCH_BYTES_MAX, FETCH_BYTES_MAX, RECORD_BYTES_MAX};
use tailwater_wire::message::{FetchRequest, ProduceRequest, Request};
use tailwater_wire::partitioner::Partitioner;

const SOON: Duration = Duration::from_secs(20);
/// Connections that send half of a frame of the greatest size.
const HALVES: usize = 200;
/// Of these, so many the node has memory for.
const HELD: usize = 4;
const WAITING: usize = 1 << 20;
const TAIL_CACHE: usize = 8 << 20;
const SLAB: usize = 256 << 10;
const SLABS: usize = 4 << 20;
/// Connections that flood, and requests that each has unanswered.
const FLOODS: usize = 8;
const FLOOD_REQUESTS: u64 = 200;
/// Between two floods of a connection: the machine is to have time for others.
const FLOOD_PAUSE: Duration = Duration::from_millis(200);
/// Connections that ask and do not read; each may have 16 MiB of answers, and one more.
const IDLE_READERS: usize = 3;
const IDLE_REQUESTS: u64 = 100;
const ANSWERS: usize = IDLE_READERS * ((16 << 20) + FETCH_BYTES_MAX);
/// What the allocator keeps beyond what is used, small buffers, pages of the node's own files.
const SLACK: usize = 32 << 20;
/// How long the pressure lasts.
const PRESSURE: Duration = Duration::from_secs(6);
/// Records of the linked parent: as many again come under pressure.
const RECORDS: u64 = 10_000;

fn batch_of(value_bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::default(), BATCH_BYTES_MAX);
    builder.push(&record(1, value_bytes)).expect("a record that fits");
    builder.finish(Writer::Anonymous, 0).expect("a batch")
}

/// Where batches go, without a client library.
#[derive(Clone)]
struct Target {
    request: ProduceRequest,
}

impl Target {
    async fn create(client: &Client, name: &str) -> Target {
        let topic = topic(name);
        let made = client.create_topic(spec(&topic, 1)).await.expect("a topic");
        let request = ProduceRequest {
            topic,
            incarnation: made.incarnation,
            partition: PartitionId(0),
        };
        Target { request }
    }

    fn frame(&self, correlation: u64, batch: &[u8]) -> Vec<u8> {
        let request = Request::Produce(self.request.clone());
        let mut frame = encode(FrameKind::Request, correlation, &request, batch.len());
        frame.extend_from_slice(batch);
        frame
    }
}

async fn greeted(node: &TestNode, count: usize) -> Vec<RawConnection> {
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(RawConnection::greeted(node.listen()).await);
    }
    connections
}

/// Whether the next answer is a yes; any no but `BUSY` is a failure.
async fn accepted(connection: &mut RawConnection, correlation: Option<u64>) -> bool {
    let frame = connection.frame(SOON).await.expect("the connection stays");
    if let Some(correlation) = correlation {
        assert_eq!(frame.header.correlation, correlation);
    }
    if frame.header.kind == FrameKind::Reply {
        return true;
    }
    let refusal: Refusal = decode_meta(&frame.meta).expect("a refusal that can be read");
    assert_eq!(refusal.code, ErrorCode::Busy, "{refusal:?}");
    false
}

/// Sends until it is taken.
async fn deliver(connection: &mut RawConnection, target: &Target, batch: &[u8]) {
    let started = Instant::now();
    loop {
        connection.send(&target.frame(99, batch)).await;
        if accepted(connection, Some(99)).await {
            return;
        }
        assert!(started.elapsed() < SOON, "refused for ever");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Connections with half a frame on its way: those that the node keeps, and those that it has refused.
struct Halves {
    frame: Vec<u8>,
    kept: Vec<RawConnection>,
    refused: Vec<RawConnection>,
}

impl Halves {
    async fn send(connections: Vec<RawConnection>, target: &Target, batch: &[u8]) -> Halves {
        let frame = target.frame(7, batch);
        let mut sent = Vec::new();
        for mut connection in connections {
            connection.send(&frame[..frame.len() / 2]).await;
            sent.push(connection);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (mut kept, mut refused) = (sent, Vec::new());
        for _ in 0..20 {
            let mut silent = Vec::new();
            for mut connection in kept {
                let Some(answer) = connection.frame_within(Duration::from_millis(5)).await else {
                    silent.push(connection);
                    continue;
                };
                assert_eq!(answer.header.kind, FrameKind::Refusal);
                assert_eq!(answer.header.correlation, 7, "it names the request");
                let refusal: Refusal = decode_meta(&answer.meta).expect("a refusal that can be read");
                assert_eq!(refusal.code, ErrorCode::Busy, "{refusal:?}");
                refused.push(connection);
            }
            kept = silent;
            if kept.len() <= HELD {
                break;
            }
        }
        Halves { frame, kept, refused }
    }

    /// Sends the other halves: what was kept is answered as ever, and who was refused goes on with the next request.
    /// Returns how many batches were taken.
    async fn finish(self, target: &Target, batch: &[u8]) -> u64 {
        let rest = &self.frame[self.frame.len() / 2..];
        let mut taken = 0;
        for mut connection in self.kept {
            connection.send(rest).await;
            if !accepted(&mut connection, Some(7)).await {
                deliver(&mut connection, target, batch).await;
            }
            taken += 1;
        }
        for (number, mut connection) in self.refused.into_iter().enumerate() {
            connection.send(rest).await;
            connection
                .send(&encode(FrameKind::Request, 8, &Request::Ping, 0))
                .await;
            assert!(
                accepted(&mut connection, Some(8)).await,
                "the stream goes on behind the frame"
            );
            if number < HELD {
                deliver(&mut connection, target, batch).await;
                taken += 1;
            }
        }
        taken
    }
}

/// Sends batches without waiting for answers, as many as a connection may, again and again. Returns how many were
/// taken, and how many refused.
async fn flood(mut connection: RawConnection, target: Target, stop: Arc<AtomicBool>) -> (u64, u64) {
    let batch = batch_of(48 << 10);
    let mut requests = Vec::new();
    for correlation in 0..FLOOD_REQUESTS {
        requests.extend(target.frame(correlation, &batch));
    }
    let (mut taken, mut refused) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        connection.send(&requests).await;
        for _ in 0..FLOOD_REQUESTS {
            match accepted(&mut connection, None).await {
                true => taken += 1,
                false => refused += 1,
            }
        }
        tokio::time::sleep(FLOOD_PAUSE).await;
    }
    (taken, refused)
}

/// Asks for large answers and leaves them.
async fn ask(node: &TestNode, topic: &TopicName) -> RawConnection {
    let mut connection = RawConnection::greeted(node.listen()).await;
    for correlation in 0..IDLE_REQUESTS {
        let fetch = FetchRequest {
            topic: topic.clone(),
            incarnation: None,
            lineage: None,
            partition: PartitionId(0),
            from: Offset(0),
            bytes_max: FETCH_BYTES_MAX as u32,
            wait_millis: 0,
        };
        let request = encode(FrameKind::Request, correlation, &Request::Fetch(fetch), 0);
        connection.send(&request).await;
    }
    connection
}

/// Makes a partition of a child unusable while the node stands; the returned files bring it back.
fn take_away(node: &TestNode, child: &str) -> Vec<(PathBuf, PathBuf)> {
    let directory = node.data().join(format!("topics/{child}/p00000"));
    let aside = node.home().join("aside");
    fs::create_dir(&aside).expect("a directory");
    let entries = fs::read_dir(directory).expect("a partition's directory");
    let segments = entries.map(|entry| entry.expect("an entry").path());
    let segments = segments.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let away = segments.map(|segment| {
        let kept = aside.join(segment.file_name().expect("a file's name"));
        fs::rename(&segment, &kept).expect("moved");
        fs::write(&segment, vec![b'x'; 64 << 10]).expect("a file");
        (kept, segment)
    });
    away.collect()
}

fn load(first: u64) -> LoadOptions {
    let mut options = LoadOptions {
        value_bytes: 1 << 10,
        ..LoadOptions::new(first, RECORDS)
    };
    options.producer.batch_records = 40;
    options
}

#[track_caller]
fn within(growth: u64, growth_max: u64) {
    let (mib, bound) = (growth >> 20, growth_max >> 20);
    assert!(
        growth < growth_max,
        "{mib} MiB more than at rest, of {bound} MiB at most"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_over_all_its_bounds_refuses_by_name_and_keeps_to_them() {
    let _alone = take_machine().await;
    let large = batch_of(RECORD_BYTES_MAX - 100);
    let receive = HELD * large.len();
    let growth_max = (receive + WAITING + TAIL_CACHE + SLABS + ANSWERS + SLACK) as u64;
    assert!(
        growth_max < (HALVES * large.len() / 2) as u64 / 2,
        "the bound tells something"
    );
    let config = format!(
        "shards = 1\nreceive_bytes_max = {receive}\n\
         [log]\nwaiting_bytes_max = {WAITING}\ntail_cache_bytes = {TAIL_CACHE}\n\
         [fanout]\nmax_batch_bytes = {SLAB}\nmemory_bytes = {SLABS}\n"
    );
    let mut node = TestNode::start_with(&config).await;
    let (ticks, copy, other) = (topic("ticks"), topic("copy"), topic("other"));
    for line in [
        "topic create ticks --partitions 2",
        "topic create copy --partitions 1",
        "topic create other --partitions 2",
        "link attach ticks copy",
        "link attach ticks other",
    ] {
        node.cli().run(line).await.succeeded();
    }
    produce(&node.client().await, &ticks, load(0)).await;
    drained(&node.client().await, &ticks, &copy).await;
    node.stop().await;
    let away = take_away(&node, "copy");
    node.restart().await;

    let client = node.client().await;
    let flooded = Target::create(&client, "flooded").await;
    let heavy = Target::create(&client, "heavy").await;
    let witness = Witness::start(&node).await;
    let before = node.resident_bytes();
    let half = greeted(&node, HALVES).await;
    // All of it at once.
    let stop = Arc::new(AtomicBool::new(false));
    let mut floods = Vec::new();
    for _ in 0..FLOODS {
        let connection = RawConnection::greeted(node.listen()).await;
        floods.push(tokio::spawn(flood(
            connection,
            flooded.clone(),
            Arc::clone(&stop),
        )));
    }
    let steady = Load::start(&client, &ticks, load(RECORDS)).await;
    let mut idle = Vec::new();
    for _ in 0..IDLE_READERS {
        idle.push(ask(&node, &ticks).await);
    }
    let (mut growth, began) = (0, Instant::now());
    let look = |growth: &mut u64| *growth = (*growth).max(node.resident_bytes().saturating_sub(before));
    let halves = Halves::send(half, &heavy, &large).await;
    look(&mut growth);
    while began.elapsed() < PRESSURE {
        look(&mut growth);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    within(growth, growth_max);
    assert_eq!(
        (halves.kept.len(), halves.refused.len()),
        (HELD, HALVES - HELD),
        "as many as there is memory for"
    );

    // Nobody has lost anything, and everything is answered.
    for mut connection in idle {
        for _ in 0..IDLE_REQUESTS {
            let answer = connection.frame(SOON).await.expect("an answer to each request");
            assert_eq!(answer.header.kind, FrameKind::Reply);
            assert!(answer.payload.len() > 1 << 20, "a slab");
        }
    }
    look(&mut growth);
    stop.store(true, Ordering::Relaxed);
    let (mut taken, mut refused) = (0, 0);
    for flood in floods {
        let (yes, no) = flood.await.expect("each answer is a yes or a BUSY");
        (taken, refused) = (taken + yes, refused + no);
    }
    assert!(
        taken > 0 && refused > 0,
        "{taken} batches were taken, {refused} refused"
    );
    let acknowledged = steady.ended().await.complete().acknowledged;
    assert!(witness.was_served().await > 20);
    drained(&client, &ticks, &other).await;
    let heavy_taken = halves.finish(&heavy, &large).await;
    look(&mut growth);
    within(growth, growth_max);
    assert_eq!(ends(&client, &flooded.request.topic).await, [taken]);
    assert_eq!(ends(&client, &heavy.request.topic).await, [heavy_taken]);
    let parent = log(&client, &ticks).await;
    parent.holds(&acknowledged);

    // What was held is given back: as many frames have room as at first.
    let again = Halves::send(greeted(&node, HELD).await, &heavy, &large).await;
    assert_eq!(again.refused.len(), 0, "all room came back");
    assert_eq!(again.finish(&heavy, &large).await, HELD as u64);

    node.stop().await;
    for (kept, segment) in &away {
        fs::rename(kept, segment).expect("moved back");
    }
    node.restart().await;
    let client = node.client().await;
    for child in [&copy, &other] {
        drained(&client, &ticks, child).await;
        let attached = link(&client, &ticks, child).await.expect("an attached pair").link;
        let copies = copies(&client, child).await;
        flawless(
            child.as_str(),
            &parent,
            &copies,
            &Span::of(&attached, &parent.ends()),
        );
    }
}
