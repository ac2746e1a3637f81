//! Why the metastore cannot be opened or used; a variant names the step.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::metastore::row::RowError;

/// Why the metastore did not open.
#[derive(Debug, thiserror::Error)]
pub enum MetastoreError {
    /// Its directory or lock file cannot be made.
    #[error("cannot prepare {path}")]
    Directory {
        /// Which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process, or another metastore of this one, has it open.
    #[error("{path} is in use by another process")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The file does not open as a database.
    #[error("cannot open {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the database said.
        source: redb::DatabaseError,
    },
    /// A later version of the program wrote it. Nothing was changed.
    #[error("{path} has format version {found}, and this version of tailwater reads up to {supported}")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The newest that is read.
        supported: u32,
    },
    /// The file belongs to another node.
    #[error("{path} belongs to node {stored}, and this is node {asked}")]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// The node that made it.
        stored: u64,
        /// The node that opens it.
        asked: u64,
    },
    /// What is stored is damaged, or was not made by this program.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A read or write failed.
    #[error("cannot {step} {path}")]
    Storage {
        /// The file.
        path: PathBuf,
        /// What was being done.
        step: &'static str,
        /// Why not.
        source: StoreError,
    },
    /// Raft did not start.
    #[error("cannot {step}: {what}")]
    Raft {
        /// What was being done.
        step: &'static str,
        /// Why not.
        what: String,
    },
    /// No leader was found in time.
    #[error("no metadata leader within {waited:?}: {what}")]
    NoLeader {
        /// How long it was waited for.
        waited: Duration,
        /// What the last attempt said.
        what: String,
    },
}

/// Why one read or write of the file failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database failed. After a failed write it stays failed until it is opened again.
    #[error("the database failed")]
    Database(#[source] Box<redb::Error>),
    /// A value is not what belongs there.
    #[error("{place} cannot be read")]
    Row {
        /// Which value.
        place: String,
        /// Why not.
        source: RowError,
    },
    /// The values do not fit each other.
    #[error("{0}")]
    Inconsistent(String),
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> StoreError {
        StoreError::Database(Box::new(error.into()))
    }
}

impl StoreError {
    /// This error and everything below it, in one line.
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }
}

impl MetastoreError {
    /// This error and everything below it, in one line: what a person needs to see.
    #[must_use]
    pub fn chain(&self) -> String {
        chain(self)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        text += ": ";
        text += &error.to_string();
        below = error.source();
    }
    text
}
