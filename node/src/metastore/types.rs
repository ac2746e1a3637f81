//! The types that Raft is run with.

use std::io::Cursor;

use crate::metastore::command::{Answer, Command};

openraft::declare_raft_types!(
    /// Commands in, answers out; node ids are numbers, snapshots travel as bytes.
    pub TypeConfig:
        D = Command,
        R = Answer,
        NodeId = u64,
        Node = openraft::BasicNode,
        SnapshotData = Cursor<Vec<u8>>,
);

/// An entry of the log.
pub type Entry = openraft::Entry<TypeConfig>;
/// A term, its leader, and an index.
pub type LogId = openraft::LogId<u64>;
/// Who a node voted for.
pub type Vote = openraft::Vote<u64>;
/// The voters and learners, and the log id that made them so.
pub type Membership = openraft::StoredMembership<u64, openraft::BasicNode>;
/// What a snapshot covers.
pub type SnapshotMeta = openraft::SnapshotMeta<u64, openraft::BasicNode>;
/// A snapshot with its bytes.
pub type Snapshot = openraft::Snapshot<TypeConfig>;
/// What the storage traits fail with.
pub type StorageError = openraft::StorageError<u64>;
/// The same, with the step.
pub type StorageIoError = openraft::StorageIOError<u64>;
/// The running engine.
pub type Raft = openraft::Raft<TypeConfig>;
