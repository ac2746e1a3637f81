//! Direct I/O through glommio's io_uring, behind the traits.
//!
//! One `UringDisk` per shard, started on its executor. Data goes through `DmaFile` (O_DIRECT), every step of it in a task
//! of its own; names and small files go through the standard library on the executor's blocking thread. Nothing
//! here retries, decides or caches.

use std::cell::Cell;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use glommio::io::{DmaBuffer, DmaFile, OpenOptions, ReadResult};
use send_wrapper::SendWrapper;

use crate::disk::device::{
    BLOCK, DirEntry, Disk, DiskError, DiskResult, File, FlushScope, OpenMode, WriteOp,
};
use crate::disk::flush_watch::FailedFlushes;
use crate::disk::uring::blocking::{self, Device};
use crate::disk::uring::dir_syncs::DirSyncs;
use crate::disk::uring::errno::{from_glommio, from_std, misuse};
use crate::disk::uring::self_test;
use crate::disk::uring::task::{self, Answer};
use crate::disk::uring::zeros::{self, DeviceZeros};

/// The real disk, as the shard that started it sees it.
#[derive(Clone, Debug)]
pub struct UringDisk {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    tested: Device,
    flush_scope: FlushScope,
    failed_flushes: FailedFlushes,
    by_device: DeviceZeros,
    dir_syncs: Rc<DirSyncs>,
}

impl UringDisk {
    /// Tests the disk under a directory, which must exist, and is then ready to open files on the same device.
    ///
    /// Must run on a glommio executor before any other file is opened there (see `self_test`). Fails when the filesystem
    /// refuses direct I/O, cannot be written, reads back something else than was written, or is mounted in a way that
    /// makes flushes worthless (see `filesystem`).
    ///
    /// Whoever starts shards makes one `FailedFlushes` and gives a clone to each whose data lies on the same device.
    pub async fn start(self_test_dir: &Path, failed_flushes: FailedFlushes) -> DiskResult<Self> {
        let (dir, counted) = (self_test_dir.to_path_buf(), failed_flushes.clone());
        let tested = task::start(async move { self_test::run(&dir, counted).await }).await?;
        let dir = self_test_dir.to_path_buf();
        let found = beside(move || blocking::inspect_filesystem(&dir, tested)).await?;
        tracing::info!("{}: {}", self_test_dir.display(), found.description);
        if let Some(warning) = found.warning {
            tracing::warn!("{}: {warning}", self_test_dir.display());
        }
        Ok(Self {
            shared: Rc::new(Shared {
                tested,
                flush_scope: found.scope,
                failed_flushes,
                by_device: DeviceZeros::default(),
                dir_syncs: Rc::default(),
            }),
        })
    }
}

/// An open file of a [`UringDisk`]. The last handle to go, those of pending steps included, closes it with the
/// executor's next turn.
#[derive(Clone, Debug)]
pub struct UringFile {
    open: Rc<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    file: DmaFile,
    path: PathBuf,
    writable: bool,
    disk: Rc<Shared>,
}

/// A writable buffer of the executor's registered memory, or of the heap when that is used up. Not zeroed.
#[derive(Debug)]
pub struct UringBuf(DmaBuffer);

impl Deref for UringBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl DerefMut for UringBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_bytes_mut()
    }
}

/// A buffer that no longer changes.
#[derive(Clone, Debug)]
pub struct UringShared(Rc<DmaBuffer>);

/// What keeps the memory under a `Bytes` alive. Using or dropping it on another thread panics.
struct Owner<T>(SendWrapper<T>);

impl AsRef<[u8]> for Owner<UringShared> {
    fn as_ref(&self) -> &[u8] {
        self.0.0.as_bytes()
    }
}

impl AsRef<[u8]> for Owner<ReadResult> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl OpenFile {
    fn check(&self, op: &'static str, position: u64, len: u64) -> DiskResult<()> {
        if !self.writable && op != "read" {
            return Err(misuse(op, &self.path, "the file was opened to read"));
        }
        if len == 0 || !position.is_multiple_of(BLOCK as u64) || !len.is_multiple_of(BLOCK as u64) {
            let detail = "position or length is not a multiple of 4096, or the length is 0";
            return Err(misuse(op, &self.path, detail));
        }
        Ok(())
    }

    fn failed(&self, op: &'static str) -> impl FnOnce(glommio::GlommioError<()>) -> DiskError {
        let path = self.path.clone();
        move |error| from_glommio(op, &path, error)
    }

    /// Starts preparing at once; the answer may be dropped.
    fn prepare(
        self: &Rc<Self>,
        from: u64,
        to: u64,
        hurry: Option<Rc<Cell<bool>>>,
    ) -> impl Future<Output = DiskResult<()>> + use<> {
        let checked = self.check("prepare", from, to.saturating_sub(from));
        let started = checked.map(|()| {
            self.step("prepare", move |open| async move {
                let (zeros, failed) = (&open.disk.by_device, &open.disk.failed_flushes);
                zeros::fill(&open.file, from, to, zeros, failed, hurry).await
            })
        });
        async move { started?.await }
    }

    /// Starts a write at once; the answer may be dropped.
    fn write(
        self: &Rc<Self>,
        buf: &UringShared,
        position: u64,
    ) -> impl Future<Output = DiskResult<()>> + use<> {
        let checked = self.check("write", position, buf.0.len() as u64);
        let started = checked.map(|()| {
            let (open, buf) = (self.clone(), buf.0.clone());
            task::start(async move {
                let wanted = buf.len();
                let written = open
                    .file
                    .write_rc_at(buf, position)
                    .await
                    .map_err(open.failed("write"))?;
                if written != wanted {
                    return Err(from_std(
                        "write",
                        &open.path,
                        &zeros::short_write(written, wanted),
                    ));
                }
                Ok(())
            })
        });
        async move { started?.await }
    }

    /// Starts a step on the file at once; the answer may be dropped.
    fn step<T: 'static, W: Future<Output = glommio::Result<T, ()>> + 'static>(
        self: &Rc<Self>,
        op: &'static str,
        work: impl FnOnce(Rc<Self>) -> W,
    ) -> Answer<DiskResult<T>> {
        let (open, work) = (self.clone(), work(self.clone()));
        task::start(async move { work.await.map_err(open.failed(op)) })
    }
}

/// Runs a blocking step beside the shard, to its end even if the answer is dropped.
fn beside<T: Send + 'static>(
    work: impl FnOnce() -> DiskResult<T> + Send + 'static,
) -> impl Future<Output = DiskResult<T>> {
    task::start(async move { glommio::executor().spawn_blocking(work).await })
}

impl Disk for UringDisk {
    type File = UringFile;

    fn flush_scope(&self) -> FlushScope {
        self.shared.flush_scope
    }

    fn failed_flushes(&self) -> u64 {
        self.shared.failed_flushes.get()
    }

    async fn open(&self, path: &Path, mode: OpenMode) -> DiskResult<UringFile> {
        let (disk, path) = (self.shared.clone(), path.to_path_buf());
        let opened = task::start(async move {
            let (found, device) = (path.clone(), disk.tested);
            let found = glommio::executor()
                .spawn_blocking(move || blocking::open(&found, mode, device))
                .await?;
            let writable = mode != OpenMode::Read;
            // By its descriptor, not its name: glommio asks for the filesystem under a name a second time, and panics
            // when a rename or a removal came in between.
            let same = blocking::name_of(&found);
            let file = OpenOptions::new().read(true).write(writable).dma_open(same).await;
            let file = file.map_err(|error| from_glommio("open", &path, error))?;
            Ok(OpenFile {
                file,
                path,
                writable,
                disk,
            })
        });
        Ok(UringFile {
            open: Rc::new(opened.await?),
        })
    }

    fn write_many(&self, writes: Vec<WriteOp<UringFile>>) -> impl Future<Output = Vec<DiskResult<()>>> {
        let started: Vec<_> = writes
            .iter()
            .map(|write| write.file.open.write(&write.buf, write.position))
            .collect();
        async move {
            // One after the other is enough: all of them run, and a wait is over when the slowest has ended.
            let mut results = Vec::with_capacity(started.len());
            for write in started {
                results.push(write.await);
            }
            results
        }
    }

    async fn read_small(&self, path: &Path) -> DiskResult<Option<Vec<u8>>> {
        let path = path.to_path_buf();
        beside(move || blocking::read_small(&path)).await
    }

    async fn write_small(&self, path: &Path, bytes: &[u8]) -> DiskResult<()> {
        let (path, bytes, failed) = (
            path.to_path_buf(),
            bytes.to_vec(),
            self.shared.failed_flushes.clone(),
        );
        beside(move || blocking::write_small(&path, &bytes, &failed)).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        let (from, to) = (from.to_path_buf(), to.to_path_buf());
        beside(move || blocking::rename(&from, &to)).await
    }

    async fn remove_file(&self, path: &Path) -> DiskResult<()> {
        let path = path.to_path_buf();
        beside(move || blocking::remove_file(&path)).await
    }

    async fn remove_dir_all(&self, path: &Path) -> DiskResult<()> {
        let path = path.to_path_buf();
        beside(move || blocking::remove_dir_all(&path)).await
    }

    async fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        let (path, failed) = (path.to_path_buf(), self.shared.failed_flushes.clone());
        beside(move || blocking::create_dir_all(&path, &failed)).await
    }

    async fn list(&self, path: &Path) -> DiskResult<Vec<DirEntry>> {
        let path = path.to_path_buf();
        beside(move || blocking::list(&path)).await
    }

    async fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        let (dir, failed) = (path.to_path_buf(), self.shared.failed_flushes.clone());
        let flush = move || {
            let (dir, failed) = (dir.clone(), failed.clone());
            beside(move || blocking::sync_dir(&dir, &failed))
        };
        self.shared.dir_syncs.sync(path, flush).await
    }
}

impl File for UringFile {
    type Buf = UringBuf;
    type Shared = UringShared;

    fn alloc(&self, len: usize) -> UringBuf {
        assert!(
            len > 0 && len.is_multiple_of(BLOCK),
            "a buffer of {len} bytes: not a multiple of {BLOCK}"
        );
        UringBuf(self.open.file.alloc_dma_buffer(len))
    }

    fn freeze(buf: UringBuf) -> UringShared {
        UringShared(Rc::new(buf.0))
    }

    fn bytes(shared: &UringShared) -> Bytes {
        Bytes::from_owner(Owner(SendWrapper::new(shared.clone())))
    }

    fn write_at(&self, buf: &UringShared, position: u64) -> impl Future<Output = DiskResult<()>> {
        self.open.write(buf, position)
    }

    async fn read_at(&self, position: u64, len: usize) -> DiskResult<Bytes> {
        self.open.check("read", position, len as u64)?;
        let read = self.open.step("read", |open| async move {
            open.file.read_at_aligned(position, len).await
        });
        Ok(Bytes::from_owner(Owner(SendWrapper::new(read.await?))))
    }

    fn sync(&self) -> impl Future<Output = DiskResult<()>> {
        self.open.step("flush", |open| async move {
            zeros::flush(&open.file, &open.disk.failed_flushes).await
        })
    }

    fn prepare(&self, from: u64, to: u64) -> impl Future<Output = DiskResult<()>> {
        self.open.prepare(from, to, None)
    }

    fn prepare_gently(
        &self,
        from: u64,
        to: u64,
        hurry: Rc<Cell<bool>>,
    ) -> impl Future<Output = DiskResult<()>> {
        self.open.prepare(from, to, Some(hurry))
    }

    async fn len(&self) -> DiskResult<u64> {
        // glommio would ask for the file that has the name now. An open file's metadata is in memory: this does not block.
        let found = std::fs::metadata(blocking::name_of(&self.open.file));
        found
            .map(|found| found.len())
            .map_err(|error| from_std("read", &self.open.path, &error))
    }

    async fn set_len(&self, len: u64) -> DiskResult<()> {
        if !self.open.writable {
            return Err(misuse(
                "set length",
                &self.open.path,
                "the file was opened to read",
            ));
        }
        self.open
            .step("set length", |open| async move { open.file.truncate(len).await })
            .await
    }
}
