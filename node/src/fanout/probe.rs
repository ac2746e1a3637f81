//! What one cursor counts: plain numbers of a single writer, copied out when somebody asks.

use tailwater_wire::ids::{CommitTime, Delay};

/// Counters of one cursor, since it started; on the core that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Probe {
    /// Records of this cursor's batches that a child has, by its acknowledgement or its watermark after a doubt.
    pub committed: u64,
    /// Records that this cursor read and the filter held back, each counted once however often it is read again.
    pub filtered: u64,
    /// Records that retention or damage took before they were copied, each counted for the child partition that should
    /// have received it, once that has been told.
    pub dropped: u64,
    /// Records that were sent again and not appended again.
    pub duplicates: u64,
    /// How often a child partition or the parent began to stall.
    pub stalls: u64,
    /// Child batches sent.
    pub commits: u64,
    /// Parent reads asked for.
    pub reads: u64,
}

/// `fanout_due_lag_seconds`, in milliseconds: how long the record at the cursor's position has been due. 0 when there
/// is none, or when it is not due yet.
#[must_use]
pub fn due_lag_millis(now: CommitTime, delay: Delay, head: Option<CommitTime>) -> u64 {
    let late = head.map_or(0, |committed| now.0.saturating_sub(committed.plus(delay).0));
    late / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_counts_from_what_is_due() {
        let due = |now, head| due_lag_millis(CommitTime::from_millis(now), Delay { millis: 2_000 }, head);
        assert_eq!(due(5_000, None), 0);
        assert_eq!(due(5_000, Some(CommitTime::from_millis(4_000))), 0);
        assert_eq!(due(5_000, Some(CommitTime::from_millis(1_000))), 2_000);
    }
}
