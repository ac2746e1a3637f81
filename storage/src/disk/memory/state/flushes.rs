//! What a flush of the simulated disk covers, and what a failed one dooms.

use std::path::Path;

use super::State;
use crate::disk::device::{DiskResult, FlushScope};
use crate::disk::memory::content::Scope;
use crate::disk::memory::faults::{OpKind, Verdict};
use crate::disk::memory::luck::Luck;

impl State {
    /// A write and the flush of it alone, whatever a flush covers here: a device may write one thing past its cache and leave
    /// the rest there. Fails, and is cut off, in either half.
    pub(in crate::disk::memory) fn write_durably(
        &mut self,
        file: u64,
        path: &Path,
        position: u64,
        bytes: &[u8],
    ) -> DiskResult<()> {
        let scope = std::mem::replace(&mut self.flush_scope, FlushScope::File);
        let written = self.write(file, path, position, bytes);
        if written.is_err() {
            self.failed_flushes += 1;
        }
        let done = written.and_then(|()| self.sync(file, path));
        self.flush_scope = scope;
        done
    }

    /// One flush: all of this file, and where it is the device's, the overwrites of durable extents of every other.
    pub(super) fn flush(&mut self, file: u64, luck: &mut Luck) {
        for (number, node) in &mut self.files {
            match (*number == file, self.flush_scope) {
                (true, _) => node.content.settle(Scope::Own, luck),
                (false, FlushScope::Device) => node.content.settle(Scope::Shared, luck),
                (false, FlushScope::File) => {}
            }
        }
    }

    /// A failed flush. What the device drops is not the file's alone, whatever a successful one would have covered.
    pub(super) fn doom(&mut self, file: u64) {
        self.failed_flushes += 1;
        for (number, node) in &mut self.files {
            node.content.doom(if *number == file {
                Scope::Own
            } else {
                Scope::Shared
            });
        }
    }

    pub(in crate::disk::memory) fn sync(&mut self, file: u64, path: &Path) -> DiskResult<()> {
        match self.judge(OpKind::Sync, path) {
            Verdict::Run => {
                self.flush(file, &mut Luck::Good);
                self.stats.syncs += 1;
                Ok(())
            }
            Verdict::Fail(error) => {
                self.doom(file);
                Err(error)
            }
            Verdict::Cut(when, error) => {
                if let Some(mut luck) = self.luck_of_cut(when) {
                    self.flush(file, &mut luck);
                }
                Err(error)
            }
            Verdict::Off(error) => Err(error),
        }
    }
}
