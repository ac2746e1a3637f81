//! The cursor through its one boundary: scripts of events, and the actions that each must bring.

mod flight;
mod flow;
mod gone;
mod trouble;

use bytes::Bytes;
use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_storage::gaps::{Gap, Gaps};
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Epoch, Lineage, Offset, OriginId, PartitionId};

use crate::fanout::batch::{ChildBatch, Cut, Part};
use crate::fanout::cursor::message::{Action, EpochVerdict, Event, ParentVerdict, RequestId, Slab};
use crate::fanout::cursor::receipt::Receipt;
use crate::fanout::cursor::state::{Cursor, CursorConfig};
use crate::fanout::gaps::Standing;

const START: CommitTime = CommitTime(1_000_000_000_000_000);

/// A cursor, and the requests that are unanswered. Each line of a script is an event:
///
/// ```text
/// tick | +MILLIS (time passes, then a tick) | stop | persisted N | persist-failed
/// opened B W [tail | other-lineage | notice | other-notice]      verified B same|differs|gone
/// slab FROM NEXT [B:RECORDS]... [full] [filtered=N] [head=MILLIS]   head: commit time of the record at NEXT
/// doom TO (tells where the buckets stand) | accounted TO [B:FROM-TO=RECORDS]... | spared
/// behind FROM LOG_START [B:FROM-TO=RECORDS]... | ahead FROM HWM | read-failed FROM
/// acked B [dup] | short-ack B W | expected B W | failed B [stale] | epoch current|gone|unconfirmed
/// ```
///
/// `B/N` answers the bucket's request N, counted from 0 over those that are unanswered, where `B` alone answers the oldest.
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
        let place = words.get(1).and_then(|word| word.split_once('/'));
        let (bucket, nth) = place.unwrap_or((words.get(1).unwrap_or(&""), "0"));
        let bucket = || PartitionId(bucket.parse().expect(line));
        let nth: usize = nth.parse().expect(line);
        if words[0] == "doom" {
            let doomed = self.cursor.doom(Offset(number(1))).expect("a cursor that runs");
            let told = |(n, standing): (usize, &Standing)| match &standing.ends {
                None => format!("{n} at {} or anywhere", standing.position),
                Some(ends) => format!(
                    "{n} at {} {:?}",
                    standing.position,
                    ends.iter().map(|end| end.0).collect::<Vec<_>>()
                ),
            };
            return doomed.buckets.iter().enumerate().map(told).collect();
        }
        let event = match words[0] {
            "accounted" => Event::Accounted {
                gaps: ledger(number(1), &words[2..]),
                filtered: 0,
            },
            "spared" => Event::Spared,
            "tick" => Event::Tick,
            "stop" => Event::Stop,
            "persisted" => Event::Persisted(Offset(number(1))),
            "persist-failed" => Event::PersistFailed,
            "opened" => Event::Opened {
                request: self.answer(bucket(), nth).0,
                bucket: bucket(),
                watermark: Offset(number(2)),
                mark: words.get(3).map(|&tail| OriginMark {
                    lineage: Lineage([if tail.starts_with("other") { 2 } else { 1 }; 8]),
                    parent_crc: 7,
                    // A notice of dropped records names no parent batch.
                    parent_commit_time: CommitTime(if tail.ends_with("notice") { 0 } else { 8 }),
                }),
            },
            "verified" => Event::Verified {
                request: self.answer(bucket(), nth).0,
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
                gaps: ledger(number(2), &words[3..]),
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
                let (request, batch) = self.answer(bucket(), nth);
                Event::Acked {
                    request,
                    bucket: bucket(),
                    receipt: Receipt::flushed(batch.expect("a commit").end),
                    duplicate: words.len() > 2,
                }
            }
            "short-ack" => Event::Acked {
                request: self.answer(bucket(), nth).0,
                bucket: bucket(),
                receipt: Receipt::flushed(Offset(number(2))),
                duplicate: false,
            },
            "expected" => Event::Expected {
                request: self.answer(bucket(), nth).0,
                bucket: bucket(),
                watermark: Offset(number(2)),
            },
            "failed" => Event::Failed {
                request: self.answer(bucket(), nth).0,
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
                dropped: 0,
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
            },
        }
    }

    fn read(&mut self, from: u64) -> RequestId {
        let at = self.reads.iter().position(|read| read.1 == Offset(from));
        self.reads.remove(at.expect("a read from there")).0
    }

    fn answer(&mut self, bucket: PartitionId, nth: usize) -> (RequestId, Option<ChildBatch>) {
        let asked = self
            .asked
            .iter()
            .enumerate()
            .filter(|(_, asked)| asked.0 == bucket);
        let at = asked.map(|(at, _)| at).nth(nth);
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
                let mut text = format!("commit {bucket} {}->{}", batch.previous, batch.end);
                if batch.dropped > 0 {
                    text += &format!(" lost {}", batch.dropped);
                }
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
            Action::Dropped {
                bucket,
                from,
                to,
                records,
                ..
            } => format!("dropped {bucket} {from}..{to} {records}"),
            Action::Stop => "stop".into(),
        }
    }
}

/// A ledger up to `through`, of `B:FROM-TO=RECORDS` each.
fn ledger(through: u64, words: &[&str]) -> Gaps {
    let gap = |word: &&str| {
        let mut numbers = word
            .split([':', '-', '='])
            .map(|n| n.parse::<u64>().expect("a number"));
        let mut number = || numbers.next().expect("four numbers");
        Gap {
            bucket: PartitionId(number() as u32),
            from: Offset(number()),
            to: Offset(number()),
            records: number(),
            filtered: 0,
        }
    };
    let mut gaps = Gaps::default();
    gaps.note(Offset(through), words.iter().map(gap));
    gaps
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
