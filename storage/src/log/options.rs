//! What a log is opened with, and what its appends and rounds answer.

use std::ops::Range;
use std::path::PathBuf;

use tailwater_wire::ids::{CommitTime, Incarnation, Offset, OwnerEpoch, PartitionId, TopicName};
use tailwater_wire::meta::Durability;

use crate::disk::device::BLOCK;
use crate::tail_cache::{SharedTailCache, TAIL_CACHE_BYTES, TailCache};

/// Which partition of which life of which topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogIdentity {
    /// The topic's name, for messages.
    pub topic: TopicName,
    /// The topic's life: stands in every segment.
    pub incarnation: Incarnation,
    /// The partition: stands in every segment.
    pub partition: PartitionId,
}

/// How a log behaves.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// Stamped into every batch.
    pub owner_epoch: OwnerEpoch,
    /// When waiters are released.
    pub durability: Durability,
    /// The first segment's size in bytes, rounded up to blocks; each next one is twice as large.
    pub segment_bytes_first: u64,
    /// The greatest segment's size; only a batch that does not fit makes a larger one.
    pub segment_bytes_max: u64,
    /// Bytes between two entries of the sparse index.
    pub index_interval_bytes: u32,
    /// Bytes that may wait for a round; an append beyond that is refused as busy. One batch is always taken.
    pub pending_bytes_max: u64,
    /// How long a log is idle before a frontier batch proves its last flush, in milliseconds.
    pub frontier_idle_ms: u64,
    /// The shard's cache of what was committed last.
    pub tail_cache: SharedTailCache,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            owner_epoch: OwnerEpoch(1),
            durability: Durability::Fsync,
            segment_bytes_first: 1 << 20,
            segment_bytes_max: 64 << 20,
            index_interval_bytes: 64 << 10,
            pending_bytes_max: 16 << 20,
            frontier_idle_ms: 1_000,
            tail_cache: TailCache::shared(TAIL_CACHE_BYTES),
        }
    }
}

impl LogOptions {
    /// The size of the segment after one of `bytes`.
    pub(crate) fn next_segment_bytes(&self, bytes: u64) -> u64 {
        let first = self.segment_bytes_first.max(2 * BLOCK as u64);
        let next = (bytes * 2).clamp(first, self.segment_bytes_max.max(first));
        next.next_multiple_of(BLOCK as u64)
    }
}

/// The answer to an append that was not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The first record's offset; for a duplicate the original's, when it is still known.
    pub base_offset: Option<Offset>,
    /// What [`committed`](crate::log::PartitionLog::committed) is to be asked for before this is acknowledged.
    pub end: Offset,
    /// When it was committed, once it is; for a duplicate the original's time, when it is still known.
    pub commit_time: Option<CommitTime>,
    /// The records were in the log already, and nothing was appended.
    pub duplicate: bool,
}

/// A segment that retention removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedSegment {
    /// Its file.
    pub path: PathBuf,
    /// Its offsets.
    pub offsets: Range<Offset>,
    /// Its length.
    pub bytes: u64,
}
