//! The owner's clock as a function of CLOCK_BOOTTIME: a straight line that leans by at most 1% until a difference is made
//! up for. All times are nanoseconds.

/// The clock gains or loses at most one nanosecond in so many (SPEC.md G6: 1%).
pub const SLEW_ONE_IN: u64 = 100;

/// A line from a point on. Never falls, whatever its slew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Piece {
    /// Where it begins, on CLOCK_BOOTTIME.
    pub boot: u64,
    /// The owner's clock there, since the epoch.
    pub owner: u64,
    /// What it gains (or loses, below zero) in all, as fast as it may.
    pub slew: i64,
}

impl Piece {
    /// The owner's clock at a boottime. Before the line begins it stands where that begins.
    #[must_use]
    pub fn at(&self, boot: u64) -> u64 {
        let elapsed = boot.saturating_sub(self.boot);
        let slewed = self.slew.unsigned_abs().min(elapsed / SLEW_ONE_IN);
        let plain = self.owner.saturating_add(elapsed);
        if self.slew >= 0 {
            plain.saturating_add(slewed)
        } else {
            plain - slewed
        }
    }
}

/// Two lines: the one in force, and the one that takes over from it. A change lies a moment ahead of its announcement, so
/// that all shards change at the same time, and none reads less than another one did before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Course {
    /// Until `after` begins.
    pub before: Piece,
    /// From then on.
    pub after: Piece,
}

impl Course {
    /// A single line.
    #[must_use]
    pub fn straight(piece: Piece) -> Course {
        Course {
            before: piece,
            after: piece,
        }
    }

    /// The owner's clock at a boottime.
    #[must_use]
    pub fn at(&self, boot: u64) -> u64 {
        if boot < self.after.boot {
            self.before.at(boot)
        } else {
            self.after.at(boot)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_difference_is_made_up_for_at_one_percent_and_no_further() {
        let (second, start) = (1_000_000_000, 50);
        for (slew, after_one_second, after_long) in [
            (20_000_000, 10_000_000, 20_000_000),
            (-20_000_000, -10_000_000, -20_000_000),
            (0, 0, 0),
        ] {
            let piece = Piece {
                boot: start,
                owner: 7_000,
                slew,
            };
            let gained = |elapsed: u64| piece.at(start + elapsed) as i64 - 7_000 - elapsed as i64;
            assert_eq!(gained(second), after_one_second);
            assert_eq!(gained(100 * second), after_long);
            assert_eq!(piece.at(start - 1), 7_000);
        }
    }

    proptest! {
        #[test]
        fn it_never_falls_and_leans_by_one_percent_at_most(
            slew in any::<i64>(),
            owner in 0..u64::MAX / 2,
            steps in prop::collection::vec(0u64..10_000_000_000, 1..20),
        ) {
            let piece = Piece { boot: 9, owner, slew };
            let mut boot = 9;
            for step in steps {
                let (from, to) = (piece.at(boot), piece.at(boot + step));
                prop_assert!(to >= from);
                let advance = to - from;
                prop_assert!(advance.abs_diff(step) <= step / SLEW_ONE_IN + 1, "{} in {}", advance, step);
                boot += step;
            }
        }
    }
}
