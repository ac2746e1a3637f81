//! Per-shard counters and histograms: written by one shard with relaxed stores, read by a scrape (DESIGN.md section 9).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tailwater_wire::ids::TopicName;

/// A number that only its shard writes. An update costs a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// Adds to a counter.
    pub fn add(&self, n: u64) {
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

const SUB_BUCKETS: u64 = 8;
const BUCKETS: usize = 320;

/// Durations in buckets of an eighth of an octave (at most 12.5% wide), from 1 ns to over an hour.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[Cell]>,
    sum_ns: Cell,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: (0..BUCKETS).map(|_| Cell::default()).collect(),
            sum_ns: Cell::default(),
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, nanos: u64) {
        self.counts[bucket(nanos)].add(1);
        self.sum_ns.add(nanos);
    }

    /// The counts of all buckets, in order.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(Cell::get).collect()
    }

    /// The upper bound of a bucket, in nanoseconds.
    #[must_use]
    pub fn upper_ns(index: usize) -> u64 {
        let (octave, sub) = (index as u64 / SUB_BUCKETS, index as u64 % SUB_BUCKETS);
        if octave == 0 {
            sub
        } else {
            ((SUB_BUCKETS + sub + 1) << (octave - 1)) - 1
        }
    }
}

/// The duration below which a share of all that these histograms counted lie, in nanoseconds; 0 when there is none.
#[must_use]
pub fn quantile_ns<'a>(histograms: impl Iterator<Item = &'a Histogram>, share: f64) -> u64 {
    let mut counts = vec![0; BUCKETS];
    for histogram in histograms {
        let more = histogram.counts.iter().map(Cell::get);
        counts.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    let total: u64 = counts.iter().sum();
    let wanted = (total as f64 * share).ceil().max(1.0) as u64;
    let mut below = 0;
    for (index, count) in counts.iter().enumerate() {
        below += count;
        if below >= wanted {
            return Histogram::upper_ns(index);
        }
    }
    0
}

fn bucket(nanos: u64) -> usize {
    if nanos < SUB_BUCKETS {
        return nanos as usize;
    }
    let octave = u64::from(nanos.ilog2()) - 2;
    let sub = (nanos >> (octave - 1)) - SUB_BUCKETS;
    ((octave * SUB_BUCKETS + sub) as usize).min(BUCKETS - 1)
}

/// The meters of a shard's links. A lock is taken when a cursor starts and when somebody asks, never on the data path.
#[derive(Debug, Default)]
pub struct LinkMeters {
    links: Mutex<BTreeMap<(TopicName, TopicName), Arc<Cell>>>,
}

impl LinkMeters {
    /// The meter of a link, by parent and child; all its cursors on the shard share it.
    #[must_use]
    pub fn of(&self, parent: &TopicName, child: &TopicName) -> Arc<Cell> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(links.entry((parent.clone(), child.clone())).or_default())
    }

    /// Adds each link's nanoseconds to `sums`, and forgets links that have no cursor any more.
    pub fn add_to(&self, sums: &mut BTreeMap<(TopicName, TopicName), u64>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link, meter| {
            let is_used = Arc::strong_count(meter) > 1;
            if is_used {
                match sums.get_mut(link) {
                    Some(sum) => *sum += meter.get(),
                    None => drop(sums.insert(link.clone(), meter.get())),
                }
            }
            is_used
        });
    }
}

/// What one shard counts. Aligned, so that two shards never share a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShardCounters {
    /// From a batch's arrival to its acknowledgement.
    pub append: Histogram,
    /// One shared flush.
    pub fsync: Histogram,
    /// What a partition's commits wait for a new segment.
    pub roll: Histogram,
    /// Batches appended by producers and cursors.
    pub batches: Cell,
    /// Records appended.
    pub records: Cell,
    /// Bytes written to logs, padding included.
    pub log_bytes: Cell,
    /// Batches found damaged, on receipt or on disk.
    pub corrupt_batches: Cell,
    /// Partitions that are read-only after a failed write or flush.
    pub latched: Cell,
    /// Client connections that are open.
    pub connections: Cell,
    /// Client connections that were refused because of the limit.
    pub connections_refused: Cell,
    /// Requests answered with a refusal.
    pub refusals: Cell,
    /// Child records committed by cursors.
    pub fanout_committed: Cell,
    /// Child records that were sent again and not appended again.
    pub fanout_duplicates: Cell,
    /// Parent records that retention removed before they were copied.
    pub fanout_dropped: Cell,
    /// Parent records that a link's filter held back.
    pub fanout_filtered: Cell,
    /// Cursors that do not move, with a reason.
    pub fanout_stalled: Cell,
    /// Cursors that run.
    pub fanout_cursors: Cell,
    /// Positions stored in cursor files.
    pub fanout_positions: Cell,
    /// Nanoseconds spent in the tasks of cursors.
    pub fanout_busy_ns: Cell,
    /// The same, link by link.
    pub links: LinkMeters,
    /// The comparing part of a reconciler's pass, without what it starts.
    pub reconcile: Histogram,
    /// Bytes that slabs in flight hold of their budget.
    pub slab_bytes: Cell,
    /// Anchor decisions: resumed the own file.
    pub anchor_resumed: Cell,
    /// Anchor decisions: started at a confirmed attach point.
    pub anchor_started: Cell,
    /// Anchor decisions: deferred, for want of the leader's word.
    pub anchor_deferred: Cell,
    /// Anchor decisions: refused, the epoch is not current.
    pub anchor_stale: Cell,
    /// Share of the time that the shard ran, over the last few seconds, in thousandths.
    pub busy_permille: Cell,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_their_bounds_say() {
        for nanos in (0..2_000).chain([10_000, 123_456, 10_000_000, 999_999_999, 60_000_000_000]) {
            let index = bucket(nanos);
            assert!(nanos <= Histogram::upper_ns(index), "{nanos} in {index}");
            assert!(
                index == 0 || nanos > Histogram::upper_ns(index - 1),
                "{nanos} in {index}"
            );
        }
        let histogram = Histogram::default();
        (1..=1_000).for_each(|us| histogram.record(us * 1_000));
        let median = quantile_ns([&histogram].into_iter(), 0.5);
        assert!((500_000..=563_000).contains(&median), "{median}");
        assert_eq!(quantile_ns([].into_iter(), 0.5), 0);
    }
}
