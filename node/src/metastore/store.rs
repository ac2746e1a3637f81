//! Raft's log and vote in the metastore's file.
//!
//! A read error of the log ends the process: openraft 0.9 would go on, and turn it into a follower that misses
//! entries. Everything that was stored is read once before Raft starts, where damage still has a named error.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::Arc;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{AnyError, LogState, OptionalSend, RaftLogReader};
use redb::{ReadTransaction, ReadableTable};

use crate::metastore::database::{Database, LOG, RAFT, decode};
use crate::metastore::error::StoreError;
use crate::metastore::row::{self, Kind};
use crate::metastore::types::{Entry, LogId, StorageError, StorageIoError, TypeConfig, Vote};

const VOTE_KEY: &str = "vote";
const PURGED_KEY: &str = "purged";

/// The log of one node. Every clone is of the same file.
#[derive(Clone)]
pub struct LogStore {
    database: Arc<Database>,
}

impl LogStore {
    /// The log in this file, read through once.
    ///
    /// # Errors
    /// What cannot be read, or is missing in between.
    pub fn open(database: Arc<Database>) -> Result<LogStore, StoreError> {
        database.read(|read| {
            let purged = purged(read)?;
            let mut before = purged.map(|id| id.index);
            for row in read.open_table(LOG)?.iter()? {
                let (index, bytes) = row?;
                let entry = entry(index.value(), bytes.value())?;
                if entry.log_id.index != index.value() {
                    let what = format!(
                        "log entry {} says that it is {}",
                        index.value(),
                        entry.log_id.index
                    );
                    return Err(StoreError::Inconsistent(what));
                }
                let expected = before.map_or(0, |before| before + 1);
                if index.value() != expected {
                    let what = format!("log entry {expected} is missing before {}", index.value());
                    return Err(StoreError::Inconsistent(what));
                }
                before = Some(index.value());
            }
            vote(read)
        })?;
        Ok(LogStore { database })
    }

    fn entries(&self, range: impl RangeBounds<u64>) -> Result<Vec<Entry>, StoreError> {
        self.database.read(|read| {
            let table = read.open_table(LOG)?;
            let rows = table.range(range)?;
            rows.map(|row| {
                let (index, bytes) = row?;
                entry(index.value(), bytes.value())
            })
            .collect()
        })
    }

    fn save(&self, key: &str, kind: Kind, value: &impl serde::Serialize) -> Result<(), StoreError> {
        self.database.write(|write| {
            let bytes = row::encode(kind, value);
            write.open_table(RAFT)?.insert(key, bytes.as_slice())?;
            Ok(())
        })
    }
}

fn entry(index: u64, bytes: &[u8]) -> Result<Entry, StoreError> {
    decode(Kind::Entry, bytes, || format!("log entry {index}"))
}

fn purged(read: &ReadTransaction) -> Result<Option<LogId>, StoreError> {
    let table = read.open_table(RAFT)?;
    let bytes = table.get(PURGED_KEY)?;
    bytes
        .map(|bytes| decode(Kind::LogId, bytes.value(), || "the last purged log id".to_owned()))
        .transpose()
}

fn vote(read: &ReadTransaction) -> Result<Option<Vote>, StoreError> {
    let table = read.open_table(RAFT)?;
    let bytes = table.get(VOTE_KEY)?;
    bytes
        .map(|bytes| decode(Kind::Vote, bytes.value(), || "the vote".to_owned()))
        .transpose()
}

/// Ends the process: see the head of this file. Said once, in the log if there is one.
fn abort(step: &str, error: &StoreError) -> ! {
    let error = error.chain();
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(step, error, "the metadata log cannot be read: ending the process");
    } else {
        eprintln!("tailwater: the metadata log cannot be read ({step}): {error}: ending the process");
    }
    std::process::abort();
}

pub(crate) fn any(error: &StoreError) -> AnyError {
    AnyError::error(error.chain())
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, StorageError> {
        let entries = self.entries(range.clone());
        Ok(entries.unwrap_or_else(|error| abort(&format!("entries {range:?}"), &error)))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        let state = self.database.read(|read| {
            let purged = purged(read)?;
            let table = read.open_table(LOG)?;
            let last = table.last()?;
            let last = last
                .map(|(index, bytes)| entry(index.value(), bytes.value()))
                .transpose()?;
            Ok(LogState {
                last_purged_log_id: purged,
                last_log_id: last.map(|entry| entry.log_id).or(purged),
            })
        });
        Ok(state.unwrap_or_else(|error| abort("its ends", &error)))
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        let saved = self.save(VOTE_KEY, Kind::Vote, vote);
        saved.map_err(|error| StorageIoError::write_vote(any(&error)).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        let read = self.database.read(vote);
        read.map_err(|error| StorageIoError::read_vote(any(&error)).into())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let written = self.database.write(|write| {
            let mut table = write.open_table(LOG)?;
            for entry in entries {
                let bytes = row::encode(Kind::Entry, &entry);
                table.insert(entry.log_id.index, bytes.as_slice())?;
            }
            Ok(())
        });
        written.map_err(|error| StorageIoError::write_logs(any(&error)))?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, since: LogId) -> Result<(), StorageError> {
        let written = self.database.write(|write| {
            write.open_table(LOG)?.retain_in(since.index.., |_, _| false)?;
            Ok(())
        });
        written.map_err(|error| StorageIoError::write_logs(any(&error)).into())
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), StorageError> {
        let written = self.database.write(|write| {
            let bytes = row::encode(Kind::LogId, &upto);
            write.open_table(RAFT)?.insert(PURGED_KEY, bytes.as_slice())?;
            write.open_table(LOG)?.retain_in(..=upto.index, |_, _| false)?;
            Ok(())
        });
        written.map_err(|error| StorageIoError::write_logs(any(&error)).into())
    }
}

#[cfg(test)]
mod tests {
    use std::process;

    use openraft::StorageError;
    use openraft::testing::{StoreBuilder, Suite};
    use tempfile::TempDir;

    use super::*;
    use crate::metastore::database::{ClusterId, TOPICS};
    use crate::metastore::machine::StateMachine;

    struct Builder;

    fn database() -> (TempDir, Arc<Database>) {
        let dir = TempDir::new().expect("a directory");
        let database = Database::open(dir.path(), 1, ClusterId([7; 16])).expect("opens");
        (dir, Arc::new(database))
    }

    impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
        async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError<u64>> {
            let (dir, database) = database();
            let machine = StateMachine::open(database.clone()).expect("a new state");
            // Not read through: the suite makes logs with holes, which no node would.
            Ok((dir, LogStore { database }, machine))
        }
    }

    #[test]
    fn openraft_s_own_suite_passes() {
        Suite::test_all(Builder).expect("the suite");
    }

    fn write_entry(database: &Database, index: u64, bytes: &[u8]) {
        let written = database.write(|write| {
            write.open_table(LOG)?.insert(index, bytes)?;
            Ok(())
        });
        written.expect("written");
    }

    fn blank(index: u64) -> Vec<u8> {
        let entry = Entry {
            log_id: LogId::new(openraft::CommittedLeaderId::new(1, 1), index),
            payload: openraft::EntryPayload::Blank,
        };
        row::encode(Kind::Entry, &entry)
    }

    /// What the log says when it is opened.
    fn open_error(rows: &[(u64, Vec<u8>)]) -> String {
        let (_dir, database) = database();
        for (index, bytes) in rows {
            write_entry(&database, *index, bytes);
        }
        LogStore::open(database)
            .err()
            .map(|error| error.chain())
            .unwrap_or_default()
    }

    #[test]
    fn a_log_is_read_through_before_it_is_used() {
        assert_eq!(open_error(&[(0, blank(0)), (1, blank(1))]), "");
        assert_eq!(
            open_error(&[(0, blank(0)), (2, blank(2))]),
            "log entry 1 is missing before 2"
        );
        assert_eq!(open_error(&[(1, blank(1))]), "log entry 0 is missing before 1");
        assert_eq!(open_error(&[(0, blank(7))]), "log entry 0 says that it is 7");
        let mut rotten = blank(0);
        *rotten.last_mut().expect("a body") ^= 1;
        let error = open_error(&[(0, rotten)]);
        assert!(
            error.starts_with("log entry 0 cannot be read: checksum"),
            "{error}"
        );
    }

    /// openraft 0.9 takes a failed log read for an empty one in places, so the process has to go. The part that dies
    /// is this test again, in a process of its own.
    #[test]
    fn a_log_that_rots_while_in_use_ends_the_process() {
        const DIE: &str = "TAILWATER_TEST_READS_A_ROTTEN_LOG";
        if std::env::var_os(DIE).is_some() {
            let (_dir, database) = database();
            write_entry(&database, 0, b"rot");
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .expect("a runtime");
            let read = runtime.block_on(LogStore { database }.try_get_log_entries(0..1));
            panic!("went on with {read:?}");
        }
        let mut again = process::Command::new(std::env::current_exe().expect("this test"));
        again.args([
            "--exact",
            "metastore::store::tests::a_log_that_rots_while_in_use_ends_the_process",
        ]);
        let output = again.arg("--nocapture").env(DIE, "1").output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&output.status),
            Some(6),
            "{said}"
        );
        assert!(
            said.contains("log entry 0 cannot be read: 3 bytes that do not begin"),
            "{said}"
        );
    }

    #[test]
    fn a_failed_closure_writes_nothing() {
        let (_dir, database) = database();
        let failed: Result<(), StoreError> = database.write(|write| {
            write.open_table(TOPICS)?.insert("a", b"half".as_slice())?;
            Err(StoreError::Inconsistent("on purpose".to_owned()))
        });
        assert!(failed.is_err());
        let found = database.read(|read| Ok(read.open_table(TOPICS)?.get("a")?.is_some()));
        assert!(!found.expect("reads"));
    }
}
