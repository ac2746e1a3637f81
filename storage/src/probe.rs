//! What one shard's storage has done, in plain counters that only that shard writes.
//!
//! A count costs one relaxed store: no lock, no read-modify-write. The shard holds the [`Probe`]; whoever
//! exports metrics holds an `Arc` of it and reads a [`ProbeReading`] on each scrape, on another thread, without
//! disturbing the shard. The counters of one reading are not of one instant.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of a [`Log2Histogram`].
pub const BUCKETS: usize = 40;

/// A number that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the number. Only the owning shard calls this: two writers would lose counts.
    pub fn add(&self, n: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the number. Only the owning shard calls this.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts by powers of two: bucket `n` counts values in `[2^n, 2^(n+1))`, the first one also 0, the last one
/// all above.
#[derive(Debug)]
pub struct Log2Histogram {
    counts: [Counter; BUCKETS],
    sum: Counter,
}

impl Default for Log2Histogram {
    fn default() -> Log2Histogram {
        Log2Histogram {
            counts: std::array::from_fn(|_| Counter::default()),
            sum: Counter::default(),
        }
    }
}

impl Log2Histogram {
    /// Counts a value. Only the owning shard calls this.
    pub fn record(&self, value: u64) {
        self.counts[bucket_of(value)].add(1);
        self.sum.add(value);
    }

    /// A copy of the counts.
    #[must_use]
    pub fn read(&self) -> HistogramReading {
        HistogramReading {
            counts: std::array::from_fn(|n| self.counts[n].get()),
            sum: self.sum.get(),
        }
    }
}

/// The bucket that counts a value.
#[must_use]
pub fn bucket_of(value: u64) -> usize {
    (value.max(1).ilog2() as usize).min(BUCKETS - 1)
}

/// The counts of a [`Log2Histogram`] at about one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramReading {
    /// By bucket, not added up.
    pub counts: [u64; BUCKETS],
    /// The sum of all values, wrapping.
    pub sum: u64,
}

impl HistogramReading {
    /// How many values were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

macro_rules! probe {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// One shard's storage counters; 64-byte aligned, so that no other shard's writes share its cache
        /// lines.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub struct Probe {
            $($(#[doc = $doc])+ pub $name: Counter,)+
            /// How long each flush took, in nanoseconds.
            pub sync_nanos: Log2Histogram,
        }

        /// The counters of a [`Probe`] at about one moment.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct ProbeReading {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// How long each flush took, in nanoseconds.
            pub sync_nanos: HistogramReading,
        }

        impl Probe {
            /// A copy of all counters.
            #[must_use]
            pub fn read(&self) -> ProbeReading {
                ProbeReading { $($name: self.$name.get(),)+ sync_nanos: self.sync_nanos.read() }
            }
        }

        impl ProbeReading {
            /// The plain counters by name, for export.
            #[must_use]
            pub fn counters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)+]
            }
        }
    };
}

probe! {
    /// Records that got their place in a log.
    appended_records,
    /// Bytes of batches that got their place in a log, padding to a block not counted.
    appended_bytes,
    /// Bytes written to logs, padding counted.
    written_bytes,
    /// Group commits: each wrote to one or more partitions and flushed once.
    rounds,
    /// Flushes that succeeded.
    syncs,
    /// Writes and flushes that failed.
    failures,
    /// Batches that were found damaged, on receipt or on disk.
    corrupt_batches,
    /// Ranges that recovery set aside as rot.
    quarantined_ranges,
    /// Repeats that were not appended again.
    duplicates,
    /// Partitions that are read-only since a failure, now.
    latched_partitions,
    /// Segments that retention removed.
    removed_segments,
    /// Reads that were answered from the tail cache.
    tail_cache_hits,
    /// Reads that went to the disk.
    disk_reads,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        for (value, bucket) in [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 1),
            (4, 2),
            (1 << 39, 39),
            (u64::MAX, 39),
        ] {
            assert_eq!(bucket_of(value), bucket, "{value}");
        }
    }

    #[test]
    fn a_reading_has_what_was_counted() {
        let probe = Probe::default();
        probe.appended_records.add(3);
        probe.appended_records.add(4);
        probe.latched_partitions.set(2);
        probe.sync_nanos.record(100_000);
        let reading = probe.read();
        assert_eq!(reading.appended_records, 7);
        assert_eq!((reading.sync_nanos.total(), reading.sync_nanos.sum), (1, 100_000));
        assert!(reading.counters().contains(&("latched_partitions", 2)));
        assert_eq!(size_of::<Probe>() % 64, 0);
    }
}
