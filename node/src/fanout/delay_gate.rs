//! The delay gate: which records a link may read now, and when to look again.
//!
//! Commit times do not decrease by offset, so the first record that is not due proves that none behind it is: the gate
//! needs one time, however many records are pending.

use tailwater_wire::ids::{CommitTime, Delay};
use tailwater_wire::mutant::{Mutant, planted};

/// The longest sleep before the head is looked at again, in nanoseconds: 30 s.
pub const SLEEP_NANOS_MAX: u64 = 30_000_000_000;

/// How often a gate that is held looks again, in nanoseconds: 1 s.
pub const HELD_NANOS: u64 = 1_000_000_000;

/// What the gate says about the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// It may be read now.
    Released,
    /// It is not due: look again at this time, which is when it is due or [`SLEEP_NANOS_MAX`] from now. While the gate is
    /// held, which ends at any time, [`HELD_NANOS`] from now.
    SleepUntil(CommitTime),
}

/// Decides about the next record, committed at `next_commit`, on the owner's clock. `held`: that clock is (SPEC.md G6),
/// and a link with a delay gets nothing new.
#[must_use]
pub fn decide(delay: Delay, now: CommitTime, held: bool, next_commit: CommitTime) -> Gate {
    if delay.is_none() {
        return Gate::Released;
    }
    if held {
        return Gate::SleepUntil(CommitTime(now.0.saturating_add(HELD_NANOS)));
    }
    let early = if planted(Mutant::ReleaseEarly) {
        1_000_000
    } else {
        0
    };
    let due = CommitTime(next_commit.plus(delay).0 - early);
    if due <= now {
        Gate::Released
    } else {
        Gate::SleepUntil(CommitTime(due.0.min(now.0.saturating_add(SLEEP_NANOS_MAX))))
    }
}

/// The newest commit time that a read at `now` may return; `None` without a delay, when all that is committed may be
/// read. A clock that has not yet run for the length of the delay releases nothing, and neither does one that is held.
#[must_use]
pub fn committed_at_max(delay: Delay, now: CommitTime, held: bool) -> Option<CommitTime> {
    let released = if held { CommitTime(0) } else { now.minus(delay) };
    let early = if planted(Mutant::ReleaseEarly) {
        1_000_000
    } else {
        0
    };
    let released = CommitTime(released.0 + early);
    (!delay.is_none()).then_some(released)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_SECONDS: Delay = Delay { millis: 2_000 };

    fn ms(millis: u64) -> CommitTime {
        CommitTime::from_millis(millis)
    }

    #[test]
    fn the_gate_opens_at_the_nanosecond_that_is_due() {
        let due = ms(3_000);
        for (delay, now, expected) in [
            (Delay::NONE, ms(0), Gate::Released),
            (TWO_SECONDS, due, Gate::Released),
            (TWO_SECONDS, CommitTime(due.0 - 1), Gate::SleepUntil(due)),
            (TWO_SECONDS, ms(1_000), Gate::SleepUntil(due)),
            (
                Delay { millis: 3_600_000 },
                ms(1_000),
                Gate::SleepUntil(ms(31_000)),
            ),
        ] {
            assert_eq!(
                decide(delay, now, false, ms(1_000)),
                expected,
                "{delay:?} at {now:?}"
            );
        }
    }

    #[test]
    fn the_gate_and_the_bound_agree() {
        for now in [0, 1, 1_999, 2_000, 2_001, 9_000].map(ms) {
            for committed in [0, 1, 7_000].map(ms) {
                let bound = committed_at_max(TWO_SECONDS, now, false).expect("a delay");
                let released = decide(TWO_SECONDS, now, false, committed) == Gate::Released;
                let early = now < ms(2_000);
                assert_eq!(released, committed <= bound && !early, "{committed:?} at {now:?}");
            }
        }
    }

    #[test]
    fn a_held_clock_lets_nothing_pass_but_what_has_no_delay() {
        let long_due = ms(1);
        assert_eq!(
            decide(TWO_SECONDS, ms(9_000), true, long_due),
            Gate::SleepUntil(ms(10_000))
        );
        assert!(committed_at_max(TWO_SECONDS, ms(9_000), true) < Some(long_due));
        assert_eq!(decide(Delay::NONE, ms(9_000), true, long_due), Gate::Released);
        assert_eq!(committed_at_max(Delay::NONE, ms(9_000), true), None);
    }

    #[test]
    fn far_futures_do_not_overflow() {
        let far = CommitTime(u64::MAX);
        assert_eq!(
            decide(TWO_SECONDS, ms(0), false, far),
            Gate::SleepUntil(ms(30_000))
        );
    }
}
