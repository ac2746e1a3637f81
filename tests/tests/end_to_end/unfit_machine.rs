//! A machine or a directory that a node cannot work on: it says so by name, ends with exit code 1, and leaves alone
//! what others have.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::mount::LoopMount;
use tailwater_tests::cluster::node::{Refused, TestNode};
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::log;
use tailwater_tests::cluster::witness::{Witness, spec};

/// How long a node tries a port that is in use.
const PORT_WITHIN: Duration = Duration::from_secs(10);

/// One line that begins with `error: ` and has these words, and exit code 1.
#[track_caller]
fn check(refused: &Refused, words: &[&str]) {
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let errors: Vec<&str> = refused
        .log
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    let [error] = errors[..] else {
        panic!("one line that begins with `error: `: {refused:?}")
    };
    for word in words {
        assert!(error.contains(word), "no `{word}` in `{error}`");
    }
    assert!(!refused.log.contains("panicked"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_in_use_is_named_and_its_owner_goes_on() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    let mut second = TestNode::prepare(Some(node.data()), "");
    for _ in 0..3 {
        let refused = second.start_refused().await;
        let directory = node.data().display().to_string();
        check(&refused, &["in use", &directory]);
    }
    let client = node.client().await;
    client.create_topic(spec(&topic("a"), 1)).await.expect("a topic");
    let account = produce(&client, &topic("a"), LoadOptions::new(0, 1_000)).await;
    log(&client, &topic("a")).await.holds(&account.acknowledged);
    witness.was_served().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_directory_that_cannot_be_written_is_named() {
    let _shared = share_machine().await;
    let disk = LoopMount::new(32);
    std::fs::create_dir(disk.path().join("data")).expect("a directory");
    disk.make_read_only();
    for directory in ["data", "not-there"] {
        let directory = disk.path().join(directory);
        let refused = TestNode::prepare(Some(&directory), "").start_refused().await;
        check(
            &refused,
            &[&directory.display().to_string(), "Read-only file system"],
        );
    }
    let file = TestNode::prepare(None, "");
    std::fs::write(file.data(), b"a file").expect("a writable directory");
    let refused = TestNode::prepare(Some(file.data()), "").start_refused().await;
    check(&refused, &[&file.data().display().to_string()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_or_a_setting_that_cannot_be_is_named() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let taken = node.listen().to_string();
    let mut second = TestNode::prepare(None, "").listening_as(&node);
    let began = Instant::now();
    check(&second.start_refused().await, &[&taken, "in use", "(LISTEN)"]);
    assert!(began.elapsed() >= PORT_WITHIN, "a port may yet become free");
    for (config, words) in [
        ("lisen = '127.0.0.1:1'", &["lisen"][..]),
        ("shards = 0", &["shards", "1 to 256"]),
        (
            "[log]\nsegment_bytes_first = 5000",
            &["segment_bytes_first", "4096"],
        ),
        ("data = ", &["tailwater.toml"]),
    ] {
        let refused = TestNode::prepare(None, config).start_refused().await;
        assert!(matches!(refused.code, Some(1 | 2)), "{refused:?}");
        let error = refused.log.lines().find(|line| line.starts_with("error: "));
        let error = error.unwrap_or_else(|| panic!("no error line: {refused:?}"));
        assert!(
            words.iter().all(|word| error.contains(word)),
            "{words:?} in `{error}`"
        );
    }
    assert!(node.get("/healthz").await.0 == 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_becomes_free_is_taken() {
    let _shared = share_machine().await;
    let mut node = TestNode::prepare(None, "");
    let holder = TcpListener::bind(node.listen()).expect("a free port");
    let held = Duration::from_secs(2);
    let freed = tokio::spawn(async move {
        tokio::time::sleep(held).await;
        drop(holder);
    });
    assert!(node.restart().await >= held);
    freed.await.expect("freed");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_little_locked_memory_is_named() {
    let _shared = share_machine().await;
    let mut node = TestNode::prepare(None, "shards = 3").through(&["prlimit", "--memlock=65536:65536", "--"]);
    check(&node.start_refused().await, &["RLIMIT_MEMLOCK", "1572864"]);
    // What is enough is used.
    let mut node = TestNode::prepare(None, "").through(&["prlimit", "--memlock=4194304:4194304", "--"]);
    node.restart().await;
    assert_eq!(node.get("/healthz").await.0, 200);
    node.stop().await;
}

/// A node that may open 64 files said that it was ready, and then could neither make a topic nor take a client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_open_files_are_named() {
    let _shared = share_machine().await;
    let mut node = TestNode::prepare(None, "").through(&["prlimit", "--nofile=64:64", "--"]);
    check(
        &node.start_refused().await,
        &["RLIMIT_NOFILE", "64", "(OPEN_FILES)"],
    );
    let mut node =
        TestNode::prepare(None, "connections_max = 8").through(&["prlimit", "--nofile=256:256", "--"]);
    node.restart().await;
    let client = node.client().await;
    client.create_topic(spec(&topic("a"), 1)).await.expect("a topic");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn io_uring_that_is_forbidden_is_named() {
    let _shared = share_machine().await;
    let mut node = TestNode::prepare(None, "").through(&[env!("CARGO_BIN_EXE_without-io-uring")]);
    let refused = node.start_refused().await;
    check(&refused, &["io_uring", "seccomp"]);
}
