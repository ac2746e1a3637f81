//! The simulated disk behind the traits, with the handles that tests use to break it.

use std::cell::RefCell;
use std::future::{Future, ready};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;

use crate::disk::device::{
    BLOCK, DirEntry, Disk, DiskError, DiskErrorKind, DiskResult, File, FlushScope, OpenMode, WriteOp,
};
use crate::disk::memory::faults::{OpKind, When};
use crate::disk::memory::luck::CrashPlan;
use crate::disk::memory::state::{MemoryStats, State};

/// What a fresh buffer is filled with, so that padding nobody wrote is noticed.
const UNWRITTEN: u8 = 0xA5;

/// A disk in memory, with a volatile cache, a power switch and faults on demand. The same seed and the same calls
/// give the same disk. Its futures never wait: any executor, or a single poll, completes them.
///
/// The root directory exists; everything else is made with `create_dir_all`. One thread, like every disk.
#[derive(Clone, Debug)]
pub struct MemoryDisk {
    state: Rc<RefCell<State>>,
}

impl MemoryDisk {
    /// An empty disk of unlimited size.
    pub fn new(seed: u64) -> Self {
        Self {
            state: Rc::new(RefCell::new(State::new(seed))),
        }
    }

    /// How many operations were begun: creates, each write (also of a batch), flushes, `prepare`, `set_len`,
    /// `write_small`, renames, removals, directory creations and directory flushes. A call that was refused because of
    /// its arguments, or of what it found, is not one.
    pub fn ops(&self) -> u64 {
        self.state.borrow().faults.ops()
    }

    /// Cuts the power at the operation with this number, counted from 0 as `ops` does. From there on everything fails.
    pub fn crash_at(&self, op: u64, when: When) {
        self.state.borrow_mut().faults.cut_at(op, when);
    }

    /// Whether the power was cut.
    pub fn power_is_off(&self) -> bool {
        self.state.borrow().faults.power_is_off()
    }

    /// The disk that is found after a power cut at this moment. This one stays as it is. The new one has no faults to
    /// come, and counts operations from 0.
    pub fn crash(&self, plan: CrashPlan) -> Self {
        Self {
            state: Rc::new(RefCell::new(self.state.borrow_mut().survivor(plan))),
        }
    }

    /// Fails the next `count` operations of a kind on paths that contain a text (a rename counts under its new name).
    ///
    /// A failed write has reached the cache in part (nothing of it with `NoSpace`). A failed flush, of a file or a
    /// directory, drops nothing that readers see, but what it covered never becomes durable by a later flush.
    pub fn fail_next(&self, kind: OpKind, path_contains: &str, error: DiskErrorKind, count: u32) {
        self.state
            .borrow_mut()
            .faults
            .inject(kind, path_contains, error, count);
    }

    /// Another shard's flush on the device fails just before the next operation of a kind on a path that contains a text.
    /// Nobody here is told: the operation itself succeeds, and only [`Disk::failed_flushes`] shows it.
    pub fn fail_beside_next(&self, kind: OpKind, path_contains: &str) {
        self.state.borrow_mut().faults.fail_beside(kind, path_contains);
    }

    /// Forgets the faults and misdirections that have not happened yet.
    pub fn clear_faults(&self) {
        self.state.borrow_mut().faults.clear_injected();
    }

    /// Decides what a flush of one file covers: `Device` at first. With `File` it covers that file alone; a failed one
    /// still dooms the unflushed writes of all, because the device below is one.
    pub fn set_flush_scope(&self, scope: FlushScope) {
        self.state.borrow_mut().flush_scope = scope;
    }

    /// Limits the disk to this many bytes of file blocks, or lifts the limit. Writes to blocks that are already there
    /// succeed on a full disk.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.borrow_mut().set_capacity(bytes);
    }

    /// Bit rot: XORs one byte of a file, in the cache and on the platter. Returns whether there is such a byte.
    pub fn flip(&self, path: &Path, byte: u64, mask: u8) -> bool {
        self.state.borrow_mut().flip(path, byte, mask)
    }

    /// The next write to a path that contains a text reports success but lands at a position of another file (or of
    /// its own, when `to` does not exist).
    pub fn misdirect_next(&self, path_contains: &str, to: &Path, position: u64) {
        self.state
            .borrow_mut()
            .faults
            .misdirect(path_contains, to, position);
    }

    /// A file's bytes as readers see them, whatever the power; `None` when there is no such file.
    pub fn peek(&self, path: &Path) -> Option<Vec<u8>> {
        self.state.borrow_mut().peek(path)
    }

    /// What was done since the disk was made.
    pub fn stats(&self) -> MemoryStats {
        self.state.borrow().stats
    }
}

/// An open file of a [`MemoryDisk`].
#[derive(Clone, Debug)]
pub struct MemoryFile {
    handle: Rc<Handle>,
}

#[derive(Debug)]
struct Handle {
    state: Rc<RefCell<State>>,
    number: u64,
    path: PathBuf,
    writable: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.state.borrow_mut().close(self.number);
    }
}

impl Handle {
    fn misuse<T>(&self, kind: OpKind, detail: &str) -> DiskResult<T> {
        Err(DiskError {
            op: kind.as_str(),
            path: self.path.clone(),
            kind: DiskErrorKind::Misuse,
            detail: detail.into(),
        })
    }

    fn check(&self, kind: OpKind, position: u64, len: u64) -> DiskResult<()> {
        if !self.writable && kind != OpKind::Read {
            return self.misuse(kind, "the file was opened to read");
        }
        if len == 0 || !position.is_multiple_of(BLOCK as u64) || !len.is_multiple_of(BLOCK as u64) {
            return self.misuse(
                kind,
                "position or length is not a multiple of 4096, or the length is 0",
            );
        }
        Ok(())
    }

    fn write(&self, buf: &Bytes, position: u64) -> DiskResult<()> {
        self.check(OpKind::Write, position, buf.len() as u64)?;
        self.state
            .borrow_mut()
            .write(self.number, &self.path, position, buf)
    }
}

// The writes below happen when they are called, not when they are awaited: dropping the future cancels nothing.
impl Disk for MemoryDisk {
    type File = MemoryFile;

    fn flush_scope(&self) -> FlushScope {
        self.state.borrow().flush_scope
    }

    fn failed_flushes(&self) -> u64 {
        self.state.borrow().failed_flushes
    }

    async fn open(&self, path: &Path, mode: OpenMode) -> DiskResult<MemoryFile> {
        let number = self.state.borrow_mut().open(path, mode)?;
        let writable = mode != OpenMode::Read;
        Ok(MemoryFile {
            handle: Rc::new(Handle {
                state: self.state.clone(),
                number,
                path: path.into(),
                writable,
            }),
        })
    }

    fn write_many(&self, writes: Vec<WriteOp<MemoryFile>>) -> impl Future<Output = Vec<DiskResult<()>>> {
        let order = self.state.borrow_mut().shuffled(writes.len());
        let mut results = vec![Ok(()); writes.len()];
        for n in order {
            let write = &writes[n];
            results[n] = write.file.handle.write(&write.buf, write.position);
        }
        ready(results)
    }

    async fn read_small(&self, path: &Path) -> DiskResult<Option<Vec<u8>>> {
        self.state.borrow_mut().read_small(path)
    }

    async fn write_small(&self, path: &Path, bytes: &[u8]) -> DiskResult<()> {
        self.state.borrow_mut().write_small(path, bytes)
    }

    async fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        self.state.borrow_mut().rename(from, to)
    }

    async fn remove_file(&self, path: &Path) -> DiskResult<()> {
        self.state.borrow_mut().remove_file(path)
    }

    async fn remove_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.state.borrow_mut().remove_dir_all(path)
    }

    async fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.state.borrow_mut().create_dir_all(path)
    }

    async fn list(&self, path: &Path) -> DiskResult<Vec<DirEntry>> {
        self.state.borrow_mut().list(path)
    }

    async fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        self.state.borrow_mut().sync_dir(path)
    }
}

impl File for MemoryFile {
    type Buf = Vec<u8>;
    type Shared = Bytes;

    fn alloc(&self, len: usize) -> Vec<u8> {
        assert!(
            len > 0 && len.is_multiple_of(BLOCK),
            "a buffer of {len} bytes: not a multiple of {BLOCK}"
        );
        vec![UNWRITTEN; len]
    }

    fn freeze(buf: Vec<u8>) -> Bytes {
        Bytes::from(buf)
    }

    fn bytes(shared: &Bytes) -> Bytes {
        shared.clone()
    }

    fn write_at(&self, buf: &Bytes, position: u64) -> impl Future<Output = DiskResult<()>> {
        ready(self.handle.write(buf, position))
    }

    async fn read_at(&self, position: u64, len: usize) -> DiskResult<Bytes> {
        let handle = &self.handle;
        handle.check(OpKind::Read, position, len as u64)?;
        handle
            .state
            .borrow_mut()
            .read(handle.number, &handle.path, position, len)
            .map(Bytes::from)
    }

    fn sync(&self) -> impl Future<Output = DiskResult<()>> {
        ready(
            self.handle
                .state
                .borrow_mut()
                .sync(self.handle.number, &self.handle.path),
        )
    }

    fn prepare(&self, from: u64, to: u64) -> impl Future<Output = DiskResult<()>> {
        let handle = &self.handle;
        let checked = handle.check(OpKind::Prepare, from, to.saturating_sub(from));
        ready(checked.and_then(|()| {
            handle
                .state
                .borrow_mut()
                .prepare(handle.number, &handle.path, from, to)
        }))
    }

    async fn len(&self) -> DiskResult<u64> {
        self.handle
            .state
            .borrow_mut()
            .len(self.handle.number, &self.handle.path)
    }

    async fn set_len(&self, len: u64) -> DiskResult<()> {
        let handle = &self.handle;
        if !handle.writable {
            return handle.misuse(OpKind::SetLen, "the file was opened to read");
        }
        handle
            .state
            .borrow_mut()
            .set_len(handle.number, &handle.path, len)
    }
}
