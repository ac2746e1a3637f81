//! Room on the disk for metadata: a reserve that is given up when topics have filled the disk, so that what makes room
//! again (deleting a topic) can still be written.

use std::fs::{File, remove_file};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use tailwater_wire::code::{ErrorCode, Refusal};

/// Bytes of the reserve.
const RESERVE_BYTES: u64 = 16 << 20;
/// With less than this free, the reserve is given up before metadata is written.
const LOW_BYTES: u64 = 8 << 20;
/// With more than this free beside it, a reserve that was given up is made again.
const AMPLE_BYTES: u64 = 64 << 20;

/// The filesystem of the data directory.
pub struct Space {
    data: PathBuf,
    reserve: PathBuf,
}

impl Space {
    /// Of a data directory.
    #[must_use]
    pub fn new(data: &Path) -> Space {
        Space {
            data: data.to_owned(),
            reserve: data.join("meta").join("reserve"),
        }
    }

    /// Bytes that this process may still take; `None` when the system does not say.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        let stat = statvfs(&self.data).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Sees to room for a change of metadata: gives the reserve up when the disk is all but full, makes it when there is
    /// plenty.
    pub fn make_room(&self) {
        match self.available() {
            Some(free) if free < LOW_BYTES && self.reserve.exists() => {
                tracing::warn!(free, "the disk is full: giving up the metadata's reserve");
                if let Err(error) = remove_file(&self.reserve) {
                    tracing::error!(%error, "the metadata's reserve cannot be given up");
                }
            }
            Some(free) if free > AMPLE_BYTES && self.is_wanted() => {
                let made = File::create(&self.reserve)
                    .and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?));
                if let Err(error) = made {
                    tracing::warn!(%error, "no reserve for metadata: a full disk may end this node");
                }
            }
            _ => {}
        }
    }

    /// The folder is made with the metadata; before that there is nothing to keep room for.
    fn is_wanted(&self) -> bool {
        !self.reserve.exists() && self.reserve.parent().is_some_and(Path::exists)
    }

    /// Whether there is room for the first segments of so many partitions.
    ///
    /// # Errors
    /// `DISK_FULL`, with what is needed and what is there.
    pub fn check(&self, partitions: u64, segment_bytes_first: u64) -> Result<(), Refusal> {
        let needed = partitions * segment_bytes_first + LOW_BYTES;
        match self.available() {
            Some(free) if free < needed => {
                let what = format!(
                    "{partitions} partitions need {needed} bytes to begin with, and {} has {free} free",
                    self.data.display()
                );
                Err(Refusal::new(ErrorCode::DiskFull, what))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_made_and_too_large_a_topic_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("meta")).expect("a folder");
        let space = Space::new(dir.path());
        space.make_room();
        let reserve = dir.path().join("meta/reserve");
        assert_eq!(reserve.metadata().expect("made").len(), RESERVE_BYTES);
        space.check(1, 1 << 20).expect("room for one");
        let refusal = space.check(1_024, 1 << 50).expect_err("no disk is so large");
        assert_eq!(refusal.code, ErrorCode::DiskFull);
    }
}
