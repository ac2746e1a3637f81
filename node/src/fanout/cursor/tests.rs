//! The cursor through its one boundary: scripts of events, and the actions that each must bring.

use bytes::Bytes;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Delay, Epoch, Lineage, Offset, OriginId, PartitionId};

use crate::fanout::batch::{ChildBatch, Cut, Part};
use crate::fanout::cursor::bucket::Receipt;
use crate::fanout::cursor::message::{
    Action, EpochVerdict, Event, ParentTail, ParentVerdict, RequestId, Slab,
};
use crate::fanout::cursor::state::{Cursor, CursorConfig};

const START: CommitTime = CommitTime(1_000_000_000_000_000);

/// A cursor, and the requests that are unanswered. Each line of a script is an event:
///
/// ```text
/// tick | +MILLIS (time passes, then a tick) | stop | persisted N | persist-failed
/// opened B W [tail | other-lineage]      verified B same|differs|gone
/// slab FROM NEXT [B:RECORDS]... [full] [filtered=N] [missing=N] [head=MILLIS]   head: commit time of the record at NEXT
/// behind FROM LOG_START | ahead FROM HWM | read-failed FROM
/// acked B [dup] | short-ack B W | expected B W | failed B [stale] | epoch current|gone|unconfirmed
/// ```
struct Rig {
    cursor: Cursor,
    now: CommitTime,
    reads: Vec<(RequestId, Offset)>,
    asked: Vec<(PartitionId, RequestId, Option<ChildBatch>)>,
}

impl Rig {
    fn new(config: CursorConfig) -> Rig {
        Rig {
            cursor: Cursor::new(config, START),
            now: START,
            reads: Vec::new(),
            asked: Vec::new(),
        }
    }

    fn run(&mut self, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().expect(line);
        let bucket = || PartitionId(number(1) as u32);
        let event = match words[0] {
            "tick" => Event::Tick,
            "stop" => Event::Stop,
            "persisted" => Event::Persisted(Offset(number(1))),
            "persist-failed" => Event::PersistFailed,
            "opened" => Event::Opened {
                request: self.answer(bucket()).0,
                bucket: bucket(),
                watermark: Offset(number(2)),
                tail: words.get(3).map(|&tail| ParentTail {
                    lineage: Lineage([if tail == "tail" { 1 } else { 2 }; 8]),
                    crc: 7,
                    commit_time: CommitTime(8),
                }),
            },
            "verified" => Event::Verified {
                request: self.answer(bucket()).0,
                bucket: bucket(),
                verdict: match words[2] {
                    "same" => ParentVerdict::Same,
                    "gone" => ParentVerdict::Gone,
                    _ => ParentVerdict::Differs,
                },
            },
            "slab" => self.slab(&words),
            "behind" => Event::Behind {
                request: self.read(number(1)),
                log_start: Offset(number(2)),
            },
            "ahead" => Event::Ahead {
                request: self.read(number(1)),
                high_water_mark: Offset(number(2)),
            },
            "read-failed" => Event::ReadFailed {
                request: self.read(number(1)),
                code: ErrorCode::PartitionLatched,
            },
            "acked" => {
                let (request, batch) = self.answer(bucket());
                Event::Acked {
                    request,
                    bucket: bucket(),
                    receipt: Receipt::flushed(batch.expect("a commit").end),
                    duplicate: words.len() > 2,
                }
            }
            "short-ack" => Event::Acked {
                request: self.answer(bucket()).0,
                bucket: bucket(),
                receipt: Receipt::flushed(Offset(number(2))),
                duplicate: false,
            },
            "expected" => Event::Expected {
                request: self.answer(bucket()).0,
                bucket: bucket(),
                watermark: Offset(number(2)),
            },
            "failed" => Event::Failed {
                request: self.answer(bucket()).0,
                bucket: bucket(),
                code: if words.len() > 2 {
                    ErrorCode::StaleEpoch
                } else {
                    ErrorCode::TimedOut
                },
            },
            "epoch" => Event::Epoch(match words[1] {
                "current" => EpochVerdict::Current,
                "gone" => EpochVerdict::Gone,
                _ => EpochVerdict::Unconfirmed,
            }),
            time => {
                let millis: u64 = time.strip_prefix('+').expect(line).parse().expect(line);
                self.now = CommitTime(self.now.0 + millis * 1_000_000);
                Event::Tick
            }
        };
        let mut actions = Vec::new();
        self.cursor.step(event, self.now, &mut actions);
        actions.into_iter().map(|action| self.note(action)).collect()
    }

    fn slab(&mut self, words: &[&str]) -> Event {
        let value = |name: &str| {
            let word = words.iter().find_map(|word| word.strip_prefix(name));
            word.map(|value| value.parse::<u64>().expect("a number"))
        };
        let slab = Slab {
            request: self.read(words[1].parse().expect("from")),
            next: Offset(words[2].parse().expect("next")),
            full: words.contains(&"full"),
            next_commit: value("head=").map(|millis| CommitTime(START.0 + millis * 1_000_000)),
        };
        let Some(plan) = self.cursor.plan(&slab, self.now) else {
            return Event::Tick;
        };
        let part = |&take| {
            let records = value(&format!("{}:", plan_bucket(&take)));
            let batch = records.map(|records| ChildBatch {
                bytes: Bytes::new(),
                previous: take.previous,
                end: slab.next,
                records: records as u32,
            });
            Part {
                take,
                batches: batch.into_iter().collect(),
            }
        };
        Event::Slab {
            slab,
            cut: Cut {
                parts: plan.takes.iter().map(part).collect(),
                filtered: value("filtered=").unwrap_or(0),
                missing: value("missing=").unwrap_or(0),
            },
        }
    }

    fn read(&mut self, from: u64) -> RequestId {
        let at = self.reads.iter().position(|read| read.1 == Offset(from));
        self.reads.remove(at.expect("a read from there")).0
    }

    fn answer(&mut self, bucket: PartitionId) -> (RequestId, Option<ChildBatch>) {
        let at = self.asked.iter().position(|asked| asked.0 == bucket);
        let (_, request, batch) = self.asked.remove(at.expect("something to answer"));
        (request, batch)
    }

    fn note(&mut self, action: Action) -> String {
        match action {
            Action::OpenOrigin { request, bucket } => {
                self.asked.push((bucket, request, None));
                format!("open {bucket}")
            }
            Action::VerifyParent {
                request,
                bucket,
                offset,
                ..
            } => {
                self.asked.push((bucket, request, None));
                format!("verify {bucket} at {offset}")
            }
            Action::Read {
                request,
                from,
                committed_at_max,
                wait_millis,
                ..
            } => {
                self.reads.push((request, from));
                let bound = committed_at_max.map_or(String::new(), |bound| {
                    format!(" bound={}", (bound.0 as i64 - START.0 as i64) / 1_000_000)
                });
                format!("read {from} wait={wait_millis}{bound}")
            }
            Action::Commit {
                request,
                bucket,
                batch,
            } => {
                let text = format!("commit {bucket} {}->{}", batch.previous, batch.end);
                self.asked.push((bucket, request, Some(batch)));
                text
            }
            Action::Persist(persist) => format!("persist {}", persist.next_offset()),
            Action::ConfirmEpoch => "confirm".into(),
            Action::Stall { bucket, reason } => match bucket {
                Some(bucket) => format!("stall {bucket}: {reason}"),
                None => format!("stall: {reason}"),
            },
            Action::Unstall { bucket } => match bucket {
                Some(bucket) => format!("unstall {bucket}"),
                None => "unstall".into(),
            },
            Action::Dropped { records, next } => format!("dropped {records} to {next}"),
            Action::Stop => "stop".into(),
        }
    }
}

fn plan_bucket(take: &crate::fanout::batch::Take) -> u32 {
    take.bucket.0
}

fn config(buckets: u32, start: u64) -> CursorConfig {
    let origin = OriginId {
        epoch: Epoch([9; 8]),
        partition: PartitionId(3),
    };
    CursorConfig::new(origin, Lineage([1; 8]), buckets, Offset(start))
}

/// Runs a script: each line is `event => action; action; ...`.
fn check(config: CursorConfig, script: &str) -> Rig {
    let mut rig = Rig::new(config);
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (event, expected) = line.split_once("=>").expect(line);
        let actions = rig.run(event.trim()).join("; ");
        assert_eq!(actions, expected.trim(), "after `{}` of\n{script}", event.trim());
    }
    rig
}

/// Opens `buckets` buckets, all at watermark 0.
fn opened(config: CursorConfig) -> Rig {
    let mut rig = Rig::new(config);
    rig.run("tick");
    for bucket in 0..rig.cursor.config().child_partitions {
        rig.run(&format!("opened {bucket} 0"));
    }
    rig
}

/// Goes on with a script on a rig that has come somewhere.
fn go_on(rig: &mut Rig, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (event, expected) = line.split_once("=>").expect(line);
        let actions = rig.run(event.trim()).join("; ");
        assert_eq!(actions, expected.trim(), "after `{}` of\n{script}", event.trim());
    }
}

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
    assert_eq!(
        rig.cursor.persistable(),
        Some(rig.cursor.persistable().expect("no file yet"))
    );
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
         slab 10 20 0:10 =>
         acked 0 => commit 0 10->20
         acked 0 => read 20 wait=1000",
    );
}

#[test]
fn a_full_slab_is_followed_by_the_next_one_at_once_but_not_by_a_third() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 full => commit 0 0->10; read 10 wait=1000
         slab 10 20 0:10 full =>
         acked 0 => commit 0 10->20; read 20 wait=1000",
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
         slab 7 9 0:2 full => ",
    );
}

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
    assert_eq!(rig.cursor.position(), Offset(10));
}

#[test]
fn a_refusal_with_the_batchs_own_end_is_a_lost_acknowledgement() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 full => commit 0 0->10; read 10 wait=1000
         slab 10 20 0:10 =>
         expected 0 10 => commit 0 10->20",
    );
    assert_eq!(
        (rig.cursor.probe().duplicates, rig.cursor.probe().committed),
        (10, 0)
    );
}

#[test]
fn a_refusal_with_another_watermark_is_believed_and_read_from() {
    let mut rig = opened(config(1, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:10 => commit 0 0->10
         expected 0 7 => read 7 wait=0
         slab 7 10 0:3 => commit 0 7->10
         expected 0 25 => read 25 wait=1000",
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
         expected 0 4 => stall 0: child regressed: it acknowledged up to 10 and now says 4; read 20 wait=1000
         +60000 =>
         slab 20 30 1:2 => commit 1 20->30",
    );
    assert_eq!(rig.cursor.position(), Offset(10));
}

#[test]
fn a_slow_child_partition_is_left_behind_after_its_grace() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 1:5 full => commit 0 0->10; commit 1 0->10; read 10 wait=1000
         slab 10 20 0:5 1:5 full =>
         acked 0 => commit 0 10->20
         acked 0 =>
         +249 =>
         +1 => read 20 wait=1000
         slab 20 30 0:5 full => commit 0 20->30; read 30 wait=1000
         slab 30 40 =>
         acked 1 => commit 1 10->20; read 20 wait=0
         slab 20 40 1:3 full =>
         acked 1 => commit 1 20->40
         acked 1 =>",
    );
}

#[test]
fn late_answers_change_nothing() {
    let mut rig = opened(config(1, 0));
    go_on(&mut rig, "slab 0 10 0:10 => commit 0 0->10");
    let (late, batch) = rig.answer(PartitionId(0));
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
fn what_retention_took_is_skipped_and_counted_once() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "behind 0 40 => dropped 40 to 40; read 40 wait=1000
         slab 40 50 0:1 filtered=9 => commit 0 0->50
         failed 0 => stall 0: child: TIMED_OUT; read 50 wait=1000
         behind 50 60 => dropped 20 to 60; read 60 wait=1000
         +1000 => open 0
         opened 0 0 => unstall 0
         slab 60 70 0:1 missing=3 => dropped 3 to 70; commit 0 0->70",
    );
    let probe = rig.cursor.probe();
    assert_eq!((probe.dropped, probe.filtered), (63, 9));
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
         opened 0 50 other-lineage => stall: diverged: the parent's record 49 is not the one that was copied",
    );
    check(
        config(1, 0),
        "tick => open 0
         opened 0 50 tail => verify 0 at 49
         verified 0 gone => read 50 wait=1000",
    );
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
fn stopping_settles_what_is_in_flight_and_stores_the_position() {
    let mut rig = opened(config(2, 0));
    go_on(
        &mut rig,
        "slab 0 10 0:5 1:5 full => commit 0 0->10; commit 1 0->10; read 10 wait=1000
         slab 10 20 0:5 1:5 =>
         stop =>
         acked 0 =>
         acked 1 => persist 10
         +5 =>
         persisted 10 => stop",
    );
    assert!(rig.cursor.is_stopped());
}

#[test]
fn a_file_that_cannot_be_written_does_not_hold_up_the_end() {
    let mut rig = opened(config(1, 7));
    go_on(&mut rig, "stop => persist 7\npersist-failed => stop");
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
