//! All that storage asks of an operating system: the traits `Disk` and `File`.
//!
//! Two implementations exist: `disk::uring` (glommio, O_DIRECT) and `disk::memory` (the simulated disk); one
//! conformance suite runs on both. Everything here is single-threaded: a handle lives and dies on the shard
//! that opened it. No method retries anything; a failed flush is final (SPEC.md D5), and the caller latches.

use std::cell::Cell;
use std::ops::DerefMut;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;

/// Every position, length and buffer of direct I/O is a multiple of this many bytes. (`DmaFile::alignment()`
/// may report 512; that is not trusted.)
pub const BLOCK: usize = 4096;

/// What went wrong, in the terms that callers decide by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskErrorKind {
    /// No such file or directory.
    NotFound,
    /// The file exists and `OpenMode::CreateNew` was asked for.
    AlreadyExists,
    /// The filesystem or a quota is full (ENOSPC, EDQUOT).
    NoSpace,
    /// The process may not do that (EACCES, EPERM, EROFS).
    Permission,
    /// The device or kernel refused or failed (EIO and all others).
    Io,
    /// The call broke this module's contract: unaligned, empty, or a write to a file opened to read.
    Misuse,
}

/// A failed step on the disk: which step, on what, and why.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{op} {}: {detail}", path.display())]
pub struct DiskError {
    /// The step in words: `open`, `write`, `flush`, `rename`, ...
    pub op: &'static str,
    /// The file or directory that the step was about.
    pub path: PathBuf,
    /// The class that callers decide by.
    pub kind: DiskErrorKind,
    /// The operating system's own words.
    pub detail: String,
}

/// The result of a disk step.
pub type DiskResult<T> = Result<T, DiskError>;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    ReadWrite,
    /// A new file, to read and write; an existing one is an error.
    CreateNew,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The last component of its path.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Which completed writes a successful [`File::sync`] makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlushScope {
    /// Those of the file, and all overwrites of durable extents of every other file: the flush is the device's.
    Device,
    /// Those of the file alone: who wrote to several files flushes each.
    File,
}

/// One write of a batch given to [`Disk::write_many`].
pub struct WriteOp<F: File> {
    /// The file to write to.
    pub file: F,
    /// Position in bytes, a multiple of [`BLOCK`].
    pub position: u64,
    /// The bytes; their length is a multiple of [`BLOCK`].
    pub buf: F::Shared,
}

/// A filesystem, as one shard sees it. Clones are handles to the same disk.
#[allow(async_fn_in_trait)] // single-threaded by design: no Send bound is wanted
pub trait Disk: Clone + 'static {
    /// Its open files.
    type File: File;

    /// What a flush of one file covers. The same as long as the disk is open.
    fn flush_scope(&self) -> FlushScope;

    /// How many flushes on this device have failed, of any file or directory and by any shard that shares the count: a
    /// failed flush may have taken others' unflushed writes with it (see `flush_watch`).
    fn failed_flushes(&self) -> u64;

    /// Opens a file for direct I/O. A new file is empty, and its name is durable only after [`Disk::sync_dir`]. The handle
    /// is of the file, not of its name: renames and removals leave it as it is.
    async fn open(&self, path: &Path, mode: OpenMode) -> DiskResult<Self::File>;

    /// Submits all writes at once and returns when every one of them has completed, in the order given.
    /// A short write is an error. The writes begin with the call, and run to their end even if the returned future is
    /// never polled, or dropped.
    async fn write_many(&self, writes: Vec<WriteOp<Self::File>>) -> Vec<DiskResult<()>>;

    /// Reads a small file whole through the page cache; `None` when it does not exist.
    async fn read_small(&self, path: &Path) -> DiskResult<Option<Vec<u8>>>;

    /// Creates or truncates a small file, writes it whole and fsyncs it. Not atomic, and its name is not
    /// durable: see `atomic_file` for that.
    async fn write_small(&self, path: &Path, bytes: &[u8]) -> DiskResult<()>;

    /// Renames over whatever has the new name. Durable only after [`Disk::sync_dir`] of the directory.
    async fn rename(&self, from: &Path, to: &Path) -> DiskResult<()>;

    /// Removes a file; `NotFound` is an error. Durable only after [`Disk::sync_dir`].
    async fn remove_file(&self, path: &Path) -> DiskResult<()>;

    /// Removes a directory and all below it; absent is fine. Durable only after [`Disk::sync_dir`] of the parent; until
    /// then a power cut may leave any part of it.
    async fn remove_dir_all(&self, path: &Path) -> DiskResult<()>;

    /// Creates a directory and its missing parents, and fsyncs the parent of each that it created.
    async fn create_dir_all(&self, path: &Path) -> DiskResult<()>;

    /// The names in a directory, sorted; `NotFound` when it does not exist.
    async fn list(&self, path: &Path) -> DiskResult<Vec<DirEntry>>;

    /// Makes the names in a directory durable (fsync of the directory).
    async fn sync_dir(&self, path: &Path) -> DiskResult<()>;
}

/// An open file. Clones are handles to the same open file; the last one to go closes it.
#[allow(async_fn_in_trait)] // single-threaded by design: no Send bound is wanted
#[allow(clippy::len_without_is_empty)] // `len` asks the filesystem; a file is no collection
pub trait File: Clone + 'static {
    /// A writable, aligned buffer; its content is undefined until written.
    type Buf: DerefMut<Target = [u8]>;
    /// A buffer that no longer changes and can be written and read at the same time.
    type Shared: Clone + 'static;

    /// A buffer of `len` bytes, a multiple of [`BLOCK`]. **Not zeroed**: whoever pads must write the padding.
    fn alloc(&self, len: usize) -> Self::Buf;

    /// Ends the writing of a buffer.
    fn freeze(buf: Self::Buf) -> Self::Shared;

    /// The bytes of a frozen buffer, without a copy. They may be kept, on this shard only.
    fn bytes(shared: &Self::Shared) -> Bytes;

    /// Writes a whole buffer at an aligned position, beyond the end too. A short write is an error. Begins with the call,
    /// and runs to its end even if the returned future is never polled, or dropped.
    async fn write_at(&self, buf: &Self::Shared, position: u64) -> DiskResult<()>;

    /// Reads up to `len` bytes (a multiple of [`BLOCK`]) at an aligned position; fewer only at the file's end.
    /// The bytes are a view of the read buffer, not a copy; they must be dropped on this shard.
    async fn read_at(&self, position: u64, len: usize) -> DiskResult<Bytes>;

    /// fdatasync: when it returns, every write of this file that completed before the call is durable, and with
    /// [`FlushScope::Device`] so is every completed overwrite of an already durable extent of *any* file of the disk
    /// (docs/decisions/0001: the device's cache flush is shared), unless [`Disk::failed_flushes`] moved meanwhile. A
    /// failure is final and must latch. Begins with the call, like a write.
    async fn sync(&self) -> DiskResult<()>;

    /// Fills `[from, to)` with written zeros (both multiples of [`BLOCK`]) and makes that and the file's length
    /// durable, so that later overwrites there change no metadata.
    async fn prepare(&self, from: u64, to: u64) -> DiskResult<()>;

    /// [`File::prepare`] for something that nobody waits for yet: a disk that has to write the zeros pauses between
    /// steps until `hurry` is set, because zeroing at full speed makes every commit beside it several times slower
    /// (docs/decisions/0002).
    async fn prepare_gently(&self, from: u64, to: u64, hurry: Rc<Cell<bool>>) -> DiskResult<()> {
        hurry.set(true);
        self.prepare(from, to).await
    }

    /// The file's length in bytes.
    async fn len(&self) -> DiskResult<u64>;

    /// Cuts or extends the file to a length (extension reads as zeros). Durable only after [`File::sync`].
    async fn set_len(&self, len: u64) -> DiskResult<()>;
}
