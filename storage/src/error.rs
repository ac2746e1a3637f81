//! Why a step on a partition's log was refused: one enum per operation.

use std::ops::Range;
use std::path::PathBuf;

use tailwater_wire::ids::{CommitTime, Incarnation, Offset, PartitionId};

use crate::disk::device::{DiskError, DiskErrorKind};
use crate::disk::latch::Latched;

/// Why a partition's log was not opened. Every variant leaves the files as they were found.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// A step on the disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A segment's header block, or its dedup checkpoint, cannot be trusted.
    #[error("{}: the segment header is damaged: {what}", path.display())]
    CorruptHeader {
        /// The segment.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Written by a newer version of this program.
    #[error("{}: {what} has format version {version}, newer than this program reads", path.display())]
    NewerVersion {
        /// The segment.
        path: PathBuf,
        /// The segment's header or one of its batches.
        what: &'static str,
        /// The version that was found.
        version: u16,
    },
    /// The segment belongs to another life of the topic: the file was moved or restored from elsewhere.
    #[error("{}: belongs to incarnation {found}, this topic is {expected}", path.display())]
    ForeignIncarnation {
        /// The segment.
        path: PathBuf,
        /// The incarnation in its header.
        found: Incarnation,
        /// The topic's.
        expected: Incarnation,
    },
    /// The segment belongs to another partition: files were swapped.
    #[error("{}: belongs to partition {found}, not {expected}", path.display())]
    ForeignPartition {
        /// The segment.
        path: PathBuf,
        /// The partition in its header.
        found: PartitionId,
        /// The one that is being opened.
        expected: PartitionId,
    },
    /// The segment's name and its header disagree about its first offset: files were swapped or renamed.
    #[error("{}: begins at offset {found} by its header", path.display())]
    SwappedFile {
        /// The segment.
        path: PathBuf,
        /// The base offset in its header.
        found: Offset,
    },
    /// A segment between two others, or the one that the log ended with, is gone.
    #[error("{}: this segment is missing; {} shows that it was there", missing.display(), shown_by.display())]
    MissingSegment {
        /// The segment that is not there.
        missing: PathBuf,
        /// The segment that follows it, or the index of one that was sealed when it was begun.
        shown_by: PathBuf,
    },
    /// All segments are gone, and what only a log leaves behind is still there.
    #[error("all segments of the log are missing; {} shows that there was one", shown_by.display())]
    NoSegments {
        /// An index or a cursor file.
        shown_by: PathBuf,
    },
    /// Sound checksums, and a content that contradicts itself.
    #[error("{}: {what}", path.display())]
    Inconsistent {
        /// The segment.
        path: PathBuf,
        /// The contradiction.
        what: &'static str,
    },
}

/// Why a batch was not taken. Nothing of it is in the log then.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The partition is read-only until it is reopened through recovery.
    #[error(transparent)]
    Latched(#[from] Latched),
    /// The log was closed.
    #[error("the partition's log is closed")]
    Closed,
    /// As many bytes as allowed wait for a flush already; try again.
    #[error("too many bytes wait for a flush")]
    Busy,
    /// No space for a further segment. Nothing was written; try again later or elsewhere.
    #[error("the disk is full")]
    DiskFull,
    /// The producer is not known (any more): it must open itself again, and judge what it sent last.
    #[error("unknown producer")]
    UnknownProducer,
    /// The batch does not follow the producer's last sequence.
    #[error("out of order: the producer's last sequence here is {expected}")]
    OutOfOrder {
        /// The sequence that the batch should have followed.
        expected: u64,
    },
    /// The child batch does not follow the origin's watermark: cut again from there.
    #[error("out of order: the origin's watermark here is {watermark}")]
    Expected {
        /// The origin's appended watermark.
        watermark: Offset,
    },
    /// The batch must not be given to this call: a frontier batch, or bytes that are not exactly one batch.
    #[error("not an appendable batch: {0}")]
    Malformed(&'static str),
}

/// Why a producer is not opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProducerError {
    /// Its id or name cannot be used.
    #[error(transparent)]
    Key(#[from] crate::dedup::verdict::OpenError),
    /// It is not known yet, and the log takes nothing now.
    #[error(transparent)]
    Refused(#[from] AppendError),
}

/// Why an appended batch is not known to be committed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// A write or flush that covered it failed: it may be there after recovery, or not.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(Latched),
    /// There was no space for it, and it was taken back before anything of it was written.
    #[error("the disk is full")]
    DiskFull,
    /// The log was closed before it was flushed.
    #[error("the partition's log was closed")]
    Closed,
}

/// Why nothing was read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// Retention passed the offset.
    #[error("the offset is below the log's start, {log_start}")]
    Behind {
        /// The first offset that is there.
        log_start: Offset,
    },
    /// The offset is above what may be read.
    #[error("the offset is above the high-water mark, {high_water_mark}")]
    Ahead {
        /// The first offset that may not be read yet.
        high_water_mark: Offset,
    },
    /// A step on the disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A segment changed its content from one read to the next.
    #[error("{}: reads differently each time, near offset {offset}", path.display())]
    Unstable {
        /// The segment.
        path: PathBuf,
        /// Where.
        offset: Offset,
    },
}

/// What recovery found and did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Offsets whose batches had rotted: skipped by readers, counted, never served.
    pub quarantined: Vec<Range<Offset>>,
    /// Where the log was cut, if anything but proved batches was found: the next offset to be given out.
    pub cut_at: Option<Offset>,
    /// Batches that no flush had proved and that were copied into a new segment.
    pub copied_batches: u64,
    /// Whole batches beyond the cut, dropped; none of them was ever acknowledged.
    pub dropped_batches: u64,
    /// Bytes of the active segment that were read.
    pub bytes_scanned: u64,
    /// Segments of the log.
    pub segments: usize,
    /// Whether the log was made anew.
    pub created: bool,
    /// The floor of the next commit time.
    pub commit_time_floor: CommitTime,
}

/// Whether an error means that there is no room, and nothing else is wrong.
#[must_use]
pub(crate) fn is_full(error: &DiskError) -> bool {
    error.kind == DiskErrorKind::NoSpace
}
