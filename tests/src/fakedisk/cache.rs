//! The fake disk's rules: what a volatile write cache holds, when it becomes durable, what a power cut leaves.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::fakedisk::image::SparseImage;

/// The unit that a disk writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// Which part of the pending writes survives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Each sector of each pending write survives or not, by this seed; so does the share that survives.
    Torn {
        /// The same seed and the same pending writes give the same image.
        seed: u64,
    },
    /// Nothing: the cache was lost whole.
    DropPending,
    /// Everything: the program was killed, but the disk kept its power.
    KeepPending,
}

/// What a flush that fails does to the writes that it should have made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedFlush {
    /// They stay in the cache, and a later flush makes them durable.
    KeepsWrites,
    /// They are gone for good, although reads still return them: the disk gave up on them.
    LosesWrites,
}

/// What a cut found and kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CutReport {
    /// Sectors that were written but not flushed.
    pub pending_sectors: u64,
    /// How many of them the image holds.
    pub kept_sectors: u64,
}

/// What happened on the disk since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Writes that succeeded.
    pub writes: u64,
    /// Bytes in these.
    pub written_bytes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Writes that were made to fail.
    pub failed_writes: u64,
    /// Flushes that were made to fail.
    pub failed_flushes: u64,
    /// Writes waiting for a flush now.
    pub pending_writes: u64,
}

/// The answer to an injected fault: the device reports an I/O error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceError;

struct PendingWrite {
    at: u64,
    data: Vec<u8>,
}

/// A disk and its volatile write cache.
pub struct VolatileCache {
    /// What survives a power cut in any case.
    durable: SparseImage,
    /// What reads return: every write that was accepted, flushed or not.
    visible: SparseImage,
    /// Accepted since the last flush, in order.
    pending: Vec<PendingWrite>,
    /// How many of the next flushes fail, and how.
    flushes_to_fail: (u32, FailedFlush),
    /// Whether writes fail now.
    failing_writes: bool,
    counters: Counters,
}

impl VolatileCache {
    /// A disk of `size_bytes` zeros.
    pub fn new(size_bytes: u64) -> VolatileCache {
        VolatileCache {
            durable: SparseImage::new(size_bytes),
            visible: SparseImage::new(size_bytes),
            pending: Vec::new(),
            flushes_to_fail: (0, FailedFlush::KeepsWrites),
            failing_writes: false,
            counters: Counters::default(),
        }
    }

    /// The length of the disk.
    pub fn size_bytes(&self) -> u64 {
        self.visible.size_bytes()
    }

    /// The bytes at `at`, fewer than `len` at the end of the disk.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        self.visible.read(at, len)
    }

    /// Takes a write into the cache. The caller has checked that it lies within the disk.
    pub fn write(&mut self, at: u64, data: &[u8]) -> Result<(), DeviceError> {
        if self.failing_writes {
            self.counters.failed_writes += 1;
            return Err(DeviceError);
        }
        self.visible.write(at, data);
        self.pending.push(PendingWrite {
            at,
            data: data.to_vec(),
        });
        self.counters.writes += 1;
        self.counters.written_bytes += data.len() as u64;
        Ok(())
    }

    /// Makes everything pending durable, or fails if told to.
    pub fn flush(&mut self) -> Result<(), DeviceError> {
        let (to_fail, how) = self.flushes_to_fail;
        if to_fail > 0 {
            self.flushes_to_fail.0 -= 1;
            self.counters.failed_flushes += 1;
            if how == FailedFlush::LosesWrites {
                self.pending.clear();
            }
            return Err(DeviceError);
        }
        for write in self.pending.drain(..) {
            self.durable.write(write.at, &write.data);
        }
        self.counters.flushes += 1;
        Ok(())
    }

    /// What the disk holds after a power cut now. The disk itself goes on.
    pub fn cut(&self, cut: Cut) -> (SparseImage, CutReport) {
        let mut image = self.durable.clone();
        let mut report = CutReport::default();
        let (mut rng, share) = match cut {
            Cut::Torn { seed } => {
                let mut rng = StdRng::seed_from_u64(seed);
                let share = rng.random_range(0.05..0.95);
                (rng, share)
            }
            Cut::DropPending => (StdRng::seed_from_u64(0), 0.0),
            Cut::KeepPending => (StdRng::seed_from_u64(0), 1.0),
        };
        for write in &self.pending {
            for (sector, data) in write.data.chunks(SECTOR_BYTES).enumerate() {
                report.pending_sectors += 1;
                if rng.random_bool(share) {
                    report.kept_sectors += 1;
                    image.write(write.at + (sector * SECTOR_BYTES) as u64, data);
                }
            }
        }
        (image, report)
    }

    /// Makes the next `count` flushes fail.
    pub fn fail_flushes(&mut self, count: u32, how: FailedFlush) {
        self.flushes_to_fail = (count, how);
    }

    /// Makes every write fail, or none.
    pub fn fail_writes(&mut self, failing: bool) {
        self.failing_writes = failing;
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        Counters {
            pending_writes: self.pending.len() as u64,
            ..self.counters
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_with_old_and_new() -> VolatileCache {
        let mut disk = VolatileCache::new(1 << 20);
        disk.write(0, &[1; 8192]).expect("written");
        disk.flush().expect("flushed");
        disk.write(0, &[2; 8192]).expect("written");
        disk
    }

    #[test]
    fn a_cut_keeps_what_was_flushed_and_tears_the_rest_by_sector() {
        let disk = disk_with_old_and_new();
        assert_eq!(disk.read(0, 8192), [2; 8192]);
        assert_eq!(disk.cut(Cut::DropPending).0.read(0, 8192), [1; 8192]);
        assert_eq!(disk.cut(Cut::KeepPending).0.read(0, 8192), [2; 8192]);

        let (mut both, mut torn_differently) = (false, false);
        let first = disk.cut(Cut::Torn { seed: 0 }).0.read(0, 8192);
        for seed in 0..20 {
            let (image, report) = disk.cut(Cut::Torn { seed });
            let bytes = image.read(0, 8192);
            let new = bytes.chunks(512).filter(|sector| **sector == [2; 512]).count() as u64;
            let old = bytes.chunks(512).filter(|sector| **sector == [1; 512]).count() as u64;
            assert_eq!(
                (old + new, new),
                (report.pending_sectors, report.kept_sectors),
                "seed {seed}"
            );
            both |= old > 0 && new > 0;
            torn_differently |= bytes != first;
        }
        assert!(both && torn_differently);
        assert_eq!(
            first,
            disk.cut(Cut::Torn { seed: 0 }).0.read(0, 8192),
            "a seed is a cut"
        );
    }

    #[test]
    fn a_failed_flush_keeps_or_loses_what_it_covered() {
        for how in [FailedFlush::KeepsWrites, FailedFlush::LosesWrites] {
            let mut disk = disk_with_old_and_new();
            disk.fail_flushes(1, how);
            assert_eq!(disk.flush(), Err(DeviceError));
            assert_eq!(
                disk.flush(),
                Ok(()),
                "the next flush knows nothing of the failure"
            );
            assert_eq!(disk.read(0, 512), [2; 512], "reading back proves nothing");
            let survives = if how == FailedFlush::KeepsWrites { 2 } else { 1 };
            assert_eq!(disk.cut(Cut::KeepPending).0.read(0, 8192), [survives; 8192]);
        }
    }

    #[test]
    fn failing_writes_change_nothing() {
        let mut disk = disk_with_old_and_new();
        disk.fail_writes(true);
        assert_eq!(disk.write(0, &[3; 512]), Err(DeviceError));
        assert_eq!(disk.read(0, 512), [2; 512]);
        disk.fail_writes(false);
        assert_eq!(disk.write(0, &[3; 512]), Ok(()));
        let counters = disk.counters();
        assert_eq!(
            (counters.writes, counters.failed_writes, counters.pending_writes),
            (3, 1, 2)
        );
    }
}
