//! The replicated state in the metastore's file: what commands changed and how far they were applied go to disk in
//! one transaction.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use redb::{ReadableTable, WriteTransaction};
use serde::{Deserialize, Serialize};
use tailwater_wire::ids::TopicName;
use tailwater_wire::meta::{Link, MetaSnapshot, Topic};
use tokio::sync::watch;

use crate::metastore::command::{Answer, Command};
use crate::metastore::database::{APPLIED, Database, LINKS, RESULTS, TOPICS, decode};
use crate::metastore::error::StoreError;
use crate::metastore::row::{self, Kind};
use crate::metastore::state::{MetaState, RequestResult, Touched};
use crate::metastore::store::any;
use crate::metastore::types::{
    Entry, LogId, Membership, Snapshot, SnapshotMeta, StorageError, StorageIoError, TypeConfig,
};

const APPLIED_KEY: &str = "applied";

/// This node's replica of the metadata: never ahead of what is on its disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replica {
    /// The metadata.
    pub state: MetaState,
    /// The last log entry that it contains.
    pub last_applied: Option<LogId>,
    /// Who votes.
    pub membership: Membership,
}

/// What is stored beside topics and links, in the same transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The last log entry that the rows contain.
    pub last_applied: Option<LogId>,
    /// Who votes.
    pub membership: Membership,
    /// The last log entry that changed a row.
    pub version: u64,
}

/// A metadata snapshot as it travels; its golden bytes are in `testdata/`.
#[derive(Debug, Serialize, Deserialize)]
struct SnapshotBody {
    metadata: MetaSnapshot,
    results: BTreeMap<u64, RequestResult>,
}

/// The bytes of a metadata snapshot.
#[must_use]
pub fn encode_snapshot(state: &MetaState) -> Vec<u8> {
    let body = SnapshotBody {
        metadata: (**state.snapshot()).clone(),
        results: state.results().clone(),
    };
    row::encode(Kind::Snapshot, &body)
}

/// The state of a metadata snapshot.
///
/// # Errors
/// Why these bytes are none.
pub fn decode_snapshot(bytes: &[u8]) -> Result<MetaState, StoreError> {
    let body: SnapshotBody = decode(Kind::Snapshot, bytes, || "a metadata snapshot".to_owned())?;
    MetaState::from_parts(body.metadata, body.results).map_err(StoreError::Inconsistent)
}

/// The replica as others on this node see it.
#[derive(Clone)]
pub struct Shared {
    replica: Arc<Mutex<Replica>>,
    changes: watch::Sender<Arc<MetaSnapshot>>,
}

impl Shared {
    /// A look at the replica; not to be held across an `await`.
    pub fn replica(&self) -> MutexGuard<'_, Replica> {
        self.replica.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest metadata, and a notice of every change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<MetaSnapshot>> {
        self.changes.subscribe()
    }

    fn replace(&self, next: Replica) {
        let snapshot = next.state.snapshot().clone();
        *self.replica() = next;
        self.changes.send_if_modified(|current| {
            let changed = current.version != snapshot.version;
            *current = snapshot;
            changed
        });
    }
}

/// The state machine of one node.
pub struct StateMachine {
    database: Arc<Database>,
    shared: Shared,
    /// The last snapshot that was built or installed. Not stored: Raft builds one at start if its log needs it.
    current: Arc<Mutex<Option<Stored>>>,
}

#[derive(Clone)]
struct Stored {
    meta: SnapshotMeta,
    bytes: Vec<u8>,
}

impl StateMachine {
    /// The state in this file.
    ///
    /// # Errors
    /// What cannot be read, or is no state that commands have made.
    pub fn open(database: Arc<Database>) -> Result<StateMachine, StoreError> {
        let replica = load(&database)?;
        let (changes, _) = watch::channel(replica.state.snapshot().clone());
        Ok(StateMachine {
            database,
            shared: Shared {
                replica: Arc::new(Mutex::new(replica)),
                changes,
            },
            current: Arc::default(),
        })
    }

    /// The replica for others on this node.
    #[must_use]
    pub fn shared(&self) -> Shared {
        self.shared.clone()
    }
}

fn load(database: &Database) -> Result<Replica, StoreError> {
    database.read(|read| {
        let mut metadata = MetaSnapshot::default();
        for row in read.open_table(TOPICS)?.iter()? {
            let (name, bytes) = row?;
            let topic: Topic = decode(Kind::Topic, bytes.value(), || format!("topic `{}`", name.value()))?;
            metadata.topics.insert(key(name.value())?, topic);
        }
        for row in read.open_table(LINKS)?.iter()? {
            let (pair, bytes) = row?;
            let (parent, child) = pair.value();
            let link: Link = decode(Kind::Link, bytes.value(), || format!("link {parent} -> {child}"))?;
            let children = metadata.links.entry(key(parent)?).or_default();
            children.insert(key(child)?, link);
        }
        let mut results = BTreeMap::new();
        for row in read.open_table(RESULTS)?.iter()? {
            let (index, bytes) = row?;
            let place = || format!("the request result of entry {}", index.value());
            results.insert(index.value(), decode(Kind::RequestResult, bytes.value(), place)?);
        }
        let applied = read.open_table(APPLIED)?.get(APPLIED_KEY)?;
        let applied: Option<Applied> = applied
            .map(|bytes| decode(Kind::Applied, bytes.value(), || "the applied state".to_owned()))
            .transpose()?;
        let Some(applied) = applied else {
            let empty = metadata.topics.is_empty() && metadata.links.is_empty() && results.is_empty();
            let missing = || StoreError::Inconsistent("the applied state is missing".to_owned());
            return empty.then(Replica::default).ok_or_else(missing);
        };
        metadata.version = applied.version;
        Ok(Replica {
            state: MetaState::from_parts(metadata, results).map_err(StoreError::Inconsistent)?,
            last_applied: applied.last_applied,
            membership: applied.membership,
        })
    })
}

fn key(name: &str) -> Result<TopicName, StoreError> {
    name.parse()
        .map_err(|error| StoreError::Inconsistent(format!("a row stands under {name:?}: {error}")))
}

fn write_applied(write: &WriteTransaction, replica: &Replica) -> Result<(), StoreError> {
    let applied = Applied {
        last_applied: replica.last_applied,
        membership: replica.membership.clone(),
        version: replica.state.snapshot().version,
    };
    let bytes = row::encode(Kind::Applied, &applied);
    write.open_table(APPLIED)?.insert(APPLIED_KEY, bytes.as_slice())?;
    Ok(())
}

/// Writes the rows that a command touched, as they are in the state after it.
fn write_touched(
    write: &WriteTransaction,
    state: &MetaState,
    touched: &Touched<'_>,
) -> Result<(), StoreError> {
    match touched {
        Touched::Topic(name) => {
            let mut table = write.open_table(TOPICS)?;
            match state.snapshot().topic(name) {
                Some(topic) => table.insert(name.as_str(), row::encode(Kind::Topic, topic).as_slice())?,
                None => table.remove(name.as_str())?,
            };
        }
        Touched::Link(parent, child) => {
            let mut table = write.open_table(LINKS)?;
            let pair = (parent.as_str(), child.as_str());
            match state.snapshot().link(parent, child) {
                Some(link) => table.insert(pair, row::encode(Kind::Link, link).as_slice())?,
                None => table.remove(pair)?,
            };
        }
    }
    Ok(())
}

/// Writes the results of these entries, and forgets the ones that the state has forgotten.
fn write_results(
    write: &WriteTransaction,
    state: &MetaState,
    indices: impl Iterator<Item = u64>,
) -> Result<(), StoreError> {
    let mut table = write.open_table(RESULTS)?;
    for index in indices {
        if let Some(result) = state.results().get(&index) {
            table.insert(index, row::encode(Kind::RequestResult, result).as_slice())?;
        }
    }
    if let Some((&oldest, _)) = state.results().first_key_value() {
        table.retain_in(..oldest, |_, _| false)?;
    }
    Ok(())
}

fn write_all(write: &WriteTransaction, replica: &Replica) -> Result<(), StoreError> {
    write.open_table(TOPICS)?.retain(|_, _| false)?;
    write.open_table(LINKS)?.retain(|_, _| false)?;
    write.open_table(RESULTS)?.retain(|_, _| false)?;
    let snapshot = replica.state.snapshot();
    for name in snapshot.topics.keys() {
        write_touched(write, &replica.state, &Touched::Topic(name))?;
    }
    for link in snapshot.all_links() {
        write_touched(write, &replica.state, &Touched::Link(&link.parent, &link.child))?;
    }
    write_results(write, &replica.state, replica.state.results().keys().copied())?;
    write_applied(write, replica)
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), StorageError> {
        let replica = self.shared.replica();
        Ok((replica.last_applied, replica.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Answer>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut next = self.shared.replica().clone();
        let mut answers = Vec::new();
        let mut changed: Vec<(u64, Command)> = Vec::new();
        for entry in entries {
            let index = entry.log_id.index;
            next.last_applied = Some(entry.log_id);
            answers.push(match entry.payload {
                EntryPayload::Blank => Answer::Nothing,
                EntryPayload::Membership(membership) => {
                    next.membership = Membership::new(Some(entry.log_id), membership);
                    Answer::Nothing
                }
                EntryPayload::Normal(command) => {
                    let outcome = next.state.apply(index, &command);
                    if outcome.is_ok() {
                        changed.push((index, command));
                    }
                    Answer::Command(outcome)
                }
            });
        }
        let Some(last) = next.last_applied else {
            return Ok(answers);
        };
        let written = self.database.write(|write| {
            for (_, command) in &changed {
                write_touched(write, &next.state, &command.touches())?;
            }
            if !changed.is_empty() {
                write_results(write, &next.state, changed.iter().map(|&(index, _)| index))?;
            }
            write_applied(write, &next)
        });
        written.map_err(|error| StorageIoError::apply(last, any(&error)))?;
        self.shared.replace(next);
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            replica: self.shared.replica().clone(),
            current: self.current.clone(),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError> {
        let failed = |error| StorageIoError::read_snapshot(Some(meta.signature()), any(&error));
        let bytes = snapshot.into_inner();
        let next = Replica {
            state: decode_snapshot(&bytes).map_err(failed)?,
            last_applied: meta.last_log_id,
            membership: meta.last_membership.clone(),
        };
        let written = self.database.write(|write| write_all(write, &next));
        written.map_err(|error| StorageIoError::write_snapshot(Some(meta.signature()), any(&error)))?;
        self.shared.replace(next);
        *lock(&self.current) = Some(Stored {
            meta: meta.clone(),
            bytes,
        });
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        Ok(lock(&self.current).clone().map(Stored::into_snapshot))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stored {
    fn into_snapshot(self) -> Snapshot {
        Snapshot {
            meta: self.meta,
            snapshot: Box::new(Cursor::new(self.bytes)),
        }
    }
}

/// One version of the replica, to be turned into bytes while others are applied.
pub struct SnapshotBuilder {
    replica: Replica,
    current: Arc<Mutex<Option<Stored>>>,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        let replica = &self.replica;
        let id = replica.last_applied.map_or_else(
            || "empty".to_owned(),
            |id| format!("{}-{}", id.leader_id, id.index),
        );
        let stored = Stored {
            meta: SnapshotMeta {
                last_log_id: replica.last_applied,
                last_membership: replica.membership.clone(),
                snapshot_id: id,
            },
            bytes: encode_snapshot(&replica.state),
        };
        *lock(&self.current) = Some(stored.clone());
        Ok(stored.into_snapshot())
    }
}

#[cfg(test)]
mod tests {
    use openraft::CommittedLeaderId;
    use tailwater_wire::ids::{Epoch, Incarnation, Offset, OwnerEpoch};
    use tailwater_wire::meta::{Durability, LinkOptions, Retention, TopicSpec};
    use tailwater_wire::partitioner::Partitioner;
    use tempfile::TempDir;

    use super::*;
    use crate::metastore::command::Attach;
    use crate::metastore::database::ClusterId;
    use crate::metastore::state::REQUEST_RESULTS_MAX;

    const LIFE: Incarnation = Incarnation([1; 8]);

    struct Fixture {
        _dir: TempDir,
        machine: StateMachine,
        index: u64,
        runtime: tokio::runtime::Runtime,
    }

    impl Fixture {
        fn new() -> Fixture {
            let dir = TempDir::new().expect("a directory");
            let database = Database::open(dir.path(), 1, ClusterId([7; 16])).expect("opens");
            Fixture {
                machine: StateMachine::open(Arc::new(database)).expect("a new state"),
                _dir: dir,
                index: 0,
                runtime: tokio::runtime::Builder::new_current_thread()
                    .build()
                    .expect("a runtime"),
            }
        }

        /// Applies commands as one run of entries; what is on disk afterwards must be what is in memory.
        fn apply(&mut self, commands: Vec<Command>) -> Vec<Answer> {
            let entries: Vec<Entry> = commands
                .into_iter()
                .map(|command| {
                    self.index += 1;
                    Entry {
                        log_id: LogId::new(CommittedLeaderId::new(3, 1), self.index),
                        payload: EntryPayload::Normal(command),
                    }
                })
                .collect();
            let answers = self
                .runtime
                .block_on(self.machine.apply(entries))
                .expect("applied");
            self.check_disk();
            answers
        }

        fn check_disk(&self) {
            let stored = load(&self.machine.database).expect("loads");
            assert_eq!(stored, *self.machine.shared.replica());
        }
    }

    fn name(text: &str) -> TopicName {
        text.parse().expect("a topic name")
    }

    fn create(topic: &str) -> Command {
        Command::CreateTopic {
            spec: TopicSpec {
                name: name(topic),
                partitions: 1,
                partitioner: Partitioner::Murmur2,
                retention: Retention::default(),
                durability: Durability::Fsync,
            },
            incarnation: LIFE,
        }
    }

    fn attach(id: u64) -> Command {
        Command::Attach(Attach {
            request_id: u128::from(id).to_le_bytes(),
            parent: name("a"),
            child: name("b"),
            options: LinkOptions::default(),
            epoch: Epoch::from_u64(id),
            attach_offsets: vec![Offset(id)],
            parent_incarnation: LIFE,
            child_incarnation: LIFE,
            owner_epochs: vec![OwnerEpoch(1)],
        })
    }

    fn detach(id: u64) -> Command {
        Command::Detach {
            parent: name("a"),
            child: name("b"),
            epoch: Epoch::from_u64(id),
        }
    }

    fn delete(topic: &str) -> Command {
        Command::DeleteTopic {
            name: name(topic),
            incarnation: None,
        }
    }

    #[test]
    fn the_disk_has_what_memory_has_after_every_run() {
        let mut fixture = Fixture::new();
        fixture.apply(vec![create("a"), create("b"), create("c")]);
        fixture.apply(vec![attach(1)]);
        fixture.apply(vec![delete("c"), delete("a"), create("a")]);
        fixture.apply(vec![detach(1), attach(2), attach(1), detach(2), delete("b")]);
        let replica = fixture.machine.shared.replica().clone();
        assert_eq!(replica.last_applied.map(|id| id.index), Some(12));
        assert_eq!(replica.state.snapshot().topics.len(), 1);
        assert_eq!(replica.state.results().len(), 2);
    }

    #[test]
    fn forgotten_results_leave_the_disk_too() {
        let mut fixture = Fixture::new();
        fixture.apply(vec![create("a"), create("b")]);
        let ids = 1..=REQUEST_RESULTS_MAX as u64 + 3;
        fixture.apply(ids.flat_map(|id| [attach(id), detach(id)]).collect());
        let oldest = fixture
            .machine
            .shared
            .replica()
            .state
            .results()
            .keys()
            .next()
            .copied();
        assert_eq!(oldest, Some(9), "three attaches, two entries each, are gone");
    }

    #[test]
    fn subscribers_hear_of_changes_and_of_nothing_else() {
        let mut fixture = Fixture::new();
        let mut changes = fixture.machine.shared().subscribe();
        fixture.apply(vec![create("a")]);
        assert!(changes.has_changed().expect("open"));
        assert_eq!(changes.borrow_and_update().version, 1);
        fixture.apply(vec![delete("x"), create("a")]);
        assert!(
            !changes.has_changed().expect("open"),
            "a refusal and a repeat change nothing"
        );
    }

    #[test]
    fn a_snapshot_replaces_another_replica_whole() {
        let (mut from, mut to) = (Fixture::new(), Fixture::new());
        from.apply(vec![create("a"), create("b"), attach(1)]);
        to.apply(vec![create("b"), create("x")]);
        let snapshot = from.runtime.block_on(async {
            from.machine
                .get_snapshot_builder()
                .await
                .build_snapshot()
                .await
                .expect("built")
        });
        to.runtime.block_on(async {
            let mut receiving = to.machine.begin_receiving_snapshot().await.expect("begun");
            receiving.get_mut().extend_from_slice(snapshot.snapshot.get_ref());
            to.machine
                .install_snapshot(&snapshot.meta, receiving)
                .await
                .expect("installed");
        });
        to.check_disk();
        assert_eq!(*to.machine.shared.replica(), *from.machine.shared.replica());
        to.index = 3;
        let again = to.apply(vec![attach(1)]);
        assert!(
            matches!(&again[0], Answer::Command(Ok(_))),
            "requests are remembered across: {again:?}"
        );
    }

    #[test]
    fn a_damaged_snapshot_changes_nothing() {
        let mut fixture = Fixture::new();
        fixture.apply(vec![create("a")]);
        let before = fixture.machine.shared.replica().clone();
        let mut bytes = encode_snapshot(&MetaState::default());
        bytes.pop();
        let meta = SnapshotMeta::default();
        let install = fixture
            .machine
            .install_snapshot(&meta, Box::new(Cursor::new(bytes)));
        assert!(fixture.runtime.block_on(install).is_err());
        fixture.check_disk();
        assert_eq!(*fixture.machine.shared.replica(), before);
    }
}
