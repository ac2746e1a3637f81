//! The comparison of one parent partition with one child partition: pure, record by record, in constant memory.
//!
//! Two streams are merged by parent offset. The parent's holds the records that the link's filter passes and whose
//! key leads to the child partition, and gaps where the parent's log has nothing to show any more. The child's holds
//! the records whose origin is this link's epoch and this parent partition. Both rise; what does not is the finding.
//!
//! - a parent record that the child's stream passed over, or that never came: **missing**;
//! - a child record at or below the last one seen: **duplicate** (one that came out of order counts as missing at its
//!   place and as duplicate where it stands);
//! - a child record that the parent's stream does not have, that the parent has not committed yet, or that was copied
//!   from another history of the parent and is not what the parent has now: **unexpected**. A parent that began a new
//!   history over what it had kept (a `written` topic after a crash) holds the same records, so its old copies are good;
//! - a child record whose key, value, headers or timestamp differ from the parent's: **differing**;
//! - a child record that the delay gate let pass before its parent record was due: **early**. Without a delay there is
//!   no gate, and nothing is early.
//!
//! A control batch of the child says of a range of parent offsets how many of its records are not there, because
//! retention or damage took them: these are **dropped**, and not missing. Where the parent still shows the whole range,
//! what is in the child and what is dropped must add up to what it should have received; else the difference is missing,
//! or unexpected.

use std::ops::Range;

use bytes::Bytes;

/// What is copied of a record, and must be equal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Content {
    /// The key, if there is one.
    pub key: Option<Bytes>,
    /// The payload.
    pub value: Bytes,
    /// The headers as they are encoded.
    pub headers: Bytes,
    /// The producer's time, nanoseconds since the epoch.
    pub timestamp: i64,
}

/// A parent record that the child partition must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentItem {
    /// Its offset in the parent.
    pub offset: u64,
    /// When it was committed, nanoseconds since the epoch.
    pub commit_time: u64,
    /// What it holds.
    pub content: Content,
}

/// A record of the child partition from this epoch and parent partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildItem {
    /// The offset in the parent that it names.
    pub parent_offset: u64,
    /// When it was committed in the child, nanoseconds since the epoch.
    pub commit_time: u64,
    /// When the delay gate let it pass, nanoseconds since the epoch.
    pub released_at: u64,
    /// It was copied from another history of the parent partition than the one that it is compared with: good only where
    /// the two hold the same.
    pub foreign: bool,
    /// What it holds.
    pub content: Content,
}

/// What a control batch of the child says: parent records of this child partition that nobody can copy any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedItem {
    /// The first parent offset.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// How many records.
    pub records: u64,
}

/// What stands at the front of the parent's stream.
#[derive(Debug, Clone, Copy)]
pub enum Head<'a> {
    /// A record.
    Item(&'a ParentItem),
    /// Nothing can be said of the offsets below `to`: retention or damage took them.
    Gap {
        /// The first offset after the gap.
        to: u64,
    },
    /// The end of the range that is verified.
    End,
}

/// Which stream to move on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// The parent's; the child record is compared again.
    Parent,
    /// The child's.
    Child,
    /// Both: they met.
    Both,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Child records of this epoch, within the range.
    pub records: u64,
    /// Parent records that the child must hold by now.
    pub expected: u64,
    /// Of these, not in the child.
    pub missing: u64,
    /// Child records that were there before, or stand out of order.
    pub duplicate: u64,
    /// Child records let pass before they were due.
    pub early: u64,
    /// Child records that the parent does not have, or has for another child partition or not past the filter, or that
    /// come from another history and were not found in this one; also above the range.
    pub unexpected: u64,
    /// Child records that are not equal to their parent record.
    pub differing: u64,
    /// Parent records that are not in the child, as its control batches say.
    pub dropped: u64,
    /// Parent records that are not due yet, and not in the child.
    pub pending: u64,
    /// The longest time between due and committed in the child, in nanoseconds.
    pub max_late_ns: u64,
    /// The parent offset of the first finding, to look at.
    pub first_finding: Option<u64>,
}

impl Tally {
    /// Whether the child holds what it must: nothing missing, twice, early, out of place or altered.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.missing + self.duplicate + self.early + self.unexpected + self.differing == 0
    }

    /// Adds the findings of another pair of partitions.
    pub fn add(&mut self, other: &Tally) {
        self.records += other.records;
        self.expected += other.expected;
        self.missing += other.missing;
        self.duplicate += other.duplicate;
        self.early += other.early;
        self.unexpected += other.unexpected;
        self.differing += other.differing;
        self.dropped += other.dropped;
        self.pending += other.pending;
        self.max_late_ns = self.max_late_ns.max(other.max_late_ns);
        self.first_finding = self.first_finding.or(other.first_finding);
    }
}

/// The most ranges of unexpected records that are kept for a pair of partitions.
const RANGES_MAX: usize = 4;

/// Compares the streams of one pair of partitions.
#[derive(Debug, Clone)]
pub struct Decider {
    /// The range of parent offsets: from the attach offset or the start of the log, to the committed end when the
    /// verification began.
    from: u64,
    to: u64,
    /// What the parent has committed, as far as it was asked; at or above the end of the range.
    end: u64,
    /// Where unexpected records stand, the first few: from the lowest of them in a row to behind the highest.
    unexpected: Vec<Range<u64>>,
    /// Whether the last child record was an unexpected one, and stands in the last of these ranges.
    in_a_row: bool,
    /// The link's first offset; below `from` when retention took records since.
    attached_at: u64,
    delay_ns: u64,
    /// Everything below was seen in the child, or passed over by it.
    seen_to: u64,
    /// Nothing can be said below: the child's log no longer goes back so far, or the parent's had a gap.
    blind_to: u64,
    /// Parent records met so far in the dropped range that is being walked.
    in_dropped: u64,
    tally: Tally,
}

impl Decider {
    /// For a link that started at `attached_at`, over the parent offsets `from..to`.
    #[must_use]
    pub fn new(attached_at: u64, from: u64, to: u64, delay_ns: u64) -> Decider {
        assert!(
            attached_at <= from,
            "the range starts at the attach offset or later"
        );
        Decider {
            from,
            to,
            end: to,
            unexpected: Vec::new(),
            in_a_row: false,
            attached_at,
            delay_ns,
            seen_to: attached_at,
            blind_to: from,
            in_dropped: 0,
            tally: Tally::default(),
        }
    }

    /// The child's log starts later than this link: what lies below `watermark` in the parent was accounted for in
    /// the part that is gone. Called before the first child record.
    pub fn child_starts_after(&mut self, watermark: u64) {
        self.blind_to = self.blind_to.max(watermark);
    }

    /// The parent offset below which nothing can be said of the child.
    #[must_use]
    pub fn blind_to(&self) -> u64 {
        self.blind_to
    }

    /// What the parent is known to have committed: a child record at or above it is unexpected. Ask again after such a
    /// record was read, and before it is compared: it may have been committed and copied meanwhile.
    #[must_use]
    pub fn parent_end(&self) -> u64 {
        self.end
    }

    /// The parent has committed this much by now.
    pub fn parent_reaches(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Where unexpected records stand: the first few ranges of parent offsets.
    #[must_use]
    pub fn unexpected(&self) -> &[Range<u64>] {
        &self.unexpected
    }

    /// Compares the parent's front with the child's next record, and says which to move on. A child record is
    /// presented again until the answer is not [`Advance::Parent`].
    pub fn compare(&mut self, head: Head<'_>, child: &ChildItem) -> Advance {
        let (unexpected, differing) = (self.tally.unexpected, self.tally.differing);
        let advance = self.place(head, child);
        if advance != Advance::Parent {
            let is_the_parents = advance == Advance::Both && self.tally.differing == differing;
            let is_unknown = child.parent_offset < self.blind_to;
            let counted = self.tally.unexpected > unexpected;
            if child.foreign && !is_the_parents && !is_unknown && !counted {
                self.tally.unexpected += 1;
            }
            let found = self.tally.unexpected > unexpected;
            self.in_a_row = found && self.note_unexpected(child.parent_offset);
        }
        advance
    }

    fn place(&mut self, head: Head<'_>, child: &ChildItem) -> Advance {
        let offset = child.parent_offset;
        if offset >= self.to {
            if offset >= self.end {
                self.tally.unexpected += 1;
            }
            return Advance::Child;
        }
        if offset < self.seen_to {
            if offset < self.attached_at {
                self.tally.unexpected += 1;
            } else {
                self.tally.duplicate += 1;
                self.finding(offset);
            }
            self.tally.records += 1;
            return Advance::Child;
        }
        match head {
            Head::Item(parent) if parent.offset < offset => {
                self.passed_over(parent);
                Advance::Parent
            }
            Head::Item(parent) if parent.offset == offset => {
                self.met(parent, child);
                self.seen_to = offset + 1;
                Advance::Both
            }
            Head::Gap { to } if to <= offset => {
                self.blind_to = self.blind_to.max(to);
                Advance::Parent
            }
            Head::Gap { to } => {
                self.blind_to = self.blind_to.max(to);
                self.seen_to = offset + 1;
                Advance::Child
            }
            Head::Item(_) | Head::End => {
                self.seen_to = offset + 1;
                if offset >= self.blind_to {
                    self.tally.records += 1;
                    self.tally.unexpected += 1;
                }
                Advance::Child
            }
        }
    }

    /// The child says that records were dropped. Says which stream to move on, as [`Decider::compare`] does.
    pub fn dropped(&mut self, head: Head<'_>, item: &DroppedItem) -> Advance {
        match head {
            Head::Item(parent) if parent.offset < item.from => {
                self.passed_over(parent);
                return Advance::Parent;
            }
            Head::Item(parent) if parent.offset < item.to => {
                self.in_dropped += 1;
                return Advance::Parent;
            }
            Head::Gap { to } => {
                self.blind_to = self.blind_to.max(to);
                if to <= item.to {
                    return Advance::Parent;
                }
            }
            Head::Item(_) | Head::End => {}
        }
        let there = std::mem::take(&mut self.in_dropped);
        let checked = item.from >= self.blind_to && item.to <= self.to;
        self.tally.dropped += item.records;
        if checked && there != item.records {
            self.tally.expected += there.saturating_sub(item.records);
            self.tally.missing += there.saturating_sub(item.records);
            self.tally.unexpected += item.records.saturating_sub(there);
            self.finding(item.from);
        }
        self.seen_to = self.seen_to.max(item.to);
        self.in_a_row = false;
        Advance::Child
    }

    /// The child has no more records: the parent's front never came. Called until the parent's stream ends.
    /// `overdue_before` is the commit time before which a record must have come.
    pub fn child_ended(&mut self, parent: &ParentItem, overdue_before: u64) {
        if parent.commit_time < overdue_before || parent.offset < self.blind_to {
            self.passed_over(parent);
        } else {
            self.tally.pending += 1;
        }
    }

    /// What was found so far.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    fn passed_over(&mut self, parent: &ParentItem) {
        debug_assert!(parent.offset >= self.from && parent.offset < self.to);
        if parent.offset >= self.blind_to {
            self.tally.expected += 1;
            self.tally.missing += 1;
            self.finding(parent.offset);
        }
    }

    fn met(&mut self, parent: &ParentItem, child: &ChildItem) {
        let due = parent.commit_time.saturating_add(self.delay_ns);
        self.tally.records += 1;
        self.tally.expected += 1;
        if self.delay_ns > 0 && child.released_at < due {
            self.tally.early += 1;
            self.finding(parent.offset);
        }
        if child.content != parent.content {
            self.tally.differing += 1;
            self.finding(parent.offset);
        }
        self.tally.max_late_ns = self.tally.max_late_ns.max(child.commit_time.saturating_sub(due));
    }

    /// Keeps where an unexpected record stands; false when there are ranges enough.
    fn note_unexpected(&mut self, offset: u64) -> bool {
        self.finding(offset);
        let last = self.unexpected.last_mut().filter(|_| self.in_a_row);
        if let Some(last) = last
            && offset >= last.start
        {
            last.end = last.end.max(offset + 1);
            return true;
        }
        let has_room = self.unexpected.len() < RANGES_MAX;
        if has_room {
            self.unexpected.push(offset..offset + 1);
        }
        has_room
    }

    fn finding(&mut self, offset: u64) {
        self.tally.first_finding.get_or_insert(offset);
    }
}

#[cfg(test)]
mod tests;
