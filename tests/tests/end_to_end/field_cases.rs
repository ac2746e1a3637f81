//! What went wrong elsewhere with copies of streams: one test for each kind, with the report it comes from.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{Load, LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log};
use tailwater_tests::cluster::setup::NodeOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::time::format_time;

/// Retention looks every 5 s.
const RETAINED_WITHIN: Duration = Duration::from_secs(30);

/// Records that a link has not copied. A cursor that is only being started is there as well, with all that it has to copy.
async fn lag(client: &Client) -> u64 {
    let status = link(client, &topic("ticks"), &topic("copy"))
        .await
        .expect("an attached pair");
    let partitions = status.link.attach_offsets.len();
    let lags = status
        .cursors
        .iter()
        .map(|cursor| cursor.parent_high_water_mark.since(cursor.position));
    assert_eq!(status.cursors.len(), partitions, "{status:?}");
    lags.sum()
}

/// nats-server#8346: a source that was made anew was followed no more, with a lag of 0 and no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_made_anew_is_followed_and_a_lag_of_0_means_that_nothing_is_missing() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let (cli, client) = (node.cli(), node.client().await);
    let (ticks, copy) = (topic("ticks"), topic("copy"));
    for line in [
        "topic create ticks",
        "topic create copy",
        "link attach ticks copy",
    ] {
        cli.run(line).await.succeeded();
    }
    produce(&client, &ticks, LoadOptions::new(0, 1_000)).await;
    drained(&client, &ticks, &copy).await;
    for line in [
        "link detach ticks copy",
        "topic delete ticks",
        "topic create ticks",
        "link attach ticks copy",
    ] {
        cli.run(line).await.succeeded();
    }
    let client = node.client().await;
    for round in 1..=20u64 {
        produce(&client, &ticks, LoadOptions::new(round * 10_000, 10)).await;
        // Acknowledged records are in the parent: a lag of 0 from here on says that they are in the child.
        let started = Instant::now();
        while lag(&client).await > 0 {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "the new parent is not followed"
            );
        }
        assert_eq!(ends(&client, &copy).await, [1_000 + round * 10]);
    }
    cli.verify("ticks", "copy").await;
}

/// strimzi-kafka-operator#3375: a target made anew got nothing, because of the position that was kept for the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_of_an_earlier_child_does_not_move_the_new_one() {
    let _shared = share_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    let (ticks, copy) = (topic("ticks"), topic("copy"));
    for line in [
        "topic create ticks",
        "topic create copy",
        "link attach ticks copy",
    ] {
        cli.run(line).await.succeeded();
    }
    let client = node.client().await;
    produce(&client, &ticks, LoadOptions::new(0, 1_000)).await;
    drained(&client, &ticks, &copy).await;
    node.stop().await;
    let file = node.data().join("topics/ticks/p00000/fanout-copy.offset");
    let old = fs::read(&file).expect("a cursor file");
    node.restart().await;
    for line in ["link detach ticks copy", "topic delete copy", "topic create copy"] {
        cli.run(line).await.succeeded();
    }
    let client = node.client().await;
    produce(&client, &ticks, LoadOptions::new(1_000, 300)).await;
    cli.run("link attach ticks copy").await.succeeded();
    let attached = link(&client, &ticks, &copy).await.expect("an attached pair").link;
    assert_eq!(attached.attach_offset(0).0, 1_300);
    produce(&client, &ticks, LoadOptions::new(1_300, 200)).await;
    // The old position comes back, behind the new attach point: by a restored file, say.
    node.kill();
    fs::write(&file, &old).expect("a writable file");
    node.restart().await;
    let client = node.client().await;
    produce(&client, &ticks, LoadOptions::new(1_500, 100)).await;
    drained(&client, &ticks, &copy).await;
    let parent = log(&client, &ticks).await;
    let copied = copies(&client, &copy).await;
    flawless(
        "the new child",
        &parent,
        &copied,
        &Span::of(&attached, &parent.ends()),
    );
    assert_eq!(copied.len(), 300, "from the attach point on");
    cli.verify("ticks", "copy").await;
}

/// nats-server#3559: where to start was applied again at each restart, and what was purged came back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_retention_took_from_a_child_does_not_come_back() {
    let _shared = share_machine().await;
    let config = NodeOptions::default().segments(64 << 10, 64 << 10).config();
    let mut node = TestNode::start_with(&config).await;
    let (cli, client) = (node.cli(), node.client().await);
    let (ticks, copy) = (topic("ticks"), topic("copy"));
    cli.run("topic create ticks").await.succeeded();
    cli.run("topic create copy --retention-bytes 128KiB")
        .await
        .succeeded();
    produce(&client, &ticks, LoadOptions::new(0, 2_000)).await;
    let time = log(&client, &ticks)
        .await
        .at(0, 1_000)
        .expect("a record")
        .commit_time;
    let line = format!("link attach ticks copy --from time:{}", format_time(time));
    cli.run(&line).await.succeeded();
    let attached = link(&client, &ticks, &copy).await.expect("an attached pair").link;
    let from = attached.attach_offset(0).0;
    for first in (2_000..12_000).step_by(1_000) {
        produce(&client, &ticks, LoadOptions::new(first, 1_000)).await;
    }
    drained(&client, &ticks, &copy).await;
    let copied = 12_000 - from;
    let started = Instant::now();
    let start_of = async |client: &Client| {
        let place = tailwater_wire::message::Place::Earliest;
        let partition = tailwater_wire::ids::PartitionId(0);
        let found = client
            .find_offset(&topic("copy"), partition, place)
            .await
            .expect("a partition");
        (found.log_start.0, found.high_water_mark.0)
    };
    while start_of(&client).await.0 == 0 {
        assert!(started.elapsed() < RETAINED_WITHIN, "retention takes nothing");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for round in 0..3 {
        let (before, _) = start_of(&node.client().await).await;
        if round % 2 == 0 {
            node.stop().await;
        } else {
            node.kill();
        }
        node.restart().await;
        let client = node.client().await;
        drained(&client, &ticks, &copy).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let (after, end) = start_of(&client).await;
        assert!(
            after >= before,
            "the log's start went back from {before} to {after}"
        );
        assert_eq!(end, copied, "start {round}: nothing is copied again");
    }
    produce(&node.client().await, &ticks, LoadOptions::new(12_000, 100)).await;
    let client = node.client().await;
    drained(&client, &ticks, &copy).await;
    assert_eq!(ends(&client, &copy).await, [copied + 100]);
}

/// The segments of a child's partition, to be taken away while the node is stopped.
fn segments(node: &TestNode, partition: u32) -> Vec<PathBuf> {
    let directory = node.data().join(format!("topics/copy/p{partition:05}"));
    let entries = fs::read_dir(directory).expect("a partition's directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect()
}

/// nats-server#7530: what arrived while a follower was away was not there when it came back. nats-server#3070: one slow
/// follower made all slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_partition_that_is_away_stalls_itself_alone_and_catches_up_in_order() {
    let _shared = share_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    let (ticks, copy, other) = (topic("ticks"), topic("copy"), topic("other"));
    for line in [
        "topic create ticks --partitions 2",
        "topic create copy --partitions 3",
        "topic create other --partitions 2",
        "link attach ticks copy",
        "link attach ticks other",
    ] {
        cli.run(line).await.succeeded();
    }
    produce(&node.client().await, &ticks, LoadOptions::new(0, 3_000)).await;
    drained(&node.client().await, &ticks, &copy).await;
    node.stop().await;
    // Not a segment any more: the partition cannot be opened, and is not written.
    let aside = node.home().join("aside");
    let segments = segments(&node, 1);
    fs::create_dir(&aside).expect("a directory");
    for segment in &segments {
        let name = segment.file_name().expect("a file's name");
        fs::rename(segment, aside.join(name)).expect("moved");
        fs::write(segment, vec![b'x'; 64 << 10]).expect("a file");
    }
    node.restart().await;
    let client = node.client().await;
    produce(&client, &ticks, LoadOptions::new(3_000, 100_000)).await;
    drained(&client, &ticks, &other).await;
    cli.verify("ticks", "other").await;
    // The healthy partitions get theirs, meanwhile.
    let expected = |partition: u32, records: u64| {
        let partitioner = tailwater_wire::partitioner::Partitioner::default();
        let bucket = |number| {
            let key = tailwater_tests::cluster::load::key_of(number);
            partitioner.partition(partitioner.hash(key.as_bytes()), 3).0
        };
        (0..records).filter(|&number| bucket(number) == partition).count() as u64
    };
    let started = Instant::now();
    for partition in [0, 2] {
        let place = tailwater_wire::message::Place::Tail;
        let id = tailwater_wire::ids::PartitionId(partition);
        let end = async || {
            client
                .find_offset(&copy, id, place)
                .await
                .expect("a partition")
                .high_water_mark
                .0
        };
        while end().await < expected(partition, 103_000) {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "partition {partition} waits for the one that is away"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let row = cli.json("link list ticks").await;
    let row = row
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["child"] == "copy"))
        .cloned();
    let row = row.expect("the link");
    assert!(number(&row, "lag") > 0, "what is away is missing: {row}");
    node.stop().await;
    for segment in &segments {
        let name = segment.file_name().expect("a file's name");
        fs::rename(aside.join(name), segment).expect("moved back");
    }
    node.restart().await;
    let client = node.client().await;
    drained(&client, &ticks, &copy).await;
    let parent = log(&client, &ticks).await;
    let attached = link(&client, &ticks, &copy).await.expect("an attached pair").link;
    flawless(
        "copy",
        &parent,
        &copies(&client, &copy).await,
        &Span::of(&attached, &parent.ends()),
    );
    assert_eq!(
        ends(&client, &copy).await,
        [0, 1, 2].map(|partition| expected(partition, 103_000))
    );
    cli.verify("ticks", "copy").await;
}

/// kafka#23091: retention removed what was not replicated yet, and nobody was told. nats-architecture ADR-60: what was in
/// flight was removed at the origin, and lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_retention_takes_before_it_was_copied_is_counted_exactly() {
    let _shared = share_machine().await;
    let config = NodeOptions::default().segments(64 << 10, 64 << 10).config();
    let node = TestNode::start_with(&config).await;
    let (cli, client) = (node.cli(), node.client().await);
    let (ticks, copy) = (topic("ticks"), topic("copy"));
    for line in [
        "topic create ticks --partitions 2 --retention-bytes 256KiB",
        "topic create copy --partitions 3",
        "link attach ticks copy --delay 7s --allow-drop",
    ] {
        cli.run(line).await.succeeded();
    }
    let load = Load::start(&client, &ticks, LoadOptions::new(0, 40_000).at_rate(4_000)).await;
    let account = load.ended().await.complete();
    drained(&client, &ticks, &copy).await;
    // The child's ends count the notices of what was dropped, too.
    let copied = copies(&client, &copy).await;
    let delivered = copied.len() as u64;
    let row = &cli.json("link list ticks").await[0];
    let dropped = number(row, "dropped");
    assert!(delivered > 0 && dropped > 0, "some of each: {row}");
    let produced = account.acknowledged.len() as u64;
    assert_eq!(
        delivered + dropped,
        produced,
        "delivered and dropped are all that was produced: {row}"
    );
    // A copy is of the record that it names, and there once.
    let numbers: std::collections::BTreeSet<u64> = copied.iter().map(|copy| copy.stored.number).collect();
    assert_eq!(numbers.len() as u64, delivered);
}
