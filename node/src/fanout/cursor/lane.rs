//! One stream of reads of a cursor: the shared one of all buckets that are level, or the one of those that are behind.

use tailwater_wire::ids::{CommitTime, Offset};

use crate::fanout::cursor::message::RequestId;

/// How long a read waits at the tail, in milliseconds (SPEC.md F3); a driver may let it wait until there is something.
pub const READ_WAIT_MILLIS: u64 = 1_000;
/// How long records gather while a commit of the link is in flight, in nanoseconds (`fanout.linger`, F3).
pub const LINGER_NANOS: u64 = 25_000_000;
/// How long level buckets wait for one that does not answer before they read on without it, in nanoseconds. It then
/// catches up by its own reads.
pub const PATIENCE_NANOS: u64 = 250_000_000;
/// The time between tries of something that failed, in nanoseconds (F3, F10).
pub const RETRY_NANOS: u64 = 1_000_000_000;

/// A read that is unanswered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub request: RequestId,
    pub from: Offset,
    /// The clock when it was asked for, which also bounds what a delay lets pass.
    pub asked_at: CommitTime,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Lane {
    /// At most one.
    pub reading: Option<Reading>,
    /// Whether the last slab ended at a limit: more is there, so nothing is gained by waiting.
    pub full: bool,
    /// No read before: the next record is not due, or a read failed.
    pub not_before: CommitTime,
    /// When a batch was last sent.
    pub shipped_at: CommitTime,
    /// With a fixed linger: records are there, and are left to gather until then.
    pub gather_until: Option<CommitTime>,
}

impl Lane {
    /// When the lane may read, given what its members do: `busy`, a commit of them is in flight; `blocked`, one of
    /// them still has unsent batches. In the past when at once; `None` when only an answer can make it possible.
    pub fn read_at(&self, members: Members, adaptive: bool) -> Option<CommitTime> {
        if self.reading.is_some() || members.ready == 0 {
            return None;
        }
        let mut at = self.not_before.max(self.gather_until.unwrap_or_default());
        if members.blocked > 0 {
            at = at.max(after(self.shipped_at, PATIENCE_NANOS));
        } else if members.busy > 0 && !self.full && adaptive {
            at = at.max(after(self.shipped_at, LINGER_NANOS));
        }
        Some(at)
    }
}

/// How the open buckets of a lane stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Members {
    /// Those that can take part in a read.
    pub ready: usize,
    /// Those that have unsent batches.
    pub blocked: usize,
    /// Those that have a commit in flight.
    pub busy: usize,
}

/// A time and some nanoseconds.
pub(super) fn after(time: CommitTime, nanos: u64) -> CommitTime {
    CommitTime(time.0.saturating_add(nanos))
}
