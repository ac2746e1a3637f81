//! Reading, gathering, delaying, acknowledging, stopping: nothing goes wrong.

use super::{START, check, config, go_on, opened};
use crate::fanout::cursor::message::Slab;
use crate::fanout::cursor::state::CursorConfig;
use tailwater_wire::ids::{CommitTime, Delay, Offset};

#[test]
fn nothing_is_read_before_every_child_has_told_its_watermark() {
    check(
        config(2, 100),
        "tick => open 0; open 1
         opened 0 0 =>
         opened 1 0 => read 100 wait=1000
         slab 100 110 0:4 1:6 => commit 0 0->110; commit 1 0->110
         acked 1 =>
         acked 0 => read 110 wait=1000",
    );
}

#[test]
fn the_start_is_the_higher_of_file_and_watermark_for_each_bucket() {
    let rig = check(
        config(3, 100),
        "tick => open 0; open 1; open 2
         opened 0 160 =>
         opened 1 60 =>
         opened 2 120 => read 100 wait=1000
         slab 100 130 1:1 2:1 => commit 1 60->130; commit 2 120->130",
    );
    assert_eq!(rig.cursor.position(), Offset(100));
}

#[test]
fn the_position_does_not_pass_what_is_not_acknowledged() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 1:5 => commit 0 0->10; commit 1 0->10\nacked 0 =>",
    );
    assert_eq!(rig.cursor.position(), Offset(0));
    assert_eq!(rig.cursor.persistable(), None, "the file holds the start");
    go_on(&mut rig, "acked 1 => read 10 wait=1000");
    assert_eq!(
        rig.cursor.persistable().map(|p| p.next_offset()),
        Some(Offset(10))
    );
    go_on(&mut rig, "persisted 10 =>");
    assert_eq!(rig.cursor.persistable(), None);
    assert_eq!(rig.cursor.unsaved_since(), None);
}

#[test]
fn a_slab_without_records_for_a_bucket_is_passed_once_nothing_is_on_its_way() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 => commit 0 0->10
         +25 => read 10 wait=1000
         slab 10 20 1:2 => commit 1 0->20",
    );
    assert_eq!(rig.cursor.position(), Offset(0));
    go_on(&mut rig, "acked 0 =>");
    assert_eq!(
        rig.cursor.position(),
        Offset(10),
        "bucket 1 passed the first slab, not the second"
    );
    go_on(&mut rig, "acked 1 => read 20 wait=1000");
    assert_eq!(rig.cursor.position(), Offset(20));
}

#[test]
fn while_a_commit_is_in_flight_records_gather_for_25_ms_at_most() {
    let mut rig = opened(config(1, 0));
    go_on(&mut rig, "slab 0 10 0:10 => commit 0 0->10\n+24 =>");
    assert_eq!(rig.cursor.wake_at(), Some(CommitTime(START.0 + 25_000_000)));
    go_on(
        &mut rig,
        "+1 => read 10 wait=1000
         slab 10 20 0:10 => commit 0 10->20
         +24 =>
         acked 0 =>
         +1 => read 20 wait=1000
         slab 20 30 0:10 => commit 0 20->30
         acked 0 =>
         acked 0 => read 30 wait=1000",
    );
}

#[test]
fn full_slabs_follow_each_other_at_once_up_to_four_in_flight() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 full => commit 0 0->10; read 10 wait=1000
         slab 10 20 0:10 full => commit 0 10->20; read 20 wait=1000
         slab 20 30 0:10 full => commit 0 20->30; read 30 wait=1000
         slab 30 40 0:10 full => commit 0 30->40
         acked 0 => read 40 wait=1000
         slab 40 50 0:10 full => commit 0 40->50",
    );
}

#[test]
fn a_fixed_linger_leaves_the_first_records_to_gather() {
    let mut rig = opened(CursorConfig {
        linger_millis: Some(40),
        ..config(1, 0)
    });
    go_on(
        &mut rig,
        "slab 0 1 0:1 =>
         +39 =>
         +1 => read 0 wait=1000
         slab 0 7 0:7 => commit 0 0->7; read 7 wait=1000
         slab 7 9 0:2 =>
         acked 0 =>
         +40 => read 7 wait=1000
         slab 7 12 0:5 => commit 0 7->12; read 12 wait=1000",
    );
}

#[test]
fn a_delay_is_slept_away_and_the_bound_is_the_clock_less_the_delay() {
    let mut rig = opened(CursorConfig {
        delay: Delay { millis: 60_000 },
        ..config(1, 0)
    });
    go_on(&mut rig, "slab 0 0 head=0 =>");
    assert_eq!(rig.cursor.next_due(), Some(CommitTime(START.0 + 60_000_000_000)));
    go_on(
        &mut rig,
        "+29999 =>
         +1 => read 0 wait=1000 bound=-30000
         slab 0 0 head=0 =>
         +29999 =>
         +1 => read 0 wait=1000 bound=0
         slab 0 5 0:5 head=1 => commit 0 0->5
         acked 0 =>
         +1 => read 5 wait=1000 bound=1",
    );
}

#[test]
fn stopping_settles_what_is_in_flight_and_stores_the_position() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 1:5 full => commit 0 0->10; commit 1 0->10; read 10 wait=1000
         slab 10 20 0:5 1:5 => commit 0 10->20; commit 1 10->20
         stop =>
         acked 0 =>
         acked 1 =>
         acked 1 =>
         acked 0 => persist 20
         +5 =>
         persisted 20 => stop",
    );
    assert!(rig.cursor.is_stopped());
}

#[test]
fn a_file_that_cannot_be_written_does_not_hold_up_the_end() {
    let mut rig = opened(config(1, 7));
    go_on(
        &mut rig,
        "slab 7 9 0:2 => commit 0 0->9
         acked 0 => read 9 wait=1000
         stop => persist 9
         persist-failed => stop",
    );
}

#[test]
fn nothing_is_stamped_as_released_before_it_is_committed() {
    for (millis, expected) in [(0, 500), (60_000, 0)] {
        let mut rig = opened(CursorConfig {
            delay: Delay { millis },
            ..config(1, 0)
        });
        go_on(&mut rig, "+500 =>");
        let slab = Slab {
            request: rig.read(0),
            next: Offset(1),
            full: false,
            next_commit: None,
        };
        let plan = rig.cursor.plan(&slab, rig.now).expect("wanted");
        let expected = CommitTime(START.0 + expected * 1_000_000);
        assert_eq!(
            plan.released_at, expected,
            "a read that waited, with {millis} ms of delay"
        );
    }
}
