//! The steps on names and small files, as plain blocking calls: they run on a thread beside the shard, never on it.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::disk::device::{DirEntry, DiskError, DiskErrorKind, DiskResult, OpenMode};
use crate::disk::filesystem::{DeviceNumber, Mount, Verdict, judge};
use crate::disk::flush_watch::FailedFlushes;
use crate::disk::uring::errno::from_std;

/// The number of the device under a filesystem.
pub(super) type Device = u64;

/// Opens or creates a file on a device; one on another device is refused, before its first read can mislead glommio's
/// probe (see `self_test`).
pub(super) fn open(path: &Path, mode: OpenMode, device: Device) -> DiskResult<fs::File> {
    let is_new = mode == OpenMode::CreateNew;
    let op = if is_new { "create" } else { "open" };
    let mut options = fs::OpenOptions::new();
    options
        .read(true)
        .write(mode != OpenMode::Read)
        .create_new(is_new);
    let opened = options.open(path).and_then(|file| Ok((file.metadata()?, file)));
    let (found, file) = opened.map_err(|error| from_std(op, path, &error))?;
    let refused = if found.is_dir() {
        "is a directory"
    } else if found.dev() != device {
        "is not on the device that was tested at start"
    } else {
        return Ok(file);
    };
    Err(DiskError {
        op,
        path: path.into(),
        kind: DiskErrorKind::Io,
        detail: refused.into(),
    })
}

/// A name under which an open file is found whatever became of its path: glommio lends no descriptor that is safe to use.
pub(super) fn name_of(file: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

pub(super) fn read_small(path: &Path) -> DiskResult<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(from_std("read", path, &error)),
    }
}

pub(super) fn write_small(path: &Path, bytes: &[u8], failed_flushes: &FailedFlushes) -> DiskResult<()> {
    let written = fs::File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        flush(&file, failed_flushes)
    });
    written.map_err(|error| from_std("write file", path, &error))
}

pub(super) fn rename(from: &Path, to: &Path) -> DiskResult<()> {
    // ENOENT is about the old name, or about the new one's directory; the old one is the likelier reader's question.
    fs::rename(from, to).map_err(|error| from_std("rename", from, &error))
}

pub(super) fn remove_file(path: &Path) -> DiskResult<()> {
    fs::remove_file(path).map_err(|error| from_std("remove", path, &error))
}

pub(super) fn remove_dir_all(path: &Path) -> DiskResult<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(from_std("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Creates the missing directories from the top down, each made durable before anything is put into it.
pub(super) fn create_dir_all(path: &Path, failed_flushes: &FailedFlushes) -> DiskResult<()> {
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.is_dir())
        .collect();
    for dir in missing.into_iter().rev() {
        match fs::create_dir(dir) {
            // Another shard was faster; it also flushes the parent, but perhaps not before we return.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(DiskError {
                    op: "create directory",
                    path: dir.into(),
                    kind: DiskErrorKind::Io, // `AlreadyExists` is kept for `OpenMode::CreateNew`
                    detail: "not a directory".into(),
                });
            }
            Err(error) => return Err(from_std("create directory", dir, &error)),
            Ok(()) => {}
        }
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_dir(parent.unwrap_or(Path::new(".")), failed_flushes)?;
    }
    Ok(())
}

pub(super) fn list(path: &Path) -> DiskResult<Vec<DirEntry>> {
    let entries = fs::read_dir(path).and_then(|entries| {
        entries
            .map(|entry| {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Ok(DirEntry {
                    name,
                    is_dir: entry.file_type()?.is_dir(),
                })
            })
            .collect::<std::io::Result<Vec<_>>>()
    });
    let mut entries = entries.map_err(|error| from_std("read", path, &error))?;
    entries.sort();
    Ok(entries)
}

pub(super) fn sync_dir(path: &Path, failed_flushes: &FailedFlushes) -> DiskResult<()> {
    let synced = fs::File::open(path).and_then(|dir| flush(&dir, failed_flushes));
    synced.map_err(|error| from_std("flush directory", path, &error))
}

/// fsync; a failure is counted before anyone hears of it.
pub(super) fn flush(file: &fs::File, failed_flushes: &FailedFlushes) -> std::io::Result<()> {
    file.sync_all().inspect_err(|_| failed_flushes.add())
}

/// What the filesystem on a device lets a flush promise. `path`, of a directory there, is for the error.
pub(super) fn inspect_filesystem(path: &Path, device: Device) -> DiskResult<Verdict> {
    let mountinfo = "/proc/self/mountinfo";
    let mounts =
        fs::read_to_string(mountinfo).map_err(|error| from_std("read", Path::new(mountinfo), &error))?;
    let number = DeviceNumber {
        major: rustix::fs::major(device),
        minor: rustix::fs::minor(device),
    };
    let mut mount = Mount::find(&mounts, number);
    let in_sys = PathBuf::from(format!("/sys/dev/block/{number}"));
    if mount.is_ext4()
        && let Ok(target) = fs::read_link(&in_sys)
        && let Some(name) = target.file_name()
        && let Ok(options) = fs::read_to_string(Path::new("/proc/fs/ext4").join(name).join("options"))
    {
        mount.add_options(&options);
    }
    // A partition has no queue of its own; its disk lies one level up.
    let write_cache = ["queue/write_cache", "../queue/write_cache"]
        .iter()
        .find_map(|file| fs::read_to_string(in_sys.join(file)).ok());
    judge(&mount, write_cache.as_deref()).map_err(|refusal| DiskError {
        op: "use",
        path: path.into(),
        kind: DiskErrorKind::Io,
        detail: refusal.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_flush_is_counted_and_one_that_was_never_asked_for_is_not() {
        let failed = FailedFlushes::default();
        let dir = tempfile::tempdir().expect("a directory");
        sync_dir(dir.path(), &failed).expect("flushes");
        write_small(&dir.path().join("a"), b"x", &failed).expect("writes");
        create_dir_all(&dir.path().join("b/c"), &failed).expect("creates");
        sync_dir(&dir.path().join("absent"), &failed).expect_err("absent");
        assert_eq!(failed.get(), 0);
        // It opens, and refuses to be flushed.
        sync_dir(Path::new("/dev/null"), &failed).expect_err("EINVAL");
        write_small(Path::new("/dev/null"), b"x", &failed).expect_err("EINVAL");
        assert_eq!(failed.get(), 2);
    }

    #[test]
    fn this_machines_filesystem_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let device = fs::metadata(dir.path()).expect("there").dev();
        let found = inspect_filesystem(dir.path(), device).expect("fit for tests");
        assert!(found.description.contains(" on device "), "{found:?}");
        let nowhere = inspect_filesystem(dir.path(), 0).expect("a careful verdict");
        assert!(nowhere.description.starts_with("unknown"), "{nowhere:?}");
    }
}
