//! Retention that passes the cursor: what is gone, what is about to go, and what was on its way meanwhile.

use super::{Rig, config, go_on, ledger, opened};
use tailwater_wire::ids::Offset;

#[test]
fn what_retention_took_is_passed_by_notices_and_counted_when_the_child_knows() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "behind 0 40 0:0-40=30 1:0-40=10 => dropped 0 0..40 30; dropped 1 0..40 10; commit 0 0->40 lost 30; commit 1 0->40 lost 10
         acked 0 =>",
    );
    assert_eq!(
        (rig.cursor.probe().dropped, rig.cursor.position()),
        (30, Offset(0))
    );
    go_on(&mut rig, "acked 1 => read 40 wait=1000");
    assert_eq!(
        (rig.cursor.probe().dropped, rig.cursor.position()),
        (40, Offset(40))
    );
    let progress = rig.cursor.progress();
    assert_eq!((progress[0].dropped, progress[1].dropped), (30, 10));
}

#[test]
fn a_child_partition_that_lost_nothing_is_told_nothing() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "behind 0 40 1:0-40=10 => dropped 1 0..40 10; commit 1 0->40 lost 10
         acked 1 => read 40 wait=1000",
    );
    assert_eq!(rig.cursor.position(), Offset(40));
}

/// A batch was in doubt when retention passed it: the child's word decides what was lost.
fn doubted(word: &str) -> u64 {
    let mut rig = opened(config(2, 0));
    let script = format!(
        "slab 0 10 0:5 1:5 => commit 0 0->10; commit 1 0->10
         acked 1 =>
         failed 0 => stall 0: child: TIMED_OUT; read 10 wait=1000
         behind 10 60 0:0-10=5 0:10-60=4 => read 60 wait=1000
         +1000 => open 0
         {word}
         acked 0 =>"
    );
    go_on(&mut rig, &script);
    assert_eq!(rig.cursor.position(), Offset(60));
    rig.cursor.probe().dropped + rig.cursor.probe().committed
}

#[test]
fn a_batch_in_doubt_is_copied_or_counted_and_never_both() {
    let lost = doubted("opened 0 0 => dropped 0 0..60 9; unstall 0; commit 0 0->60 lost 9");
    let arrived = doubted("opened 0 10 => dropped 0 10..60 4; unstall 0; commit 0 10->60 lost 4");
    assert_eq!((lost, arrived), (14, 14));
}

#[test]
fn what_is_about_to_go_is_not_read_and_what_is_on_its_way_goes_on() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 1:5 full => commit 0 0->10; commit 1 0->10; read 10 wait=1000
         doom 30 => 0 at 0 [10]; 1 at 0 [10]
         slab 10 20 0:3 full =>
         acked 1 =>
         accounted 30 0:0-10=5 0:10-30=4 1:0-10=5 1:10-30=6 => dropped 0 10..30 4; dropped 1 10..30 6; commit 0 10->30 lost 4; commit 1 10->30 lost 6; read 30 wait=1000
         failed 0 => stall 0: child: TIMED_OUT
         failed 0 =>
         doom 40 => 0 at 0 [10, 30]; 1 at 10 [30]
         +1000 => open 0
         opened 0 0 => dropped 0 0..30 9; unstall 0; commit 0 0->30 lost 9
         doom 40 => 0 at 0 [10, 30]; 1 at 10 [30]",
    );
}

#[test]
fn what_is_spared_is_read_as_if_nobody_had_asked() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "doom 30 => 0 at 0 []
         slab 0 10 0:5 =>
         spared => read 0 wait=0
         slab 0 10 0:5 => commit 0 0->10
         acked 0 => read 10 wait=1000",
    );
}

#[test]
fn a_child_partition_that_was_not_heard_may_stand_anywhere_and_learns_of_it_when_it_is() {
    let mut rig = Rig::new(config(1, 0));
    go_on(
        &mut rig,
        "tick => open 0
         doom 30 => 0 at 0 or anywhere
         accounted 30 0:0-5=1 0:5-30=1 =>
         opened 0 5 => dropped 0 5..30 1; commit 0 5->30 lost 1; read 30 wait=1000
         acked 0 =>",
    );
}

#[test]
fn a_count_that_was_stored_before_a_crash_stands() {
    let mut config = config(1, 0);
    config.gaps = ledger(30, &["0:0-30=7"]);
    let mut rig = Rig::new(config);
    go_on(
        &mut rig,
        "tick => open 0
         opened 0 0 => dropped 0 0..30 7; commit 0 0->30 lost 7; read 30 wait=1000
         acked 0 =>",
    );
}

/// What a cursor counts that starts over a ledger in which retention has taken everything below 40: 30 records of child
/// partition 0, of which 12 lie below 10, and 10 of child partition 1.
fn restarted(script: &str) -> (Rig, [u64; 2]) {
    let mut config = config(2, 0);
    config.gaps = ledger(40, &["0:0-10=12", "0:10-40=18", "1:0-40=10"]);
    let mut rig = Rig::new(config);
    go_on(&mut rig, script);
    let progress = rig.cursor.progress();
    let dropped = [progress[0].dropped, progress[1].dropped];
    assert_eq!(rig.cursor.probe().dropped, dropped.iter().sum::<u64>());
    (rig, dropped)
}

#[test]
fn in_one_history_a_notice_that_arrived_is_enough_and_is_not_counted_again() {
    let (rig, dropped) = restarted(
        "tick => open 0; open 1
         opened 0 40 notice =>
         opened 1 0 => dropped 1 0..40 10; commit 1 0->40 lost 10; read 40 wait=1000
         acked 1 =>",
    );
    assert_eq!((dropped, rig.cursor.position()), ([0, 10], Offset(40)));
}

/// The incident: a `written` parent crashed after a child partition had its notice and before the segments went. Its
/// record 39 was still there, the notice was compared with it, and the link stood as diverged, which nothing had shown.
#[test]
fn under_a_new_lineage_a_notice_proves_nothing_and_is_neither_compared_nor_counted_again() {
    let (rig, dropped) = restarted(
        "tick => open 0; open 1
         opened 0 40 other-notice => stall: unproved: the parent has a new history, and its record 39, which could \
         show that it goes on from what was copied, is gone
         opened 1 0 => dropped 1 0..40 10
         +60000 =>",
    );
    assert_eq!((dropped, rig.cursor.persistable()), ([0, 0], None));
}

#[test]
fn a_record_copied_after_a_notice_proves_a_new_lineage_and_the_notice_is_not_counted_again() {
    let (_, dropped) = restarted(
        "tick => open 0; open 1
         opened 0 50 other-lineage => verify 0 at 49
         opened 1 45 other-lineage => verify 1 at 44
         verified 0 same =>
         verified 1 same => read 45 wait=1000
         slab 45 60 0:5 1:5 => commit 0 50->60; commit 1 45->60
         acked 0 =>
         acked 1 => read 60 wait=1000",
    );
    assert_eq!(dropped, [0, 0]);
}

#[test]
fn a_notice_that_a_crash_kept_back_is_given_under_the_new_lineage_and_counted_once() {
    let (mut rig, dropped) = restarted(
        "tick => open 0; open 1
         opened 0 10 other-lineage => verify 0 at 9
         verified 0 same => dropped 0 10..40 18; commit 0 10->40 lost 18
         opened 1 40 other-lineage => verify 1 at 39
         verified 1 same => read 40 wait=1000
         acked 0 =>",
    );
    assert_eq!((dropped, rig.cursor.position()), ([18, 0], Offset(40)));
    // The child's word for it, once more.
    go_on(
        &mut rig,
        "slab 40 50 0:5 => commit 0 40->50
         failed 0 => stall 0: child: TIMED_OUT; read 50 wait=1000
         +1000 => open 0
         opened 0 40 notice => read 40 wait=0",
    );
    assert_eq!(rig.cursor.probe().dropped, 18);
}
