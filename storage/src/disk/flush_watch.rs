//! The rule that a flush proves nothing if another one on the same device failed beside it.
//!
//! A device that fails a flush may drop what others have written and not yet flushed, and tells only the one who asked;
//! the flushes of the others then succeed over what is gone (docs/decisions/0001). So every flush that fails is counted,
//! by all shards on the device together, and who writes looks at the count before its first write and after its flush.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailwater_wire::mutant::{Mutant, planted};

use crate::disk::device::{Disk, DiskError, DiskErrorKind, DiskResult};

/// How many flushes on one device have failed. Of the process: clones share the count, and every shard whose data lies on
/// the device holds one.
#[derive(Debug, Clone, Default)]
pub struct FailedFlushes {
    count: Arc<AtomicU64>,
}

impl FailedFlushes {
    /// Counts one, before anyone is told of it.
    pub fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

/// Taken before the first write, and asked after the flush that should have covered it.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct FlushWatch {
    failed_before: u64,
}

impl FlushWatch {
    /// From here on.
    pub fn begin<D: Disk>(disk: &D) -> Self {
        Self {
            failed_before: disk.failed_flushes(),
        }
    }

    /// Whether no flush has failed since: only then are the writes since, which were flushed, there.
    ///
    /// # Errors
    /// One did; what was written to `path` may be gone, and must be treated as after a failed flush of its own.
    pub fn check<D: Disk>(self, disk: &D, path: &Path) -> DiskResult<()> {
        if disk.failed_flushes() == self.failed_before || planted(Mutant::BelieveFlushBesideFailed) {
            return Ok(());
        }
        Err(DiskError {
            op: "flush",
            path: path.into(),
            kind: DiskErrorKind::Io,
            detail: "it succeeded, but beside it another flush on the device failed, which may have dropped these \
                     writes too"
                .into(),
        })
    }
}
