//! What retention took from a cursor, as a value: for each child partition, which ranges of parent offsets held how many
//! of its records that no child has and nobody can read any more (SPEC.md F9).
//!
//! ```text
//!   attach        since            from   to=from  to            through
//!   |--- unknown ---|----------------|======|=======|---------------|----- still in the log
//! ```
//!
//! A gap says how many records it holds, not which. So gaps end wherever the child's watermark may come to stand: at
//! what it acknowledged, and at the end of each batch that is on its way. The sum of the gaps above the
//! watermark is then exact, whichever of these batches arrived. What is not in a gap and lies between `since` and
//! `through` is in the child, or was never meant for it.

use tailwater_wire::ids::{Offset, PartitionId};

/// The most gaps that one ledger holds. Beyond, neighbours are put together, the newest first: a child's watermark is
/// most likely found among the oldest.
pub const GAPS_MAX: usize = 16_384;

/// A range of parent offsets, as one child partition misses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The child partition.
    pub bucket: PartitionId,
    /// The first parent offset.
    pub from: Offset,
    /// Behind the last one.
    pub to: Offset,
    /// Records that the child partition should have received.
    pub records: u64,
    /// Records that it would have received if the filter had not held them back.
    pub filtered: u64,
}

/// A sum of gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lost {
    /// Records that the child partition should have received.
    pub records: u64,
    /// Records that the filter held back.
    pub filtered: u64,
    /// Where the loss begins; what lies before was passed by a cursor that is no more, and held nothing for the child
    /// partition but what the filter holds back.
    pub from: Option<Offset>,
    /// A gap lay on both sides of the place that was asked for, and was counted whole: the sum is an upper bound.
    pub at_most: bool,
}

/// See the module. Of one cursor: a parent partition and a child.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gaps {
    /// What lies between the attach offset and here was gone before anybody could count it: the link was not live yet
    /// when retention took it, or it had rotted.
    pub since: Offset,
    /// Everything below is accounted for, whether retention has removed it yet or not: nobody may copy it any more.
    pub through: Offset,
    /// By child partition and offset, disjoint; none without records.
    gaps: Vec<Gap>,
}

impl Gaps {
    /// Of a link that has lost nothing above this offset, below which nothing was there any more.
    #[must_use]
    pub fn since(since: Offset) -> Gaps {
        Gaps {
            since,
            through: since,
            gaps: Vec::new(),
        }
    }

    /// From parts, as a file holds them; `None` when they are not in order or overlap, or count more than one record for
    /// an offset.
    #[must_use]
    pub fn from_parts(since: Offset, through: Offset, gaps: Vec<Gap>) -> Option<Gaps> {
        let in_order = gaps.windows(2).all(|pair| {
            let (a, b) = (&pair[0], &pair[1]);
            a.bucket < b.bucket || (a.bucket == b.bucket && a.to <= b.from)
        });
        let whole = |gap: &Gap| {
            let counted = gap.records.checked_add(gap.filtered);
            gap.from < gap.to
                && gap.to <= through
                && counted.is_some_and(|counted| (1..=gap.to.since(gap.from)).contains(&counted))
        };
        let sound = in_order && gaps.len() <= GAPS_MAX && gaps.iter().all(whole);
        sound.then_some(Gaps { since, through, gaps })
    }

    /// All gaps, by child partition and offset.
    #[must_use]
    pub fn all(&self) -> &[Gap] {
        &self.gaps
    }

    /// What a child partition misses of the parent offsets `[from, to)`.
    #[must_use]
    pub fn lost(&self, bucket: PartitionId, from: Offset, to: Offset) -> Lost {
        let mut lost = Lost::default();
        let mine = self.gaps.iter().filter(|gap| gap.bucket == bucket);
        for gap in mine.filter(|gap| gap.to > from && gap.from < to) {
            lost.from.get_or_insert(gap.from.max(from));
            let inside = gap.to.min(to).since(gap.from.max(from));
            let length = gap.to.since(gap.from);
            if inside < length && gap.records == length {
                // Every offset of it is a record of this child partition.
                lost.records += inside;
                continue;
            }
            lost.at_most |= inside < length;
            lost.records += gap.records;
            lost.filtered += gap.filtered;
        }
        lost
    }

    /// Takes in what was counted up to `through`.
    ///
    /// # Panics
    /// When a gap lies below what was accounted for before, or above `through`.
    pub fn note(&mut self, through: Offset, gaps: impl IntoIterator<Item = Gap>) {
        for gap in gaps {
            assert!(gap.from < gap.to && gap.from >= self.through && gap.to <= through);
            if gap.records.max(gap.filtered) > 0 {
                self.gaps.push(gap);
            }
        }
        self.through = self.through.max(through);
        self.gaps.sort_unstable_by_key(|gap| (gap.bucket, gap.from));
    }

    /// A child partition has acknowledged everything below `watermark`: what lies there is over. `ends` are the only
    /// other places, by rising offset, where its watermark may come to stand; without them it may be anywhere.
    pub fn settle(&mut self, bucket: PartitionId, watermark: Offset, ends: Option<&[Offset]>) {
        let mut kept: Vec<Gap> = Vec::with_capacity(self.gaps.len());
        for gap in self.gaps.drain(..) {
            if gap.bucket != bucket {
                kept.push(gap);
                continue;
            }
            if gap.to <= watermark {
                continue;
            }
            let before = kept.last_mut().filter(|before| before.bucket == bucket);
            match (before, ends) {
                (Some(before), Some(ends))
                    if !ends.iter().any(|end| (before.to..=gap.from).contains(end)) =>
                {
                    before.to = gap.to;
                    before.records += gap.records;
                    before.filtered += gap.filtered;
                }
                _ => kept.push(gap),
            }
        }
        self.gaps = kept;
    }

    /// Puts neighbours together until at most `most` gaps are left, but for one of each child partition. Says whether
    /// there was anything to do: sums above a watermark in between are upper bounds then.
    pub fn bound(&mut self, most: usize) -> bool {
        let mut surplus = self.gaps.len().saturating_sub(most);
        let was_over = surplus > 0;
        let mut kept: Vec<Gap> = Vec::with_capacity(self.gaps.len());
        while let Some(mut gap) = self.gaps.pop() {
            while surplus > 0
                && let Some(older) = self.gaps.pop_if(|older| older.bucket == gap.bucket)
            {
                surplus -= 1;
                gap = Gap {
                    from: older.from,
                    records: gap.records + older.records,
                    filtered: gap.filtered + older.filtered,
                    ..gap
                };
            }
            kept.push(gap);
        }
        kept.reverse();
        self.gaps = kept;
        was_over
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gap(bucket: u32, from: u64, to: u64, records: u64) -> Gap {
        Gap {
            bucket: PartitionId(bucket),
            from: Offset(from),
            to: Offset(to),
            records,
            filtered: 0,
        }
    }

    fn gaps(through: u64, all: &[Gap]) -> Gaps {
        let mut gaps = Gaps::since(Offset(0));
        gaps.note(Offset(through), all.iter().copied());
        gaps
    }

    fn lost(gaps: &Gaps, bucket: u32, from: u64) -> (u64, bool) {
        let lost = gaps.lost(PartitionId(bucket), Offset(from), gaps.through);
        (lost.records, lost.at_most)
    }

    #[test]
    fn the_sum_above_each_possible_watermark_is_exact() {
        let gaps = gaps(
            100,
            &[
                gap(0, 10, 40, 7),
                gap(0, 40, 60, 5),
                gap(0, 60, 100, 9),
                gap(1, 0, 100, 3),
            ],
        );
        for (watermark, records) in [(0, 21), (10, 21), (40, 14), (60, 9), (100, 0)] {
            assert_eq!(lost(&gaps, 0, watermark), (records, false), "{watermark}");
        }
        assert_eq!(
            lost(&gaps, 0, 50),
            (14, true),
            "inside a gap: an upper bound, and said so"
        );
        assert_eq!(lost(&gaps, 2, 0), (0, false));
        let dense = self::gaps(100, &[gap(0, 10, 40, 30)]);
        assert_eq!(
            lost(&dense, 0, 25),
            (15, false),
            "where every offset counts, any place is exact"
        );
    }

    #[test]
    fn what_was_acknowledged_is_over_and_the_rest_is_put_together() {
        let mut all = gaps(
            100,
            &[
                gap(0, 10, 40, 7),
                gap(0, 40, 60, 5),
                gap(0, 60, 100, 9),
                gap(1, 0, 9, 1),
            ],
        );
        all.note(Offset(200), [gap(0, 100, 200, 4)]);
        let whole = all.clone();
        all.settle(PartitionId(0), Offset(40), None);
        assert_eq!(
            all.all(),
            [
                gap(0, 40, 60, 5),
                gap(0, 60, 100, 9),
                gap(0, 100, 200, 4),
                gap(1, 0, 9, 1)
            ]
        );
        all.settle(PartitionId(0), Offset(40), Some(&[Offset(60)]));
        assert_eq!(
            all.all(),
            [gap(0, 40, 60, 5), gap(0, 60, 200, 13), gap(1, 0, 9, 1)]
        );
        let mut bounded = whole;
        assert!(bounded.bound(3));
        assert_eq!(
            bounded.all(),
            [gap(0, 10, 40, 7), gap(0, 40, 200, 18), gap(1, 0, 9, 1)]
        );
        assert!(!bounded.bound(3));
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let parts = |through, gaps: &[Gap]| Gaps::from_parts(Offset(0), Offset(through), gaps.to_vec());
        assert!(parts(100, &[gap(0, 10, 40, 7), gap(0, 40, 60, 5), gap(1, 0, 100, 3)]).is_some());
        assert!(
            parts(100, &[gap(0, 10, 40, 7), gap(0, 39, 60, 5)]).is_none(),
            "they overlap"
        );
        assert!(
            parts(100, &[gap(1, 10, 40, 7), gap(0, 40, 60, 5)]).is_none(),
            "out of order"
        );
        assert!(parts(100, &[gap(0, 40, 40, 5)]).is_none(), "an empty range");
        assert!(parts(100, &[gap(0, 10, 40, 0)]).is_none(), "no records");
        // A damaged ledger that was valid JSON claimed the greatest number of records, and summing it up overflowed.
        let most = gap(0, 10, 40, u64::MAX);
        assert!(
            parts(100, &[most, gap(0, 40, 60, 5)]).is_none(),
            "more records than offsets"
        );
        assert!(
            parts(30, &[gap(0, 10, 40, 7)]).is_none(),
            "above what is accounted for"
        );
    }

    proptest! {
        #[test]
        fn putting_together_changes_no_sum_above_an_end(
            sizes in prop::collection::vec((1u64..20, 0u64..9), 1..30),
            ends in prop::collection::btree_set(0usize..30, 0..6),
            watermark in 0usize..30,
            most in 1usize..40,
        ) {
            let mut edges = vec![0u64];
            let mut all = Vec::new();
            for (size, records) in sizes {
                let from = edges[edges.len() - 1];
                edges.push(from + size);
                all.push(gap(0, from, from + size, records.min(size)));
            }
            let edge = |n: usize| Offset(edges[n.min(edges.len() - 1)]);
            let whole = gaps(edges[edges.len() - 1], &all);
            let watermark = edge(watermark);
            let ends: Vec<Offset> = ends.into_iter().map(edge).filter(|end| *end > watermark).collect();
            let mut settled = whole.clone();
            settled.settle(PartitionId(0), watermark, Some(&ends));
            for at in std::iter::once(watermark).chain(ends.iter().copied()) {
                prop_assert_eq!(lost(&settled, 0, at.0), lost(&whole, 0, at.0));
            }
            let mut bounded = whole.clone();
            bounded.bound(most);
            prop_assert!(bounded.all().len() <= most.max(1));
            prop_assert_eq!(lost(&bounded, 0, 0), lost(&whole, 0, 0));
        }
    }
}
