//! `demo`: one command that starts a node, replays a feed, fans it out, and proves that everything arrived.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tailwater_tests::cluster::cli::{Cli, Finished, number};
use tailwater_tests::cluster::place::{binary, directory, free_port, take_machine, workspace};
use tokio::io::AsyncReadExt;

const WITHIN: Duration = Duration::from_secs(60);

/// Nobody listens there: the demo must not look for a node.
fn cli() -> Cli {
    Cli::new(std::net::SocketAddr::from(([127, 0, 0, 1], free_port())))
}

async fn run(args: &[&str]) -> Finished {
    let temporary = directory();
    let started = Instant::now();
    let mut command = cli().command(args);
    command.env("TMPDIR", temporary.path());
    let child = command.spawn().expect("the binary can be started");
    let finished = tailwater_tests::cluster::cli::finish(child, args.join(" "))
        .await
        .succeeded();
    assert!(
        started.elapsed() < WITHIN,
        "the demo took {:?}",
        started.elapsed()
    );
    let left: Vec<_> = std::fs::read_dir(temporary.path())
        .expect("a directory")
        .collect();
    assert!(left.is_empty(), "the demo leaves {left:?} behind");
    finished
}

fn link<'a>(demo: &'a Value, child: &str) -> &'a Value {
    let links = demo["links"].as_array().expect("a list of links");
    let row = links
        .iter()
        .find(|row| row["child"] == child)
        .unwrap_or_else(|| panic!("no row of {child} in {demo}"));
    for fault in ["missing", "duplicate", "early", "dropped"] {
        assert_eq!(number(row, fault), 0, "{fault} in {row}");
    }
    assert_eq!(row["parent"], "ticks", "{row}");
    assert_eq!(row["ok"], true, "{row}");
    assert_eq!(row["records"], row["expected"], "{row}");
    assert_eq!(row["epoch"].as_str().map(str::len), Some(16), "{row}");
    assert!(row["max_late_ms"].is_u64(), "{row}");
    row
}

/// What CLI.md promises, with these numbers.
fn check(demo: &Value, events: u64, trades: Option<u64>) {
    assert_eq!(number(demo, "produced"), events);
    assert!(number(demo, "elapsed_ms") > 0);
    let (p50, p99) = (number(demo, "produce_p50_us"), number(demo, "produce_p99_us"));
    assert!(0 < p50 && p50 <= p99, "{demo}");
    assert!(number(demo, "fsync_p50_us") > 0);
    assert_eq!(demo["links"].as_array().map(Vec::len), Some(3), "{demo}");
    for (child, delay_ms) in [("analytics", 0), ("delayed", 2_000)] {
        let row = link(demo, child);
        assert_eq!(number(row, "records"), events, "{child}");
        assert_eq!(number(row, "filtered"), 0, "{child}");
        assert_eq!(number(row, "delay_ms"), delay_ms, "{child}");
    }
    let row = link(demo, "trades");
    let (passed, filtered) = (number(row, "records"), number(row, "filtered"));
    assert_eq!(passed + filtered, events);
    assert!(passed > 0 && filtered > 0, "{row}");
    assert_eq!(trades.unwrap_or(passed), passed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_built_in_feed_arrives_whole_in_every_child() {
    let _alone = take_machine().await;
    let finished = run(&["demo", "-o", "json"]).await;
    check(&finished.json(), 50_000, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_get_one_table() {
    let _alone = take_machine().await;
    let finished = run(&["demo", "--speed", "max"]).await;
    for word in ["analytics", "trades", "delayed", "50000"] {
        assert!(
            finished.stdout.replace(',', "").contains(word),
            "no {word} in\n{}",
            finished.stdout
        );
    }
    assert!(
        !finished.stdout.contains('\u{1b}'),
        "no colours and no progress where there is no terminal"
    );
}

/// `script` gives the demo a terminal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_gets_progress_while_it_runs() {
    let _alone = take_machine().await;
    let temporary = directory();
    let demo = format!("{} demo --speed max", binary().display());
    let mut command = tokio::process::Command::new("script");
    command.args(["--quiet", "--return", "--command", &demo, "/dev/null"]);
    command
        .env("TMPDIR", temporary.path())
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let started = Instant::now();
    let mut child = command.spawn().expect("`script` is there");
    let mut stdout = child.stdout.take().expect("piped");
    let (mut first, mut all, mut some) = (None, Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = stdout.read(&mut some).await {
        all.extend_from_slice(&some[..length]);
        if first.is_none() && String::from_utf8_lossy(&all).contains("/50,000") {
            first = Some(started.elapsed());
        }
    }
    let text = String::from_utf8_lossy(&all);
    assert!(child.wait().await.expect("our own child").success(), "{text}");
    let took = started.elapsed();
    let first = first.unwrap_or_else(|| panic!("no progress in\n{text}"));
    assert!(
        first < took / 2,
        "the first sign of progress came after {first:?} of {took:?}"
    );
    assert!(text.contains("analytics"), "the table comes in the end:\n{text}");
}

/// Real ticks, where they are at hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_feed_arrives_whole_in_every_child() {
    let file: PathBuf = workspace().join("../shared/data/us-equities-20131009-open.csv.gz");
    if !file.exists() {
        eprintln!(
            "{} is not there: the built-in feed alone was tried",
            file.display()
        );
        return;
    }
    let _alone = take_machine().await;
    let finished = run(&["demo", "--input", file.to_str().expect("UTF-8"), "-o", "json"]).await;
    check(&finished.json(), 49_452, Some(22_908));
    assert_eq!(number(link(&finished.json(), "trades"), "filtered"), 26_544);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_that_cannot_be_read_is_named() {
    let home = directory();
    let missing = home.path().join("missing.csv");
    let finished = cli().run(&format!("demo --input {}", missing.display())).await;
    assert_eq!(finished.code, Some(3), "{finished:?}");
    assert!(finished.stderr.contains("missing.csv"), "{finished:?}");
    let wrong = home.path().join("wrong.csv");
    std::fs::write(&wrong, "time_ms,symbol\n1,IBM\n").expect("a writable directory");
    let finished = cli().run(&format!("demo --input {}", wrong.display())).await;
    assert!(matches!(finished.code, Some(1 | 2)), "{finished:?}");
    assert!(finished.stderr.starts_with("error: "), "{finished:?}");
}
