//! What a producer's state machine is told, and what it asks for.

use std::time::Duration;

use bytes::Bytes;

use crate::ids::{PartitionId, Writer};
use crate::message::Produced;
use crate::partitioner::Partitioner;
use crate::session::action::Failure;

/// A batch within one producer, from 1, in the order they were begun.
pub type BatchId = u64;

/// How a producer is set up.
#[derive(Debug, Clone)]
pub struct BatcherConfig {
    /// The topic's.
    pub partitioner: Partitioner,
    /// The topic's; at least 1.
    pub partitions: u32,
    /// Whether batches carry a producer id.
    pub idempotence: WriterKind,
    /// A batch is full with so many records.
    pub batch_records: usize,
    /// A batch is full with so many bytes.
    pub batch_bytes: usize,
    /// How long a batch tops up while another of its partition is in flight.
    pub linger: Duration,
    /// Batches of one partition that may be unacknowledged.
    pub in_flight: usize,
    /// How long after its first record a batch is given up.
    pub delivery_timeout: Duration,
    /// The partition of the first batch without keys; any number.
    pub first_keyless: u32,
}

/// Which producer id batches carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterKind {
    /// None: no deduplication.
    Anonymous,
    /// A random one, which can be replaced after a failure.
    Random,
    /// One that the application chose. After a batch whose outcome is unknown it is not used again, because a late
    /// arrival could take the sequence of a newer batch.
    Named,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The answer to [`Action::Open`].
    Opened {
        /// Where.
        partition: PartitionId,
        /// What to write under, and its last sequence.
        result: Result<(Writer, u64), Failure>,
    },
    /// The answer to [`Action::Produce`].
    Settled {
        /// Where.
        partition: PartitionId,
        /// Which batch.
        batch: BatchId,
        /// Whether it went out more than once for this one answer.
        resent: bool,
        /// How it ended.
        result: Result<Produced, Failure>,
    },
    /// Batches of this partition would now take another connection. It sends nothing until all that is in flight there
    /// is back, so that no batch overtakes another.
    Reroute {
        /// Which.
        partition: PartitionId,
    },
    /// Nothing that was pushed so far is to linger.
    Flush,
    /// Records were pushed, or [`crate::producer::batcher::Batcher::wake_at`] has come.
    Tick,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the node for a producer on this partition.
    Open {
        /// Where.
        partition: PartitionId,
        /// Under a new random id, because the last one is not to be used any more.
        renew: bool,
    },
    /// Send a batch.
    Produce {
        /// Where.
        partition: PartitionId,
        /// Which.
        batch: BatchId,
        /// All of it.
        bytes: Bytes,
    },
    /// A batch has ended.
    Done {
        /// Where.
        partition: PartitionId,
        /// Which.
        batch: BatchId,
        /// How. Its records have the offsets from `base_offset`, in the order of their push.
        result: Result<Produced, Failure>,
    },
}
