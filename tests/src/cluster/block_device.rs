//! A directory's block device, and how many flush requests it has completed: what no process can pretend.

use std::path::{Path, PathBuf};

use crate::cluster::place::mount_of;

/// Flush requests completed, the 16th field of `/sys/block/*/stat`, from 0.
/// <https://docs.kernel.org/block/stat.html>
const FLUSHES_FIELD: usize = 15;

/// The device that a directory's files lie on.
#[derive(Debug)]
pub struct BlockDevice {
    /// Of the whole device: flushes are counted there, also those of a partition's filesystem.
    sys: PathBuf,
}

impl BlockDevice {
    /// The device of a directory.
    ///
    /// # Panics
    /// When it cannot show flushes: no block device, or one whose cache writes through and so never needs any.
    #[must_use]
    pub fn of(directory: &Path) -> BlockDevice {
        let mounted = mount_of(directory);
        let sys = PathBuf::from("/sys/dev/block").join(&mounted.device);
        let sys = sys
            .canonicalize()
            .unwrap_or_else(|error| panic!("{mounted:?} is no block device: {error}"));
        let whole = if sys.join("partition").exists() {
            sys.parent().map(Path::to_owned)
        } else {
            Some(sys)
        };
        let device = BlockDevice {
            sys: whole.expect("a partition lies in a device"),
        };
        let cache = std::fs::read_to_string(device.sys.join("queue/write_cache")).unwrap_or_default();
        assert_eq!(
            cache.trim(),
            "write back",
            "{device:?} gets no flushes that could be counted"
        );
        device
    }

    /// Flush requests that it has completed since it was there.
    ///
    /// # Panics
    /// When the kernel does not count them (before 5.5).
    #[must_use]
    pub fn flushes(&self) -> u64 {
        let stat = std::fs::read_to_string(self.sys.join("stat")).expect("a block device has statistics");
        let field = stat
            .split_ascii_whitespace()
            .nth(FLUSHES_FIELD)
            .and_then(|field| field.parse().ok());
        field.unwrap_or_else(|| panic!("no count of flushes in `{}`", stat.trim()))
    }
}
