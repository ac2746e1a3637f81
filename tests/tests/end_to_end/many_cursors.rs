//! Hundreds of cursors on one shard: started, stopped and stored side by side; idle ones that wait without a clock notice
//! what comes, and end when they are told to.

use std::time::Duration;

use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::{drained, ends};
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::TopicName;

const PARTITIONS: usize = 16;
const CHILDREN: usize = 20;
/// Longer than any wait of a read that ends by itself.
const IDLE: Duration = Duration::from_millis(2_500);

fn children() -> impl Iterator<Item = TopicName> {
    (0..CHILDREN).map(|child| topic(&format!("child-{child}")))
}

async fn series(node: &TestNode, name: &str) -> f64 {
    let (_, text) = node.get("/metrics").await;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

async fn all_run(node: &TestNode, wanted: usize) {
    for _ in 0..600 {
        if series(node, "tailwater_fanout_cursors{shard=\"0\"}").await as usize == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{wanted} cursors do not run");
}

async fn copied_to_all(client: &Client, parent: &TopicName, records: u64) {
    for child in children() {
        drained(client, parent, &child).await;
        assert_eq!(ends(client, &child).await.iter().sum::<u64>(), records, "{child}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_idle_cursors_notice_what_comes_and_store_all_positions_on_stop() {
    let _shared = share_machine().await;
    let mut node = TestNode::start_with("shards = 1").await;
    let (cli, client) = (node.cli(), node.client().await);
    cli.run(&format!("topic create parent --partitions {PARTITIONS}"))
        .await
        .succeeded();
    let parent = topic("parent");
    for child in children() {
        cli.run(&format!("topic create {child}")).await.succeeded();
        let attached = client.attach(&parent, &child, Default::default()).await;
        attached.expect("attached");
    }
    all_run(&node, PARTITIONS * CHILDREN).await;
    tokio::time::sleep(IDLE).await;
    produce(&client, &parent, LoadOptions::new(0, 2_000)).await;
    copied_to_all(&client, &parent, 2_000).await;
    let parent_ends = ends(&client, &parent).await;

    node.stop().await;
    for (partition, end) in parent_ends.iter().enumerate() {
        for child in children() {
            let file = format!("topics/parent/p{partition:05}/fanout-{child}.offset");
            let text = std::fs::read_to_string(node.data().join(&file)).expect("a cursor file");
            let stands = text.ends_with(&format!("\"next_offset\":{end}}}"));
            assert!(stands, "{file} holds {text}, the parent ended at {end}");
        }
    }

    node.restart().await;
    all_run(&node, PARTITIONS * CHILDREN).await;
    let resumed = series(&node, "tailwater_fanout_anchor_total{verdict=\"resumed\"}").await;
    assert_eq!(resumed as usize, PARTITIONS * CHILDREN);
    let client = node.client().await;
    tokio::time::sleep(IDLE).await;
    produce(&client, &parent, LoadOptions::new(2_000, 500)).await;
    copied_to_all(&client, &parent, 2_500).await;
    let again = series(&node, "tailwater_fanout_duplicate_records_dropped_total").await;
    assert_eq!(again, 0.0, "every cursor began where it had ended");

    tokio::time::sleep(IDLE).await;
    let gone = topic("child-7");
    let detached = tokio::time::timeout(Duration::from_secs(10), client.detach(&parent, &gone)).await;
    detached.expect("idle cursors end at once").expect("detached");
    all_run(&node, PARTITIONS * (CHILDREN - 1)).await;
    let (_, text) = node.get("/metrics").await;
    assert!(
        !text.contains("child=\"child-7\""),
        "a link that is no more is not shown:\n{text}"
    );
    node.cli().verify("parent", "child-3").await;
}
