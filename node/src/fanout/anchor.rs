//! Where a cursor starts: its own file, the attach point of a confirmed epoch, or not yet.
//!
//! Never at the tail, and never on the word of a local replica (SPEC.md F6, F7): whatever is not a file of the very
//! epoch needs the leader's.

use tailwater_storage::cursor_file::CursorFile;
use tailwater_storage::proof::LeaderConfirmed;
use tailwater_wire::ids::{Epoch, Offset, TopicName};
use tailwater_wire::mutant::{Mutant, planted};

/// What is known when a cursor is to start.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The topic that is copied.
    pub parent: &'a TopicName,
    /// The topic that receives the copies.
    pub child: &'a TopicName,
    /// The epoch that the cursor is to run under, by the local replica.
    pub epoch: Epoch,
    /// Where that epoch attached to this parent partition. An epoch is attached once, so this does not change.
    pub attach_offset: Offset,
    /// The parent partition's committed end.
    pub high_water_mark: Offset,
    /// What the cursor file says.
    pub file: &'a CursorFile,
}

/// What the metadata leader said, if it was asked.
#[derive(Debug, Clone, Copy)]
pub enum Confirmation<'a> {
    /// It was not asked yet.
    NotAsked,
    /// It could not be asked in time.
    Unavailable,
    /// Its word, from a linearizable read.
    Leader(&'a LeaderConfirmed),
}

/// How a cursor starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Anchor<'a> {
    /// At its file's position.
    Resume(Offset),
    /// Ask the metadata leader, and decide again.
    Ask,
    /// At the attach point, after the file was written with this proof.
    StartAt {
        /// The attach point.
        offset: Offset,
        /// That the epoch is the link's current one.
        proof: &'a LeaderConfirmed,
    },
    /// Not now: again at the next pass.
    Defer,
    /// Not at all: the epoch is not the link's current one; the local replica is behind.
    StaleEpoch,
    /// Not until an operator decides: the position lies above what the parent has committed.
    PositionAhead(Offset),
}

impl Anchor<'_> {
    /// The label of `fanout_anchor_total{verdict}`.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match self {
            Anchor::Resume(_) => "resume",
            Anchor::Ask => "ask",
            Anchor::StartAt { .. } => "attach_point",
            Anchor::Defer => "defer",
            Anchor::StaleEpoch => "stale_epoch",
            Anchor::PositionAhead(_) => "position_ahead",
        }
    }
}

/// Decides how a cursor starts.
#[must_use]
pub fn anchor<'a>(facts: &Facts<'_>, confirmation: Confirmation<'a>) -> Anchor<'a> {
    let within = |offset: Offset, anchor| {
        if offset > facts.high_water_mark {
            Anchor::PositionAhead(offset)
        } else {
            anchor
        }
    };
    match *facts.file {
        CursorFile::Present { epoch, next_offset }
            if epoch == facts.epoch || planted(Mutant::ResumeOtherEpoch) =>
        {
            return within(next_offset, Anchor::Resume(next_offset));
        }
        CursorFile::Absent if planted(Mutant::AnchorAtTail) => return Anchor::Resume(facts.high_water_mark),
        CursorFile::Present { .. } | CursorFile::Absent | CursorFile::Damaged(_) => {}
    }
    match confirmation {
        Confirmation::NotAsked => Anchor::Ask,
        Confirmation::Unavailable => Anchor::Defer,
        // A word about another pair says nothing about this one.
        Confirmation::Leader(proof) if !proof.is_about(facts.parent, facts.child) => Anchor::Ask,
        Confirmation::Leader(proof)
            if proof.current() != Some(facts.epoch) && !planted(Mutant::SkipLeaderConfirmation) =>
        {
            Anchor::StaleEpoch
        }
        Confirmation::Leader(proof) => within(
            facts.attach_offset,
            Anchor::StartAt {
                offset: facts.attach_offset,
                proof,
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Epoch = Epoch([1; 8]);
    const OTHER: Epoch = Epoch([2; 8]);

    fn name(text: &str) -> TopicName {
        text.parse().expect("a name")
    }

    fn word(child: &str, current: Option<Epoch>) -> LeaderConfirmed {
        LeaderConfirmed::by_leader(name("orders"), name(child), current, 9)
    }

    fn file(epoch: Epoch, next: u64) -> CursorFile {
        CursorFile::Present {
            epoch,
            next_offset: Offset(next),
        }
    }

    /// The attach point is 50, the parent's end `high_water_mark`.
    fn check(file: &CursorFile, high_water_mark: u64, confirmation: Confirmation<'_>, expected: &str) {
        let (parent, child) = (name("orders"), name("analytics"));
        let facts = Facts {
            parent: &parent,
            child: &child,
            epoch: MINE,
            attach_offset: Offset(50),
            high_water_mark: Offset(high_water_mark),
            file,
        };
        let decided = match anchor(&facts, confirmation) {
            Anchor::Resume(offset) => format!("resume {offset}"),
            Anchor::StartAt { offset, .. } => format!("start {offset}"),
            Anchor::PositionAhead(offset) => format!("ahead {offset}"),
            other => other.verdict().to_owned(),
        };
        assert_eq!(decided, expected, "{file:?} {confirmation:?}");
    }

    #[test]
    fn a_file_of_the_same_epoch_resumes_without_asking() {
        for confirmation in [
            Confirmation::NotAsked,
            Confirmation::Unavailable,
            Confirmation::Leader(&word("analytics", None)),
        ] {
            check(&file(MINE, 70), 100, confirmation, "resume 70");
        }
        check(&file(MINE, 100), 100, Confirmation::NotAsked, "resume 100");
        check(&file(MINE, 101), 100, Confirmation::NotAsked, "ahead 101");
    }

    #[test]
    fn anything_else_starts_at_the_attach_point_of_the_confirmed_epoch_or_not() {
        for file in [
            CursorFile::Absent,
            CursorFile::Damaged("torn"),
            file(OTHER, 70),
            file(OTHER, 1_000),
        ] {
            let file = &file;
            check(file, 100, Confirmation::NotAsked, "ask");
            check(file, 100, Confirmation::Unavailable, "defer");
            check(
                file,
                100,
                Confirmation::Leader(&word("analytics", None)),
                "stale_epoch",
            );
            check(
                file,
                100,
                Confirmation::Leader(&word("analytics", Some(OTHER))),
                "stale_epoch",
            );
            check(
                file,
                100,
                Confirmation::Leader(&word("analytics", Some(MINE))),
                "start 50",
            );
            check(
                file,
                49,
                Confirmation::Leader(&word("analytics", Some(MINE))),
                "ahead 50",
            );
            check(
                file,
                100,
                Confirmation::Leader(&word("trades", Some(MINE))),
                "ask",
            );
        }
    }
}
