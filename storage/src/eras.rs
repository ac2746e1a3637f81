//! The false futures that a partition's log was stamped in and was recovered from (SPEC.md G6).
//!
//! Commit times never decrease, so one batch that was stamped while the clock stood in a false future makes every later
//! one as late. `partition reset-clock` ends that: from an offset on stamps come from the present clock again, and what
//! lies below *counts* as committed at the earlier of its stamp and the end of the era. Bytes on the disk stay as they
//! are. Counted times never decrease either: below the end of an era they are at most that end, and whatever comes after
//! is stamped no earlier.

use tailwater_wire::ids::{CommitTime, Offset};

/// Eras that a log remembers at most; one more is refused. Those whose records retention has removed are forgotten.
pub const ERAS_MAX: usize = 64;

/// An era that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Era {
    /// Its records lie below this offset.
    pub below: Offset,
    /// None of them counts as committed later.
    pub end: CommitTime,
}

/// All eras of a log that have ended: `below` rises, and there are at most [`ERAS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Eras(Vec<Era>);

/// A log remembers [`ERAS_MAX`] eras already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log was recovered from {ERAS_MAX} false futures already, and still has records of them")]
pub struct TooManyEras;

impl Eras {
    /// Eras as they were written down; `None` when they cannot be ours.
    #[must_use]
    pub fn of(eras: Vec<Era>) -> Option<Eras> {
        let rises = eras.windows(2).all(|pair| pair[0].below < pair[1].below);
        (rises && eras.len() <= ERAS_MAX).then_some(Eras(eras))
    }

    /// In the order of their offsets.
    #[must_use]
    pub fn list(&self) -> &[Era] {
        &self.0
    }

    /// When the record at `offset`, stamped `stamp`, counts as committed.
    #[must_use]
    pub fn counted(&self, offset: Offset, stamp: CommitTime) -> CommitTime {
        // Hardly any log has an era, and of those that have, most reads are behind it: look from the back.
        let holding = self.0.iter().rev().take_while(|era| offset < era.below);
        holding.fold(stamp, |time, era| time.min(era.end))
    }

    /// When the last record below `end` counts as committed; `stamp` is its stamp.
    #[must_use]
    pub fn counted_below(&self, end: Offset, stamp: CommitTime) -> CommitTime {
        self.counted(Offset(end.0.saturating_sub(1)), stamp)
    }

    /// These eras and one more, of all records below an offset.
    ///
    /// # Errors
    /// [`TooManyEras`].
    ///
    /// # Panics
    /// When `below` lies before the end of an era.
    pub fn and(&self, era: Era) -> Result<Eras, TooManyEras> {
        let mut eras = self.0.clone();
        match eras.last_mut() {
            Some(last) if last.below == era.below => last.end = last.end.min(era.end),
            last => {
                assert!(
                    last.is_none_or(|last| last.below < era.below),
                    "eras end in order"
                );
                eras.push(era);
            }
        }
        Eras::of(eras).ok_or(TooManyEras)
    }

    /// Those that have records at or above an offset.
    #[must_use]
    pub fn reaching(&self, log_start: Offset) -> Eras {
        let reaching = self.0.iter().filter(|era| era.below > log_start);
        Eras(reaching.copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn era(below: u64, end: u64) -> Era {
        Era {
            below: Offset(below),
            end: CommitTime(end),
        }
    }

    #[test]
    fn a_record_counts_at_its_stamp_or_at_the_end_of_its_era() {
        let eras = Eras::default().and(era(10, 500)).expect("room");
        for (offset, stamp, expected) in [(3, 400, 400), (9, 9_000, 500), (10, 9_000, 9_000), (11, 600, 600)]
        {
            assert_eq!(
                eras.counted(Offset(offset), CommitTime(stamp)),
                CommitTime(expected)
            );
        }
        assert_eq!(eras.counted_below(Offset(10), CommitTime(9_000)), CommitTime(500));
        assert_eq!(eras.counted_below(Offset(0), CommitTime(0)), CommitTime(0));
    }

    #[test]
    fn an_era_that_retention_has_removed_is_forgotten() {
        let eras = Eras::of(vec![era(10, 500), era(20, 700)]).expect("rising");
        assert_eq!(eras.reaching(Offset(9)), eras);
        assert_eq!(eras.reaching(Offset(10)).list(), [era(20, 700)]);
        assert_eq!(eras.reaching(Offset(20)), Eras::default());
    }

    #[test]
    fn one_era_too_many_is_refused() {
        let full = (1..=ERAS_MAX as u64).fold(Eras::default(), |eras, n| eras.and(era(n, n)).expect("room"));
        assert_eq!(full.and(era(1_000, 0)), Err(TooManyEras));
        full.and(era(ERAS_MAX as u64, 0))
            .expect("the same offset again is the same era");
        assert_eq!(Eras::of(vec![era(2, 0), era(2, 1)]), None);
    }

    proptest! {
        /// A log as it comes about: some records, stamped by a clock that jumps; then an era ends; and so on.
        #[test]
        fn counted_times_never_decrease(
            script in prop::collection::vec((prop::collection::vec(0u64..1_000, 0..6), 0u64..1_000), 1..6),
        ) {
            let (mut eras, mut stamps, mut last) = (Eras::default(), Vec::new(), CommitTime(0));
            for (clocks, end) in script {
                for clock in clocks {
                    last = last.max(CommitTime(clock));
                    stamps.push(last);
                }
                let below = Offset(stamps.len() as u64);
                if end < last.0 {
                    eras = eras.and(Era { below, end: CommitTime(end) }).expect("few");
                    last = eras.counted_below(below, last);
                }
            }
            let counted: Vec<CommitTime> = (0u64..).zip(&stamps).map(|(n, &at)| eras.counted(Offset(n), at)).collect();
            prop_assert!(counted.is_sorted(), "{:?} of {:?} with {:?}", counted, stamps, eras);
            prop_assert!(counted.last().is_none_or(|&at| at <= last));
        }
    }
}
