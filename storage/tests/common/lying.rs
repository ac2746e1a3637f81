//! The simulated disk, but for one kind of flush that is not done although it says so, or that never ends.

use std::cell::Cell;
use std::path::Path;

use bytes::Bytes;
use tailwater_storage::disk::device::{DirEntry, Disk, DiskResult, File, FlushScope, OpenMode, WriteOp};
use tailwater_storage::disk::memory::{MemoryDisk, MemoryFile};

/// Flushes of files are left out.
#[allow(dead_code)] // each test binary uses its own
pub const SKIP_SYNC: u8 = 0;
/// Flushes of directories are left out.
#[allow(dead_code)]
pub const SKIP_DIR_SYNC: u8 = 1;
/// Flushes of files do not end while `STALLED` is set.
#[allow(dead_code)]
pub const STALL_SYNC: u8 = 2;

thread_local! {
    /// See [`STALL_SYNC`].
    pub static STALLED: Cell<bool> = const { Cell::new(false) };
}

/// See the module.
#[derive(Clone)]
pub struct Lying<const LIE: u8>(pub MemoryDisk);

/// A file of it.
#[derive(Clone)]
pub struct LyingFile<const LIE: u8>(MemoryFile);

impl<const LIE: u8> Disk for Lying<LIE> {
    type File = LyingFile<LIE>;

    fn flush_scope(&self) -> FlushScope {
        self.0.flush_scope()
    }

    fn failed_flushes(&self) -> u64 {
        self.0.failed_flushes()
    }

    async fn open(&self, path: &Path, mode: OpenMode) -> DiskResult<LyingFile<LIE>> {
        self.0.open(path, mode).await.map(LyingFile)
    }

    async fn write_many(&self, writes: Vec<WriteOp<LyingFile<LIE>>>) -> Vec<DiskResult<()>> {
        let inner = |write: WriteOp<LyingFile<LIE>>| WriteOp {
            file: write.file.0,
            position: write.position,
            buf: write.buf,
        };
        self.0.write_many(writes.into_iter().map(inner).collect()).await
    }

    async fn read_small(&self, path: &Path) -> DiskResult<Option<Vec<u8>>> {
        self.0.read_small(path).await
    }

    async fn write_small(&self, path: &Path, bytes: &[u8]) -> DiskResult<()> {
        self.0.write_small(path, bytes).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        self.0.rename(from, to).await
    }

    async fn remove_file(&self, path: &Path) -> DiskResult<()> {
        self.0.remove_file(path).await
    }

    async fn remove_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.0.remove_dir_all(path).await
    }

    async fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.0.create_dir_all(path).await
    }

    async fn list(&self, path: &Path) -> DiskResult<Vec<DirEntry>> {
        self.0.list(path).await
    }

    async fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        if LIE == SKIP_DIR_SYNC {
            return Ok(());
        }
        self.0.sync_dir(path).await
    }
}

impl<const LIE: u8> File for LyingFile<LIE> {
    type Buf = Vec<u8>;
    type Shared = Bytes;

    fn alloc(&self, len: usize) -> Vec<u8> {
        self.0.alloc(len)
    }

    fn freeze(buf: Vec<u8>) -> Bytes {
        MemoryFile::freeze(buf)
    }

    fn bytes(shared: &Bytes) -> Bytes {
        MemoryFile::bytes(shared)
    }

    async fn write_at(&self, buf: &Bytes, position: u64) -> DiskResult<()> {
        self.0.write_at(buf, position).await
    }

    async fn read_at(&self, position: u64, len: usize) -> DiskResult<Bytes> {
        self.0.read_at(position, len).await
    }

    async fn sync(&self) -> DiskResult<()> {
        if LIE == SKIP_SYNC {
            return Ok(());
        }
        if LIE == STALL_SYNC && STALLED.get() {
            return std::future::pending().await;
        }
        self.0.sync().await
    }

    async fn prepare(&self, from: u64, to: u64) -> DiskResult<()> {
        self.0.prepare(from, to).await
    }

    async fn len(&self) -> DiskResult<u64> {
        self.0.len().await
    }

    async fn set_len(&self, len: u64) -> DiskResult<()> {
        self.0.set_len(len).await
    }
}
