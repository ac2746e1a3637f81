//! What a verification came to, as it is printed.

use serde::Serialize;
use tailwater_wire::message::LinkStatus;

/// The most ranges of unexpected records that a row names; all are counted.
pub const UNEXPECTED_RANGES_MAX: usize = 16;

/// How the reasons begin for which a cursor stands still until an operator decides.
const FOR_GOOD: [&str; 4] = ["position ahead", "diverged", "unproved", "child regressed"];

/// A range of parent offsets that could not be verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unverifiable {
    /// The parent's partition.
    pub partition: u32,
    /// The child's partition; none when no child partition can be verified over the range.
    pub child_partition: Option<u32>,
    /// The first offset.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// What took the records.
    pub why: &'static str,
}

/// The most dropped ranges that a row names; all are counted.
pub const DROPPED_RANGES_MAX: usize = 64;

/// What a control batch of the child states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DroppedRange {
    /// The parent's partition.
    pub partition: u32,
    /// The child's partition.
    pub child_partition: u32,
    /// The first parent offset.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// Records that should have come to this child partition, and cannot any more.
    pub records: u64,
    /// Records of the range that the filter would have held back.
    pub filtered: u64,
}

/// Parent offsets that records of the child name, and should not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unexpected {
    /// The parent's partition.
    pub partition: u32,
    /// The child's partition.
    pub child_partition: u32,
    /// The lowest offset.
    pub from: u64,
    /// Behind the highest one.
    pub to: u64,
}

/// What a verification came to: one row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The topic that is copied.
    pub parent: String,
    /// The topic that receives the copies.
    pub child: String,
    /// The attachment.
    pub epoch: String,
    /// How long records are held back.
    pub delay_ms: u64,
    /// Child records of this epoch in the range.
    pub records: u64,
    /// Parent records that the child must hold.
    pub expected: u64,
    /// Of these, not in the child.
    pub missing: u64,
    /// Child records that were there before, or out of order.
    pub duplicate: u64,
    /// Child records that came before they were due.
    pub early: u64,
    /// Child records that should not be there, also above the range.
    pub unexpected: u64,
    /// Child records that are not equal to their parent record.
    pub differing: u64,
    /// Parent records that retention or damage took before they were copied, as the child's control batches say.
    pub dropped: u64,
    /// Parent records that the filter held back.
    pub filtered: u64,
    /// Parent records that are not due yet.
    pub pending: u64,
    /// The longest time between due and committed in the child.
    pub max_late_ms: u64,
    /// What could not be verified.
    pub unverifiable: Vec<Unverifiable>,
    /// What was dropped, as the child's control batches say: the first few.
    pub dropped_ranges: Vec<DroppedRange>,
    /// Where unexpected records stand: the first few ranges.
    pub unexpected_ranges: Vec<Unexpected>,
    /// Why the link stands still until an operator decides.
    pub stalled: Option<String>,
    /// Nothing missing, twice, early, out of place or altered, and nothing stands still for good.
    pub ok: bool,
}

/// Why a link stands still for good, if it does: its first cursor that does.
#[must_use]
pub fn stalled_for_good(link: &LinkStatus) -> Option<String> {
    link.cursors.iter().find_map(|cursor| {
        let why = cursor.stalled.as_deref().filter(|why| is_for_good(why))?;
        Some(format!("partition {}: {why}", cursor.partition))
    })
}

fn is_for_good(why: &str) -> bool {
    FOR_GOOD.iter().any(|reason| why.starts_with(reason))
}

#[cfg(test)]
mod tests {
    use tailwater_node::fanout::cursor::message::StallReason;
    use tailwater_wire::code::ErrorCode;
    use tailwater_wire::ids::Offset;

    use super::*;

    #[test]
    fn the_reasons_are_told_apart_as_the_node_says_them() {
        let (high, low) = (Offset(9), Offset(5));
        for reason in [
            StallReason::Child(ErrorCode::Busy),
            StallReason::Parent(ErrorCode::PartitionLatched),
            StallReason::EpochUnconfirmed,
            StallReason::PositionAhead {
                position: high,
                high_water_mark: low,
            },
            StallReason::Diverged { offset: high },
            StallReason::Unproved { offset: high },
            StallReason::ChildRegressed {
                acknowledged: high,
                watermark: low,
            },
        ] {
            assert_eq!(is_for_good(&reason.to_string()), reason.is_final(), "{reason}");
        }
    }
}
