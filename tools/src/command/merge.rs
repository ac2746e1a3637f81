//! Merges partitions by commit time: which of what has arrived comes next, and what has to be waited for. No I/O.
//!
//! What is merged are batches: all records of one have one commit time, and a partition's commit times do not decrease. The
//! order is by commit time, then partition, then offset. A lane is one partition; it is in one of four states:
//!
//! - at hand: its next batch has arrived;
//! - behind: nothing is at hand, and it is known to have more. It is waited for;
//! - quiet: nothing is at hand, and nothing more is known. It may bring something with an earlier commit time that is on its
//!   way, so a batch is held for [`HOLD_NS`] after it was known to be committed, and then goes first whatever comes later;
//! - ended: it brings nothing more.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How long a batch is held for the sake of quiet lanes, in nanoseconds, counted from when its reader first knew that it is
/// committed. So a backlog, all of which is known at the start, is held once and not batch by batch.
pub const HOLD_NS: u64 = 50_000_000;

/// Where a batch stands in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// In nanoseconds.
    pub commit_time: u64,
    /// The partition's number.
    pub partition: u32,
    /// The first offset.
    pub offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    AtHand,
    Behind,
    Quiet,
    Ended,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// This comes next.
    Take(T),
    /// Nothing, until something arrives, or this time has come.
    Wait(Option<u64>),
    /// Every lane has ended.
    End,
}

/// The lanes, and what has arrived of each.
#[derive(Debug)]
pub struct Merge<T> {
    lanes: Vec<State>,
    /// One for each lane that is at hand.
    heads: BinaryHeap<Reverse<Head<T>>>,
    /// How many lanes are behind, and how many are quiet.
    behind: usize,
    quiet: usize,
}

#[derive(Debug)]
struct Head<T> {
    key: Key,
    lane: usize,
    known_since: u64,
    /// Whether the lane is behind when this is taken.
    more: bool,
    item: T,
}

impl<T> Merge<T> {
    /// So many lanes, all of them behind.
    #[must_use]
    pub fn new(lanes: usize) -> Merge<T> {
        Merge {
            lanes: vec![State::Behind; lanes],
            heads: BinaryHeap::new(),
            behind: lanes,
            quiet: 0,
        }
    }

    /// A lane's next batch has arrived; `known_since` is when it was first known to be committed, and `more` says that it is
    /// not the last one known.
    pub fn arrived(&mut self, lane: usize, key: Key, known_since: u64, more: bool, item: T) {
        assert!(self.lanes[lane] != State::AtHand, "one batch of a lane at a time");
        self.enter(lane, State::AtHand);
        self.heads.push(Reverse(Head {
            key,
            lane,
            known_since,
            more,
            item,
        }));
    }

    /// A lane without a batch at hand is known to have more, or is not.
    pub fn known(&mut self, lane: usize, more: bool) {
        assert!(
            self.lanes[lane] != State::AtHand,
            "what is at hand says so itself"
        );
        self.enter(lane, if more { State::Behind } else { State::Quiet });
    }

    /// A lane brings nothing more.
    pub fn ended(&mut self, lane: usize) {
        self.enter(lane, State::Ended);
    }

    /// What to do at this time, which never goes back.
    pub fn step(&mut self, now: u64) -> Step<T> {
        let Some(Reverse(first)) = self.heads.peek() else {
            return if self.behind + self.quiet == 0 {
                Step::End
            } else {
                Step::Wait(None)
            };
        };
        if self.behind > 0 {
            return Step::Wait(None);
        }
        let free_at = first.known_since.saturating_add(HOLD_NS);
        if self.quiet > 0 && now < free_at {
            return Step::Wait(Some(free_at));
        }
        match self.heads.pop() {
            Some(Reverse(head)) => {
                self.enter(head.lane, if head.more { State::Behind } else { State::Quiet });
                Step::Take(head.item)
            }
            None => Step::Wait(None),
        }
    }

    fn enter(&mut self, lane: usize, state: State) {
        let before = std::mem::replace(&mut self.lanes[lane], state);
        self.behind -= usize::from(before == State::Behind);
        self.quiet -= usize::from(before == State::Quiet);
        self.behind += usize::from(state == State::Behind);
        self.quiet += usize::from(state == State::Quiet);
    }
}

impl<T> PartialEq for Head<T> {
    fn eq(&self, other: &Head<T>) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Head<T> {}

impl<T> PartialOrd for Head<T> {
    fn partial_cmp(&self, other: &Head<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Head<T> {
    fn cmp(&self, other: &Head<T>) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Runs a script against a merge of three lanes. Words: `at LANE TIME SINCE` and `more LANE TIME SINCE` for arrivals
    /// (without and with more to come), `quiet LANE`, `behind LANE`, `end LANE`, `now MS`. The answer is what came out, as
    /// `LANE@TIME`, and how it stands at the end.
    fn check(script: &str, expected: &str) {
        let mut merge = Merge::new(3);
        let (mut said, mut now) = (Vec::new(), 0);
        for line in script.split(',') {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            let lane = || number(1) as usize;
            match words[0] {
                verb @ ("at" | "more") => {
                    let key = Key {
                        commit_time: number(2),
                        partition: number(1) as u32,
                        offset: 0,
                    };
                    let item = format!("{}@{}", words[1], words[2]);
                    merge.arrived(lane(), key, number(3) * MS, verb == "more", item);
                }
                "quiet" => merge.known(lane(), false),
                "behind" => merge.known(lane(), true),
                "end" => merge.ended(lane()),
                "now" => now = number(1) * MS,
                other => panic!("{other}"),
            }
            loop {
                match merge.step(now) {
                    Step::Take(item) => said.push(item),
                    Step::Wait(_) => break,
                    Step::End => {
                        said.push("end".to_owned());
                        break;
                    }
                }
            }
        }
        if let Step::Wait(until) = merge.step(now) {
            said.push(until.map_or("wait".to_owned(), |until| format!("until {}", until / MS)));
        }
        assert_eq!(said.join(" "), expected, "{script}");
    }

    #[test]
    fn ends_that_are_known_are_merged_exactly() {
        check("more 0 5 0, more 1 3 0", "wait");
        check("more 0 5 0, more 1 3 0, more 2 4 0", "1@3 wait");
        check(
            "more 0 5 0, more 1 3 0, more 2 4 0, end 1, end 2, more 0 6 0, end 0",
            "1@3 2@4 0@5 0@6 end",
        );
    }

    #[test]
    fn equal_times_are_in_order_of_partitions() {
        check(
            "more 2 7 0, more 1 7 0, more 0 7 0, end 0, end 1, end 2",
            "0@7 1@7 2@7 end",
        );
        check(
            "more 0 7 0, more 1 7 0, end 2, more 0 7 0, more 0 8 0, end 1",
            "0@7 0@7 1@7 0@8 wait",
        );
    }

    #[test]
    fn a_silent_partition_is_waited_for_no_longer_than_the_hold() {
        check("quiet 1, quiet 2, at 0 5 10, now 59", "until 60");
        check("quiet 1, quiet 2, at 0 5 10, now 60", "0@5 wait");
        check(
            "quiet 1, quiet 2, at 0 5 10, now 40, at 1 4 40, now 89",
            "until 90",
        );
        check(
            "quiet 1, quiet 2, at 0 5 10, now 40, at 1 4 40, now 90",
            "1@4 0@5 wait",
        );
    }

    #[test]
    fn what_comes_after_the_hold_comes_late() {
        check(
            "quiet 1, quiet 2, at 0 5 10, now 60, at 1 4 60, now 110",
            "0@5 1@4 wait",
        );
    }

    #[test]
    fn a_partition_that_is_behind_is_waited_for() {
        check("quiet 1, behind 2, at 0 5 10, now 1000", "wait");
        check(
            "quiet 1, behind 2, at 0 5 10, now 1000, at 2 4 10",
            "2@4 0@5 wait",
        );
        check("quiet 1, behind 2, at 0 5 10, now 1000, quiet 2", "0@5 wait");
    }

    #[test]
    fn a_backlog_is_held_once() {
        check(
            "quiet 1, quiet 2, more 0 5 10, now 60, more 0 6 10, more 0 7 10, at 0 8 55",
            "0@5 0@6 0@7 until 105",
        );
    }

    #[test]
    fn one_lane_is_never_held() {
        check("end 1, end 2, at 0 5 10, at 0 6 10, end 0", "0@5 0@6 end");
    }
}
