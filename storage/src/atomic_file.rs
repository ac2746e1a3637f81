//! Replaces a small file in one step: whoever opens it finds the old content whole or the new content whole.
//!
//! Write and fsync a temporary sibling, rename it over the file, fsync the directory. Without the first fsync a power
//! cut may leave the new name on an empty file; without the last one it may bring the old file back, after the
//! caller was told of the new one.

use std::path::Path;

use crate::disk::device::{Disk, DiskError};
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
    /// The directory could not be flushed: readers see the new content, and a power cut may bring the old one back. A later
    /// flush that succeeds does not prove this rename; only a whole new replacement does.
    #[error("the new name could not be made durable")]
    SyncDir(#[source] DiskError),
}

/// Replaces the file at `path` with `bytes`, or creates it. When this returns `Ok`, the new content is durable.
///
/// `unique` must differ from that of every other replacement of this file that may be under way, of an abandoned one too:
/// a counter of the shard will do. Temporary files that a crash leaves behind are known by their name
/// (`layout::PartitionEntry::Temporary`).
///
/// # Errors
/// [`ReplaceError`] names the step, and with it what a reader finds now.
pub async fn replace<D: Disk>(disk: &D, path: &Path, unique: u64, bytes: &[u8]) -> Result<(), ReplaceError> {
    let temporary = temporary_path(path, unique);
    if let Err(error) = disk.write_small(&temporary, bytes).await {
        discard(disk, &temporary).await;
        return Err(ReplaceError::Write(error));
    }
    if let Err(error) = disk.rename(&temporary, path).await {
        discard(disk, &temporary).await;
        return Err(ReplaceError::Rename(error));
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    disk.sync_dir(directory).await.map_err(ReplaceError::SyncDir)
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
