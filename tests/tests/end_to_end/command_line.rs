//! The CLI as scripts use it: lines in, records out, acknowledgements as they come, pipes that break.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tailwater_tests::cluster::cli::{finish, number};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::{binary, share_machine};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);

fn args(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_produced_is_consumed_and_each_acknowledgement_names_its_place() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let cli = node.cli();
    cli.run("topic create ticks --partitions 3").await.succeeded();
    let lines: Vec<String> = (0..1_000)
        .map(|n| format!("key-{}:value {n}: with more", n % 17))
        .collect();
    let produced = cli
        .run_with_input(&args("produce ticks -k : -o ndjson"), lines.join("\n").as_bytes())
        .await;
    let acknowledged = produced.succeeded().json_lines();
    assert_eq!(acknowledged.len(), lines.len());
    let mut places: Vec<(u64, u64)> = acknowledged
        .iter()
        .map(|ack| (number(ack, "partition"), number(ack, "offset")))
        .collect();
    places.sort_unstable();
    assert!(
        acknowledged
            .iter()
            .all(|ack| ack["durability"] == "fsync" && number(ack, "commit_time") > 0)
    );

    let read = cli.run("consume ticks -f %t|%p|%o|%k|%s\\n").await.succeeded();
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    for line in read.stdout.lines() {
        let fields: Vec<&str> = line.splitn(5, '|').collect();
        let [topic, partition, offset, key, value] = fields[..] else {
            panic!("{line}")
        };
        assert_eq!(topic, "ticks");
        found.push((
            partition.parse().expect("a number"),
            offset.parse().expect("a number"),
        ));
        texts.push(format!("{key}:{value}"));
    }
    found.sort_unstable();
    assert_eq!(found, places, "every record is where its acknowledgement says");
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(sorted(texts), sorted(lines));

    let array = cli.json("consume ticks").await;
    let rows = array.as_array().expect("one array");
    assert_eq!(rows.len(), 1_000);
    let of_key = |key: &str| -> Vec<&Value> { rows.iter().filter(|row| row["key"] == key).collect() };
    let order: Vec<&str> = of_key("key-3")
        .iter()
        .filter_map(|row| row["value"].as_str())
        .collect();
    let expected: Vec<String> = (0..1_000)
        .filter(|n| n % 17 == 3)
        .map(|n| format!("value {n}: with more"))
        .collect();
    assert_eq!(order, expected, "records of one key keep their order");
    let partitions: std::collections::BTreeSet<u64> = of_key("key-3")
        .iter()
        .map(|row| number(row, "partition"))
        .collect();
    assert_eq!(partitions.len(), 1, "and their partition");

    let description = cli.json("topic describe ticks").await;
    assert_eq!(number(&description, "records"), 1_000);
    let two = cli
        .run("consume ticks -p 1 --from offset:5 -n 2 -o ndjson")
        .await
        .succeeded()
        .json_lines();
    let offsets: Vec<(u64, u64)> = two
        .iter()
        .map(|row| (number(row, "partition"), number(row, "offset")))
        .collect();
    assert_eq!(offsets, [(1, 5), (1, 6)]);
    let last = number(rows.last().expect("rows"), "commit_time");
    assert!(last >= number(&acknowledged[0], "commit_time"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_is_printed_when_it_comes_and_not_at_the_end() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let cli = node.cli();
    cli.run("topic create ticks").await.succeeded();
    let mut command = cli.command(&args("produce ticks -o ndjson"));
    command.stdin(Stdio::piped());
    let mut child = command.spawn().expect("the binary can be started");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
    for offset in 0..5 {
        stdin.write_all(b"one\n").await.expect("an open pipe");
        let line = timeout(SOON, stdout.next_line())
            .await
            .expect("an acknowledgement before the end of the input");
        let line: Value = serde_json::from_str(&line.expect("a pipe").expect("a line")).expect("JSON");
        assert_eq!(number(&line, "offset"), offset);
    }
    drop(stdin);
    assert!(
        timeout(SOON, child.wait())
            .await
            .expect("an end")
            .expect("our own child")
            .success()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_sees_what_is_produced_later() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let cli = node.cli();
    cli.run("topic create ticks --partitions 2").await.succeeded();
    cli.run_with_input(&["produce", "ticks"], b"before\n")
        .await
        .succeeded();
    let mut follower = cli
        .command(&args("consume ticks --from tail --follow -n 3 -f %s\\n"))
        .spawn()
        .expect("a follower");
    let mut stdout = BufReader::new(follower.stdout.take().expect("piped")).lines();
    // The tail is where the follower's start finds it.
    tokio::time::sleep(Duration::from_millis(700)).await;
    for text in ["one", "two", "three"] {
        cli.run_with_input(&["produce", "ticks"], text.as_bytes())
            .await
            .succeeded();
        let line = timeout(SOON, stdout.next_line())
            .await
            .expect("the record in time");
        assert_eq!(line.expect("a pipe").as_deref(), Some(text));
    }
    assert!(
        timeout(SOON, follower.wait())
            .await
            .expect("an end")
            .expect("our own child")
            .success()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away_is_no_error() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let cli = node.cli();
    cli.run("topic create ticks").await.succeeded();
    let lines = "a line of some length to fill the pipe with\n".repeat(50_000);
    cli.run_with_input(&["produce", "ticks"], lines.as_bytes())
        .await
        .succeeded();
    for line in [
        "consume ticks -o ndjson",
        "consume ticks -f %s\\n",
        "consume ticks -o json",
    ] {
        let mut child = cli
            .command(&args(line))
            .spawn()
            .expect("the binary can be started");
        let mut stdout = child.stdout.take().expect("piped");
        let mut some = [0; 100];
        stdout.read_exact(&mut some).await.expect("some output");
        drop(stdout);
        let finished = timeout(SOON, finish(child, line.to_owned()))
            .await
            .expect("it ends with its reader");
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{line}");
    }
    let read = cli.run("consume ticks -f .").await.succeeded();
    assert_eq!(read.stdout.len(), 50_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_ends_with_4_and_a_hint() {
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], tailwater_tests::cluster::place::free_port()));
    let cli = tailwater_tests::cluster::cli::Cli::new(nowhere);
    for line in ["topic list", "consume ticks", "link verify a b"] {
        let refused = cli.run(line).await;
        refused.refused(4, "UNREACHABLE");
        assert!(refused.stderr.contains("hint: "), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_can_be_looked_into_while_no_node_runs() {
    let _shared = share_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    for line in [
        "topic create ticks",
        "topic create copy",
        "link attach ticks copy",
    ] {
        cli.run(line).await.succeeded();
    }
    cli.run_with_input(&["produce", "ticks"], b"one\ntwo\nthree\n")
        .await
        .succeeded();
    cli.verify("ticks", "copy").await;
    node.stop().await;
    let directory = node.data().join("topics/ticks/p00000");
    let segment = directory.join("00000000000000000000.log");
    let segment = cli
        .run_with_input(
            &[
                "inspect",
                "segment",
                segment.to_str().expect("UTF-8"),
                "-o",
                "json",
            ],
            b"",
        )
        .await;
    let segment = segment.succeeded().json();
    assert!(segment.is_object() || segment.is_array(), "{segment}");
    let cursor = directory.join("fanout-copy.offset");
    let cursor = cli
        .run_with_input(
            &["inspect", "cursor", cursor.to_str().expect("UTF-8"), "-o", "json"],
            b"",
        )
        .await;
    assert_eq!(number(&cursor.succeeded().json(), "next_offset"), 3);
}

#[test]
fn help_and_version_are_printed() {
    for (argument, word) in [("--help", "serve"), ("--version", "tailwater")] {
        let output = std::process::Command::new(binary())
            .arg(argument)
            .output()
            .expect("the binary can be started");
        assert!(output.status.success());
        assert!(
            String::from_utf8_lossy(&output.stdout).contains(word),
            "{output:?}"
        );
    }
}
