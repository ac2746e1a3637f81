//! What a child partition has of an origin, in every order of events within bounds (SPEC.md F2, F4, D12).
//!
//! With `TAILWATER_MODELS=deep` the bounds are greater, and nothing stops before the end.

use tailwater_models::check::{breaks, deep, holds};
use tailwater_models::origin::model::{COMPLETE, Fault, Model, ONCE, POSITION, Spent};

fn model() -> Model {
    Model {
        records: if deep() { 3 } else { 2 },
        child_partitions: 1,
        most: Spent::default(),
        zombie_lives: false,
        messages_outlive_restore: false,
        fault: None,
    }
}

/// More of a misfortune when there is time for it.
fn more(few: u8) -> u8 {
    few + u8::from(deep())
}

#[test]
fn slabs_in_flight_are_doubled_reordered_and_given_up() {
    let most = Spent {
        time_outs: more(1),
        doubles: more(1),
        ..Spent::default()
    };
    holds("in flight", Model { most, ..model() });
}

#[test]
fn a_child_that_crashes_before_its_flush_has_acknowledged_nothing_of_it() {
    let most = Spent {
        time_outs: more(0),
        crashes: more(1),
        doubles: 1,
        ..Spent::default()
    };
    holds("crash of the child", Model { most, ..model() });
}

#[test]
fn the_messages_of_a_cursor_that_died_arrive_late_and_its_slabs_are_cut_anew() {
    let most = Spent {
        restarts: 1,
        time_outs: more(0),
        doubles: more(0),
        ..Spent::default()
    };
    holds("restart", Model { most, ..model() });
}

#[test]
fn a_cursor_that_does_not_know_that_it_was_replaced_does_no_harm() {
    let most = Spent {
        restarts: 1,
        ..Spent::default()
    };
    let zombie = Model {
        most,
        zombie_lives: true,
        ..model()
    };
    holds("zombie", zombie);
}

#[test]
fn two_child_partitions_go_their_own_ways() {
    let most = Spent {
        restarts: more(0),
        time_outs: more(0),
        crashes: 1,
        ..Spent::default()
    };
    // Two records for one of them, so that it can have several batches in flight.
    let two = Model {
        most,
        records: 3,
        child_partitions: 2,
        ..model()
    };
    holds("two partitions", two);
}

#[test]
fn a_restored_parent_goes_on_or_stands_and_never_mixes_two_histories() {
    let most = Spent {
        restores: 1,
        time_outs: more(0),
        ..Spent::default()
    };
    holds("restore", Model { most, ..model() });
}

/// Why a restored parent has to be a new process, with its children, or else has to fence what it sent before: a child
/// compares watermarks, not histories. The one before sent 0 -> 1 and 1 -> 2; of the new one 0 -> 1 arrives first, then
/// of the old one 1 -> 2.
#[test]
fn messages_that_outlive_their_parents_history_would_mix_two() {
    let most = Spent {
        restores: 1,
        ..Spent::default()
    };
    let outlived = Model {
        most,
        messages_outlive_restore: true,
        ..model()
    };
    breaks("outlived restore", outlived, ONCE);
}

#[test]
fn planted_faults_are_found() {
    let most = Spent {
        time_outs: 1,
        doubles: 1,
        ..Spent::default()
    };
    let restarts = Spent {
        restarts: 1,
        ..Spent::default()
    };
    let crashes = Spent {
        crashes: 1,
        ..Spent::default()
    };
    let restores = Spent {
        restores: 1,
        ..Spent::default()
    };
    for (fault, most, property) in [
        (Fault::IgnoreDedup, most, ONCE),
        (Fault::IgnorePrevious, most, ONCE),
        (Fault::AckBeforeFlush, crashes, POSITION),
        (Fault::AckBeforeFlush, crashes, COMPLETE),
        (Fault::SkipVerify, restores, ONCE),
        (Fault::FileLeads, restarts, POSITION),
        (Fault::FileLeads, restarts, COMPLETE),
    ] {
        let planted = Model {
            most,
            fault: Some(fault),
            ..model()
        };
        breaks(&format!("{fault:?}"), planted, property);
    }
}
