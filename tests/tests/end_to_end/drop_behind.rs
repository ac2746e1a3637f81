//! Retention passes a child that waits: what is delivered and what is dropped add up to what was produced, for each pair
//! of partitions, and the child's control batches say which; with kills in between.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{Acknowledged, LoadOptions, key_of, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::reading::{copies, drained};
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::batch::view::BatchIter;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::{Offset, PartitionId, TopicName, Writer};
use tailwater_wire::message::{FetchRequest, Place};
use tailwater_wire::partitioner::Partitioner;

const PARENTS: u32 = 2;
const CHILDREN: u32 = 3;
/// Segments of 1 MiB, so that retention by bytes has something to take every few seconds.
const CONFIG: &str = "[log]\nsegment_bytes_first = 1048576\nsegment_bytes_max = 1048576\n";

/// Parent partition and child partition.
type Pair = (u32, u32);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_and_dropped_add_up_to_what_was_produced_in_every_child_partition() {
    let _alone = take_machine().await;
    let mut node = TestNode::prepare(None, CONFIG);
    node.restart().await;
    let cli = node.cli();
    for line in [
        "topic create ticks --partitions 2 --retention-bytes 4MiB",
        "topic create later --partitions 3",
        "topic create near --partitions 3",
        "link attach ticks near",
        "link attach ticks later --delay 40s --allow-drop",
    ] {
        cli.run(line).await.succeeded();
    }
    let (ticks, later, near) = (topic("ticks"), topic("later"), topic("near"));
    // Retention passes the waiting cursor several times, the node dies several times, and at the end something is left.
    let mut acknowledged = Vec::new();
    let started = Instant::now();
    let mut first = 0;
    while started.elapsed() < Duration::from_secs(32) {
        let options = LoadOptions {
            value_bytes: 1_000,
            ..LoadOptions::new(first, 3_000)
        };
        let account = produce(&node.client().await, &ticks, options).await.complete();
        first += 3_000;
        acknowledged.extend(account.acknowledged);
        drained(&node.client().await, &ticks, &near).await;
        tokio::time::sleep(Duration::from_millis(rand::random_range(1_500..3_500))).await;
        if rand::random_range(0..3) == 0 {
            node.kill();
            node.restart().await;
        }
    }
    let client = node.client().await;
    drained(&client, &ticks, &later).await;

    let removed = removed(&client, &ticks).await;
    assert!(
        removed.iter().all(|&start| start > 0),
        "retention took nothing: {removed:?}"
    );
    let dropped = check(&client, &later, &acknowledged).await;
    assert!(
        dropped > 0,
        "retention has passed nothing: the test has tried nothing"
    );
    assert_eq!(
        check(&client, &near, &acknowledged).await,
        0,
        "a child that keeps up loses nothing"
    );

    let verified = cli.json("link verify ticks later").await;
    assert_eq!(
        (number(&verified, "dropped"), &verified["ok"]),
        (dropped, &true.into()),
        "{verified}"
    );
    let row = &cli.json("link list ticks").await;
    assert!(row.to_string().contains("dropped"), "{row}");
}

/// Checks the sums of one child, by pair of partitions and notice by notice. Returns how many records were dropped.
async fn check(client: &Client, child: &TopicName, produced: &[Acknowledged]) -> u64 {
    let mut lost: BTreeMap<Pair, BTreeSet<u64>> = BTreeMap::new();
    for record in produced {
        let hash = Partitioner::Murmur2.hash(key_of(record.number).as_bytes());
        let bucket = Partitioner::Murmur2.partition(hash, CHILDREN).0;
        let offset = record.offset.expect("the first answer to a record");
        lost.entry((record.partition, bucket)).or_default().insert(offset);
    }
    for copy in copies(client, child).await {
        let pair = (copy.parent_partition, copy.partition);
        let there = lost
            .get_mut(&pair)
            .is_some_and(|lost| lost.remove(&copy.parent_offset));
        assert!(there, "a copy in the wrong place, or twice: {copy:?}");
    }
    let mut total = 0;
    for bucket in 0..CHILDREN {
        for (parent, dropped) in notices(client, child, bucket).await {
            let (from, to) = (dropped.from.0, dropped.to.0);
            let lost = lost.entry((parent, bucket)).or_default();
            let inside: Vec<u64> = lost.range(from..to).copied().collect();
            assert_eq!(
                inside.len() as u64,
                dropped.records,
                "{parent} -> {bucket}: {dropped:?}"
            );
            inside.iter().for_each(|offset| {
                lost.remove(offset);
            });
            total += dropped.records;
        }
    }
    let left: Vec<_> = lost.iter().filter(|(_, lost)| !lost.is_empty()).collect();
    assert!(
        left.is_empty(),
        "neither delivered nor dropped in {child}: {left:?}"
    );
    total
}

/// What the control batches of a child partition say, each with its parent partition.
async fn notices(client: &Client, child: &TopicName, bucket: u32) -> Vec<(u32, Dropped)> {
    let partition = PartitionId(bucket);
    let end = client
        .find_offset(child, partition, Place::Tail)
        .await
        .expect("an end");
    let mut found = Vec::new();
    let mut next = Offset(0);
    while next < end.high_water_mark {
        let request = FetchRequest {
            topic: child.clone(),
            incarnation: None,
            lineage: None,
            partition,
            from: next,
            bytes_max: 1 << 20,
            wait_millis: 0,
        };
        let (fetched, slab) = client.fetch(request).await.expect("a slab");
        assert!(fetched.next > next, "the log goes on");
        for batch in BatchIter::new(&slab) {
            let batch = batch.expect("a sound batch");
            if let (Some(dropped), Writer::Origin(origin)) = (Dropped::of(&batch), batch.header().writer)
                && batch.header().base_offset >= next
            {
                found.push((origin.partition.0, dropped));
            }
        }
        next = fetched.next;
    }
    found
}

/// Where each partition of a topic starts by now.
async fn removed(client: &Client, topic: &TopicName) -> Vec<u64> {
    let mut starts = Vec::new();
    for partition in (0..PARENTS).map(PartitionId) {
        let found = client.find_offset(topic, partition, Place::Earliest).await;
        starts.push(found.expect("a start").log_start.0);
    }
    starts
}
