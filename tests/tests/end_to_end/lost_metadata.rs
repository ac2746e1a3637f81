//! Metadata that was lost, or restored from an older copy, never costs a topic's data.
//!
//! The incident: with `meta/` removed, or an older copy of it put back, a start took every topic that the metadata did not
//! know for deleted, and removed its data without a word. The same happened when a segment of another topic was moved in.

use std::fs;
use std::path::Path;
use std::process::Command;

use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::log;
use tailwater_tests::cluster::witness::spec;

const RECORDS: u64 = 5_000;

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .expect("cp");
    assert!(status.success());
}

/// Segment files of a topic, with their lengths.
fn segments(node: &TestNode, name: &str) -> Vec<(String, u64)> {
    let partition = node.data().join("topics").join(name).join("p00000");
    let entries = fs::read_dir(partition)
        .expect("the partition's directory")
        .map(|entry| entry.expect("an entry"));
    let logs = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "log"));
    let mut found: Vec<_> = logs
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.metadata().expect("metadata").len(),
            )
        })
        .collect();
    found.sort();
    found
}

async fn with_two_topics() -> (TestNode, std::path::PathBuf) {
    let mut node = TestNode::start().await;
    let client = node.client().await;
    client
        .create_topic(spec(&topic("known"), 1))
        .await
        .expect("a topic");
    produce(&client, &topic("known"), LoadOptions::new(0, RECORDS)).await;
    node.stop().await;
    let older = node.home().join("older-meta");
    copy(&node.data().join("meta"), &older);
    node.restart().await;
    let client = node.client().await;
    client
        .create_topic(spec(&topic("newer"), 1))
        .await
        .expect("a topic");
    produce(&client, &topic("newer"), LoadOptions::new(0, RECORDS)).await;
    node.stop().await;
    (node, older)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_that_is_lost_or_restored_from_an_older_copy_costs_no_data() {
    let _shared = share_machine().await;
    let (mut node, older) = with_two_topics().await;
    let (meta, kept) = (node.data().join("meta"), node.home().join("newest-meta"));
    copy(&meta, &kept);
    let before = (segments(&node, "known"), segments(&node, "newer"));

    fs::remove_dir_all(&meta).expect("removed");
    let refused = node.start_refused().await;
    assert_eq!(refused.code, Some(1), "{}", refused.log);
    assert!(refused.log.contains("METADATA_MISSING"), "{}", refused.log);
    assert_eq!((segments(&node, "known"), segments(&node, "newer")), before);

    copy(&older, &meta);
    node.restart().await;
    let client = node.client().await;
    assert_eq!(log(&client, &topic("known")).await.len(), RECORDS);
    client
        .topic(&topic("newer"))
        .await
        .expect_err("the older metadata does not know it");
    node.stop().await;
    assert_eq!(segments(&node, "newer"), before.1, "its data is left alone");
    assert!(node.log().contains("left alone"), "and named");

    fs::remove_dir_all(&meta).expect("removed");
    copy(&kept, &meta);
    node.restart().await;
    let client = node.client().await;
    assert_eq!(
        log(&client, &topic("newer")).await.len(),
        RECORDS,
        "with its metadata it is back, whole"
    );
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_of_another_topic_costs_its_own_partition_only() {
    let _shared = share_machine().await;
    let (mut node, _older) = with_two_topics().await;
    let first = |name: &str| {
        let file = segments(&node, name)[0].0.clone();
        node.data().join("topics").join(name).join("p00000").join(file)
    };
    let (known, newer, aside) = (first("known"), first("newer"), node.home().join("aside"));
    fs::rename(&known, &aside).expect("moved");
    fs::copy(&newer, &known).expect("a foreign segment in its place");
    let witness = known.with_file_name("witness");
    fs::write(&witness, b"goes only with the whole directory").expect("a file");
    node.restart().await;
    let client = node.client().await;
    assert_eq!(log(&client, &topic("newer")).await.len(), RECORDS);
    node.stop().await;
    assert!(witness.exists(), "the directory was removed");
    fs::rename(&aside, &known).expect("moved back");
    node.restart().await;
    let client = node.client().await;
    assert_eq!(
        log(&client, &topic("known")).await.len(),
        RECORDS,
        "nothing of it was removed"
    );
    node.stop().await;
}

/// The incident: each frame of a connection left one more waker behind; after some 32,000 the node ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_may_send_as_many_requests_as_it_likes() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let client = node.client().await;
    for _ in 0..1_100 {
        let pings = (0..40).map(|_| client.ping());
        let mut waiting: Vec<_> = pings.map(Box::pin).collect();
        for ping in &mut waiting {
            ping.await.expect("an answer");
        }
    }
}
