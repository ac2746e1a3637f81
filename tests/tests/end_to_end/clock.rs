//! A wall clock that steps by an hour and a year, both ways, while records are produced and delayed and across restarts:
//! none comes early, commit times do not fall, and after `clock accept` everything flows again.
//!
//! The node's wall clock is libfaketime's, which reads how far it is off from a file, each time; timers and boottime stay
//! the machine's.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tailwater_tests::cluster::cli::Cli;
use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::{directory, take_machine};
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log};
use tailwater_wire::client::handle::Client;
use tempfile::TempDir;

const HOUR: i64 = 3_600;
const YEAR: i64 = 365 * 24 * HOUR;
/// Where Debian puts it, whatever the machine's architecture is called.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];
/// Twice as long as a cursor sleeps at most.
const FLOWS_WITHIN: Duration = Duration::from_secs(60);

/// The wall clock of a node under test.
struct Wall {
    file: PathBuf,
    _home: TempDir,
}

impl Wall {
    /// A node that was not started yet, with its wall clock.
    fn and_node() -> (Wall, TestNode) {
        let home = directory();
        let wall = Wall {
            file: home.path().join("wall"),
            _home: home,
        };
        wall.set(0);
        let library = LIBRARIES.iter().find(|path| std::path::Path::new(path).exists());
        let library = library.expect("libfaketime: tests/packages installs it");
        let preload = format!("LD_PRELOAD={library}");
        let file = format!("FAKETIME_TIMESTAMP_FILE={}", wall.file.display());
        let node = TestNode::prepare(None, "").through(&[
            "env",
            &preload,
            &file,
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "DONT_FAKE_MONOTONIC=1",
        ]);
        (wall, node)
    }

    /// Sets it so many seconds ahead of the machine's, in one step.
    fn set(&self, ahead: i64) {
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{ahead:+}\n")).expect("a small file");
        std::fs::rename(&next, &self.file).expect("in the same directory");
    }
}

async fn clock(cli: &Cli) -> serde_json::Value {
    cli.json("clock status").await[0].clone()
}

async fn is_held(cli: &Cli) -> bool {
    clock(cli).await["held"].as_bool().expect("a flag")
}

/// The clock is looked at a few times a second.
async fn until_held(cli: &Cli) {
    let started = Instant::now();
    while !is_held(cli).await {
        assert!(started.elapsed() < FLOWS_WITHIN, "not held: {}", clock(cli).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Produces, and counts.
async fn some(client: &Client, produced: &mut u64) {
    produce(client, &topic("ticks"), LoadOptions::new(*produced, 500)).await;
    *produced += 500;
}

async fn arrived(client: &Client) -> u64 {
    ends(client, &topic("delayed")).await.iter().sum()
}

/// Nothing passes the gate for longer than the delay is, while producing and the other link go on; then it is accepted.
async fn held_then_accepted(node: &TestNode, client: &Client, produced: &mut u64) {
    let cli = node.cli();
    until_held(&cli).await;
    // What was being copied when the hold began.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = arrived(client).await;
    some(client, produced).await;
    drained(client, &topic("ticks"), &topic("copy")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(arrived(client).await, before, "a held gate lets nothing pass");
    let (_, ready) = node.get("/readyz").await;
    assert!(
        ready.contains("alarm") && ready.contains("tailwater clock accept"),
        "{ready}"
    );
    let (_, metrics) = node.get("/metrics").await;
    assert!(metrics.contains("\ntailwater_clock_held 1\n"), "{metrics}");
    let refused = cli.run("partition reset-clock ticks -p 0").await;
    refused.refused(1, "CLOCK_HELD");
    cli.run("clock accept").await.succeeded();
    let now = clock(&cli).await;
    assert_eq!(now["held"], false, "{now}");
    assert!(
        now["wall_offset_ms"].as_i64().expect("a number").abs() < 1_000,
        "{now}"
    );
    drained(client, &topic("ticks"), &topic("delayed")).await;
    assert_eq!(node.get("/readyz").await.1, "ready\n");
}

async fn flows(client: &Client, produced: &mut u64) {
    some(client, produced).await;
    for child in ["copy", "delayed"] {
        drained(client, &topic("ticks"), &topic(child)).await;
    }
}

async fn attached(cli: &Cli) {
    for line in [
        "topic create ticks --partitions 2",
        "topic create copy",
        "topic create delayed --partitions 3",
        "link attach ticks copy",
        "link attach ticks delayed --delay 2s",
    ] {
        cli.run(line).await.succeeded();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_the_wall_clock_make_nothing_early_and_after_accept_all_flows() {
    let _alone = take_machine().await;
    let (wall, mut node) = Wall::and_node();
    node.restart().await;
    let cli = node.cli();
    attached(&cli).await;
    let (mut client, mut produced) = (node.client().await, 0);
    flows(&client, &mut produced).await;

    // While it runs. Within an hour, and back: it slews.
    for ahead in [HOUR - 10, 0, -HOUR, 0, -YEAR, 0] {
        wall.set(ahead);
        flows(&client, &mut produced).await;
        assert!(!is_held(&cli).await, "{ahead} s");
    }
    // More than an hour ahead, then a year: held.
    let mut at = 0;
    for step in [HOUR + 60, YEAR] {
        at += step;
        wall.set(at);
        held_then_accepted(&node, &client, &mut produced).await;
        flows(&client, &mut produced).await;
    }

    // Across restarts: ahead by less than an hour, by more, and by a year.
    for (step, held) in [(HOUR - 10, false), (HOUR + 60, true), (YEAR, true), (0, false)] {
        some(&client, &mut produced).await;
        node.stop().await;
        at += step;
        wall.set(at);
        node.restart().await;
        client = node.client().await;
        assert_eq!(is_held(&cli).await, held, "{step} s");
        if held {
            // A restart is no operator, and neither is a kill.
            node.kill();
            node.restart().await;
            client = node.client().await;
            held_then_accepted(&node, &client, &mut produced).await;
        }
        flows(&client, &mut produced).await;
    }
    // Back across a restart: the clock follows, what is committed now is due later, and nothing is held. When the wall clock
    // is right again, an operator's word brings the clock to it.
    for back in [HOUR, YEAR] {
        node.stop().await;
        wall.set(at - back);
        node.restart().await;
        client = node.client().await;
        assert!(!is_held(&cli).await);
        some(&client, &mut produced).await;
        drained(&client, &topic("ticks"), &topic("copy")).await;
        wall.set(at);
        tokio::time::sleep(Duration::from_millis(600)).await;
        cli.run("clock accept").await.succeeded();
        flows(&client, &mut produced).await;
    }

    let parent = log(&client, &topic("ticks")).await;
    assert_eq!(parent.len(), produced);
    for child in ["copy", "delayed"] {
        let status = link(&client, &topic("ticks"), &topic(child))
            .await
            .expect("attached");
        let span = Span::of(&status.link, &parent.ends());
        flawless(child, &parent, &copies(&client, &topic(child)).await, &span);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_stamped_in_a_false_future_are_recovered() {
    let _alone = take_machine().await;
    let (wall, mut node) = Wall::and_node();
    wall.set(YEAR);
    node.restart().await;
    let cli = node.cli();
    attached(&cli).await;
    let (mut client, mut produced) = (node.client().await, 0);
    flows(&client, &mut produced).await;
    some(&client, &mut produced).await;
    node.stop().await;

    wall.set(0);
    node.restart().await;
    client = node.client().await;
    assert!(node.log().contains("reset-clock"), "the way out is named");
    some(&client, &mut produced).await;
    drained(&client, &topic("ticks"), &topic("copy")).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(arrived(&client).await < produced, "due in a year");

    // A year from now on, everything would be due; so it is as soon as the era has ended, and again after a kill.
    for (name, partitions) in [("ticks", 2), ("copy", 1), ("delayed", 3)] {
        for partition in 0..partitions {
            let line = format!("partition reset-clock {name} -p {partition}");
            for _ in 0..2 {
                cli.run(&line).await.succeeded();
            }
        }
    }
    some(&client, &mut produced).await;
    node.kill();
    node.restart().await;
    client = node.client().await;
    flows(&client, &mut produced).await;
    assert_eq!(arrived(&client).await, produced);
    let found = cli
        .run_with_input(&["produce", "ticks", "-o", "ndjson"], b"last\n")
        .await;
    let line = found.succeeded().json_lines().remove(0);
    let (stamp, now) = (line["commit_time"].as_u64().expect("a time"), clock(&cli).await);
    let age = now["now"].as_u64().expect("a time").saturating_sub(stamp);
    assert!(age < 60_000_000_000, "stamped now: {line}, {now}");
    cli.run("partition reset-clock nothing -p 0")
        .await
        .refused(3, "UNKNOWN_TOPIC");
    cli.run("partition reset-clock ticks -p 9")
        .await
        .refused(3, "UNKNOWN_PARTITION");
}
