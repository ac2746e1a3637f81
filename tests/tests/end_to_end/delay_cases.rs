//! What went wrong elsewhere with delayed delivery: one test for each kind, with the report it comes from.

use std::time::{Duration, Instant};

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{LoadOptions, produce, record, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log};
use tailwater_tests::cluster::setup::{MANY_SHARDS, NodeOptions};
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;

/// Everything of `ticks` is in `delayed`, once, in order, and not early.
async fn is_whole(node: &TestNode, expected: u64) {
    let (client, ticks, delayed) = (node.client().await, topic("ticks"), topic("delayed"));
    drained(&client, &ticks, &delayed).await;
    let parent = log(&client, &ticks).await;
    assert_eq!(parent.len(), expected);
    let attached = link(&client, &ticks, &delayed)
        .await
        .expect("an attached pair")
        .link;
    let span = Span::of(&attached, &parent.ends());
    flawless("delayed", &parent, &copies(&client, &delayed).await, &span);
    assert_eq!(
        number(&node.cli().verify("ticks", "delayed").await, "records"),
        expected
    );
}

async fn arrived(client: &Client) -> u64 {
    ends(client, &topic("delayed")).await.iter().sum()
}

/// pulsar#22716: after a restart of the owner, what was to wait was delivered at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_that_wait_are_not_early_over_ten_kills() {
    const PENDING: u64 = 100_000;
    const DELAY: Duration = Duration::from_secs(9);
    let _alone = take_machine().await;
    let mut node = TestNode::start_with(&NodeOptions::default().shards(MANY_SHARDS).config()).await;
    let cli = node.cli();
    for line in [
        "topic create ticks --partitions 4",
        "topic create delayed --partitions 3",
        "link attach ticks delayed --delay 9s",
    ] {
        cli.run(line).await.succeeded();
    }
    // By this test's own clock, too: nothing may be there so early.
    let started = Instant::now();
    produce(
        &node.client().await,
        &topic("ticks"),
        LoadOptions::new(0, PENDING),
    )
    .await;
    for _ in 0..10 {
        node.kill();
        node.restart().await;
        let found = arrived(&node.client().await).await;
        assert!(
            found == 0 || started.elapsed() > DELAY,
            "{found} after {:?}",
            started.elapsed()
        );
    }
    is_whole(&node, PENDING).await;
}

/// pulsar#20823: the tracker ran out of memory, and "never delay" was discussed as a way out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_short_of_memory_is_late_rather_than_early() {
    const RECORDS: u64 = 20_000;
    let _alone = take_machine().await;
    let config = NodeOptions::default().slab_memory(64 << 10, 64 << 10).config();
    let node = TestNode::start_with(&config).await;
    let (cli, client) = (node.cli(), node.client().await);
    for line in [
        "topic create ticks --partitions 8",
        "topic create delayed --partitions 4",
        "link attach ticks delayed --delay 1s",
    ] {
        cli.run(line).await.succeeded();
    }
    let options = LoadOptions {
        value_bytes: 1_000,
        ..LoadOptions::new(0, RECORDS)
    };
    produce(&client, &topic("ticks"), options).await;
    is_whole(&node, RECORDS).await;
}

/// How long lone records take to be acknowledged: the middle, and the slowest of a hundred.
async fn lone(client: &Client, first: u64) -> (Duration, Duration) {
    const LONE: u64 = 300;
    let live = topic("live");
    let producer = client
        .producer(&live, ProducerOptions::default())
        .await
        .expect("a producer");
    let mut took = Vec::new();
    for number in first..first + LONE {
        let started = Instant::now();
        let delivery = producer
            .send(record(number, 100))
            .await
            .expect("an open producer takes a record");
        delivery.await.expect("an acknowledgement");
        took.push(started.elapsed());
    }
    took.sort_unstable();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

/// pulsar#26103: after a restart, reading back what waits stalled every other topic. rabbitmq-delayed-message-exchange#228:
/// counting what waits took seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_wait_cost_nobody_anything_also_after_a_restart() {
    const PENDING: u64 = 400_000;
    let _alone = take_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    for line in [
        "topic create ticks --partitions 2",
        "topic create delayed",
        "topic create live",
        "link attach ticks delayed --delay 1h",
    ] {
        cli.run(line).await.succeeded();
    }
    let client = node.client().await;
    let before = lone(&client, 0).await;
    produce(&client, &topic("ticks"), LoadOptions::new(0, PENDING)).await;
    node.kill();
    let took = node.restart().await;
    assert!(took < Duration::from_secs(5), "it took {took:?} to serve");
    let client = node.client().await;
    let after = lone(&client, 1_000).await;
    let most = before.1 * 2 + Duration::from_millis(20);
    assert!(
        after.0 < before.0 * 2 + Duration::from_millis(2) && after.1 < most,
        "lone records, median and p99: {before:?} before, {after:?} after"
    );
    let mut scrapes = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let (status, _) = node.get("/metrics").await;
        scrapes.push(started.elapsed());
        assert_eq!(status, 200);
    }
    scrapes.sort_unstable();
    assert!(
        scrapes[scrapes.len() / 2] < Duration::from_millis(5),
        "{scrapes:?}"
    );
    let row = &cli.json("link list ticks").await[0];
    assert_eq!(number(row, "pending"), PENDING, "{row}");
    assert_eq!(arrived(&client).await, 0);
    // Nothing of it is lost, either: without the delay it all comes.
    cli.run("link detach ticks delayed").await.succeeded();
    cli.run("link attach ticks delayed --from earliest")
        .await
        .succeeded();
    drained(&client, &topic("ticks"), &topic("delayed")).await;
    assert_eq!(number(&cli.verify("ticks", "delayed").await, "records"), PENDING);
}
