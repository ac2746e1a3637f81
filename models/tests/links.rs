//! Attach, detach, attach again, delete and make anew, in every order of events within bounds (SPEC.md F6, F7, F8, F12).
//!
//! With `TAILWATER_MODELS=deep` the bounds are greater, and nothing stops before the end.

use tailwater_models::check::{breaks, deep, holds};
use tailwater_models::links::model::{
    DATA_STAYS, FILES_STAY, Fault, Model, NO_DEAD_COMMIT, NO_SKIP, ONLY_ATTACHED, Spent,
};

fn model(most: Spent) -> Model {
    Model {
        most,
        waits_for_shards: true,
        fault: None,
    }
}

/// More of a thing when there is time for it.
fn more(few: u8) -> u8 {
    few + u8::from(deep())
}

/// Attached, detached, attached again, with a record now and then.
fn again() -> Spent {
    Spent {
        produced: 1,
        attaches: 2,
        detaches: 1,
        ..Spent::default()
    }
}

/// The parent is deleted and made anew between two attachments.
fn anew() -> Spent {
    Spent {
        parents_deleted: 1,
        produced: 1,
        ..again()
    }
}

#[test]
fn detached_and_attached_again() {
    holds("attached again", model(again()));
}

#[test]
fn detached_and_attached_again_while_messages_are_doubled_and_given_up() {
    let most = Spent {
        produced: more(1),
        doubles: 1,
        time_outs: more(0),
        ..again()
    };
    holds("attached again, doubled", model(most));
}

#[test]
fn repeated_attaches_and_lost_leaders() {
    let most = Spent {
        repeats: 1,
        leaders: more(1),
        ..again()
    };
    holds("repeats and leaders", model(most));
}

#[test]
fn the_owner_comes_back_with_an_older_copy_of_the_metadata_and_without_its_file() {
    let most = Spent {
        restarts: 1,
        files_lost: more(0),
        ..again()
    };
    holds("restored replica", model(most));
}

#[test]
fn a_lost_file_is_begun_again_at_the_attach_point() {
    let most = Spent {
        produced: more(1),
        attaches: 1,
        detaches: more(0),
        restarts: 1,
        files_lost: 1,
        ..Spent::default()
    };
    holds("lost file", model(most));
}

#[test]
fn a_parent_that_is_deleted_and_made_anew() {
    let before_any = Spent {
        attaches: 1,
        detaches: 0,
        ..anew()
    };
    holds("parent anew, then attached", model(before_any));
    holds("parent anew", model(anew()));
}

#[test]
fn a_child_that_is_deleted_and_made_anew() {
    let most = Spent {
        children_deleted: 1,
        doubles: more(0),
        ..again()
    };
    holds("child anew", model(most));
}

/// A change waits 30 s for every shard. One that came later than that did not know the topic any more, and took whatever
/// lay there for what was deleted: also the data of the topic that had been made under the same name meanwhile.
#[test]
fn a_removal_that_outlives_the_wait_leaves_the_next_life_alone() {
    let most = Spent {
        parents_deleted: 1,
        ..Spent::default()
    };
    let late = Model {
        waits_for_shards: false,
        ..model(most)
    };
    holds("late removal", late.clone());
    let unmarked = Model {
        fault: Some(Fault::RemoveUnmarked),
        ..late
    };
    breaks("late removal", unmarked, DATA_STAYS);
}

#[test]
fn planted_faults_are_found() {
    let lost = Spent {
        produced: 1,
        attaches: 1,
        restarts: 1,
        files_lost: 1,
        ..Spent::default()
    };
    let late = Spent {
        time_outs: 1,
        attaches: 1,
        ..again()
    };
    let restored = Spent {
        restarts: 1,
        attaches: 1,
        ..Spent::default()
    };
    let deleted = Spent {
        restarts: 1,
        parents_deleted: 1,
        ..Spent::default()
    };
    for (fault, most, property) in [
        (Fault::ChildIgnoresEpoch, late, NO_DEAD_COMMIT),
        (Fault::AnchorAtTail, lost, NO_SKIP),
        (Fault::ResumeOtherEpoch, again(), ONLY_ATTACHED),
        (Fault::AttachWithoutStop, again(), ONLY_ATTACHED),
        (Fault::ReplicaIsTheWord, restored, FILES_STAY),
        (Fault::RemoveByReplica, deleted, DATA_STAYS),
    ] {
        let planted = Model {
            fault: Some(fault),
            ..model(most)
        };
        breaks(&format!("{fault:?}"), planted, property);
    }
}
