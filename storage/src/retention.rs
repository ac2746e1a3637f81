//! Which of a partition's oldest segments retention removes, decided from their sizes and commit times (SPEC.md
//! D8).
//!
//! Whole sealed segments only, oldest first, never the active one, and no reader is asked.

use tailwater_wire::ids::{CommitTime, Delay, Offset};
use tailwater_wire::meta::Retention;

/// What retention needs to know of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedSegment {
    /// Its first offset.
    pub base: Offset,
    /// The offset after its last record: the next segment's base.
    pub end: Offset,
    /// Its file's length in bytes.
    pub bytes: u64,
    /// The greatest commit time in it: that of its last record.
    pub last_commit_time: CommitTime,
}

/// How many of the oldest sealed segments go now.
///
/// A segment goes by age when its newest record was committed more than `retention.millis` before `now`, and by
/// size as long as the log, `active_bytes` included, is greater than `retention.bytes`. Both work from the
/// oldest on, so what is left is always one run of offsets. `now` is the owner's clock; while that clock is
/// held (SPEC.md G6) the caller passes `None`, and nothing goes by age.
#[must_use]
pub fn segments_to_remove(
    sealed: &[SealedSegment],
    active_bytes: u64,
    now: Option<CommitTime>,
    retention: Retention,
) -> usize {
    debug_assert!(sealed.windows(2).all(|pair| pair[0].end <= pair[1].base));
    by_age(sealed, now, retention.millis).max(by_size(sealed, active_bytes, retention.bytes))
}

fn by_age(sealed: &[SealedSegment], now: Option<CommitTime>, millis: Option<u64>) -> usize {
    let (Some(now), Some(millis)) = (now, millis) else {
        return 0;
    };
    let keep_from = now.minus(Delay { millis });
    sealed
        .iter()
        .take_while(|segment| segment.last_commit_time < keep_from)
        .count()
}

fn by_size(sealed: &[SealedSegment], active_bytes: u64, bytes_max: Option<u64>) -> usize {
    let Some(bytes_max) = bytes_max else {
        return 0;
    };
    let sum = |total: u64, segment: &SealedSegment| total.saturating_add(segment.bytes);
    let mut total = sealed.iter().fold(active_bytes, sum);
    let mut gone = 0;
    while gone < sealed.len() && total > bytes_max {
        total -= sealed[gone].bytes.min(total);
        gone += 1;
    }
    gone
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Segments of ten records and `bytes` each, the n-th one's last record committed at `seconds[n]`.
    fn sealed(bytes: u64, seconds: &[u64]) -> Vec<SealedSegment> {
        let segment = |(n, &s): (usize, &u64)| SealedSegment {
            base: Offset(n as u64 * 10),
            end: Offset(n as u64 * 10 + 10),
            bytes,
            last_commit_time: CommitTime::from_millis(s * 1_000),
        };
        seconds.iter().enumerate().map(segment).collect()
    }

    #[track_caller]
    fn check(seconds: &[u64], now: Option<u64>, millis: Option<u64>, bytes: Option<u64>, expected: usize) {
        let now = now.map(|s| CommitTime::from_millis(s * 1_000));
        let gone = segments_to_remove(&sealed(100, seconds), 50, now, Retention { millis, bytes });
        assert_eq!(gone, expected);
    }

    #[test]
    fn age_counts_from_the_newest_record_of_a_segment() {
        check(&[1, 2, 3], Some(12), Some(10_000), None, 1);
        check(&[1, 2, 3], Some(11), Some(10_000), None, 0);
        check(&[1, 2, 3], Some(999), Some(10_000), None, 3);
        check(&[1, 2, 3], Some(999), None, None, 0);
        check(&[], Some(999), Some(0), Some(0), 0);
    }

    #[test]
    fn a_held_clock_removes_nothing_by_age_but_still_by_size() {
        check(&[1, 2, 3], None, Some(0), None, 0);
        check(&[1, 2, 3], None, Some(0), Some(250), 1);
    }

    #[test]
    fn a_clock_behind_the_log_removes_nothing_by_age() {
        check(&[100, 200], Some(5), Some(10_000), None, 0);
    }

    #[test]
    fn size_counts_the_active_segment_and_never_removes_it() {
        check(&[1, 2, 3], Some(0), None, Some(350), 0);
        check(&[1, 2, 3], Some(0), None, Some(349), 1);
        check(&[1, 2, 3], Some(0), None, Some(50), 3);
        check(&[1, 2, 3], Some(0), None, Some(0), 3);
    }

    proptest! {
        #[test]
        fn removal_is_enough_and_not_more(
            mut seconds in prop::collection::vec(0u64..100, 0..10),
            now in 0u64..200,
            millis in prop::option::of(0u64..100_000),
            bytes in prop::option::of(0u64..1_200),
        ) {
            seconds.sort_unstable();
            let segments = sealed(100, &seconds);
            let time = CommitTime::from_millis(now * 1_000);
            let gone = segments_to_remove(&segments, 50, Some(time), Retention { millis, bytes });
            let must_go = |from: usize| {
                let newest = segments[from].last_commit_time;
                let old = millis.is_some_and(|millis| newest.plus(Delay { millis }) < time);
                let big = bytes.is_some_and(|max| 50 + 100 * (segments.len() - from) as u64 > max);
                old || big
            };
            prop_assert!(gone == 0 || must_go(gone - 1));
            prop_assert!(gone == segments.len() || !must_go(gone));
        }
    }
}
