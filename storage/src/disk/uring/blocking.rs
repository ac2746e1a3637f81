//! The steps on names and small files, as plain blocking calls: they run on a thread beside the shard, never on it.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::disk::device::{DirEntry, DiskError, DiskErrorKind, DiskResult, OpenMode};
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

pub(super) fn write_small(path: &Path, bytes: &[u8]) -> DiskResult<()> {
    let written = fs::File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
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
pub(super) fn create_dir_all(path: &Path) -> DiskResult<()> {
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
        sync_dir(parent.unwrap_or(Path::new(".")))?;
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

pub(super) fn sync_dir(path: &Path) -> DiskResult<()> {
    let synced = fs::File::open(path).and_then(|dir| dir.sync_all());
    synced.map_err(|error| from_std("flush directory", path, &error))
}
