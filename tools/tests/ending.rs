//! `produce` and `replay` against a node of their own, ended early by a signal or waiting for long.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Node, folder, signal};

/// A `produce` whose input stays open, with what it has acknowledged of three lines.
fn producer(node: &Node, form: &str) -> (Child, ChildStdin) {
    let mut produce = node
        .command(&["produce", "orders", "-o", form])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut input = produce.stdin.take().expect("piped");
    input.write_all(b"one\ntwo\nthree\n").expect("it reads");
    (produce, input)
}

fn count(node: &Node) -> u64 {
    let end = node.json(&["topic", "describe", "orders"]);
    end["records"].as_u64().expect("a number")
}

fn reached(node: &Node, records: u64) {
    while count(node) < records {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for an end that must come soon: its exit code.
fn ends_soon(process: &mut Child) -> Option<i32> {
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_secs(10) {
        if let Some(status) = process.try_wait().expect("a child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    process.kill().expect("it runs");
    panic!("it does not end");
}

/// The next line on standard error that has this word.
fn said(errors: &mut BufReader<ChildStderr>, word: &str) -> String {
    loop {
        let mut line = String::new();
        let read = errors.read_line(&mut line).expect("readable");
        assert!(read > 0, "it ended without a word of {word:?}");
        if line.contains(word) {
            return line;
        }
    }
}

/// Seen once: Ctrl-C ended `produce` at once, and nobody knew what had been sent.
#[test]
fn a_producer_that_is_ended_says_what_it_did() {
    let data = folder();
    let node = Node::start(data.path());
    node.json(&["topic", "create", "orders"]);
    let mut before = 0;
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let (mut produce, input) = producer(&node, "json");
        before += 3;
        reached(&node, before);
        signal(produce.id(), name);
        assert_eq!(ends_soon(&mut produce), Some(code));
        drop(input);
        let output = produce.wait_with_output().expect("it ended");
        let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((&summary["produced"], &summary["failed"]), (&3.into(), &0.into()));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("3 records acknowledged in"), "{text}");
    }
    assert_eq!(count(&node), 6);
}

/// The node stands still: what was sent is waited for after the first signal, and not after the second.
#[test]
fn what_was_sent_is_waited_for_until_a_second_signal() {
    let data = folder();
    let node = Node::start(data.path());
    node.json(&["topic", "create", "orders"]);
    for ends_at_once in [false, true] {
        let (mut produce, mut input) = producer(&node, "ndjson");
        let mut acks = BufReader::new(produce.stdout.take().expect("piped"));
        let mut errors = BufReader::new(produce.stderr.take().expect("piped"));
        let mut ack = String::new();
        (0..3).for_each(|_| assert!(acks.read_line(&mut ack).expect("readable") > 0));
        node.signal("-STOP");
        input.write_all(b"four\n").expect("it reads");
        // It is sent by then, or the summary has three.
        std::thread::sleep(Duration::from_millis(500));
        signal(produce.id(), "-INT");
        said(&mut errors, "stopping: waiting for what was sent");
        std::thread::sleep(Duration::from_millis(200));
        assert!(
            produce.try_wait().expect("a child").is_none(),
            "it ended without waiting"
        );
        if ends_at_once {
            signal(produce.id(), "-INT");
        } else {
            // Not read any more.
            input.write_all(b"five\n").expect("an open pipe");
            node.signal("-CONT");
        }
        assert_eq!(ends_soon(&mut produce), Some(130));
        node.signal("-CONT");
        let (mut rest, mut words) = (String::new(), String::new());
        acks.read_to_string(&mut rest).expect("readable");
        errors.read_to_string(&mut words).expect("readable");
        if ends_at_once {
            assert_eq!((rest.as_str(), words.as_str()), ("", ""));
        } else {
            assert_eq!(rest.lines().count(), 1, "{rest}");
            assert!(words.contains("4 records acknowledged in"), "{words}");
            assert_eq!(count(&node), 4, "nothing was read after the signal");
        }
    }
}

/// Seen once: the panic of a time that no clock can hold; and at such a speed everything was sent at once.
#[test]
fn the_slowest_pace_is_a_pace() {
    let data = folder();
    let node = Node::start(&data.path().join("node"));
    node.json(&["topic", "create", "orders"]);
    let (near, far) = (data.path().join("near.csv"), data.path().join("far.csv"));
    std::fs::write(&near, "time_ms,x\n1,a\n2,b\n3,c\n").expect("written");
    std::fs::write(&far, "time_ms,x\n0,a\n1795945800250,b\n1799999999999,c\n").expect("written");
    let (near, far) = (near.display().to_string(), far.display().to_string());
    let slow: [(&[&str], &str); 3] = [
        (
            &["replay", &near, "orders", "--speed", "1e-300"],
            "next line is due in more than 99 years; --speed max sends without waiting",
        ),
        (
            &["replay", &far, "orders"],
            "next line is due in 20786d; --speed max sends without waiting",
        ),
        (&["produce", "orders", "--rate", "1e-300"], ""),
    ];
    for (before, (args, says)) in (0..).zip(slow) {
        let mut process = node
            .command(args)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut input = process.stdin.take().expect("piped");
        // A replay of a file does not read it.
        let _ = input.write_all(b"one\ntwo\n");
        let mut errors = BufReader::new(process.stderr.take().expect("piped"));
        if !says.is_empty() {
            said(&mut errors, says);
        }
        reached(&node, before + 1);
        std::thread::sleep(Duration::from_millis(200));
        signal(process.id(), "-INT");
        assert_eq!(ends_soon(&mut process), Some(130), "{args:?}");
        let mut words = String::new();
        errors.read_to_string(&mut words).expect("readable");
        assert!(!words.contains("next line"), "once: {words}");
        assert_eq!(count(&node), before + 1, "{args:?} keeps its pace");
    }
}
