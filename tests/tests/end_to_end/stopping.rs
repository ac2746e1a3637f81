//! SIGTERM and Ctrl-C: a node drains and loses nothing that it acknowledged; a command ends with 130.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tailwater_tests::cluster::cli::finish;
use tailwater_tests::cluster::load::{Load, LoadOptions, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::{share_machine, take_machine};
use tailwater_tests::cluster::reading::{copies, drained, link, log};
use tailwater_wire::client::config::{Idempotence, ProducerOptions};

const ROUNDS: u64 = 5;
const DRAINED_WITHIN: Duration = Duration::from_secs(10);
const STARTED_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_under_load_drains_with_exit_code_0_and_loses_nothing() {
    let _alone = take_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    for line in [
        "topic create ticks --partitions 4",
        "topic create copy --partitions 3",
        "topic create later",
        "link attach ticks copy",
        "link attach ticks later --delay 500ms",
    ] {
        cli.run(line).await.succeeded();
    }
    let (ticks, copy, later) = (topic("ticks"), topic("copy"), topic("later"));
    let mut acknowledged = Vec::new();
    for round in 0..ROUNDS {
        let mut loads = Vec::new();
        for producer in 0..3 {
            let options = ProducerOptions {
                idempotence: Idempotence::None,
                batch_records: 200,
                delivery_timeout: Duration::from_secs(2),
                ..ProducerOptions::default()
            };
            let first = (round * 3 + producer) * 1_000_000_000;
            let options = LoadOptions {
                producer: options,
                ..LoadOptions::new(first, 1_000_000_000)
            };
            let load = Load::start(&node.client().await, &ticks, options).await;
            load.reached(1).await;
            loads.push(load);
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
        let started = Instant::now();
        node.stop().await;
        assert!(
            started.elapsed() < DRAINED_WITHIN,
            "it took {:?} to drain",
            started.elapsed()
        );
        for load in &loads {
            load.stop();
        }
        let took = node.restart().await;
        assert!(
            took < STARTED_WITHIN,
            "it took {took:?} to start after a clean stop"
        );
        for load in loads {
            acknowledged.extend(load.ended().await.acknowledged);
        }
        log(&node.client().await, &ticks).await.holds(&acknowledged);
    }
    let client = node.client().await;
    let parent = log(&client, &ticks).await;
    for (child, name) in [(&copy, "copy"), (&later, "later")] {
        drained(&client, &ticks, child).await;
        let link = link(&client, &ticks, child).await.expect("an attached pair").link;
        flawless(
            name,
            &parent,
            &copies(&client, child).await,
            &Span::of(&link, &parent.ends()),
        );
        cli.verify("ticks", name).await;
    }
    assert!(!node.log().contains("panicked"), "a node that panicked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_node_ends_at_once_also_with_connections_open() {
    let _shared = share_machine().await;
    let mut node = TestNode::start().await;
    let client = node.client().await;
    client.ping().await.expect("an answer");
    let mut follower = node.cli().command(&["consume", "nothing", "--follow"]);
    let _follower = follower.spawn().expect("the binary can be started");
    let started = Instant::now();
    node.stop().await;
    assert!(
        started.elapsed() < DRAINED_WITHIN,
        "it took {:?} to drain",
        started.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_told_to_end_while_it_starts_ends_with_0() {
    let _shared = share_machine().await;
    let mut node = TestNode::start().await;
    node.stop().await;
    for after_ms in [20, 40, 80, 160] {
        node.spawn();
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        let status = node.terminate().await;
        // Before its handlers are there the signal itself ends it, which loses nothing either.
        let by_signal = std::os::unix::process::ExitStatusExt::signal(&status) == Some(Signal::TERM.as_raw());
        assert!(
            status.code() == Some(0) || by_signal,
            "after {after_ms} ms: {status}"
        );
    }
    node.restart().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_command_ends_with_130() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let cli = node.cli();
    cli.run("topic create ticks").await.succeeded();
    for args in [&["consume", "ticks", "--follow"][..], &["produce", "ticks"]] {
        let mut command = cli.command(args);
        command.stdin(Stdio::piped());
        let child = command.spawn().expect("the binary can be started");
        let pid = child
            .id()
            .and_then(|pid| Pid::from_raw(pid as i32))
            .expect("a running process");
        tokio::time::sleep(Duration::from_millis(700)).await;
        kill_process(pid, Signal::INT).expect("our own child");
        let finished = finish(child, args.join(" ")).await;
        assert_eq!(finished.code, Some(130), "{finished:?}");
    }
    cli.run_with_input(&["produce", "ticks"], b"after\n")
        .await
        .succeeded();
    let read = cli.run("consume ticks -f %s").await.succeeded();
    assert_eq!(read.stdout, "after", "the node does not mind");
}
