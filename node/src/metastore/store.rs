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

    /// Without reading it through: Raft's own test suite makes logs that no node would.
    #[cfg(test)]
    pub(crate) fn unchecked(database: Arc<Database>) -> LogStore {
        LogStore { database }
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
