//! The bytes of the metadata formats, version 1, as they were frozen: every later version must read them.
//!
//! With `TAILWATER_WRITE_GOLDEN=1` missing files are written; those that are there are never changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use openraft::{BasicNode, CommittedLeaderId, EntryPayload};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tailwater_node::metastore::command::{Attach, Command, TopicChange};
use tailwater_node::metastore::database::{ClusterId, FILE_FORMAT, Identity};
use tailwater_node::metastore::machine::{self, Applied};
use tailwater_node::metastore::row::{self, Kind};
use tailwater_node::metastore::state::{FIRST_OWNER_EPOCH, MetaState};
use tailwater_node::metastore::types::{Entry, LogId, Membership, Vote};
use tailwater_wire::ids::{Delay, Epoch, Incarnation, Offset, TopicName};
use tailwater_wire::meta::{AttachFrom, Durability, LinkOptions, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;

const PARENT_LIFE: Incarnation = Incarnation([0x1b; 8]);
const CHILD_LIFE: Incarnation = Incarnation([0x2c; 8]);

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/metadata-v1")
        .join(file)
}

#[track_caller]
fn frozen(file: &str, now: &[u8]) -> Vec<u8> {
    let path = golden(file);
    if !path.exists() && std::env::var_os("TAILWATER_WRITE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, now).expect("written");
    }
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What was frozen reads as this value; and, while this is the version that is written, is what is written.
#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(file: &str, kind: Kind, value: &T) {
    let now = row::encode(kind, value);
    let then = frozen(file, &now);
    assert_eq!(row::decode::<T>(kind, &then).expect(file), *value, "{file}");
    assert_eq!(
        String::from_utf8_lossy(&then),
        String::from_utf8_lossy(&now),
        "{file}"
    );
    assert_eq!(then, now, "{file}");
}

fn name(text: &str) -> TopicName {
    text.parse().expect("a topic name")
}

fn create(topic: &str, incarnation: Incarnation) -> Command {
    Command::CreateTopic {
        spec: TopicSpec {
            name: name(topic),
            partitions: 2,
            partitioner: Partitioner::Crc32c,
            retention: Retention {
                millis: Some(172_800_000),
                bytes: Some(1 << 40),
            },
            durability: Durability::Written,
        },
        incarnation,
    }
}

fn attach(id: u8, child: &str) -> Command {
    Command::Attach(Attach {
        request_id: [id; 16],
        parent: name("orders"),
        child: name(child),
        options: LinkOptions {
            delay: Delay { millis: 86_400_000 },
            from: AttachFrom::Time(1_381_325_400_000_000_000),
            filter: Some("kind=trade".to_owned()),
            linger_millis: Some(25),
            allow_drop: true,
        },
        epoch: Epoch([id; 8]),
        attach_offsets: vec![Offset(98_332), Offset(u64::MAX)],
        parent_incarnation: PARENT_LIFE,
        child_incarnation: CHILD_LIFE,
        owner_epochs: vec![FIRST_OWNER_EPOCH; 2],
    })
}

fn commands() -> Vec<Command> {
    vec![
        create("orders", PARENT_LIFE),
        create("analytics", CHILD_LIFE),
        create("delayed", CHILD_LIFE),
        attach(0x67, "analytics"),
        attach(0x78, "delayed"),
        Command::Detach {
            parent: name("orders"),
            child: name("delayed"),
            epoch: Epoch([0x78; 8]),
        },
        Command::AlterTopic {
            name: name("orders"),
            incarnation: Some(PARENT_LIFE),
            change: TopicChange {
                partitions: Some(3),
                retention: Some(Retention::default()),
                durability: Some(Durability::Fsync),
            },
        },
        Command::DeleteTopic {
            name: name("delayed"),
            incarnation: None,
        },
    ]
}

fn state() -> MetaState {
    let mut state = MetaState::default();
    for (index, command) in (2..).zip(commands()) {
        state.apply(index, &command).expect("accepted");
    }
    state
}

fn log_id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(4, 1), index)
}

fn voters() -> openraft::Membership<u64, BasicNode> {
    let nodes = BTreeMap::from([(1, BasicNode::default()), (2, BasicNode::new("10.0.0.2:7500"))]);
    openraft::Membership::new(vec![BTreeSet::from([1])], nodes)
}

#[test]
fn metadata_snapshots() {
    let then = frozen("snapshot.row", &machine::encode_snapshot(&state()));
    let read = machine::decode_snapshot(&then).expect("reads");
    assert_eq!(read, state());
    assert_eq!(then, machine::encode_snapshot(&state()));
    assert_eq!(
        (read.snapshot().topics.len(), read.snapshot().all_links().count()),
        (2, 1)
    );
    assert_eq!(read.results().len(), 2);
}

#[test]
fn log_entries() {
    let entry = |index, payload| Entry {
        log_id: log_id(index),
        payload,
    };
    check(
        "entry-membership.row",
        Kind::Entry,
        &entry(0, EntryPayload::Membership(voters())),
    );
    check("entry-blank.row", Kind::Entry, &entry(1, EntryPayload::Blank));
    for (index, command) in (2..).zip(commands()) {
        let file = match &command {
            Command::CreateTopic { .. } if index == 2 => "entry-create-topic.row",
            Command::DeleteTopic { .. } => "entry-delete-topic.row",
            Command::AlterTopic { .. } => "entry-alter-topic.row",
            Command::Attach(_) if index == 5 => "entry-attach.row",
            Command::Detach { .. } => "entry-detach.row",
            _ => continue,
        };
        check(file, Kind::Entry, &entry(index, EntryPayload::Normal(command)));
    }
}

#[test]
fn stored_rows() {
    let state = state();
    let topic = state.snapshot().topic(&name("orders")).expect("live");
    check("topic.row", Kind::Topic, topic);
    let link = state
        .snapshot()
        .link(&name("orders"), &name("analytics"))
        .expect("live");
    check("link.row", Kind::Link, link);
    check("request-result.row", Kind::RequestResult, &state.results()[&5]);
    let applied = Applied {
        last_applied: Some(log_id(9)),
        membership: Membership::new(Some(log_id(0)), voters()),
        version: 9,
    };
    check("applied.row", Kind::Applied, &applied);
    check("vote.row", Kind::Vote, &Vote::new_committed(4, 1));
    check("log-id.row", Kind::LogId, &log_id(7));
    let identity = Identity {
        format: FILE_FORMAT,
        node_id: 1,
        cluster_id: ClusterId([0xc5; 16]),
    };
    check("identity.row", Kind::Identity, &identity);
}
