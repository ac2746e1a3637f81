//! Replaces a small file in one step: whoever opens it finds the old content whole or the new content whole.
//!
//! Write and fsync a temporary sibling, rename it over the file, fsync the directory. Without the first fsync a
//! power cut may leave the new name on an empty file; without the last one it may bring the old file back,
//! after the caller was told of the new one.

use std::path::Path;

use tailwater_wire::mutant::{Mutant, planted};

use crate::disk::device::{Disk, DiskError};
use crate::disk::flush_watch::FlushWatch;
use crate::layout::temporary_path;

/// At which step a replacement failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReplaceError {
    /// The temporary file could not be written: the old content stands.
    #[error("the new content could not be written")]
    Write(#[source] DiskError),
    /// The rename failed: the old content stands.
    #[error("the new content could not be given its name")]
    Rename(#[source] DiskError),
    /// The directory could not be flushed: readers see the new content, and a power cut may bring the old one
    /// back. A later flush that succeeds does not prove this rename; only a whole new replacement does.
    #[error("the new name could not be made durable")]
    SyncDir(#[source] DiskError),
}

/// Replaces the file at `path` with `bytes`, or creates it. When this returns `Ok`, the new content is durable.
///
/// `unique` must differ from that of every other replacement of this file that may be under way, of an
/// abandoned one too: a counter of the shard will do. Temporary files that a crash leaves behind are known by
/// their name (`layout::PartitionEntry::Temporary`).
///
/// # Errors
/// [`ReplaceError`] names the step, and with it what a reader finds now.
pub async fn replace<D: Disk>(disk: &D, path: &Path, unique: u64, bytes: &[u8]) -> Result<(), ReplaceError> {
    let temporary = temporary_path(path, unique);
    let watch = FlushWatch::begin(disk);
    let written = disk.write_small(&temporary, bytes).await;
    if let Err(error) = written.and_then(|()| watch.check(disk, &temporary)) {
        discard(disk, &temporary).await;
        return Err(ReplaceError::Write(error));
    }
    if let Err(error) = disk.rename(&temporary, path).await {
        discard(disk, &temporary).await;
        return Err(ReplaceError::Rename(error));
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    if planted(Mutant::SkipDirectorySync) {
        return Ok(());
    }
    let synced = disk.sync_dir(directory).await;
    synced
        .and_then(|()| watch.check(disk, directory))
        .map_err(ReplaceError::SyncDir)
}

/// Removes a file and makes its absence durable. An absent file is fine.
///
/// # Errors
/// The step that failed; the file may be there still, or again after a power cut.
pub async fn remove<D: Disk>(disk: &D, path: &Path) -> Result<(), DiskError> {
    use crate::disk::device::DiskErrorKind::NotFound;
    match disk.remove_file(path).await {
        Err(error) if error.kind != NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    disk.sync_dir(path.parent().unwrap_or(Path::new("."))).await
}

/// Best effort: what it leaves behind is known by its name and swept at the next start.
async fn discard<D: Disk>(disk: &D, temporary: &Path) {
    let _ = disk.remove_file(temporary).await;
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;
    use crate::disk::device::DiskErrorKind;
    use crate::disk::memory::{CrashPlan, MemoryDisk, OpKind, When};

    const FILE: &str = "/d/file";
    const OLD: &[u8] = &[1; 1_300];
    const NEW: &[u8] = &[2; 2_900];

    fn disk(seed: u64) -> MemoryDisk {
        let disk = MemoryDisk::new(seed);
        block_on(disk.create_dir_all(Path::new("/d"))).expect("a new directory");
        disk
    }

    fn disk_with_old(seed: u64) -> MemoryDisk {
        let disk = disk(seed);
        block_on(replace(&disk, Path::new(FILE), 1, OLD)).expect("no faults");
        disk
    }

    fn replace_with_new(disk: &MemoryDisk) -> Result<(), ReplaceError> {
        block_on(replace(disk, Path::new(FILE), 2, NEW))
    }

    /// Every disk that a power cut may leave behind.
    fn survivors(disk: &MemoryDisk) -> impl Iterator<Item = MemoryDisk> {
        let drawn = (0..12).map(CrashPlan::Random);
        [CrashPlan::LoseAll, CrashPlan::KeepAll]
            .into_iter()
            .chain(drawn)
            .map(|plan| disk.crash(plan))
    }

    #[test]
    fn a_cut_at_any_step_leaves_the_old_file_or_the_new_one() {
        let (mut old_left, mut new_left) = (0, 0);
        for seed in 0..8 {
            let start = disk_with_old(seed).ops();
            for op in start..start + 4 {
                for when in [When::Before, When::Inside, When::After] {
                    let disk = disk_with_old(seed);
                    disk.crash_at(op, when);
                    let result = replace_with_new(&disk);
                    assert_eq!(
                        result.is_ok(),
                        op >= start + 3,
                        "three steps: write, rename, flush directory"
                    );
                    for survivor in survivors(&disk) {
                        let found = survivor.peek(Path::new(FILE)).expect("never without the file");
                        match &found[..] {
                            OLD => old_left += 1,
                            NEW => new_left += 1,
                            _ => panic!("a mixture: seed {seed}, op {op}, {when:?}"),
                        }
                        assert!(
                            result.is_err() || found == NEW,
                            "the old file after the caller was told"
                        );
                    }
                }
            }
        }
        assert!(old_left > 0 && new_left > 0, "{old_left} {new_left}");
    }

    #[test]
    fn a_first_file_is_absent_or_whole() {
        for op in 0..4 {
            for when in [When::Before, When::Inside, When::After] {
                let disk = disk(op);
                disk.crash_at(disk.ops() + op, when);
                let result = replace_with_new(&disk);
                for survivor in survivors(&disk) {
                    let found = survivor.peek(Path::new(FILE));
                    assert!(found.as_deref().is_none_or(|bytes| bytes == NEW));
                    assert!(result.is_err() || found.is_some());
                }
            }
        }
    }

    #[test]
    fn a_failed_step_is_named_and_leaves_a_whole_file() {
        for (kind, expected) in [
            (OpKind::WriteSmall, OLD),
            (OpKind::Rename, OLD),
            (OpKind::SyncDir, NEW),
        ] {
            let disk = disk_with_old(1);
            let error = DiskErrorKind::NoSpace;
            disk.fail_next(kind, "/d", error, 1);
            let is_named = match replace_with_new(&disk).expect_err("injected") {
                ReplaceError::Write(e) => kind == OpKind::WriteSmall && e.kind == error,
                ReplaceError::Rename(e) => kind == OpKind::Rename && e.kind == error,
                ReplaceError::SyncDir(e) => kind == OpKind::SyncDir && e.kind == error,
            };
            assert!(is_named);
            assert_eq!(disk.peek(Path::new(FILE)).as_deref(), Some(expected));
            let names = block_on(disk.list(Path::new("/d"))).expect("a directory");
            assert_eq!(names.len(), 1, "no temporary file is left: {names:?}");
            replace_with_new(&disk).expect("the fault is over");
            assert_eq!(
                disk.crash(CrashPlan::LoseAll).peek(Path::new(FILE)).as_deref(),
                Some(NEW)
            );
        }
    }

    // The fsync of the new content succeeded, over a cache that the device had dropped.
    #[test]
    fn another_shards_failed_flush_is_the_replacements_own() {
        for (kind, expected) in [(OpKind::WriteSmall, OLD), (OpKind::SyncDir, NEW)] {
            let disk = disk_with_old(1);
            disk.fail_beside_next(kind, "/d");
            match (kind, replace_with_new(&disk).expect_err("in doubt")) {
                (OpKind::WriteSmall, ReplaceError::Write(_))
                | (OpKind::SyncDir, ReplaceError::SyncDir(_)) => {}
                (_, other) => panic!("{kind:?}: {other}"),
            }
            assert_eq!(disk.peek(Path::new(FILE)).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_removed_file_stays_away() {
        let disk = disk_with_old(1);
        block_on(remove(&disk, Path::new(FILE))).expect("no faults");
        assert_eq!(disk.crash(CrashPlan::LoseAll).peek(Path::new(FILE)), None);
        block_on(remove(&disk, Path::new(FILE))).expect("an absent file is fine");
    }
}
