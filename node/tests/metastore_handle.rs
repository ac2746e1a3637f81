//! The metastore as the node uses it: it survives stops and kills, says what is wrong with its file, and confirms.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use redb::{ReadableDatabase, ReadableTableMetadata, TableDefinition};
use tailwater_node::metastore::command::{Attach, Command, Outcome};
use tailwater_node::metastore::error::MetastoreError;
use tailwater_node::metastore::handle::{AttachCheck, Metastore, Options};
use tailwater_node::metastore::row::{self, Kind};
use tailwater_node::metastore::state::FIRST_OWNER_EPOCH;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Epoch, Incarnation, Offset, TopicName};
use tailwater_wire::meta::{Durability, Link, LinkOptions, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;

const LIFE: Incarnation = Incarnation([1; 8]);

fn name(text: &str) -> TopicName {
    text.parse().expect("a topic name")
}

fn create(topic: &str) -> Command {
    Command::CreateTopic {
        spec: TopicSpec {
            name: name(topic),
            partitions: 2,
            partitioner: Partitioner::Murmur2,
            retention: Retention::default(),
            durability: Durability::Fsync,
        },
        incarnation: LIFE,
    }
}

fn attach(id: u8, parent: &str, child: &str) -> Command {
    Command::Attach(Attach {
        request_id: [id; 16],
        parent: name(parent),
        child: name(child),
        options: LinkOptions::default(),
        epoch: Epoch([id; 8]),
        attach_offsets: vec![Offset(7), Offset(8)],
        parent_incarnation: LIFE,
        child_incarnation: LIFE,
        owner_epochs: vec![FIRST_OWNER_EPOCH; 2],
    })
}

fn detach(id: u8, parent: &str, child: &str) -> Command {
    Command::Detach {
        parent: name(parent),
        child: name(child),
        epoch: Epoch([id; 8]),
    }
}

async fn open(data: &Path) -> Metastore {
    Metastore::open(data, 1, Options::default()).await.expect("opens")
}

async fn attached(metastore: &Metastore, command: Command) -> Link {
    match metastore.propose(command).await {
        Ok(Outcome::Attached(link)) => link,
        other => panic!("attached, not {other:?}"),
    }
}

/// Runs a test as the control thread runs: on one thread.
fn on_one_thread<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(test)
}

#[test]
fn everything_is_there_again_after_a_stop() {
    let dir = tempfile::TempDir::new().expect("a directory");
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        for topic in ["a", "b", "c"] {
            metastore.propose(create(topic)).await.expect("created");
        }
        let first = attached(&metastore, attach(1, "a", "b")).await;
        let second = attached(&metastore, attach(2, "a", "c")).await;
        metastore.propose(detach(2, "a", "c")).await.expect("detached");
        let (before, identity) = (metastore.snapshot(), metastore.identity());
        let term = metastore.status().term;
        metastore.shutdown().await;

        let metastore = open(dir.path()).await;
        assert_eq!(metastore.snapshot(), before);
        assert_eq!(metastore.identity(), identity);
        assert!(metastore.status().term >= term);
        assert_eq!(
            attached(&metastore, attach(1, "a", "b")).await,
            first,
            "a repeat across the restart"
        );
        assert_eq!(
            attached(&metastore, attach(2, "a", "c")).await,
            second,
            "also of a link that ended"
        );
        assert_eq!(metastore.snapshot(), before, "and nothing changed");
        metastore.propose(create("d")).await.expect("goes on");
        metastore.shutdown().await;
    });
}

#[test]
fn a_runtime_that_is_dropped_loses_nothing_that_was_answered() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let before = on_one_thread(async {
        let metastore = open(dir.path()).await;
        metastore.propose(create("a")).await.expect("created");
        metastore.snapshot()
    });
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        assert_eq!(metastore.snapshot(), before);
        metastore.shutdown().await;
    });
}

#[test]
fn kills_lose_nothing_that_was_answered() {
    const DATA: &str = "TAILWATER_TEST_METASTORE_TO_KILL";
    if let Some(data) = std::env::var_os(DATA) {
        on_one_thread(async {
            let metastore = open(Path::new(&data)).await;
            let from = metastore.snapshot().topics.len();
            for n in from..100_000 {
                metastore
                    .propose(create(&format!("topic-{n}")))
                    .await
                    .expect("created");
                eprintln!("answered {n}");
            }
        });
        return;
    }
    let dir = tempfile::TempDir::new().expect("a directory");
    let mut answered = 0;
    for round in 0..6 {
        let mut child = Process::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "kills_lose_nothing_that_was_answered", "--nocapture"])
            .env(DATA, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some(n) = line.strip_prefix("answered ") {
                answered = n.parse::<usize>().expect("a number") + 1;
                if answered >= (round + 1) * 15 {
                    break;
                }
            }
        }
        child.kill().expect("killed");
        child.wait().expect("gone");
        let rest = lines
            .map_while(Result::ok)
            .filter(|line| line.starts_with("answered "))
            .count();
        answered += rest;
        assert!(
            answered >= (round + 1) * 15,
            "the process ended by itself in round {round}"
        );
    }
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        let there = metastore.snapshot();
        for n in 0..answered {
            assert!(
                there.topic(&name(&format!("topic-{n}"))).is_some(),
                "topic-{n} of {answered}"
            );
        }
        assert!(
            there.topics.len() <= answered + 6,
            "at most one in flight at each kill"
        );
        metastore.shutdown().await;
    });
}

#[test]
fn a_file_that_is_not_ours_to_use_says_so() {
    let dir = tempfile::TempDir::new().expect("a directory");
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        let second = Metastore::open(dir.path(), 1, Options::default()).await;
        assert!(
            matches!(second, Err(MetastoreError::Locked { .. })),
            "{:?}",
            second.err()
        );
        metastore.shutdown().await;
        let other = Metastore::open(dir.path(), 2, Options::default()).await;
        let asked = matches!(
            other,
            Err(MetastoreError::OtherNode {
                stored: 1,
                asked: 2,
                ..
            })
        );
        assert!(asked, "{:?}", other.err());
    });
}

const IDENTITY: TableDefinition<&str, &[u8]> = TableDefinition::new("identity");
const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
const TOPICS: TableDefinition<&str, &[u8]> = TableDefinition::new("topics");

/// Changes the bytes of one row, and returns what opening says then.
fn open_after(data: &Path, table: TableDefinition<&str, &[u8]>, key: &str, bytes: &[u8]) -> MetastoreError {
    let database = redb::Database::open(data.join("meta/meta.redb")).expect("opens");
    let write = database.begin_write().expect("begins");
    write
        .open_table(table)
        .expect("the table")
        .insert(key, bytes)
        .expect("written");
    write.commit().expect("committed");
    drop(database);
    let opened = on_one_thread(Metastore::open(data, 1, Options::default()));
    opened.err().expect("refused")
}

#[test]
fn a_later_format_and_a_damaged_row_are_told_apart() {
    let dir = tempfile::TempDir::new().expect("a directory");
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        metastore.propose(create("a")).await.expect("created");
        metastore.shutdown().await;
    });
    let topic = row::encode(Kind::Topic, &"no topic");
    let error = open_after(dir.path(), TOPICS, "a", &topic);
    assert!(
        matches!(&error, MetastoreError::Damaged { what, .. } if what.starts_with("topic `a` cannot be read")),
        "{error}"
    );
    let mut later = serde_json::json!({"format": 2, "node_id": 1, "cluster_id": "0".repeat(32)});
    let error = open_after(
        dir.path(),
        IDENTITY,
        "identity",
        &row::encode(Kind::Identity, &later),
    );
    assert!(
        matches!(
            error,
            MetastoreError::Newer {
                found: 2,
                supported: 1,
                ..
            }
        ),
        "{error}"
    );
    later["format"] = 1.into();
    let mut rotten = row::encode(Kind::Identity, &later);
    rotten[9] ^= 4;
    let error = open_after(dir.path(), IDENTITY, "identity", &rotten);
    assert!(
        matches!(&error, MetastoreError::Damaged { what, .. } if what.contains("identity cannot be read: checksum")),
        "{error}"
    );
}

#[test]
fn the_leader_confirms_links_with_their_index() {
    let dir = tempfile::TempDir::new().expect("a directory");
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        let (a, b) = (name("a"), name("b"));
        let none = metastore.confirm_link(&a, &b).await.expect("confirmed");
        assert_eq!(none.link, None);
        metastore.propose(create("a")).await.expect("created");
        metastore.propose(create("b")).await.expect("created");
        let options = LinkOptions::default();
        let go = metastore
            .check_attach(&[1; 16], &a, &b, &options)
            .expect("nothing against it");
        assert!(matches!(go, AttachCheck::Go { parent, .. } if parent.spec.name == a));
        let link = attached(&metastore, attach(1, "a", "b")).await;
        let done = metastore.check_attach(&[1; 16], &a, &b, &options);
        assert_eq!(done, Ok(AttachCheck::Done(link.clone())));
        let refused = metastore
            .check_attach(&[2; 16], &a, &b, &options)
            .expect_err("attached");
        assert_eq!(refused.code, ErrorCode::LinkExists);

        let live = metastore.confirm_link(&a, &b).await.expect("confirmed");
        assert!(live.index >= link.index && live.index > none.index);
        assert_eq!(
            live.link.expect("live").attach_offsets,
            vec![Offset(7), Offset(8)]
        );
        metastore.propose(detach(1, "a", "b")).await.expect("detached");
        let gone = metastore.confirm().await.expect("confirmed");
        assert_eq!(gone.link(&a, &b).link, None);
        assert!(gone.epoch_is_gone(link.epoch));
        assert!(!gone.topic_is_gone(&a, LIFE) && gone.topic_is_gone(&a, Incarnation([2; 8])));
        metastore.shutdown().await;
    });
}

#[test]
fn proofs_say_what_the_leader_said_and_a_stopped_one_says_nothing() {
    let dir = tempfile::TempDir::new().expect("a directory");
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        let (a, b) = (name("a"), name("b"));
        metastore.propose(create("a")).await.expect("created");
        metastore.propose(create("b")).await.expect("created");
        let link = attached(&metastore, attach(1, "a", "b")).await;
        let live = metastore.prove_link(&a, &b).await.expect("confirmed");
        assert!(live.is_about(&a, &b) && live.index() >= link.index);
        assert_eq!(live.current(), Some(link.epoch));
        assert_eq!(metastore.prove_epoch_gone(link.epoch).await, Ok(None));
        assert_eq!(metastore.prove_topic_gone(&a, LIFE).await, Ok(None));

        metastore.propose(detach(1, "a", "b")).await.expect("detached");
        let index = metastore.snapshot().version;
        let none = metastore.prove_link(&a, &b).await.expect("confirmed");
        assert_eq!((none.current(), none.index() >= index), (None, true));
        let gone = metastore
            .prove_epoch_gone(link.epoch)
            .await
            .expect("confirmed")
            .expect("gone");
        assert_eq!((gone.epoch(), gone.index() >= index), (link.epoch, true));
        let delete = Command::DeleteTopic {
            name: a.clone(),
            incarnation: Some(LIFE),
        };
        metastore.propose(delete).await.expect("deleted");
        let gone = metastore
            .prove_topic_gone(&a, LIFE)
            .await
            .expect("confirmed")
            .expect("gone");
        assert_eq!((gone.topic(), gone.incarnation()), (&a, LIFE));

        metastore.shutdown().await;
        for refused in [
            metastore.prove_link(&a, &b).await.err(),
            metastore.prove_epoch_gone(link.epoch).await.err(),
            metastore.prove_topic_gone(&a, LIFE).await.err(),
        ] {
            assert_eq!(refused.expect("no leader, no proof").code, ErrorCode::NoLeader);
        }
    });
}

#[test]
fn proposals_at_the_same_time_are_all_answered() {
    let dir = tempfile::TempDir::new().expect("a directory");
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        let mut changes = metastore.subscribe();
        let tasks: Vec<_> = (0..50)
            .map(|n| {
                let metastore = metastore.clone();
                tokio::spawn(async move { metastore.propose(create(&format!("t{}", n % 40))).await })
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic").expect("created, once or again");
        }
        assert_eq!(metastore.snapshot().topics.len(), 40);
        changes.changed().await.expect("open");
        assert_eq!(*changes.borrow_and_update(), metastore.snapshot());
        metastore.shutdown().await;
    });
}

#[test]
fn after_a_shutdown_everything_says_so() {
    let dir = tempfile::TempDir::new().expect("a directory");
    on_one_thread(async {
        let metastore = open(dir.path()).await;
        metastore.propose(create("a")).await.expect("created");
        let watcher = metastore.clone();
        let ended = tokio::spawn(async move { watcher.ended().await });
        metastore.shutdown().await;
        metastore.shutdown().await;
        let refusal = metastore.propose(create("b")).await.expect_err("closed");
        assert_eq!(refusal.code, ErrorCode::Draining);
        let refusal = metastore.confirm().await.expect_err("closed");
        assert_eq!(refusal.code, ErrorCode::NoLeader);
        let limit = Duration::from_secs(10);
        let reason = tokio::time::timeout(limit, ended)
            .await
            .expect("in time")
            .expect("no panic");
        assert_eq!(metastore.status().ended, Some(reason));
        assert_eq!(metastore.snapshot().topics.len(), 1);
        open(dir.path()).await.shutdown().await;
    });
}

#[test]
fn the_log_is_cut_after_a_snapshot_and_the_state_stays() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let options = Options {
        snapshot_every_entries: 20,
        kept_entries: 5,
        ..Options::default()
    };
    let before = on_one_thread(async {
        let metastore = Metastore::open(dir.path(), 1, options.clone())
            .await
            .expect("opens");
        for n in 0..100 {
            metastore
                .propose(create(&format!("t{n}")))
                .await
                .expect("created");
        }
        let before = metastore.snapshot();
        metastore.shutdown().await;
        before
    });
    let database = redb::Database::open(dir.path().join("meta/meta.redb")).expect("opens");
    let entries = database
        .begin_read()
        .expect("begins")
        .open_table(LOG)
        .expect("the log")
        .len();
    assert!(entries.expect("counted") <= 45, "the log was cut");
    drop(database);
    on_one_thread(async {
        let metastore = Metastore::open(dir.path(), 1, options).await.expect("opens");
        assert_eq!(metastore.snapshot(), before);
        metastore.propose(create("one-more")).await.expect("goes on");
        metastore.shutdown().await;
    });
}
