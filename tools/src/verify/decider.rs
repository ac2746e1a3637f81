//! The comparison of one parent partition with one child partition: pure, record by record, in constant memory.
//!
//! Two streams are merged by parent offset. The parent's holds the records that the link's filter passes and whose
//! key leads to the child partition, and gaps where the parent's log has nothing to show any more. The child's holds
//! the records whose origin is this link's epoch and this parent partition. Both rise; what does not is the finding.
//!
//! - a parent record that the child's stream passed over, or that never came: **missing**;
//! - a child record at or below the last one seen: **duplicate** (one that came out of order counts as missing at its
//!   place and as duplicate where it stands);
//! - a child record that the parent's stream does not have: **unexpected**;
//! - a child record whose key, value, headers or timestamp differ from the parent's: **differing**;
//! - a child record that the delay gate let pass before its parent record was due: **early**. Without a delay there is
//!   no gate, and nothing is early.

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
    /// What it holds.
    pub content: Content,
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
    /// Child records that the parent does not have, or has for another child partition or not past the filter.
    pub unexpected: u64,
    /// Child records that are not equal to their parent record.
    pub differing: u64,
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
        self.pending += other.pending;
        self.max_late_ns = self.max_late_ns.max(other.max_late_ns);
        self.first_finding = self.first_finding.or(other.first_finding);
    }
}

/// Compares the streams of one pair of partitions.
#[derive(Debug, Clone)]
pub struct Decider {
    /// The range of parent offsets: from the attach offset or the start of the log, to the committed end when the
    /// verification began.
    from: u64,
    to: u64,
    /// The link's first offset; below `from` when retention took records since.
    attached_at: u64,
    delay_ns: u64,
    /// Everything below was seen in the child, or passed over by it.
    seen_to: u64,
    /// Nothing can be said below: the child's log no longer goes back so far, or the parent's had a gap.
    blind_to: u64,
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
            attached_at,
            delay_ns,
            seen_to: attached_at,
            blind_to: from,
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

    /// Compares the parent's front with the child's next record, and says which to move on. A child record is
    /// presented again until the answer is not [`Advance::Parent`].
    pub fn compare(&mut self, head: Head<'_>, child: &ChildItem) -> Advance {
        let offset = child.parent_offset;
        if offset >= self.to {
            return Advance::Child;
        }
        if offset < self.seen_to {
            if offset < self.attached_at {
                self.tally.unexpected += 1;
            } else {
                self.tally.duplicate += 1;
            }
            self.tally.records += 1;
            self.finding(offset);
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
                    self.finding(offset);
                }
                Advance::Child
            }
        }
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

    fn finding(&mut self, offset: u64) {
        self.tally.first_finding.get_or_insert(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: u64 = 1_000;

    fn content(of: u64) -> Content {
        Content {
            value: Bytes::from(of.to_string()),
            ..Content::default()
        }
    }

    /// Parent record `n` is committed at `n * 10`.
    fn parent(offset: u64) -> ParentItem {
        ParentItem {
            offset,
            commit_time: offset * 10,
            content: content(offset),
        }
    }

    /// Its copy, released when it is due and committed 3 later.
    fn child(offset: u64) -> ChildItem {
        ChildItem {
            parent_offset: offset,
            commit_time: offset * 10 + DELAY + 3,
            released_at: offset * 10 + DELAY,
            content: content(offset),
        }
    }

    enum Part {
        Has(std::ops::Range<u64>),
        Gap(u64),
    }

    /// Runs the merge as the driver does, all parent records from `overdue_before` on not being due.
    fn run(mut decider: Decider, parents: &[Part], children: &[ChildItem], overdue_before: u64) -> Tally {
        let mut stream = parents.iter().flat_map(|part| -> Vec<Result<ParentItem, u64>> {
            match part {
                Part::Has(range) => range.clone().map(|offset| Ok(parent(offset))).collect(),
                Part::Gap(to) => vec![Err(*to)],
            }
        });
        let mut front = stream.next();
        for child in children {
            loop {
                let head = match &front {
                    Some(Ok(item)) => Head::Item(item),
                    Some(Err(to)) => Head::Gap { to: *to },
                    None => Head::End,
                };
                let advance = decider.compare(head, child);
                if advance != Advance::Child {
                    front = stream.next();
                }
                if advance != Advance::Parent {
                    break;
                }
            }
        }
        while let Some(one) = front {
            if let Ok(item) = one {
                decider.child_ended(&item, overdue_before);
            }
            front = stream.next();
        }
        *decider.tally()
    }

    /// Parent records 10..20 of a link that was attached at 10, against these child records.
    fn check(children: &[ChildItem], want: Tally) {
        let decider = Decider::new(10, 10, 20, DELAY);
        let have = run(decider, &[Part::Has(10..20)], children, u64::MAX);
        assert_eq!(have, want);
        let findings = want.missing + want.duplicate + want.early + want.unexpected + want.differing;
        assert_eq!(want.is_ok(), findings == 0);
    }

    fn children(offsets: impl IntoIterator<Item = u64>) -> Vec<ChildItem> {
        offsets.into_iter().map(child).collect()
    }

    fn clean() -> Tally {
        Tally {
            records: 10,
            expected: 10,
            max_late_ns: 3,
            ..Tally::default()
        }
    }

    #[test]
    fn a_whole_child_is_clean() {
        check(&children(10..20), clean());
    }

    #[test]
    fn what_came_after_the_range_is_passed_over() {
        check(&children(10..25), clean());
    }

    #[test]
    fn a_missing_record_is_found_wherever_it_is() {
        for lost in 10..20 {
            let want = Tally {
                records: 9,
                missing: 1,
                first_finding: Some(lost),
                ..clean()
            };
            check(&children((10..20).filter(|&offset| offset != lost)), want);
        }
    }

    #[test]
    fn a_duplicate_is_found_wherever_it_is() {
        for (twice, at) in [(10, 11), (12, 15), (19, 20), (10, 20)] {
            let mut offsets: Vec<u64> = (10..20).collect();
            offsets.insert(at - 10, twice);
            let want = Tally {
                records: 11,
                duplicate: 1,
                first_finding: Some(twice),
                ..clean()
            };
            check(&children(offsets), want);
        }
    }

    #[test]
    fn a_reordered_record_is_missing_at_its_place_and_a_duplicate_where_it_stands() {
        let want = Tally {
            missing: 1,
            duplicate: 1,
            first_finding: Some(13),
            ..clean()
        };
        check(&children([10, 11, 12, 14, 13, 15, 16, 17, 18, 19]), want);
    }

    #[test]
    fn an_early_record_is_found() {
        let mut early = children(10..20);
        early[4].released_at -= 1;
        let want = Tally {
            early: 1,
            first_finding: Some(14),
            ..clean()
        };
        check(&early, want);
    }

    #[test]
    fn without_a_delay_nothing_is_early() {
        let mut children = children(10..20);
        children.iter_mut().for_each(|child| child.released_at = 0);
        let have = run(
            Decider::new(10, 10, 20, 0),
            &[Part::Has(10..20)],
            &children,
            u64::MAX,
        );
        assert_eq!((have.early, have.records, have.is_ok()), (0, 10, true));
    }

    #[test]
    fn an_altered_record_is_found() {
        let alter: [fn(&mut Content); 4] = [
            |content| content.value = Bytes::from_static(b"other"),
            |content| content.key = Some(Bytes::new()),
            |content| content.headers = Bytes::from_static(b"h"),
            |content| content.timestamp = 1,
        ];
        for alter in alter {
            let mut altered = children(10..20);
            alter(&mut altered[9].content);
            let want = Tally {
                differing: 1,
                first_finding: Some(19),
                ..clean()
            };
            check(&altered, want);
        }
    }

    #[test]
    fn a_copy_from_before_the_attach_is_unexpected() {
        let want = Tally {
            records: 11,
            unexpected: 1,
            first_finding: Some(9),
            ..clean()
        };
        check(&children(9..20), want);
    }

    #[test]
    fn a_copy_that_the_filter_should_have_held_back_is_unexpected() {
        let decider = Decider::new(10, 10, 20, DELAY);
        let have = run(
            decider,
            &[Part::Has(10..14), Part::Has(15..20)],
            &children(10..20),
            u64::MAX,
        );
        let want = Tally {
            expected: 9,
            unexpected: 1,
            first_finding: Some(14),
            ..clean()
        };
        assert_eq!(have, want);
    }

    #[test]
    fn what_is_not_due_is_pending_and_what_is_due_is_missing() {
        let decider = Decider::new(10, 10, 20, DELAY);
        let have = run(decider, &[Part::Has(10..20)], &children(10..15), 170);
        let want = Tally {
            records: 5,
            expected: 7,
            missing: 2,
            pending: 3,
            first_finding: Some(15),
            ..clean()
        };
        assert_eq!(have, want);
    }

    #[test]
    fn what_retention_took_is_neither_missing_nor_unexpected() {
        let decider = Decider::new(10, 14, 20, DELAY);
        let have = run(decider, &[Part::Has(14..20)], &children(12..20), u64::MAX);
        let six = Tally {
            records: 6,
            expected: 6,
            ..clean()
        };
        assert_eq!(have, six, "the parent's log starts after the attach offset");

        let decider = Decider::new(10, 10, 20, DELAY);
        let parents = [Part::Has(10..12), Part::Gap(16), Part::Has(16..20)];
        let have = run(
            decider,
            &parents,
            &children([10, 11, 13, 16, 17, 18, 19]),
            u64::MAX,
        );
        assert_eq!(have, six, "a gap opened in the parent's log");

        let mut decider = Decider::new(10, 10, 20, DELAY);
        decider.child_starts_after(14);
        let have = run(decider, &[Part::Has(10..20)], &children(14..20), u64::MAX);
        assert_eq!(have, six, "the child's log starts late");
    }

    #[test]
    fn an_empty_child_misses_everything_that_is_due() {
        let want = Tally {
            records: 0,
            missing: 10,
            max_late_ns: 0,
            first_finding: Some(10),
            ..clean()
        };
        check(&[], want);
    }
}
