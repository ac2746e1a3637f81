//! The binary as scripts see it, where that needs no node: exit codes, error lines, and what goes to which output.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn tailwater(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command
        .args(args)
        .env_remove("TAILWATER_SERVER")
        .env_remove("TAILWATER_TOKEN_FILE")
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    tailwater(args).output().expect("it runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs it, and checks exit code, that standard output is empty, and what standard error says.
fn check(args: &[&str], exit: i32, says: &str) {
    let output = run(args);
    assert_eq!(output.status.code(), Some(exit), "{args:?}: {}", stderr(&output));
    assert!(output.stdout.is_empty(), "{args:?}: errors go to standard error");
    assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn wrong_usage_exits_with_2() {
    check(&[], 2, "Usage");
    check(
        &["doctor"],
        2,
        "error: unrecognized subcommand 'doctor' (USAGE)\nhint: ",
    );
    check(
        &["topic", "alter", "t"],
        2,
        "(USAGE)\nhint: Usage: tailwater topic alter",
    );
    check(&["produce"], 2, "not provided: <TOPIC> (USAGE)\n");
    check(&["topic", "create", "a..b"], 2, "INVALID_NAME");
    check(
        &["topic", "create", "a", "--partitions", "0"],
        2,
        "INVALID_PARTITIONS",
    );
    check(
        &["topic", "create", "a", "--partitions", "100000"],
        2,
        "INVALID_PARTITIONS",
    );
    check(
        &["topic", "create", "a", "--partitioner", "md5"],
        2,
        "no partitioner",
    );
    check(&["topic", "create", "a", "--retention", "5"], 2, "unit");
    check(
        &["topic", "create", "a", "--partitions", "-1"],
        2,
        "invalid value '-1' for '--partitions <N>': a topic has 1 to 1024 partitions (INVALID_PARTITIONS)",
    );
    check(
        &["produce", "t", "--rate", "-5"],
        2,
        "invalid value '-5' for '--rate <R>': a rate is a number of records a second, above 0 (USAGE)",
    );
    check(
        &["link", "attach", "a", "b", "--delay", "366d"],
        2,
        "DELAY_TOO_LONG",
    );
    check(&["consume", "t", "-f", "%x"], 2, "%x");
    check(&["demo", "--nodes", "2"], 2, "--nodes");
    check(&["demo", "--speed", "0"], 2, "speed");
    check(&["serve", "--shards", "two"], 2, "--shards");
    check(&["--server", "nowhere", "topic", "list"], 2, "HOST:PORT");
}

#[test]
fn an_unreachable_node_exits_with_4_in_one_line_and_a_hint() {
    let server = format!("127.0.0.1:{}", free_port());
    for args in [
        &["topic", "list"][..],
        &["link", "list"],
        &["consume", "t"],
        &["produce", "t"],
    ] {
        let output = run(&[args, &["--server", &server]].concat());
        assert_eq!(output.status.code(), Some(4), "{args:?}");
        let text = stderr(&output);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].starts_with("error: ") && lines[0].ends_with("(UNREACHABLE)"),
            "{text}"
        );
        assert!(lines[1].starts_with("hint: "), "{text}");
    }
    let output = tailwater(&["topic", "list"])
        .env("TAILWATER_SERVER", &server)
        .output()
        .expect("it runs");
    assert!(
        stderr(&output).contains(&server),
        "the environment names the server"
    );
}

#[test]
fn a_node_that_does_not_answer_exits_with_4() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = listener.local_addr().expect("an address").to_string();
    let output = run(&["topic", "list", "--server", &server]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}

#[test]
fn an_interrupt_exits_with_130() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = listener.local_addr().expect("an address").to_string();
    let mut child = tailwater(&["topic", "list", "--server", &server])
        .spawn()
        .expect("it runs");
    // It has connected, so its signal handler is about to be there as well.
    let _connection = listener.accept().expect("a connection");
    std::thread::sleep(Duration::from_millis(200));
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .expect("kill");
    assert!(kill.success());
    assert_eq!(child.wait().expect("it ended").code(), Some(130));
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = tailwater(&["completions", "bash"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .expect("it runs");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            [
                "produce",
                "inspect",
                "replay",
                "alter",
                "retention-bytes",
                "record-header"
            ]
            .iter()
            .all(|word| script.contains(word)),
            "{shell}"
        );
    }
}

#[test]
fn a_feed_is_checked_before_the_demo_starts() {
    check(&["demo", "--input", "/nowhere/feed.csv"], 3, "/nowhere/feed.csv");
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(b"time_ms,symbol,kind,price_1e4,size\n1,A,trade,x,1\n")
        .expect("written");
    let path = file.path().display().to_string();
    check(&["demo", "--input", &path], 2, "line 2, column price_1e4");
    let full = tempfile::tempdir().expect("a directory");
    std::fs::write(full.path().join("file"), b"x").expect("written");
    check(
        &["demo", "--data", &full.path().display().to_string()],
        2,
        "not empty",
    );
}

/// What is wrong with the first lines of a feed is said before a node is asked.
#[test]
fn a_replay_begins_with_its_feed() {
    check(&["replay", "/nowhere/f.csv", "t"], 3, "/nowhere/f.csv");
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(b"when,symbol\n1,A\n").expect("written");
    let path = file.path().display().to_string();
    check(
        &["replay", &path, "t"],
        2,
        "--time names another one of when, symbol",
    );
    check(
        &["replay", &path, "t", "--time", "when", "--key", "name"],
        2,
        "no column `name`; there are when, symbol (FEED)",
    );
    check(&["replay", &path, "t", "--time", "3"], 2, "no column `3`");
}

#[test]
fn an_empty_feed_is_called_empty() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let path = file.path().display().to_string();
    let says = format!("error: {path}: the file is empty (FEED)");
    check(&["replay", &path, "t"], 2, &says);
    check(&["replay", &path, "t", "--key", "symbol"], 2, &says);
    check(
        &["replay", &path, "t", "--speed", "max", "--record-header", "kind"],
        2,
        &says,
    );
    check(&["demo", "--input", &path], 2, &says);
    check(
        &["replay", "-", "t"],
        2,
        "error: standard input: the file is empty (FEED)",
    );
}

/// A file that is no text must not reach the terminal as it is, nor as a whole.
#[test]
fn a_binary_feed_is_quoted_in_escapes_and_in_part() {
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    let mut bytes = b"\x7fELF\x02\x01\x1b[2J\x1b]0;gone\x07\xc2\x9b31m,".to_vec();
    bytes.extend((0..1_000).flat_map(|n: u32| [(n % 32) as u8 | 1, b',']));
    file.write_all(&bytes).expect("written");
    let path = file.path().display().to_string();
    let commands: [&[&str]; 4] = [
        &["replay", &path, "t"],
        &["replay", &path, "t", "--key", "symbol", "--speed", "max"],
        &["demo", "--input", &path],
        &["inspect", "cursor", &path],
    ];
    for args in commands {
        let output = run(args);
        let text = stderr(&output);
        assert!(
            [2, 5].contains(&output.status.code().expect("an end")),
            "{args:?}: {text}"
        );
        let raw = text.chars().find(|&c| c.is_control() && c != '\n');
        assert_eq!(raw, None, "{args:?}: {text:?}");
        assert!(
            text.len() < 1_000 && output.stdout.is_empty(),
            "{args:?}: {text:?}"
        );
    }
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(b"listen = '\x1b[31m'\n").expect("written");
    let output = run(&["serve", "--config", &file.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(!stderr(&output).contains('\x1b'), "{:?}", stderr(&output));
}

#[test]
fn a_wrong_configuration_exits_with_2() {
    let mut file = tempfile::NamedTempFile::new().expect("temporary file");
    file.write_all(b"lisen = '127.0.0.1:1'\n").expect("written");
    check(
        &["serve", "--config", &file.path().display().to_string()],
        2,
        "INVALID_CONFIG",
    );
    check(&["serve", "--config", "/nowhere.toml"], 3, "/nowhere.toml");
    let data = tempfile::tempdir().expect("a directory");
    let data = data.path().display().to_string();
    check(&["serve", "--data", &data, "--listen", "0.0.0.0:7400"], 2, "TLS");
}

#[test]
fn files_are_inspected_without_a_node() {
    let folder = tempfile::tempdir().expect("a directory");
    let partition = folder.path().join("orders/p00003");
    std::fs::create_dir_all(&partition).expect("made");
    let cursor = partition.join("fanout-analytics.offset");
    std::fs::write(&cursor, br#"{"epoch":"67953471cc57a32a","next_offset":98332}"#).expect("written");
    let path = cursor.display().to_string();
    let output = run(&["inspect", "cursor", &path, "-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&json["parent"], &json["partition"], &json["child"]),
        (&"orders".into(), &3.into(), &"analytics".into())
    );
    assert_eq!(
        (&json["epoch"], &json["next_offset"]),
        (&"67953471cc57a32a".into(), &98_332.into())
    );

    std::fs::write(&cursor, b"").expect("written");
    check(
        &["inspect", "cursor", &path],
        5,
        "the file is empty (CORRUPT_CURSOR_FILE)",
    );
    std::fs::write(&cursor, b"127.0.0.1 localhost\n").expect("written");
    check(
        &["inspect", "cursor", &path],
        5,
        "it is not JSON (line 1, column 6) (CORRUPT_CURSOR_FILE)",
    );
    check(&["inspect", "segment", &path], 5, "CORRUPT_SEGMENT");
    check(&["inspect", "cursor", "/nowhere"], 3, "/nowhere");

    let batches = folder.path().join("batches");
    std::fs::write(&batches, b"this is no batch").expect("written");
    let output = run(&["inspect", "batch", &batches.display().to_string(), "-o", "json"]);
    assert_eq!(output.status.code(), Some(5));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["damage"][0]["position"], 0);
}
