//! A `written` topic as a parent: each `kill -9` gives it a new history over what it had flushed, and its links go on.

use std::collections::BTreeSet;
use std::time::Duration;

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{Load, LoadOptions, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::reading::{copies, drained, link, log};
use tailwater_wire::client::config::{Idempotence, ProducerOptions};

const KILLS: u64 = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_links_of_a_written_parent_go_on_after_every_kill() {
    let _alone = take_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    for line in [
        "topic create ticks --partitions 2 --durability written",
        "topic create near --partitions 3",
        "topic create later --partitions 1",
        "link attach ticks near",
        "link attach ticks later --delay 300ms",
    ] {
        cli.run(line).await.succeeded();
    }
    let (ticks, near, later) = (topic("ticks"), topic("near"), topic("later"));
    let producer = ProducerOptions {
        idempotence: Idempotence::Random,
        batch_records: 50,
        buffer_bytes: 256 << 10,
        ..ProducerOptions::default()
    };
    let options = LoadOptions {
        producer,
        ..LoadOptions::new(0, u64::MAX >> 1)
    };
    let load = Load::start(&node.client().await, &ticks, options).await;
    let mut lineages = BTreeSet::from([lineage(&node).await]);
    for _ in 0..KILLS {
        // Enough that the children have records of this history before it ends.
        load.reached(load.acknowledged() + 500).await;
        tokio::time::sleep(Duration::from_millis(rand::random_range(50..400))).await;
        node.kill();
        node.restart().await;
        lineages.insert(lineage(&node).await);
    }
    load.reached(load.acknowledged() + 500).await;
    load.stop();
    // A `written` acknowledgement survives the end of the process: only a power cut could take it back.
    let account = load.ended().await.complete();

    assert!(
        lineages.len() as u64 > 1,
        "no kill has replaced the history: the test has tried nothing"
    );
    let client = node.client().await;
    drained(&client, &ticks, &near).await;
    drained(&client, &ticks, &later).await;
    let parent = log(&client, &ticks).await;
    parent.holds(&account.acknowledged);
    for (child, name) in [(&near, "near"), (&later, "later")] {
        let status = link(&client, &ticks, child).await.expect("an attached pair");
        assert!(
            status.cursors.iter().all(|cursor| cursor.stalled.is_none()),
            "{status:?}"
        );
        let copied = copies(&client, child).await;
        flawless(name, &parent, &copied, &Span::of(&status.link, &parent.ends()));
        assert_eq!(
            copied.len() as u64,
            parent.len(),
            "{name} was attached before the first record"
        );
        assert_eq!(number(&cli.verify("ticks", name).await, "records"), parent.len());
    }
}

/// The lineages of the topic's partitions, as one word.
async fn lineage(node: &TestNode) -> String {
    let described = node.cli().json("topic describe ticks").await;
    let partitions = described["partition_list"].as_array();
    let all: Vec<String> = partitions
        .expect("the topic's partitions")
        .iter()
        .map(|partition| partition["lineage"].to_string())
        .collect();
    all.join(" ")
}
