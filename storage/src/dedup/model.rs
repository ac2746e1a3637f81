//! The table against a naive model that scans the whole log, through flushes, checkpoints and crashes.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tailwater_wire::ids::{CommitTime, Epoch, Lineage, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::message::ProducerKey;

use crate::dedup::name::name_hash;
use crate::dedup::table::DedupTable;
use crate::dedup::verdict::{AppendedBatch, OriginMark, OriginWatermark, Verdict};

const NAMES: [&str; 2] = ["feed-a", "feed-b"];
const WRITERS: usize = 6;
/// The attach offset of the origins' link.
const FLOOR: u64 = 20;

fn writer(n: usize) -> Writer {
    match n {
        0 | 1 => Writer::Random([n as u8; 16]),
        2 | 3 => Writer::Named(name_hash(NAMES[n - 2])),
        _ => Writer::Origin(OriginId {
            epoch: Epoch([9; 8]),
            partition: PartitionId(n as u32),
        }),
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A batch of `records` whose `previous` is so far from the writer's watermark; origins skip `gap` parent
    /// records.
    Send {
        writer: usize,
        from: i64,
        records: u64,
        gap: u64,
    },
    Open(usize),
    /// Flushes up to the end of a batch this many from the log's end.
    Flush(usize),
    /// Flushes everything and begins a segment with a checkpoint.
    Roll,
    /// The power goes; so many of the unflushed batches are found nevertheless.
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0..WRITERS, prop_oneof![4 => Just(0i64), 3 => -8i64..4], 1u64..5, 0u64..3)
            .prop_map(|(writer, from, records, gap)| Step::Send { writer, from, records, gap }),
        3 => (0..4usize).prop_map(Step::Open),
        3 => (0..4usize).prop_map(Step::Flush),
        1 => Just(Step::Roll),
        1 => (0..5usize).prop_map(Step::Crash),
    ]
}

/// The log, whole, and what else survives a crash.
#[derive(Default)]
struct Model {
    log: Vec<AppendedBatch>,
    /// Batches that are flushed.
    flushed: usize,
    /// Producers that the table must know without a batch of theirs: the log has written down that they were opened.
    opened: BTreeSet<usize>,
    checkpoint: Vec<u8>,
    /// What `log.len()` and `opened` were at the checkpoint.
    at_checkpoint: (usize, BTreeSet<usize>),
}

impl Model {
    fn end(&self) -> Offset {
        self.log.last().map_or(Offset::ZERO, |batch| batch.end_offset)
    }

    fn batches(&self, n: usize) -> impl DoubleEndedIterator<Item = &AppendedBatch> {
        self.log.iter().filter(move |batch| batch.writer == writer(n))
    }

    fn watermark(&self, n: usize) -> u64 {
        let floor = if n >= 4 { FLOOR } else { 0 };
        self.batches(n).next_back().map_or(floor, |batch| batch.sequence)
    }

    fn is_known(&self, n: usize) -> bool {
        n >= 4 || self.opened.contains(&n) || self.batches(n).next().is_some()
    }

    /// Which kind of verdict is right; a duplicate's details are checked apart.
    #[track_caller]
    fn check_verdict(&self, n: usize, previous: u64, sequence: u64, verdict: Verdict) {
        let watermark = self.watermark(n);
        let is_producer = n < 4;
        match verdict {
            Verdict::Append => {
                assert!(previous == watermark && self.is_known(n));
            }
            Verdict::UnknownProducer => {
                assert!(is_producer && !self.is_known(n));
            }
            Verdict::OutOfOrder { expected } => {
                assert!(is_producer && self.is_known(n) && expected == watermark);
                assert!(previous != watermark && sequence > watermark);
            }
            Verdict::Expected { watermark: told } => {
                assert!(!is_producer && told == watermark);
                assert!(previous != watermark && sequence > watermark);
            }
            Verdict::Duplicate {
                base_offset,
                end_offset,
                commit_time,
            } => {
                assert!(self.is_known(n) && sequence <= watermark);
                let original = self.batches(n).find(|batch| batch.sequence >= sequence);
                let safe = original.map_or(Offset::ZERO, |batch| batch.end_offset);
                assert!(end_offset >= safe && end_offset <= self.end());
                assert_eq!(base_offset.is_some(), commit_time.is_some());
                let exact = original.filter(|batch| (batch.previous, batch.sequence) == (previous, sequence));
                if base_offset.is_some() {
                    assert_eq!(base_offset, exact.map(|batch| batch.base_offset));
                    assert_eq!(commit_time, exact.map(|batch| batch.commit_time));
                }
                // The last batch's offset is always remembered, also across a crash.
                if self.batches(n).next_back() == exact && exact.is_some() {
                    assert!(base_offset.is_some());
                }
            }
        }
    }

    fn origin(&self, n: usize) -> Option<OriginWatermark> {
        let last = self.batches(n).next_back()?;
        let flushed = self.log[..self.flushed]
            .iter()
            .rfind(|batch| batch.writer == writer(n));
        Some(OriginWatermark {
            appended: last.sequence,
            flushed: flushed.map_or(0, |batch| batch.sequence),
            end_offset: last.end_offset,
            mark: self.batches(n).rev().find_map(|batch| batch.origin),
        })
    }
}

#[track_caller]
fn run(steps: Vec<Step>) {
    let mut table = DedupTable::new();
    let mut model = Model {
        checkpoint: table.checkpoint(),
        ..Model::default()
    };
    for (time, step) in steps.into_iter().enumerate() {
        let now = CommitTime(1_000 + time as u64);
        match step {
            Step::Send {
                writer: n,
                from,
                records,
                gap,
            } => {
                let previous = model.watermark(n).saturating_add_signed(from);
                let sequence = previous + records + if n >= 4 { gap } else { 0 };
                let floor = (n >= 4).then_some(FLOOR);
                let verdict = table.decide(writer(n), previous, sequence, floor);
                model.check_verdict(n, previous, sequence, verdict);
                if verdict == Verdict::Append {
                    let mark = OriginMark {
                        lineage: Lineage([1; 8]),
                        parent_crc: time as u32,
                        parent_commit_time: now,
                    };
                    let batch = AppendedBatch {
                        writer: writer(n),
                        previous,
                        sequence,
                        base_offset: model.end(),
                        end_offset: model.end().plus(records),
                        commit_time: now,
                        origin: (n >= 4 && gap < 2).then_some(mark),
                    };
                    table.appended(&batch);
                    model.log.push(batch);
                }
            }
            Step::Open(n) => {
                let key = match writer(n) {
                    Writer::Random(id) => ProducerKey::Random(id),
                    _ => ProducerKey::Named(NAMES[n - 2].to_owned()),
                };
                let opened = table.open(&key, now).expect("no other name has its hash");
                let unflushed = model.log[model.flushed..]
                    .iter()
                    .rfind(|batch| batch.writer == writer(n));
                assert_eq!(
                    (opened.writer, opened.last_sequence),
                    (writer(n), model.watermark(n))
                );
                assert_eq!(opened.unflushed_until, unflushed.map(|batch| batch.end_offset));
                model.opened.insert(n);
            }
            Step::Flush(short_of_end) => {
                let upto = model.log.len().saturating_sub(short_of_end).max(model.flushed);
                model.flushed = upto;
                table.flushed(
                    model.log[..upto]
                        .last()
                        .map_or(Offset::ZERO, |batch| batch.end_offset),
                );
            }
            Step::Roll => {
                model.flushed = model.log.len();
                table.flushed(model.end());
                assert!(table.is_all_flushed());
                model.checkpoint = table.checkpoint();
                model.at_checkpoint = (model.log.len(), model.opened.clone());
            }
            Step::Crash(found) => {
                let left = (model.flushed + found).min(model.log.len());
                model.log.truncate(left);
                model.flushed = left;
                table = DedupTable::restore(&model.checkpoint).expect("its own checkpoint");
                for batch in &model.log[model.at_checkpoint.0..] {
                    table.appended(batch);
                }
                for n in model.opened.difference(&model.at_checkpoint.1) {
                    table.reopened(writer(*n), now);
                }
                table.flushed(model.end());
            }
        }
        for n in 4..WRITERS {
            let Writer::Origin(id) = writer(n) else {
                unreachable!()
            };
            assert_eq!(table.origin(id), model.origin(n));
        }
    }
    // No writer's batches repeat or leave a hole.
    for n in 0..WRITERS {
        let mut watermark = if n >= 4 { FLOOR } else { 0 };
        for batch in model.batches(n) {
            assert_eq!(batch.previous, watermark);
            watermark = batch.sequence;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn like_a_scan_of_the_log(steps in prop::collection::vec(step(), 0..150)) {
        run(steps);
    }
}
