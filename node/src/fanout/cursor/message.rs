//! What a cursor is told and what it asks for: events in, actions out.

use std::fmt;

use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_storage::gaps::Gaps;
use tailwater_storage::proof::Persist;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};

use crate::fanout::batch::{ChildBatch, Cut};
use crate::fanout::cursor::receipt::Receipt;

/// Names one request of a cursor. An answer that names another one than is outstanding is late, and changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What the parent's log says about the batch that a child remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParentVerdict {
    /// The batch is there, as it was.
    Same,
    /// Another batch is there, or the log ends before it: the parent is not the log it was.
    Differs,
    /// Retention or damage took the batch: it shows nothing.
    Gone,
}

/// What the metadata leader says about the cursor's epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EpochVerdict {
    /// It is the link's current one.
    Current,
    /// The link is gone or has another.
    Gone,
    /// The leader could not be asked.
    Unconfirmed,
}

/// A read that came back, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slab {
    /// Which read.
    pub request: RequestId,
    /// Everything from the read's `from` to here was looked at; equal to `from` when nothing could be read.
    pub next: Offset,
    /// Whether the read ended at one of its limits, so that more is there to be read.
    pub full: bool,
    /// The commit time of the record at `next`, if that is committed, due or not.
    pub next_commit: Option<CommitTime>,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// A child partition told its flushed watermark. Without an entry for this origin: no mark, and the watermark that
    /// its first batch has to follow.
    Opened {
        /// The `OpenOrigin` that it answers.
        request: RequestId,
        /// The child partition.
        bucket: PartitionId,
        /// Every parent record below is in the child partition, if it belongs there.
        watermark: Offset,
        /// What the child remembers of the parent.
        mark: Option<OriginMark>,
    },
    /// The parent's log was compared with what a child remembers of it.
    Verified {
        /// The `VerifyParent` that it answers.
        request: RequestId,
        /// The child partition.
        bucket: PartitionId,
        /// What came out.
        verdict: ParentVerdict,
    },
    /// A slab was read and cut as [`Cursor::plan`](super::state::Cursor::plan) said; nothing else was told to the
    /// cursor in between.
    Slab {
        /// The read.
        slab: Slab,
        /// The batches.
        cut: Cut,
    },
    /// The read's place is gone: retention has passed it.
    Behind {
        /// Which read.
        request: RequestId,
        /// The oldest offset that is still there.
        log_start: Offset,
        /// The cursor's ledger, read after the read had failed: it accounts for everything below.
        gaps: Gaps,
    },
    /// What retention is about to take is counted, and the ledger is stored.
    Accounted {
        /// The ledger.
        gaps: Gaps,
        /// Records that the filter holds back, and that the cursor had not counted when it was asked.
        filtered: u64,
    },
    /// Retention lets go of what it was about to take: reads go on.
    Spared,
    /// The read's place lies above what is committed.
    Ahead {
        /// Which read.
        request: RequestId,
        /// The end of what is committed.
        high_water_mark: Offset,
    },
    /// The parent could not be read, or the slab could not be cut.
    ReadFailed {
        /// Which read.
        request: RequestId,
        /// Why.
        code: ErrorCode,
    },
    /// A child partition has the batch, flushed.
    Acked {
        /// The `Commit` that it answers.
        request: RequestId,
        /// The child partition.
        bucket: PartitionId,
        /// What the acknowledgement promises.
        receipt: Receipt,
        /// Whether the batch was there before.
        duplicate: bool,
    },
    /// A child partition had another watermark than the batch follows; nothing was appended. With several batches in
    /// flight the word may be older than an acknowledgement that came before it.
    Expected {
        /// The `Commit` that it answers.
        request: RequestId,
        /// The child partition.
        bucket: PartitionId,
        /// The watermark that it has, flushed.
        watermark: Offset,
    },
    /// An `OpenOrigin`, `VerifyParent` or `Commit` failed, or its outcome is not known.
    Failed {
        /// Which one.
        request: RequestId,
        /// The child partition.
        bucket: PartitionId,
        /// Why.
        code: ErrorCode,
    },
    /// The cursor file holds this position.
    Persisted(Offset),
    /// The cursor file could not be replaced.
    PersistFailed,
    /// The answer to `ConfirmEpoch`.
    Epoch(EpochVerdict),
    /// Time passed; at the latest at [`Cursor::wake_at`](super::state::Cursor::wake_at).
    Tick,
    /// Settle what is in flight, store the position, and end.
    Stop,
}

/// What the driver is to do. Every `OpenOrigin`, `VerifyParent`, `Read` and `Commit` is answered by exactly one event
/// with its request, unless the cursor ended; `Persist` and `ConfirmEpoch` likewise.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a child partition for its watermark.
    OpenOrigin {
        /// To be named in the answer.
        request: RequestId,
        /// The child partition.
        bucket: PartitionId,
    },
    /// Compare the parent batch that holds `offset` with what a child remembers of it.
    VerifyParent {
        /// To be named in the answer.
        request: RequestId,
        /// The child partition that remembers.
        bucket: PartitionId,
        /// The last offset that the child accounts for.
        offset: Offset,
        /// What it remembers.
        mark: OriginMark,
    },
    /// Read the parent's flushed frontier.
    Read {
        /// To be named in the answer.
        request: RequestId,
        /// The first offset.
        from: Offset,
        /// Nothing committed later than this, if given.
        committed_at_max: Option<CommitTime>,
        /// At most about so many records.
        records_max: usize,
        /// At most about so many bytes; one batch is returned even if it is larger.
        bytes_max: usize,
        /// Not 0: while nothing is committed at `from`, wait. After so long an empty answer may be given; a driver to which
        /// waiting costs nothing waits on, but no longer than the cursor lives. A record that is there and not due ends the
        /// wait.
        wait_millis: u64,
    },
    /// Commit a batch to a child partition, flushed.
    Commit {
        /// To be named in the answer.
        request: RequestId,
        /// The child partition.
        bucket: PartitionId,
        /// The batch, with the watermark that it follows.
        batch: ChildBatch,
    },
    /// Move the cursor file on.
    Persist(Persist),
    /// Ask the metadata leader whether the cursor's epoch is the current one.
    ConfirmEpoch,
    /// A child partition, or the parent without a bucket, stands still: metric, log, status.
    Stall {
        /// The child partition.
        bucket: Option<PartitionId>,
        /// Why.
        reason: StallReason,
    },
    /// It goes on.
    Unstall {
        /// The child partition.
        bucket: Option<PartitionId>,
    },
    /// Retention or damage took records of a child partition before they were copied: log it.
    Dropped {
        /// The child partition.
        bucket: PartitionId,
        /// The first parent offset of the range.
        from: Offset,
        /// Where the child partition goes on.
        to: Offset,
        /// How many of its records are lost.
        records: u64,
        /// Whether that is an upper bound.
        at_most: bool,
    },
    /// The cursor has ended: nothing is in flight, and no further event changes anything.
    Stop,
}

/// Why something stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StallReason {
    /// A child partition cannot be reached or refuses; tried again every second.
    Child(ErrorCode),
    /// The parent cannot be read; tried again every second.
    Parent(ErrorCode),
    /// The epoch was refused, and the metadata leader could not yet say whether it is current.
    EpochUnconfirmed,
    /// The position lies above what the parent has committed: stands until an operator decides.
    PositionAhead {
        /// The position.
        position: Offset,
        /// The end of what is committed.
        high_water_mark: Offset,
    },
    /// The parent's log is not the one that the child's records came from: stands until an operator decides.
    Diverged {
        /// The last offset that the child accounts for.
        offset: Offset,
    },
    /// The parent's log has a new history, and the record that could show that it goes on from what was copied is gone:
    /// stands until an operator decides.
    Unproved {
        /// The last offset that the child accounts for.
        offset: Offset,
    },
    /// The child partition has lost records that it had acknowledged: stands until an operator decides.
    ChildRegressed {
        /// What it had acknowledged.
        acknowledged: Offset,
        /// What it says now.
        watermark: Offset,
    },
}

impl StallReason {
    /// Whether only an operator ends it.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            StallReason::Child(_) | StallReason::Parent(_) | StallReason::EpochUnconfirmed => false,
            StallReason::PositionAhead { .. }
            | StallReason::Diverged { .. }
            | StallReason::Unproved { .. }
            | StallReason::ChildRegressed { .. } => true,
        }
    }
}

impl fmt::Display for StallReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StallReason::Child(code) => write!(f, "child: {}", code.name()),
            StallReason::Parent(code) => write!(f, "parent: {}", code.name()),
            StallReason::EpochUnconfirmed => f.write_str("epoch unconfirmed"),
            StallReason::PositionAhead {
                position,
                high_water_mark,
            } => write!(
                f,
                "position ahead: {position} is above the parent's end {high_water_mark}"
            ),
            StallReason::Diverged { offset } => {
                write!(
                    f,
                    "diverged: the parent's record {offset} is not the one that was copied"
                )
            }
            StallReason::Unproved { offset } => {
                write!(
                    f,
                    "unproved: the parent has a new history, and its record {offset}, which could show that it goes on from what was copied, is gone"
                )
            }
            StallReason::ChildRegressed {
                acknowledged,
                watermark,
            } => write!(
                f,
                "child regressed: it acknowledged up to {acknowledged} and now says {watermark}"
            ),
        }
    }
}
