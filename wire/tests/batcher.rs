//! The batcher against a model of a node that refuses, loses answers and delivers late: exactly once, in order, and
//! never a definite answer that is not true.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Lineage, Offset, PartitionId, Writer};
use tailwater_wire::message::Produced;
use tailwater_wire::meta::Durability;
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::producer::action::{Action, BatchId, BatcherConfig, Event, WriterKind};
use tailwater_wire::producer::batcher::Batcher;
use tailwater_wire::record::Record;
use tailwater_wire::session::action::Failure;

const P0: PartitionId = PartitionId(0);

fn config(kind: WriterKind) -> BatcherConfig {
    BatcherConfig {
        partitioner: Partitioner::Murmur2,
        partitions: 2,
        idempotence: kind,
        batch_records: 3,
        batch_bytes: 1 << 20,
        linger: Duration::from_millis(5),
        in_flight: 5,
        delivery_timeout: Duration::from_millis(700),
        first_keyless: 0,
    }
}

fn record(value: u64) -> Record {
    Record {
        value: Bytes::copy_from_slice(&value.to_le_bytes()),
        ..Record::default()
    }
}

fn values(batch: &[u8]) -> Vec<u64> {
    let view = BatchView::parse(batch).expect("a sound batch");
    let value = |record: tailwater_wire::batch::view::RecordView<'_>| {
        u64::from_le_bytes(record.value.try_into().expect("8 bytes"))
    };
    view.records().map(value).collect()
}

fn produced(base: Option<u64>, duplicate: bool) -> Produced {
    Produced {
        base_offset: base.map(Offset),
        commit_time: None,
        durability: Durability::Fsync,
        lineage: Lineage([0; 8]),
        duplicate,
    }
}

fn busy() -> Failure {
    Failure::Refused(Refusal::new(ErrorCode::Busy, "full"))
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// One partition as its owner keeps it.
#[derive(Default)]
struct Node {
    log: Vec<u64>,
    last: BTreeMap<Writer, u64>,
}

impl Node {
    fn produce(&mut self, batch: &[u8]) -> Result<Produced, Failure> {
        let header = BatchHeader::decode(batch).expect("a sound header");
        let last = self.last.get(&header.writer).copied().unwrap_or(0);
        if header.writer != Writer::Anonymous {
            if header.sequence <= last {
                return Ok(produced(None, true));
            }
            if header.previous != last {
                let refusal = Refusal::new(ErrorCode::OutOfOrderSequence, "a hole");
                return Err(Failure::Refused(refusal));
            }
            self.last.insert(header.writer, header.sequence);
        }
        let base = self.log.len() as u64;
        self.log.extend(values(batch));
        Ok(produced(Some(base), false))
    }
}

/// A run of one partition under faults.
struct Sim {
    kind: WriterKind,
    dice: Dice,
    batcher: Batcher,
    node: Node,
    now: Duration,
    wire: VecDeque<(BatchId, Bytes)>,
    /// Given up by the client, and still under way to the node.
    zombies: Vec<Bytes>,
    /// The values of each batch, as they were pushed.
    pushed: BTreeMap<BatchId, Vec<u64>>,
    ended: BTreeMap<BatchId, Result<Produced, Failure>>,
    ids: u8,
    trouble: bool,
}

impl Sim {
    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Produce { batch, bytes, .. } => self.wire.push_back((batch, bytes)),
                Action::Open { renew, .. } => {
                    self.ids += u8::from(renew && self.kind == WriterKind::Random);
                    let result = match self.trouble && self.dice.below(3) == 0 {
                        true => Err(busy()),
                        false => {
                            let writer = Writer::Random([self.ids; 16]);
                            Ok((writer, self.node.last.get(&writer).copied().unwrap_or(0)))
                        }
                    };
                    let event = Event::Opened {
                        partition: P0,
                        result,
                    };
                    let actions = self.batcher.step(event, self.now);
                    self.perform(actions);
                }
                Action::Done { batch, result, .. } => {
                    assert!(
                        self.ended.insert(batch, result).is_none(),
                        "batch {batch} ends once"
                    );
                }
            }
        }
    }

    fn deliver(&mut self) {
        let Some((batch, bytes)) = self.wire.pop_front() else {
            return;
        };
        let fate = if self.trouble { self.dice.below(10) } else { 9 };
        let mut resent = false;
        let result = match fate {
            0 => Err(busy()),
            1 => Err(Failure::TimedOut(Duration::from_secs(1))),
            2 => {
                self.node.produce(&bytes).ok();
                Err(Failure::TimedOut(Duration::from_secs(1)))
            }
            3 => {
                self.zombies.push(bytes);
                Err(Failure::OutcomeUnknown("reset".to_owned()))
            }
            4 if self.kind != WriterKind::Anonymous => {
                resent = true;
                self.node.produce(&bytes).ok();
                self.node.produce(&bytes)
            }
            5 if self.dice.below(4) == 0 => Err(Failure::Refused(Refusal::new(
                ErrorCode::StaleIncarnation,
                "another topic",
            ))),
            _ => self.node.produce(&bytes),
        };
        let event = Event::Settled {
            partition: P0,
            batch,
            resent,
            result,
        };
        let actions = self.batcher.step(event, self.now);
        self.perform(actions);
    }

    fn run(seed: u64, kind: WriterKind) -> Sim {
        let mut sim = Sim {
            kind,
            dice: Dice(seed | 1),
            batcher: Batcher::new(config(kind)),
            node: Node::default(),
            now: Duration::ZERO,
            wire: VecDeque::new(),
            zombies: Vec::new(),
            pushed: BTreeMap::new(),
            ended: BTreeMap::new(),
            ids: 0,
            trouble: true,
        };
        for value in 0..300 {
            let (batch, index) = sim.batcher.push(P0, &record(value), sim.now).expect("fits");
            let values = sim.pushed.entry(batch).or_default();
            assert_eq!(values.len() as u32, index);
            values.push(value);
            sim.turn();
        }
        sim.trouble = false;
        while !sim.batcher.is_idle() {
            sim.now = sim.batcher.wake_at().unwrap_or(sim.now).max(sim.now);
            sim.turn();
        }
        sim
    }

    fn turn(&mut self) {
        self.now += Duration::from_millis(self.dice.below(40));
        if self.dice.below(8) == 0 {
            let on_the_way = self.wire.len();
            let actions = self.batcher.step(Event::Reroute { partition: P0 }, self.now);
            let sends = actions
                .iter()
                .any(|action| matches!(action, Action::Produce { .. }));
            assert!(
                !sends || on_the_way == 0,
                "nothing leaves before the way is empty"
            );
            self.perform(actions);
        }
        let actions = self.batcher.step(Event::Tick, self.now);
        self.perform(actions);
        for _ in 0..self.dice.below(3) {
            self.deliver();
        }
        if self.wire.len() > 4 || !self.trouble {
            self.deliver();
        }
        if self.dice.below(5) == 0
            && let Some(zombie) = self.zombies.pop()
        {
            self.node.produce(&zombie).ok();
        }
    }

    /// Every claim that was made to the application is true of the log.
    fn check(&self, seed: u64) {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for &value in &self.node.log {
            *counts.entry(value).or_default() += 1;
        }
        let mut confirmed = Vec::new();
        assert_eq!(
            self.ended.len(),
            self.pushed.len(),
            "seed {seed}: every batch ends"
        );
        for (batch, values) in &self.pushed {
            let ended = &self.ended[batch];
            for (index, value) in values.iter().enumerate() {
                let count = counts.get(value).copied().unwrap_or(0);
                match ended {
                    Ok(produced) => {
                        assert_eq!(count, 1, "seed {seed}: {value} is confirmed");
                        confirmed.push(*value);
                        if let Some(base) = produced.base_offset {
                            assert_eq!(self.node.log[base.0 as usize + index], *value, "seed {seed}");
                        }
                    }
                    Err(Failure::Refused(_) | Failure::Unreachable(_)) => {
                        assert_eq!(count, 0, "seed {seed}: {value} failed for good: {ended:?}");
                    }
                    Err(_) => assert!(count <= 1, "seed {seed}: {value} twice"),
                }
            }
        }
        if self.kind != WriterKind::Anonymous {
            let in_log: Vec<u64> = self
                .node
                .log
                .iter()
                .copied()
                .filter(|value| confirmed.binary_search(value).is_ok())
                .collect();
            assert_eq!(in_log, confirmed, "seed {seed}: the order is kept");
        }
    }
}

#[test]
fn whatever_happens_every_claim_is_true() {
    for kind in [WriterKind::Random, WriterKind::Named, WriterKind::Anonymous] {
        let (mut confirmed, mut unknown, mut refused) = (0, 0, 0);
        for seed in 1..=60 {
            let sim = Sim::run(seed * 0x9e37_79b9, kind);
            sim.check(seed);
            for ended in sim.ended.values() {
                match ended {
                    Ok(_) => confirmed += 1,
                    Err(Failure::Refused(_) | Failure::Unreachable(_)) => refused += 1,
                    Err(_) => unknown += 1,
                }
            }
        }
        assert!(
            confirmed > 0 && refused > 0 && unknown > 0,
            "{kind:?}: {confirmed} {refused} {unknown}: the faults bite"
        );
    }
}

/// Opens partition 0 of a fresh batcher under id 1.
fn opened(batcher: &mut Batcher, actions: Vec<Action>, now: Duration) -> Vec<Action> {
    assert_eq!(
        actions,
        [Action::Open {
            partition: P0,
            renew: false
        }]
    );
    let result = Ok((Writer::Random([1; 16]), 41));
    batcher.step(
        Event::Opened {
            partition: P0,
            result,
        },
        now,
    )
}

#[test]
fn an_idle_partition_ships_at_once_and_a_busy_one_tops_up() {
    let at = Duration::from_millis;
    let mut batcher = Batcher::new(config(WriterKind::Random));
    batcher.push(P0, &record(0), at(0)).expect("fits");
    let actions = batcher.step(Event::Tick, at(0));
    let actions = opened(&mut batcher, actions, at(0));
    let [Action::Produce { bytes, .. }] = &actions[..] else {
        panic!("{actions:?}");
    };
    let header = BatchHeader::decode(bytes).expect("sound");
    assert_eq!((header.previous, header.sequence), (41, 42));

    batcher.push(P0, &record(1), at(1)).expect("fits");
    assert_eq!(
        batcher.step(Event::Tick, at(1)),
        [],
        "one is in flight: it lingers"
    );
    assert_eq!(batcher.wake_at(), Some(at(6)));
    batcher.push(P0, &record(2), at(2)).expect("fits");
    let actions = batcher.step(Event::Tick, at(6));
    assert!(matches!(&actions[..], [Action::Produce { bytes, .. }] if values(bytes) == [1, 2]));

    for value in 3..7 {
        batcher.push(P0, &record(value), at(6)).expect("fits");
    }
    let actions = batcher.step(Event::Tick, at(6));
    assert!(matches!(&actions[..], [Action::Produce { bytes, .. }] if values(bytes) == [3, 4, 5]));
    let actions = batcher.step(Event::Flush, at(6));
    assert!(matches!(&actions[..], [Action::Produce { bytes, .. }] if values(bytes) == [6]));
}

#[test]
fn at_most_so_many_batches_are_unacknowledged() {
    let mut batcher = Batcher::new(config(WriterKind::Anonymous));
    for value in 0..30 {
        batcher.push(P0, &record(value), Duration::ZERO).expect("fits");
    }
    let actions = batcher.step(Event::Flush, Duration::ZERO);
    assert_eq!(actions.len(), 5);
    let event = Event::Settled {
        partition: P0,
        batch: 3,
        resent: false,
        result: Ok(produced(Some(0), false)),
    };
    let actions = batcher.step(event, Duration::ZERO);
    assert!(matches!(
        actions[..],
        [Action::Done { batch: 3, .. }, Action::Produce { batch: 6, .. }]
    ));
}

#[test]
fn after_a_refusal_the_partition_waits_for_all_and_sends_again_from_the_first() {
    let at = Duration::from_millis;
    let mut batcher = Batcher::new(config(WriterKind::Random));
    for value in 0..6 {
        batcher.push(P0, &record(value), at(0)).expect("fits");
    }
    let actions = batcher.step(Event::Tick, at(0));
    assert_eq!(opened(&mut batcher, actions, at(0)).len(), 2);
    let mut refuse = |batch, code, now| {
        let result = Err(Failure::Refused(Refusal::new(code, "so")));
        let event = Event::Settled {
            partition: P0,
            batch,
            resent: false,
            result,
        };
        let actions = batcher.step(event, now);
        (actions, batcher.wake_at())
    };
    let (actions, wake) = refuse(1, ErrorCode::Busy, at(1));
    assert_eq!((actions, wake), (vec![], Some(at(11))));
    let (actions, _) = refuse(2, ErrorCode::OutOfOrderSequence, at(50));
    assert_eq!(actions, [], "and pauses after the second refusal too");
    let actions = batcher.step(Event::Tick, at(70));
    let again: Vec<BatchId> = actions.iter().filter_map(sent).collect();
    assert_eq!(again, [1, 2]);
}

fn sent(action: &Action) -> Option<BatchId> {
    match action {
        Action::Produce { batch, .. } => Some(*batch),
        _ => None,
    }
}

#[test]
fn a_duplicate_of_a_batch_that_went_out_once_is_somebody_elses() {
    let mut batcher = Batcher::new(config(WriterKind::Named));
    batcher.push(P0, &record(0), Duration::ZERO).expect("fits");
    let actions = batcher.step(Event::Tick, Duration::ZERO);
    opened(&mut batcher, actions, Duration::ZERO);
    let event = Event::Settled {
        partition: P0,
        batch: 1,
        resent: false,
        result: Ok(produced(None, true)),
    };
    let actions = batcher.step(event, Duration::ZERO);
    let [
        Action::Done {
            result: Err(Failure::Refused(refusal)),
            ..
        },
    ] = &actions[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(refusal.code, ErrorCode::OutOfOrderSequence);
}

#[test]
fn records_without_keys_change_the_partition_with_every_batch() {
    let mut batcher = Batcher::new(config(WriterKind::Anonymous));
    let mut partitions = Vec::new();
    for value in 0..6 {
        let record = record(value);
        let partition = batcher.route(&record);
        batcher.push(partition, &record, Duration::ZERO).expect("fits");
        partitions.push(partition.0);
        if value % 3 == 2 {
            batcher.step(Event::Tick, Duration::ZERO);
        }
    }
    assert_eq!(partitions, [0, 0, 0, 1, 1, 1]);
    let keyed = Record {
        key: Some(Bytes::from_static(b"k")),
        ..record(9)
    };
    assert_eq!(batcher.route(&keyed), batcher.route(&keyed));
}

#[test]
fn records_without_keys_pass_by_a_failing_partition() {
    let mut batcher = Batcher::new(config(WriterKind::Anonymous));
    batcher.push(P0, &record(0), Duration::ZERO).expect("fits");
    batcher.step(Event::Tick, Duration::ZERO);
    assert_eq!(batcher.route(&record(1)), PartitionId(1), "its turn");
    batcher
        .push(PartitionId(1), &record(1), Duration::ZERO)
        .expect("fits");
    batcher.step(Event::Tick, Duration::ZERO);
    assert_eq!(batcher.route(&record(2)), P0, "its turn again");
    let mut settle = |result| {
        let event = Event::Settled {
            partition: P0,
            batch: 1,
            resent: false,
            result,
        };
        batcher.step(event, Duration::from_secs(0));
        batcher.route(&record(2))
    };
    assert_eq!(settle(Err(busy())), PartitionId(1));
    assert_eq!(
        settle(Ok(produced(Some(0), false))),
        PartitionId(1),
        "it stays there"
    );
}

#[test]
fn a_lane_takes_another_way_only_when_the_old_one_is_empty() {
    for kind in [WriterKind::Random, WriterKind::Anonymous] {
        let mut batcher = Batcher::new(config(kind));
        let now = Duration::ZERO;
        let sent = |actions: Vec<Action>| -> Vec<BatchId> {
            let id = |action| match action {
                Action::Produce { batch, .. } => Some(batch),
                _ => None,
            };
            actions.into_iter().filter_map(id).collect()
        };
        let push = |batcher: &mut Batcher, values: std::ops::Range<u64>| {
            for value in values {
                batcher.push(P0, &record(value), now).expect("fits");
            }
            sent(batcher.step(Event::Tick, now))
        };
        let mut out = push(&mut batcher, 0..6);
        if kind == WriterKind::Random {
            let result = Ok((Writer::Random([1; 16]), 0));
            out = sent(batcher.step(
                Event::Opened {
                    partition: P0,
                    result,
                },
                now,
            ));
        }
        assert_eq!(out, [1, 2]);
        assert!(batcher.step(Event::Reroute { partition: P0 }, now).is_empty());
        assert!(push(&mut batcher, 6..12).is_empty());
        let settle = |batcher: &mut Batcher, batch| {
            let event = Event::Settled {
                partition: P0,
                batch,
                resent: false,
                result: Ok(produced(Some(0), false)),
            };
            sent(batcher.step(event, now))
        };
        assert!(settle(&mut batcher, 1).is_empty(), "one is still under way");
        assert_eq!(settle(&mut batcher, 2), [3, 4]);
    }
}
