//! What the table is told of a batch, and what it answers.

use tailwater_wire::ids::{CommitTime, Lineage, Offset, Writer};

/// A batch as it lies in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendedBatch {
    /// Who wrote it.
    pub writer: Writer,
    /// The writer's watermark that it follows.
    pub previous: u64,
    /// The writer's watermark that it leaves.
    pub sequence: u64,
    /// Its first record's offset.
    pub base_offset: Offset,
    /// The offset after its last record.
    pub end_offset: Offset,
    /// When it was committed.
    pub commit_time: CommitTime,
    /// For a data batch of an origin, what it says of the parent batch that it ends with. A batch of an origin
    /// without it (a notice of dropped records) leaves the last mark as it was.
    pub origin: Option<OriginMark>,
}

/// The parent batch that holds the last record an origin accounted for. A cursor whose parent has another batch
/// there reads a log that is not the one it copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginMark {
    /// The parent partition's history.
    pub lineage: Lineage,
    /// The parent batch's body crc.
    pub parent_crc: u32,
    /// The parent batch's commit time.
    pub parent_commit_time: CommitTime,
}

/// What is to be done with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Append it.
    Append,
    /// Its records are in the log already: append nothing, and acknowledge it once the HWM is at least
    /// `end_offset`. If the flush up to there fails, its outcome is as unknown as the original's.
    Duplicate {
        /// The original's first offset; unknown when the original lies too far back or was cut differently.
        base_offset: Option<Offset>,
        /// The log offset up to which the original reaches at most.
        end_offset: Offset,
        /// The original's commit time; unknown likewise.
        commit_time: Option<CommitTime>,
    },
    /// A producer's batch that follows another watermark than the producer's, which is this one.
    OutOfOrder {
        /// The sequence of the last record that was appended for this producer.
        expected: u64,
    },
    /// An origin's batch that follows another watermark than the origin's, which is this one; also a batch that
    /// lies on both sides of it.
    Expected {
        /// The parent offset to go on from.
        watermark: u64,
    },
    /// The table has never met this producer, or has let go of it; or an origin whose link is not known here.
    UnknownProducer,
}

/// An opened producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// What its batches name as their writer.
    pub writer: Writer,
    /// The sequence of its last record in the log; 0 for a new one.
    pub last_sequence: u64,
    /// When that record is not flushed yet: answer only once the HWM is at least this.
    pub unflushed_until: Option<Offset>,
    /// The table had not met it, or had let go of it.
    pub is_new: bool,
}

/// Why a producer cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another name with the same hash is in use.
    #[error("another producer's name has the same hash")]
    ProducerNameTaken,
    /// A name of 0 or over [`tailwater_wire::limits::PRODUCER_NAME_BYTES_MAX`] bytes.
    #[error("a producer's name has 1 to 128 bytes")]
    InvalidName,
}

/// How far an origin has come in this partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginWatermark {
    /// Parent records below this are in the log: the next batch follows it.
    pub appended: u64,
    /// Parent records below this are flushed.
    pub flushed: u64,
    /// The log offset whose flush makes `appended` safe.
    pub end_offset: Offset,
    /// The last parent batch accounted for; unknown when there was none yet but only notices of dropped
    /// records.
    pub mark: Option<OriginMark>,
}
