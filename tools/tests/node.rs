//! The binary against a node of its own: what is acknowledged is there, also after kill -9, and every link verifies.

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{Node, folder, lines};

#[test]
fn a_record_goes_its_way_and_survives() {
    let data = folder();
    let mut node = Node::start(data.path());
    node.json(&["topic", "create", "orders", "--partitions", "3"]);
    node.json(&["topic", "create", "copies", "--partitions", "2"]);
    node.json(&["topic", "create", "odd", "--partitions", "2"]);
    node.json(&["link", "attach", "orders", "copies"]);
    node.json(&[
        "link",
        "attach",
        "orders",
        "odd",
        "--delay",
        "300ms",
        "--filter",
        "key=key-1|key-3",
    ]);
    let acks = node.produce("orders", &lines(0..5_000));
    assert_eq!(acks.len(), 5_000);
    assert!(
        acks.iter()
            .all(|ack| ack["durability"] == "fsync" && ack["commit_time"].is_u64())
    );

    assert_eq!(node.end("-KILL"), None);
    let node = Node::start(data.path());
    let consumed = node.run(&["consume", "orders", "-f", "%p/%o\\n"]);
    let consumed = String::from_utf8(consumed.stdout).expect("UTF-8");
    let mut there: Vec<&str> = consumed.lines().collect();
    there.sort_unstable();
    let mut acked: Vec<String> = acks
        .iter()
        .map(|ack| format!("{}/{}", ack["partition"], ack["offset"]))
        .collect();
    acked.sort_unstable();
    assert_eq!(there, acked, "what was acknowledged is there, once");

    let more = node.produce("orders", &lines(5_000..6_000));
    assert_eq!(more.len(), 1_000);
    let row = node.json(&["link", "verify", "orders", "copies"]);
    assert_eq!(
        (&row["ok"], &row["records"], &row["missing"]),
        (&true.into(), &6_000.into(), &0.into()),
        "{row}"
    );
    let row = node.json(&["link", "verify", "orders", "odd"]);
    assert_eq!(
        (&row["ok"], &row["records"], &row["filtered"]),
        (&true.into(), &240.into(), &5_760.into()),
        "{row}"
    );
    let links = node.json(&["link", "list", "orders"]);
    assert_eq!(links.as_array().map(Vec::len), Some(2));

    // Without a re-attach nothing goes on; with one, nothing of the time in between is copied.
    node.json(&["link", "detach", "orders", "copies", "--drain"]);
    assert_eq!(
        node.run(&["link", "verify", "orders", "copies"]).status.code(),
        Some(3)
    );
    node.produce("orders", &lines(0..100));
    node.json(&["link", "attach", "orders", "copies"]);
    node.produce("orders", &lines(0..10));
    let row = node.json(&["link", "verify", "orders", "copies"]);
    assert_eq!((&row["ok"], &row["records"]), (&true.into(), &10.into()), "{row}");

    assert_eq!(
        node.run(&["topic", "delete", "orders"]).status.code(),
        Some(1),
        "it has live links"
    );
    assert_eq!(node.run(&["topic", "describe", "nothing"]).status.code(), Some(3));
    assert_eq!(node.run(&["consume", "orders", "-p", "3"]).status.code(), Some(3));
    let mut node = node;
    assert_eq!(node.end("-TERM"), Some(0), "SIGTERM drains");
}

#[test]
fn a_copy_that_rotted_is_found() {
    let data = folder();
    let mut node = Node::start(data.path());
    node.json(&["topic", "create", "parent"]);
    node.json(&["topic", "create", "child"]);
    node.json(&["link", "attach", "parent", "child"]);
    node.produce("parent", &lines(0..100));
    node.json(&["link", "verify", "parent", "child"]);
    node.produce("child", &lines(0..7));
    node.produce("parent", &lines(100..130));
    let row = node.json(&["link", "verify", "parent", "child"]);
    let clean = (&true.into(), &130.into());
    assert_eq!(
        (&row["ok"], &row["records"]),
        clean,
        "the child's own records are no copies: {row}"
    );
    assert_eq!(node.end("-TERM"), Some(0));

    let segment = data.path().join("topics/child/p00000/00000000000000000000.log");
    let file = segment.display().to_string();
    let report = node.json(&["inspect", "segment", &file]);
    assert_eq!(report["end_offset"], 137);
    let mut bytes = std::fs::read(&segment).expect("a segment");
    let position = report["batches"][0]["position"].as_u64().expect("a position") as usize;
    bytes[position + 200] ^= 1;
    std::fs::write(&segment, bytes).expect("written");
    let output = node.run(&["inspect", "segment", &file, "-o", "json"]);
    assert_eq!(output.status.code(), Some(5));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["damage"][0]["verdict"], "rot");

    let node = Node::start(data.path());
    let output = node.run(&["link", "verify", "parent", "child", "-o", "json"]);
    assert_eq!(output.status.code(), Some(5), "what is lost is found");
    let row: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let lost = row["missing"].as_u64().expect("a number");
    assert!(lost > 0 && row["records"].as_u64() == Some(130 - lost), "{row}");
    assert_eq!(
        node.run(&["consume", "child"]).status.code(),
        Some(0),
        "the rest can be read"
    );
}

#[test]
fn the_demo_fans_a_feed_out() {
    let data = folder();
    let home = data.path().join("demo");
    let output = Command::new(env!("CARGO_BIN_EXE_tailwater"))
        .args(["demo", "--speed", "max", "-o", "json", "--data"])
        .arg(&home)
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["produced"], 50_000);
    for (at, child, records) in [
        (0, "analytics", 50_000),
        (1, "trades", 23_160),
        (2, "delayed", 50_000),
    ] {
        let row = &report["links"][at];
        assert_eq!((&row["child"], &row["records"]), (&child.into(), &records.into()));
        let findings = [
            "missing",
            "duplicate",
            "early",
            "unexpected",
            "differing",
            "dropped",
            "pending",
        ];
        assert!(findings.iter().all(|finding| row[finding] == 0), "{row}");
    }
    assert_eq!(report["links"][1]["filtered"], 26_840);
    assert!(report["fsync_p50_us"].as_u64() > Some(0));
    assert!(home.join("topics/ticks").is_dir(), "the data was asked to stay");
}

/// Seen once: SIGTERM, also from `timeout`, left the temporary directory behind.
#[test]
fn a_demo_that_is_told_to_end_cleans_up() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let temporary = folder();
        let mut demo = Command::new(env!("CARGO_BIN_EXE_tailwater"))
            .args(["demo", "--speed", "1"])
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        let entries = || std::fs::read_dir(temporary.path()).expect("it is there").count();
        while entries() == 0 {
            assert!(demo.try_wait().expect("a child").is_none(), "it ended early");
            std::thread::sleep(Duration::from_millis(20));
        }
        let kill = Command::new("kill")
            .args([signal, &demo.id().to_string()])
            .status();
        assert!(kill.expect("kill").success());
        assert_eq!(demo.wait().expect("it ended").code(), Some(code));
        assert_eq!(entries(), 0, "{signal} left something behind");
    }
}

/// Seen once: at 80 columns the cells of `link list` were cut over six lines.
#[test]
fn a_narrow_terminal_does_not_cut_cells() {
    let data = folder();
    let node = Node::start(data.path());
    for topic in ["orders", "copies"] {
        node.json(&["topic", "create", topic]);
    }
    node.json(&["link", "attach", "orders", "copies"]);
    for (command, row) in [("link list", "orders"), ("link verify orders copies", "orders")] {
        // The second is a terminal that does not know its size.
        for columns in [40, 0] {
            let line = format!(
                "stty cols {columns}; {} {command}",
                env!("CARGO_BIN_EXE_tailwater")
            );
            let output = Command::new("script")
                .args(["--quiet", "--return", "--command", &line, "/dev/null"])
                .env("TAILWATER_SERVER", &node.server)
                .env("TERM", "xterm")
                .stdin(Stdio::null())
                .output()
                .expect("`script` is there");
            let text = String::from_utf8_lossy(&output.stdout);
            let whole = |parts: [&str; 4]| {
                text.lines()
                    .any(|line| parts.iter().all(|part| line.contains(part)))
            };
            assert!(output.status.success(), "{text}");
            assert!(
                whole(["PARENT", "CHILD", "EPOCH", "FILTERED"]),
                "{command} at {columns}:\n{text}"
            );
            assert!(
                whole([row, "copies", "0", " "]),
                "{command} at {columns}:\n{text}"
            );
        }
    }
}
