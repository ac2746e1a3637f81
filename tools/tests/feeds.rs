//! The binary against a node of its own: feeds that are replayed, records that are consumed in order, and what operators
//! change and ask.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Node, folder, lines};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn rows(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Runs a command that must fail with this exit code and these words.
fn refused(node: &Node, args: &[&str], exit: i32, says: &str) {
    let output = node.run(args);
    assert_eq!(output.status.code(), Some(exit), "{args:?}: {}", stderr(&output));
    assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
}

/// A feed of so many rows, `every_ms` apart, with three keys.
fn feed(folder: &std::path::Path, count: u64, every_ms: u64) -> PathBuf {
    let path = folder.join("feed.csv");
    let mut text = "time_ms,symbol,price\n".to_owned();
    for n in 0..count {
        let symbol = ["IBM", "BAC", "AIG"][n as usize % 3];
        text += &format!("{},{symbol},{n}\n", 34_140_000 + n * every_ms);
    }
    std::fs::write(&path, text).expect("written");
    path
}

fn interrupt(pid: u32) {
    let kill = Command::new("kill").args(["-INT", &pid.to_string()]).status();
    assert!(kill.expect("kill").success());
}

/// Whether records stand in order of commit time, then partition, then offset.
fn is_merged(rows: &[Value]) -> bool {
    let key = |row: &Value| {
        ["commit_time", "partition", "offset"].map(|name| row[name].as_u64().expect("a number"))
    };
    rows.windows(2).all(|pair| key(&pair[0]) < key(&pair[1]))
}

#[test]
fn a_feed_is_replayed_and_consumed_in_order_of_commit_time() {
    let data = folder();
    let node = Node::start(&data.path().join("node"));
    node.json(&["topic", "create", "ticks", "--partitions", "3"]);
    let file = feed(data.path(), 3_000, 1).display().to_string();
    let summary = node.json(&[
        "replay",
        &file,
        "ticks",
        "--speed",
        "max",
        "--key",
        "symbol",
        "--record-header",
        "symbol",
    ]);
    assert_eq!(
        (&summary["sent"], &summary["produced"], &summary["failed"]),
        (&3_000.into(), &3_000.into(), &0.into()),
        "{summary}"
    );
    let merged = rows(&node.run(&["consume", "ticks"]));
    assert_eq!(merged.len(), 3_000);
    assert!(is_merged(&merged));
    assert_eq!(merged[0]["headers"][0]["name"], "symbol");
    let array = node.json(&["consume", "ticks"]);
    assert_eq!(array.as_array(), Some(&merged));
    let some = node.run(&["consume", "ticks", "-n", "7", "-f", "%T %k %s %h\\n"]);
    let some = String::from_utf8(some.stdout).expect("UTF-8");
    assert_eq!(some.lines().count(), 7);
    for line in some.lines() {
        let parts: Vec<&str> = line.split(' ').collect();
        assert!(
            parts[2].starts_with(&format!("{},{},", parts[0], parts[1])),
            "{line}"
        );
        assert_eq!(parts[3], format!("symbol={}", parts[1]), "{line}");
    }

    // 40 rows 10 ms apart at twice the pace take 195 ms and, on a slow machine, more.
    let file = feed(data.path(), 40, 10).display().to_string();
    let summary = node.json(&["replay", &file, "ticks", "--speed", "2"]);
    assert_eq!(summary["produced"], 40);
    assert!(summary["elapsed_ms"].as_u64() >= Some(195), "{summary}");
    assert!(summary["late_max_ms"].is_f64(), "{summary}");
}

#[test]
fn a_replay_that_ends_early_says_what_it_did() {
    let data = folder();
    let node = Node::start(&data.path().join("node"));
    node.json(&["topic", "create", "ticks", "--partitions", "2"]);
    let count = || rows(&node.run(&["consume", "ticks"])).len() as u64;

    // A line that is wrong: what stands before it was sent.
    let file = data.path().join("wrong.csv");
    std::fs::write(&file, "time_ms,x\n1,a\n2,b\n3,c\nsoon,d\n").expect("written");
    let file = file.display().to_string();
    let output = node.run(&["replay", &file, "ticks", "--speed", "max", "-o", "json"]);
    assert_eq!(output.status.code(), Some(2));
    let says = "line 5, column time_ms: \"soon\" is not a number of milliseconds since the epoch (FEED)";
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
    assert_eq!((rows(&output)[0]["produced"].as_u64(), count()), (Some(3), 3));

    // Ctrl-C, with rows that would take an hour.
    let file = feed(data.path(), 36_000, 100).display().to_string();
    let replay = node
        .command(&["replay", &file, "ticks", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    while count() < 5 {
        std::thread::sleep(Duration::from_millis(20));
    }
    interrupt(replay.id());
    let output = replay.wait_with_output().expect("it ended");
    assert_eq!(output.status.code(), Some(130));
    let summary = &rows(&output)[0];
    assert_eq!(summary["interrupted"], true);
    assert_eq!(summary["produced"].as_u64(), Some(count() - 3), "{summary}");
    assert_eq!(summary["sent"], summary["produced"]);
}

#[test]
fn a_follower_waits_neither_for_silent_partitions_nor_in_vain() {
    let data = folder();
    let node = Node::start(data.path());
    node.json(&["topic", "create", "orders", "--partitions", "4"]);
    node.produce("orders", &lines(0..100));
    refused(
        &node,
        &["consume", "orders", "-p", "0", "--from", "offset:1000"],
        1,
        "was to be read from 1000 (POSITION_AHEAD)",
    );

    let mut follower = node
        .command(&[
            "consume", "orders", "--follow", "--from", "tail", "-n", "3", "-f", "%p %s\\n",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut output = BufReader::new(follower.stdout.take().expect("piped"));
    // It is at the tail by then, or a later record is the first.
    std::thread::sleep(Duration::from_millis(500));
    for n in 0..3 {
        let mut produce = node.command(&["produce", "orders", "-p", "2"]);
        let mut produce = produce.stdin(Stdio::piped()).spawn().expect("it runs");
        let mut input = produce.stdin.take().expect("piped");
        input
            .write_all(format!("late-{n}\n").as_bytes())
            .expect("it reads");
        drop(input);
        assert!(produce.wait().expect("it ended").success());
        let asked = Instant::now();
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, format!("2 late-{n}\n"));
        assert!(
            asked.elapsed() < Duration::from_secs(5),
            "a silent partition was waited for"
        );
    }
    assert!(follower.wait().expect("it ended").success());

    // An offset that is not there yet comes; Ctrl-C closes the array.
    let end = node.json(&["topic", "describe", "orders"]);
    let end = end["partition_list"][2]["high_water_mark"]
        .as_u64()
        .expect("a number");
    let from = format!("offset:{}", end + 2);
    let follower = node
        .command(&[
            "consume", "orders", "-p", "2", "--follow", "--from", &from, "-o", "json",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    std::thread::sleep(Duration::from_millis(300));
    let mut produce = node.command(&["produce", "orders", "-p", "2"]);
    let mut produce = produce.stdin(Stdio::piped()).spawn().expect("it runs");
    let mut input = produce.stdin.take().expect("piped");
    input.write_all(b"one\ntwo\nthree\n").expect("it reads");
    drop(input);
    assert!(produce.wait().expect("it ended").success());
    std::thread::sleep(Duration::from_millis(1_500));
    interrupt(follower.id());
    let output = follower.wait_with_output().expect("it ended");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("waiting: partition 2 ends"),
        "{}",
        stderr(&output)
    );
    let array: Value = serde_json::from_slice(&output.stdout).expect("a closed array");
    assert_eq!(
        (array[0]["value"].as_str(), array[1].is_null()),
        (Some("three"), true),
        "{array}"
    );
}

#[test]
fn settings_of_a_topic_change_within_the_rules() {
    let data = folder();
    let mut node = Node::start(data.path());
    for topic in ["orders", "copies"] {
        node.json(&["topic", "create", topic, "--partitions", "2", "--retention", "7d"]);
    }
    let row = node.json(&["topic", "alter", "orders", "--retention-bytes", "1GiB"]);
    let kept = |row: &Value| (row["retention_ms"].clone(), row["retention_bytes"].clone());
    assert_eq!(kept(&row), (604_800_000.into(), (1u64 << 30).into()));
    let row = node.json(&[
        "topic",
        "alter",
        "orders",
        "--retention",
        "3h",
        "--retention-bytes",
        "off",
    ]);
    assert_eq!(kept(&row), (10_800_000.into(), Value::Null));

    node.json(&["link", "attach", "orders", "copies", "--delay", "1h"]);
    refused(
        &node,
        &["topic", "alter", "orders", "--retention", "119m"],
        1,
        "the floor for `copies` with its delay of 3600000 ms is 7200000 ms",
    );
    refused(
        &node,
        &["topic", "alter", "orders", "--retention-bytes", "1GiB"],
        1,
        "RETENTION_BELOW_FLOOR",
    );
    refused(
        &node,
        &["topic", "alter", "copies", "--partitions", "3"],
        1,
        "TOPIC_IN_USE",
    );
    refused(
        &node,
        &["topic", "alter", "copies", "--partitions", "1"],
        2,
        "INVALID_PARTITIONS",
    );
    refused(
        &node,
        &["topic", "alter", "none", "--partitions", "3"],
        3,
        "UNKNOWN_TOPIC",
    );
    node.json(&["topic", "alter", "orders", "--retention", "120m"]);
    let row = node.json(&["topic", "alter", "orders", "--partitions", "5"]);
    assert_eq!(
        (&row["partitions"], &row["retention_ms"]),
        (&5.into(), &7_200_000.into())
    );

    // It is so after a restart as well, and new partitions are served.
    assert_eq!(node.end("-KILL"), None);
    let node = Node::start(data.path());
    let described = node.json(&["topic", "describe", "orders"]);
    assert_eq!(described["partition_list"].as_array().map(Vec::len), Some(5));
    assert_eq!(described["retention_ms"], 7_200_000);
}

#[test]
fn a_link_is_drained_to_where_its_parent_was() {
    let data = folder();
    let node = Node::start(data.path());
    for topic in ["orders", "copies", "later"] {
        node.json(&["topic", "create", topic, "--partitions", "2"]);
    }
    node.produce("orders", &lines(0..4_000));
    // The parent goes on for as long as the link is drained.
    let mut producer = node.command(&["produce", "orders", "-k", ":", "--rate", "2000"]);
    let mut producer = producer
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut input = producer.stdin.take().expect("piped");
    input.write_all(lines(4_000..5_000).as_bytes()).expect("it reads");
    let more = lines(5_000..1_000_000);
    let writer = std::thread::spawn(move || {
        // It ends when the producer is gone.
        let _ = input.write_all(more.as_bytes());
    });
    node.json(&["link", "attach", "orders", "copies", "--from", "earliest"]);
    node.json(&["link", "detach", "orders", "copies", "--drain"]);
    assert!(
        producer.try_wait().expect("a child").is_none(),
        "it still produces"
    );
    producer.kill().expect("it runs");
    producer.wait().expect("it ended");
    writer.join().expect("it ended");
    let copied = rows(&node.run(&["consume", "copies"])).len();
    assert!(
        copied >= 4_000,
        "{copied} of what was there when it was asked for"
    );

    // With a delay it waits for what is due.
    node.json(&["link", "attach", "orders", "later", "--delay", "4s"]);
    node.produce("orders", &lines(0..10));
    let started = Instant::now();
    let drained = node.run(&["link", "detach", "orders", "later", "--drain", "-o", "json"]);
    assert_eq!(drained.status.code(), Some(0), "{}", stderr(&drained));
    assert!(
        started.elapsed() > Duration::from_millis(2_000),
        "{:?}",
        started.elapsed()
    );
    let says = stderr(&drained);
    assert_eq!(says.matches("waiting: ").count(), 1, "once: {says}");
    assert!(
        says.contains("waiting: 10 records are left, and the link's delay is 4s"),
        "{says}"
    );
    assert_eq!(rows(&node.run(&["consume", "later"])).len(), 10);
}

#[test]
fn details_of_links_and_partitions_are_put_together_from_all_shards() {
    let data = folder();
    let node = Node::start(data.path());
    for topic in ["orders", "copies"] {
        node.json(&["topic", "create", topic, "--partitions", "2"]);
    }
    node.json(&["link", "attach", "orders", "copies"]);
    refused(&node, &["link", "list", "copies", "orders"], 3, "UNKNOWN_LINK");
    let link = node.run(&["link", "list", "orders", "copies", "-o", "json"]);
    let partitions = node.run(&["partition", "list", "orders", "-o", "json"]);
    let rows = |output: &Output| -> Value {
        assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let (link, partitions) = (rows(&link), rows(&partitions));
    let cursors = link[0]["cursors"].as_array();
    assert_eq!(
        cursors.map(Vec::len),
        Some(2),
        "one for each parent partition: {link}"
    );
    assert_eq!(partitions.as_array().map(Vec::len), Some(2), "{partitions}");
}
