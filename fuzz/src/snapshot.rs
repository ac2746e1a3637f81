//! Metadata snapshots: what is accepted is a state that commands can have made, and stays one.
//!
//! It is written and read again as the same state; every live link can be detached, every topic without links can be
//! deleted, and what is left then reads back as well.
//!
//! Mode: 0 a row as it is; 1 its checksum is made right; 2 a row's body, without its header.

use std::sync::Arc;

use tailwater_node::metastore::command::{Attach, Command, TopicChange};
use tailwater_node::metastore::machine::{decode_snapshot, encode_snapshot};
use tailwater_node::metastore::row::{FORMAT, Kind};
use tailwater_node::metastore::state::{FIRST_OWNER_EPOCH, MetaState};
use tailwater_wire::checksum::crc;
use tailwater_wire::ids::{Delay, Epoch, Incarnation, Offset, TopicName};
use tailwater_wire::meta::{AttachFrom, Durability, LinkOptions, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;

use crate::input::{join, split};
use crate::memory;
use crate::target::Seed;

const MEND: u8 = 1;
const BODY: u8 = 2;
const HEADER_BYTES: usize = 8;

const BYTES_FOR_EACH: usize = 256;
const BYTES_BESIDE: usize = 64 << 10;

/// See the module.
pub fn check(input: &[u8]) {
    let (mode, bytes) = split(input);
    let mut row = match mode % 4 {
        BODY => [b"TM", &[FORMAT, Kind::Snapshot as u8][..], &[0; 4], bytes].concat(),
        _ => bytes.to_vec(),
    };
    if mode % 4 != 0 && row.len() >= HEADER_BYTES {
        let sum = sum(&row);
        row[4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
    let most = BYTES_BESIDE + BYTES_FOR_EACH * row.len();
    let Ok(state) = memory::within(most, || decode_snapshot(&row)) else {
        return;
    };
    assert_eq!(
        sum(&row).to_le_bytes(),
        row[4..HEADER_BYTES],
        "no wrong checksum is accepted"
    );
    reads_back(&state);
    take_apart(state);
}

fn reads_back(state: &MetaState) {
    let written = encode_snapshot(state);
    let again = decode_snapshot(&written).unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(again, *state);
}

fn take_apart(mut state: MetaState) {
    let snapshot = Arc::clone(state.snapshot());
    let mut index = snapshot.version;
    let mut apply = |state: &mut MetaState, command: &Command| {
        let Some(next) = index.checked_add(1) else { return };
        index = next;
        state.check(command).expect("accepted");
        state.apply(next, command).expect("as it was checked");
        reads_back(state);
    };
    for link in snapshot.all_links() {
        let detach = Command::Detach {
            parent: link.parent.clone(),
            child: link.child.clone(),
            epoch: link.epoch,
        };
        apply(&mut state, &detach);
    }
    for (name, topic) in &snapshot.topics {
        let delete = Command::DeleteTopic {
            name: name.clone(),
            incarnation: Some(topic.incarnation),
        };
        apply(&mut state, &delete);
    }
}

/// As a row's writer computes it.
fn sum(row: &[u8]) -> u32 {
    crc(&row[HEADER_BYTES..]) ^ crc(&row[..4]).rotate_left(16)
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let golden = include_bytes!("../../node/testdata/metadata-v1/snapshot.row");
    let empty = encode_snapshot(&MetaState::default());
    let small = encode_snapshot(&small());
    vec![
        ("golden", join(MEND, golden)),
        ("empty", join(MEND, &empty)),
        ("body", join(BODY, &small[HEADER_BYTES..])),
        ("one-link", join(0, &small)),
    ]
}

fn small() -> MetaState {
    let name = |text: &str| text.parse::<TopicName>().expect("a name");
    let life = Incarnation([0x1b; 8]);
    let create = |topic: &str| Command::CreateTopic {
        spec: TopicSpec {
            name: name(topic),
            partitions: 1,
            partitioner: Partitioner::Murmur2,
            retention: Retention::default(),
            durability: Durability::Fsync,
        },
        incarnation: life,
    };
    let attach = Command::Attach(Attach {
        request_id: [7; 16],
        parent: name("a"),
        child: name("b"),
        options: LinkOptions {
            delay: Delay { millis: 1_000 },
            from: AttachFrom::Tail,
            filter: Some("k=v".to_owned()),
            ..LinkOptions::default()
        },
        epoch: Epoch([9; 8]),
        attach_offsets: vec![Offset(5)],
        parent_incarnation: life,
        child_incarnation: life,
        owner_epochs: vec![FIRST_OWNER_EPOCH],
    });
    let alter = Command::AlterTopic {
        name: name("a"),
        incarnation: None,
        change: TopicChange {
            partitions: Some(2),
            ..TopicChange::default()
        },
    };
    let mut state = MetaState::default();
    for (index, command) in (1..).zip([create("a"), create("b"), attach, alter]) {
        state.apply(index, &command).expect("accepted");
    }
    state
}
