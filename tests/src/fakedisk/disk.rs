//! The fake disk as a file: serves a `VolatileCache` over FUSE from a thread of this process.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, FileAttr, FileType, MountOption, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow,
};

use crate::fakedisk::cache::{Counters, Cut, CutReport, FailedFlush, VolatileCache};
use crate::fakedisk::mount;

const IMAGE_NAME: &str = "image";
const ROOT_INODE: u64 = 1;
const IMAGE_INODE: u64 = 2;
/// Nothing about the two inodes ever changes, so the kernel may remember it for as long as it likes.
const ATTRIBUTES_TTL: Duration = Duration::from_secs(3600);
/// FOPEN_DIRECT_IO of the FUSE protocol: the kernel keeps no pages of this file, so every write arrives here.
const FOPEN_DIRECT_IO: u32 = 1;

/// A mounted fake disk. Dropping it unmounts it; whatever is mounted on it must be dropped before.
pub struct FakeDisk {
    shared: Arc<Shared>,
    dir: PathBuf,
    /// The serving thread; it ends when the kernel lets go of the mount.
    _session: BackgroundSession,
}

struct Shared {
    cache: Mutex<VolatileCache>,
    latency_ms: AtomicU64,
}

impl Shared {
    /// The cache stays consistent whatever panicked beside it: each of its methods is all or nothing.
    fn cache(&self) -> MutexGuard<'_, VolatileCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeDisk {
    /// Mounts a disk of `size_bytes` zeros on `dir` (made if absent); its image file is `FakeDisk::image`.
    pub fn mount(dir: &Path, size_bytes: u64) -> io::Result<FakeDisk> {
        fs::create_dir_all(dir)?;
        let shared = Arc::new(Shared {
            cache: Mutex::new(VolatileCache::new(size_bytes)),
            latency_ms: AtomicU64::new(0),
        });
        let options = [MountOption::FSName("tailwater-fakedisk".into()), MountOption::RW];
        let server = Server {
            shared: shared.clone(),
            size_bytes,
        };
        let session = fuser::spawn_mount2(server, dir, &options)?;
        Ok(FakeDisk {
            shared,
            dir: dir.to_path_buf(),
            _session: session,
        })
    }

    /// The one file of the disk, to put a filesystem on (see `LoopMount`).
    pub fn image(&self) -> PathBuf {
        self.dir.join(IMAGE_NAME)
    }

    /// Writes to the file `to` what the disk would hold after a power cut at this instant. The disk goes on.
    pub fn cut(&self, cut: Cut, to: &Path) -> io::Result<CutReport> {
        let (image, report) = self.shared.cache().cut(cut);
        image.save(to)?;
        Ok(report)
    }

    /// Makes the next `count` flushes fail with EIO.
    pub fn fail_flushes(&self, count: u32, how: FailedFlush) {
        self.shared.cache().fail_flushes(count, how);
    }

    /// Makes every write fail with EIO, or none.
    pub fn fail_writes(&self, failing: bool) {
        self.shared.cache().fail_writes(failing);
    }

    /// Makes every write and flush take this much longer; they queue up behind each other.
    pub fn latency_ms(&self, latency_ms: u64) {
        self.shared.latency_ms.store(latency_ms, Ordering::Relaxed);
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.shared.cache().counters()
    }
}

impl Drop for FakeDisk {
    fn drop(&mut self) {
        // A loop device lets go of its file a moment after its last user did.
        mount::unmount(&self.dir);
    }
}

/// The FUSE side: one directory that holds one file.
struct Server {
    shared: Arc<Shared>,
    size_bytes: u64,
}

impl Server {
    fn attributes(&self, inode: u64) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            ROOT_INODE => (FileType::Directory, 0o755, 0),
            IMAGE_INODE => (FileType::RegularFile, 0o600, self.size_bytes),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn reply_attributes(&self, inode: u64, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&ATTRIBUTES_TTL, &attributes),
            None => reply.error(libc::ENOENT),
        }
    }

    fn linger(&self) {
        let latency_ms = self.shared.latency_ms.load(Ordering::Relaxed);
        if latency_ms > 0 {
            thread::sleep(Duration::from_millis(latency_ms));
        }
    }
}

impl fuser::Filesystem for Server {
    fn lookup(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(IMAGE_INODE) {
            Some(attributes) if parent == ROOT_INODE && name == IMAGE_NAME => {
                reply.entry(&ATTRIBUTES_TTL, &attributes, 0);
            }
            _ => reply.error(libc::ENOENT),
        }
    }

    fn getattr(&mut self, _: &Request<'_>, inode: u64, _handle: Option<u64>, reply: ReplyAttr) {
        self.reply_attributes(inode, reply);
    }

    fn setattr(
        &mut self,
        _: &Request<'_>,
        inode: u64,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<u64>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<u32>,
        reply: ReplyAttr,
    ) {
        // Times and modes may be set without effect; a disk has the size that it has.
        match size {
            Some(size) if size != self.size_bytes => reply.error(libc::EPERM),
            _ => self.reply_attributes(inode, reply),
        }
    }

    fn open(&mut self, _: &Request<'_>, _inode: u64, _flags: i32, reply: ReplyOpen) {
        reply.opened(0, FOPEN_DIRECT_IO);
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        _inode: u64,
        _handle: u64,
        at: i64,
        len: u32,
        _flags: i32,
        _lock_owner: Option<u64>,
        reply: ReplyData,
    ) {
        let Ok(at) = u64::try_from(at) else {
            return reply.error(libc::EINVAL);
        };
        reply.data(&self.shared.cache().read(at, len as usize));
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        _inode: u64,
        _handle: u64,
        at: i64,
        data: &[u8],
        _write_flags: u32,
        _flags: i32,
        _lock_owner: Option<u64>,
        reply: ReplyWrite,
    ) {
        let Ok(at) = u64::try_from(at) else {
            return reply.error(libc::EINVAL);
        };
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if at.saturating_add(data.len() as u64) > self.size_bytes {
            return reply.error(libc::ENOSPC);
        }
        self.linger();
        match self.shared.cache().write(at, data) {
            Ok(()) => reply.written(len),
            Err(_) => reply.error(libc::EIO),
        }
    }

    fn fsync(&mut self, _: &Request<'_>, _inode: u64, _handle: u64, _datasync: bool, reply: ReplyEmpty) {
        self.linger();
        match self.shared.cache().flush() {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(libc::EIO),
        }
    }

    /// Neither discard nor write-zeroes: the loop device falls back to writing zeros.
    fn fallocate(
        &mut self,
        _: &Request<'_>,
        _inode: u64,
        _handle: u64,
        _at: i64,
        _len: i64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(libc::EOPNOTSUPP);
    }

    fn readdir(
        &mut self,
        _: &Request<'_>,
        _inode: u64,
        _handle: u64,
        position: i64,
        mut reply: ReplyDirectory,
    ) {
        if position == 0 {
            // One entry always fits into the reply.
            let _ = reply.add(IMAGE_INODE, 1, FileType::RegularFile, IMAGE_NAME);
        }
        reply.ok();
    }
}
