//! The metastore's file: its place, its lock, its tables, and who the node is.
//!
//! ```text
//! <data>/meta/meta.lock   held while open
//! <data>/meta/meta.redb   identity  "identity" -> Identity
//!                         raft      "vote" -> vote, "purged" -> log id
//!                         log       index -> entry
//!                         applied   "applied" -> Applied
//!                         topics    name -> Topic
//!                         links     (parent, child) -> Link
//!                         results   index -> RequestResult
//! ```
//!
//! Every value is a row, as `row.rs` draws it. Every write is one transaction that is on disk when it returns.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use redb::{Durability, ReadTransaction, ReadableDatabase, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};

use crate::metastore::error::{MetastoreError, StoreError};
use crate::metastore::hex16;
use crate::metastore::row::{self, Kind};

/// The format of the file as a whole. A later one refuses to open here, and is not written to.
pub const FILE_FORMAT: u32 = 1;

pub(crate) const IDENTITY: TableDefinition<&str, &[u8]> = TableDefinition::new("identity");
pub(crate) const RAFT: TableDefinition<&str, &[u8]> = TableDefinition::new("raft");
pub(crate) const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
pub(crate) const APPLIED: TableDefinition<&str, &[u8]> = TableDefinition::new("applied");
pub(crate) const TOPICS: TableDefinition<&str, &[u8]> = TableDefinition::new("topics");
pub(crate) const LINKS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("links");
pub(crate) const RESULTS: TableDefinition<u64, &[u8]> = TableDefinition::new("results");

const IDENTITY_KEY: &str = "identity";
const CACHE_BYTES: usize = 16 << 20;

/// The cluster's random id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(#[serde(with = "crate::metastore::hex16")] pub [u8; 16]);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex16::write(&self.0, f)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

/// Who the node is, for the life of its data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The format of the file.
    pub format: u32,
    /// The node's number.
    pub node_id: u64,
    /// The cluster that it was made for.
    pub cluster_id: ClusterId,
}

/// The open file. Lives on the control thread; its commits block that thread.
pub struct Database {
    path: PathBuf,
    redb: redb::Database,
    identity: Identity,
    /// Released last, when the file is closed.
    _lock: File,
}

impl Database {
    /// Opens `<data>/meta/meta.redb`, or makes it. A new one gets `new_cluster` as its cluster's id.
    ///
    /// # Errors
    /// See [`MetastoreError`].
    pub fn open(data: &Path, node_id: u64, new_cluster: ClusterId) -> Result<Database, MetastoreError> {
        let dir = data.join("meta");
        let path = dir.join("meta.redb");
        let lock = prepare(&dir)?;
        if !path.exists() {
            let identity = Identity {
                format: FILE_FORMAT,
                node_id,
                cluster_id: new_cluster,
            };
            create(&dir, &path, &identity)?;
        }
        let redb = builder().open(&path).map_err(|source| match source {
            redb::DatabaseError::DatabaseAlreadyOpen => MetastoreError::Locked { path: path.clone() },
            source => MetastoreError::Open {
                path: path.clone(),
                source,
            },
        })?;
        let identity = read_identity(&redb).map_err(|error| MetastoreError::Damaged {
            path: path.clone(),
            what: error.chain(),
        })?;
        if identity.format > FILE_FORMAT {
            return Err(MetastoreError::Newer {
                path,
                found: identity.format,
                supported: FILE_FORMAT,
            });
        }
        if identity.node_id != node_id {
            return Err(MetastoreError::OtherNode {
                path,
                stored: identity.node_id,
                asked: node_id,
            });
        }
        Ok(Database {
            path,
            redb,
            identity,
            _lock: lock,
        })
    }

    /// Who the node is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads in one consistent view.
    ///
    /// # Errors
    /// The database's, or what `f` says.
    pub(crate) fn read<T>(
        &self,
        f: impl FnOnce(&ReadTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        f(&self.redb.begin_read()?)
    }

    /// Writes in one transaction that is on disk when this returns; nothing is written if `f` fails.
    ///
    /// # Errors
    /// The database's, or what `f` says.
    pub(crate) fn write<T>(
        &self,
        f: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut transaction = self.redb.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        let value = f(&transaction)?;
        transaction.commit()?;
        Ok(value)
    }
}

/// A row of a table, with its place named in the error.
pub(crate) fn decode<T: serde::de::DeserializeOwned>(
    kind: Kind,
    bytes: &[u8],
    place: impl FnOnce() -> String,
) -> Result<T, StoreError> {
    row::decode(kind, bytes).map_err(|source| StoreError::Row {
        place: place(),
        source,
    })
}

fn builder() -> redb::Builder {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn prepare(dir: &Path) -> Result<File, MetastoreError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| MetastoreError::Directory { path, source }
    };
    make_directories(dir).map_err(at(dir))?;
    let path = dir.join("meta.lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(at(&path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(MetastoreError::Locked { path }),
        Err(TryLockError::Error(source)) => Err(MetastoreError::Directory { path, source }),
    }
}

/// A file under its final name is whole: a crash while it is made leaves only `meta.redb.new`, which is made anew.
fn create(dir: &Path, path: &Path, identity: &Identity) -> Result<(), MetastoreError> {
    let new = dir.join("meta.redb.new");
    let at_new = |source| MetastoreError::Directory {
        path: new.clone(),
        source,
    };
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at_new(error)),
        _ => {}
    }
    let redb = builder().create(&new).map_err(|source| MetastoreError::Open {
        path: new.clone(),
        source,
    })?;
    write_first(&redb, identity).map_err(|source| MetastoreError::Storage {
        path: new.clone(),
        step: "write the node's identity to",
        source,
    })?;
    redb.close().map_err(|source| MetastoreError::Open {
        path: new.clone(),
        source,
    })?;
    let renamed = File::open(&new)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&new, path))
        .and_then(|()| sync_directory(dir));
    renamed.map_err(at_new)
}

/// All tables are made here, so that a reader never has to tell an empty table from a missing one.
fn write_first(redb: &redb::Database, identity: &Identity) -> Result<(), StoreError> {
    let transaction = redb.begin_write()?;
    {
        let mut table = transaction.open_table(IDENTITY)?;
        table.insert(IDENTITY_KEY, row::encode(Kind::Identity, identity).as_slice())?;
        transaction.open_table(RAFT)?;
        transaction.open_table(LOG)?;
        transaction.open_table(APPLIED)?;
        transaction.open_table(TOPICS)?;
        transaction.open_table(LINKS)?;
        transaction.open_table(RESULTS)?;
    }
    transaction.commit()?;
    Ok(())
}

fn read_identity(redb: &redb::Database) -> Result<Identity, StoreError> {
    let table = redb.begin_read()?.open_table(IDENTITY)?;
    let missing = || StoreError::Inconsistent("the node's identity is missing".to_owned());
    let bytes = table.get(IDENTITY_KEY)?.ok_or_else(missing)?;
    decode(Kind::Identity, bytes.value(), || "the node's identity".to_owned())
}

/// A new directory is there after a power cut only if the one above it was flushed.
fn make_directories(dir: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|above| !above.exists()).collect();
    fs::create_dir_all(dir)?;
    for made in missing.iter().rev() {
        match made.parent() {
            Some(above) if above.as_os_str().is_empty() => sync_directory(Path::new("."))?,
            Some(above) => sync_directory(above)?,
            // The empty path, above a relative one.
            None => {}
        }
    }
    Ok(())
}

fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId([7; 16]);

    #[test]
    fn a_file_that_was_left_half_made_is_made_anew() {
        let data = tempfile::TempDir::new().expect("a directory");
        let meta = data.path().join("meta");
        fs::create_dir(&meta).expect("made");
        fs::write(meta.join("meta.redb.new"), b"half a database").expect("written");
        let database = Database::open(data.path(), 1, CLUSTER).expect("opens");
        assert_eq!(database.identity().cluster_id, CLUSTER);
        drop(database);
        let again = Database::open(data.path(), 1, ClusterId([8; 16])).expect("opens");
        assert_eq!(again.identity().cluster_id, CLUSTER, "the first id stays");
        assert!(!meta.join("meta.redb.new").exists());
    }

    #[test]
    fn directories_are_made_down_to_the_file() {
        let data = tempfile::TempDir::new().expect("a directory");
        let deep = data.path().join("a/b/c");
        let database = Database::open(&deep, 1, CLUSTER).expect("opens");
        assert_eq!(database.path(), deep.join("meta/meta.redb"));
    }

    #[test]
    fn what_is_no_database_is_not_overwritten() {
        let data = tempfile::TempDir::new().expect("a directory");
        let path = data.path().join("meta/meta.redb");
        fs::create_dir(data.path().join("meta")).expect("made");
        fs::write(&path, b"something else").expect("written");
        let error = Database::open(data.path(), 1, CLUSTER).err().expect("refused");
        assert!(matches!(error, MetastoreError::Open { .. }), "{error}");
        assert_eq!(fs::read(&path).expect("there"), b"something else");
    }

    #[test]
    fn a_place_that_cannot_be_made_is_named() {
        let data = tempfile::NamedTempFile::new().expect("a file");
        let error = Database::open(data.path(), 1, CLUSTER).err().expect("refused");
        let text = error.chain();
        assert!(
            text.starts_with("cannot prepare /") && text.contains("/meta: "),
            "{text}"
        );
    }
}
