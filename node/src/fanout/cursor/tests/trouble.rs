//! Children that fail, lie, lag or forget; parents that lose; epochs that die.

use super::{check, config, go_on, opened};
use crate::fanout::cursor::message::{Event, Slab};
use crate::fanout::cursor::receipt::Receipt;
use tailwater_wire::ids::{Offset, PartitionId};

#[test]
fn a_failed_child_partition_is_asked_again_each_second_and_alone_reads_again() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 1:5 => commit 0 0->10; commit 1 0->10
         acked 0 =>
         failed 1 => stall 1: child: TIMED_OUT; read 10 wait=1000
         slab 10 20 0:5 1:5 => commit 0 10->20
         acked 0 => read 20 wait=1000
         +999 =>
         +1 => open 1
         failed 1 =>
         +1000 => open 1
         opened 1 0 => read 0 wait=0
         slab 0 20 0:10 1:10 => commit 1 0->20
         acked 1 => unstall 1
         slab 20 30 0:1 1:1 => commit 0 20->30; commit 1 20->30",
    );
    assert_eq!(rig.cursor.probe().stalls, 1);
}

#[test]
fn a_commit_whose_outcome_was_unknown_is_not_repeated() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 => commit 0 0->10
         failed 0 => stall 0: child: TIMED_OUT
         +1000 => open 0
         opened 0 10 => unstall 0; read 10 wait=1000",
    );
    assert_eq!(
        (rig.cursor.position(), rig.cursor.probe().committed),
        (Offset(10), 10)
    );
}

#[test]
fn a_refusal_with_the_batchs_own_end_is_a_lost_acknowledgement() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 full => commit 0 0->10; read 10 wait=1000
         slab 10 20 0:10 => commit 0 10->20
         expected 0 10 =>
         acked 0 => read 20 wait=1000",
    );
    assert_eq!(
        (rig.cursor.probe().duplicates, rig.cursor.probe().committed),
        (10, 10)
    );
}

#[test]
fn a_refusal_with_another_watermark_asks_for_it_and_reads_from_there() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 => commit 0 0->10
         expected 0 7 => open 0
         opened 0 7 => read 7 wait=0
         slab 7 10 0:3 => commit 0 7->10
         expected 0 25 => open 0
         opened 0 25 => read 25 wait=1000",
    );
    assert_eq!(rig.cursor.position(), Offset(25));
}

#[test]
fn a_child_that_lost_what_it_acknowledged_stands_and_the_others_go_on() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 1:5 => commit 0 0->10; commit 1 0->10
         acked 0 =>
         acked 1 => read 10 wait=1000
         slab 10 20 0:5 1:5 => commit 0 10->20; commit 1 10->20
         acked 1 =>
         expected 0 4 => open 0; read 20 wait=1000
         opened 0 4 => stall 0: child regressed: it acknowledged up to 10 and now says 4
         +60000 =>
         slab 20 30 1:2 => commit 1 20->30",
    );
    assert_eq!(rig.cursor.position(), Offset(10));
}

#[test]
fn late_answers_change_nothing() {
    let mut rig = opened(config(1, 0));
    go_on(&mut rig, "slab 0 10 0:10 => commit 0 0->10");
    let (late, batch) = rig.answer(PartitionId(0), 0);
    rig.asked.push((PartitionId(0), late, batch.clone()));
    go_on(&mut rig, "failed 0 => stall 0: child: TIMED_OUT\n+1000 => open 0");
    let mut actions = Vec::new();
    let receipt = Receipt::flushed(batch.expect("a commit").end);
    let event = Event::Acked {
        request: late,
        bucket: PartitionId(0),
        receipt,
        duplicate: false,
    };
    rig.cursor.step(event, rig.now, &mut actions);
    assert_eq!((actions, rig.cursor.position()), (vec![], Offset(0)));
}

#[test]
fn an_acknowledgement_of_less_than_was_sent_is_none() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 => commit 0 0->10
         short-ack 0 9 => stall 0: child: INTERNAL",
    );
    assert_eq!(rig.cursor.position(), Offset(0));
}

#[test]
fn a_position_ahead_stands_for_an_operator() {
    let mut rig = opened(config(1, 100));
    go_on(
        &mut rig,
        "ahead 100 80 => stall: position ahead: 100 is above the parent's end 80
         +60000 =>
         stop => stop",
    );
}

#[test]
fn a_parent_that_is_not_what_it_was_stands_for_an_operator() {
    let script = "tick => open 0
         opened 0 50 tail => verify 0 at 49
         verified 0 differs => stall: diverged: the parent's record 49 is not the one that was copied
         +60000 =>";
    let rig = check(config(1, 0), script);
    assert_eq!(rig.cursor.persistable(), None);
    check(
        config(1, 0),
        "tick => open 0
         opened 0 50 tail => verify 0 at 49
         verified 0 gone => read 50 wait=1000",
    );
}

#[test]
fn a_new_lineage_is_gone_on_under_when_the_parent_still_has_what_was_copied() {
    let mut rig = check(
        config(2, 30),
        "tick => open 0; open 1
         opened 0 50 other-lineage => verify 0 at 49
         opened 1 40 other-lineage => verify 1 at 39
         verified 0 same =>
         verified 1 same => read 40 wait=1000",
    );
    let slab = Slab {
        request: rig.read(40),
        next: Offset(60),
        full: false,
        next_commit: None,
    };
    let plan = rig.cursor.plan(&slab, rig.now).expect("wanted");
    assert_eq!(
        plan.lineage,
        config(2, 30).lineage,
        "what follows is of the new one"
    );
}

#[test]
fn a_new_lineage_without_what_was_copied_stands_for_an_operator() {
    for (verdict, stall) in [
        (
            "differs",
            "diverged: the parent's record 49 is not the one that was copied",
        ),
        (
            "gone",
            "unproved: the parent has a new history, and its record 49, which could show that it goes on from what \
             was copied, is gone",
        ),
    ] {
        let script = format!(
            "tick => open 0
             opened 0 50 other-lineage => verify 0 at 49
             verified 0 {verdict} => stall: {stall}
             +60000 =>"
        );
        let rig = check(config(1, 0), &script);
        assert_eq!(rig.cursor.persistable(), None);
    }
}

#[test]
fn a_refused_epoch_is_asked_about_and_a_dead_one_ends_without_touching_the_file() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 => commit 0 0->10
         acked 0 => read 10 wait=1000
         slab 10 20 0:10 => commit 0 10->20
         failed 0 stale => stall 0: child: STALE_EPOCH; confirm
         epoch unconfirmed =>
         +1000 => confirm; open 0
         failed 0 stale => 
         epoch gone => stop",
    );
    assert_eq!(rig.cursor.persistable(), None);
}

#[test]
fn a_parent_that_cannot_be_read_is_tried_again_each_second() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "read-failed 0 => stall: parent: PARTITION_LATCHED
         +999 =>
         +1 => read 0 wait=1000
         read-failed 0 =>
         +1000 => read 0 wait=1000
         slab 0 0 => unstall; read 0 wait=1000",
    );
}

#[test]
fn those_that_are_behind_take_turns() {
    let mut rig = opened(config(3, 0));
    go_on(
        &mut rig,
        "slab 0 100 0:1 full => commit 0 0->100; read 100 wait=1000
         acked 0 =>
         slab 100 200 1:1 2:1 0:1 full => commit 0 100->200; commit 1 0->200; commit 2 0->200; read 200 wait=1000
         acked 0 =>
         failed 1 => stall 1: child: TIMED_OUT
         failed 2 => stall 2: child: TIMED_OUT
         slab 200 300 0:1 1:1 2:1 full => commit 0 200->300; read 300 wait=1000
         +1000 => open 1; open 2
         opened 1 0 => read 100 wait=0
         opened 2 150 =>
         slab 100 140 1:1 full => commit 1 0->140; read 150 wait=0
         slab 150 300 1:1 2:1 => commit 2 150->300; read 140 wait=0",
    );
}
