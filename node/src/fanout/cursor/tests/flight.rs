//! Several batches of one bucket in flight: answers out of order, late, lost and contradicting.

use bytes::Bytes;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};

use super::{Rig, START, config, go_on, opened};
use crate::fanout::batch::{ChildBatch, Part};
use crate::fanout::cursor::bucket::{Bucket, IN_FLIGHT_BYTES_MAX, Outcome, Phase};
use crate::fanout::cursor::message::RequestId;

/// One bucket with 0->10, 10->20, 20->30 and 30->40 in flight, and a full parent behind.
fn four() -> Rig {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 full => commit 0 0->10; read 10 wait=1000
         slab 10 20 0:10 full => commit 0 10->20; read 20 wait=1000
         slab 20 30 0:10 full => commit 0 20->30; read 30 wait=1000
         slab 30 40 0:10 full => commit 0 30->40",
    );
    rig
}

#[test]
fn answers_out_of_order_count_in_order() {
    let mut rig = four();
    go_on(&mut rig, "acked 0/2 =>\nacked 0/1 =>");
    assert_eq!(rig.cursor.position(), Offset(0), "the first is unanswered");
    assert_eq!(rig.cursor.persistable(), None);
    go_on(&mut rig, "acked 0 => read 40 wait=1000");
    assert_eq!(rig.cursor.position(), Offset(30));
    go_on(&mut rig, "acked 0 =>");
    assert_eq!(
        (rig.cursor.position(), rig.cursor.probe().committed),
        (Offset(40), 40)
    );
}

#[test]
fn when_the_first_fails_all_are_in_doubt_and_the_child_is_asked_once_all_are_answered() {
    let mut rig = four();
    go_on(
        &mut rig,
        "acked 0/1 =>
         failed 0 => stall 0: child: TIMED_OUT
         +1000 =>
         failed 0 =>
         +1000 =>",
    );
    assert_eq!(rig.cursor.wake_at(), None, "time alone brings nothing");
    go_on(
        &mut rig,
        "acked 0 => open 0
         opened 0 20 => read 20 wait=0
         slab 20 40 0:20 => commit 0 20->40; read 40 wait=1000
         acked 0 => unstall 0",
    );
    assert_eq!(
        (rig.cursor.position(), rig.cursor.probe().committed),
        (Offset(40), 40)
    );
}

#[test]
fn what_was_acknowledged_before_the_failure_stays_so_and_what_follows_is_read_again() {
    let mut rig = four();
    go_on(
        &mut rig,
        "acked 0 => read 40 wait=1000
         slab 40 50 0:10 full => commit 0 40->50
         failed 0/1 =>
         acked 0 => stall 0: child: TIMED_OUT
         expected 0 20 =>
         expected 0 20 =>
         +999 =>",
    );
    assert_eq!(rig.cursor.position(), Offset(20));
    go_on(
        &mut rig,
        "+1 => open 0
         opened 0 20 => read 20 wait=0
         slab 20 50 0:30 => commit 0 20->50; read 50 wait=1000",
    );
    assert_eq!(rig.cursor.probe().committed, 20);
}

#[test]
fn a_later_one_that_came_too_early_is_sent_again_without_a_stall() {
    let mut rig = four();
    go_on(
        &mut rig,
        "expected 0/1 0 =>
         expected 0/1 0 =>
         expected 0/1 0 =>
         acked 0 => open 0
         opened 0 10 => read 10 wait=0
         slab 10 40 0:30 => commit 0 10->40; read 40 wait=1000
         acked 0 =>",
    );
    assert_eq!((rig.cursor.probe().stalls, rig.cursor.probe().committed), (0, 40));
}

#[test]
fn an_old_word_of_the_child_is_no_regression() {
    let mut rig = four();
    go_on(
        &mut rig,
        "acked 0 => read 40 wait=1000
         expected 0 0 =>
         failed 0 =>
         failed 0 => open 0
         opened 0 10 => read 10 wait=0",
    );
    assert_eq!(rig.cursor.stalled(), None);
}

#[test]
fn nothing_is_read_or_sent_behind_a_refusal() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 full => commit 0 0->10; read 10 wait=1000
         slab 10 20 0:10 full => commit 0 10->20; read 20 wait=1000
         failed 0/1 =>
         slab 20 30 0:10 full =>
         acked 0 => stall 0: child: TIMED_OUT
         +1000 => open 0
         opened 0 10 => read 10 wait=0",
    );
}

#[test]
fn a_doubted_answer_that_comes_late_moves_nothing_and_is_waited_for() {
    let mut rig = four();
    go_on(
        &mut rig,
        "failed 0 => stall 0: child: TIMED_OUT\nacked 0 =>\nacked 0 =>",
    );
    assert_eq!(rig.cursor.position(), Offset(0));
    go_on(&mut rig, "stop =>\nacked 0 => stop");
    assert_eq!(rig.cursor.persistable(), None);
}

#[test]
fn a_slow_child_partition_is_left_behind_after_its_grace() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 1:5 full => commit 0 0->10; commit 1 0->10; read 10 wait=1000
         acked 0 =>
         slab 10 20 0:5 1:5 full => commit 0 10->20; commit 1 10->20; read 20 wait=1000
         acked 0 =>
         slab 20 30 0:5 1:5 full => commit 0 20->30; commit 1 20->30; read 30 wait=1000
         acked 0 =>
         slab 30 40 0:5 1:5 full => commit 0 30->40; commit 1 30->40
         acked 0 =>
         +249 =>
         +1 => read 40 wait=1000
         slab 40 50 0:5 1:5 full => commit 0 40->50; read 50 wait=1000
         acked 1 => read 40 wait=0
         slab 40 50 1:5 => commit 1 40->50",
    );
    assert_eq!(rig.cursor.position(), Offset(10));
}

#[test]
fn bytes_in_flight_are_bounded_but_one_batch_always_goes() {
    let mut bucket = Bucket::new(PartitionId(0), Offset::ZERO, START);
    bucket.phase = Phase::Open;
    let large = Bytes::from(vec![0; IN_FLIGHT_BYTES_MAX / 2 + 1]);
    for next in [10, 20] {
        let take = bucket.take(Offset(next - 10), Offset(next)).expect("room");
        let batch = ChildBatch {
            bytes: large.clone(),
            previous: take.previous,
            end: Offset(next),
            records: 10,
            dropped: 0,
        };
        let part = Part {
            take,
            batches: vec![batch],
        };
        assert!(bucket.took(part, Offset(next)));
        let sent = bucket.send(RequestId(next)).is_some();
        assert_eq!(sent, next == 10, "the second would be too much");
    }
    assert_eq!(
        bucket.take(Offset(20), Offset(30)),
        None,
        "what it got waits to be sent"
    );
    assert!(bucket.answered(RequestId(10), Outcome::Failed(ErrorCode::Busy)));
    assert!(bucket.send(RequestId(30)).is_none());
    bucket.doubt(CommitTime(0));
    assert_eq!(
        (bucket.read_to(), bucket.ask_at()),
        (Offset(0), Some(CommitTime(0)))
    );
}
