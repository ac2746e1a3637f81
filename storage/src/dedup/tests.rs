//! The table's rules, one by one.

use tailwater_wire::ids::{CommitTime, Epoch, Lineage, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::limits::{PRODUCER_TTL_MILLIS, PRODUCERS_PER_PARTITION};
use tailwater_wire::message::ProducerKey;

use crate::dedup::checkpoint::checkpoint_bytes_max;
use crate::dedup::name::name_hash;
use crate::dedup::table::{DedupTable, NAMES_BYTES_MAX};
use crate::dedup::verdict::{AppendedBatch, OpenError, OriginMark, Verdict};
use crate::proof::EpochGone;

const T0: CommitTime = CommitTime(1_000);

pub(super) fn random(n: u64) -> Writer {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&n.to_le_bytes());
    Writer::Random(id)
}

pub(super) fn origin(epoch: u8, partition: u32) -> OriginId {
    OriginId {
        epoch: Epoch([epoch; 8]),
        partition: PartitionId(partition),
    }
}

/// A table and the end of its log.
pub(super) struct Log {
    pub(super) table: DedupTable,
    pub(super) end: Offset,
}

impl Log {
    pub(super) fn new() -> Log {
        Log {
            table: DedupTable::new(),
            end: Offset::ZERO,
        }
    }

    /// Appends a batch of `sequence - previous` records whatever the verdict would be.
    pub(super) fn append(&mut self, writer: Writer, previous: u64, sequence: u64, now: CommitTime) {
        let base_offset = self.end;
        self.end = base_offset.plus(sequence - previous);
        let mark = OriginMark {
            lineage: Lineage([3; 8]),
            parent_crc: 0xC0FFEE,
            parent_commit_time: CommitTime(now.0 - 1),
        };
        self.table.appended(&AppendedBatch {
            writer,
            previous,
            sequence,
            base_offset,
            end_offset: self.end,
            commit_time: now,
            origin: matches!(writer, Writer::Origin(_)).then_some(mark),
        });
    }

    #[track_caller]
    fn check(&self, writer: Writer, previous: u64, sequence: u64, expected: Verdict) {
        assert_eq!(self.table.decide(writer, previous, sequence, None), expected);
    }
}

fn later(ms: u64) -> CommitTime {
    CommitTime(T0.0 + ms * 1_000_000)
}

fn duplicate(base: u64, end: u64) -> Verdict {
    Verdict::Duplicate {
        base_offset: Some(Offset(base)),
        end_offset: Offset(end),
        commit_time: Some(T0),
    }
}

fn old_duplicate(end: u64) -> Verdict {
    Verdict::Duplicate {
        base_offset: None,
        end_offset: Offset(end),
        commit_time: None,
    }
}

#[test]
fn a_repeat_of_the_last_five_batches_is_answered_with_its_offset() {
    let mut log = Log::new();
    log.append(random(2), 0, 100, T0);
    for n in 0..7 {
        log.append(random(1), n * 10, n * 10 + 10, T0);
    }
    for n in 2..7 {
        log.check(
            random(1),
            n * 10,
            n * 10 + 10,
            duplicate(100 + n * 10, 110 + n * 10),
        );
    }
    log.check(random(1), 10, 20, old_duplicate(130)); // too far back: flushed with the oldest known
    log.check(random(1), 65, 70, old_duplicate(170)); // cut differently: no batch of the log begins there
    log.check(random(1), 55, 65, old_duplicate(170));
    log.check(random(1), 65, 75, Verdict::OutOfOrder { expected: 70 });
    log.check(random(1), 80, 90, Verdict::OutOfOrder { expected: 70 });
    log.check(random(1), 70, 80, Verdict::Append);
}

#[test]
fn anonymous_batches_are_never_duplicates() {
    let mut log = Log::new();
    log.append(Writer::Anonymous, 0, 5, T0);
    log.check(Writer::Anonymous, 0, 0, Verdict::Append);
    assert_eq!(
        (log.table.producer_count(), log.table.is_all_flushed()),
        (0, true)
    );
}

#[test]
fn an_origin_without_an_entry_stands_at_its_attach_offset() {
    let table = DedupTable::new();
    let writer = Writer::Origin(origin(1, 0));
    let decide = |previous, sequence| table.decide(writer, previous, sequence, Some(50));
    assert_eq!(decide(50, 60), Verdict::Append);
    assert_eq!(decide(40, 50), old_duplicate(0));
    assert_eq!(decide(40, 60), Verdict::Expected { watermark: 50 });
    assert_eq!(decide(60, 70), Verdict::Expected { watermark: 50 });
    assert_eq!(decide(50, 50), Verdict::Expected { watermark: 50 });
    assert_eq!(table.decide(writer, 50, 60, None), Verdict::UnknownProducer);
}

#[test]
fn an_origin_s_batch_on_both_sides_of_the_watermark_is_sent_back() {
    let mut log = Log::new();
    let writer = Writer::Origin(origin(1, 0));
    log.append(writer, 50, 60, T0);
    let decide = |previous, sequence| log.table.decide(writer, previous, sequence, Some(50));
    assert_eq!(decide(50, 60), duplicate(0, 10));
    assert_eq!(decide(55, 65), Verdict::Expected { watermark: 60 });
    assert_eq!(decide(60, 65), Verdict::Append);
    assert_eq!(decide(61, 65), Verdict::Expected { watermark: 60 });
}

#[test]
fn the_least_recently_used_producer_goes_first_and_is_not_taken_for_a_new_one() {
    let mut log = Log::new();
    for n in 0..PRODUCERS_PER_PARTITION as u64 {
        log.append(random(n), 0, 1, T0);
    }
    log.append(random(0), 1, 2, T0);
    log.append(random(u64::MAX), 0, 1, T0);
    assert_eq!(log.table.producer_count(), PRODUCERS_PER_PARTITION);
    log.check(random(1), 1, 2, Verdict::UnknownProducer);
    log.check(random(0), 2, 3, Verdict::Append);
    log.check(random(2), 1, 2, Verdict::Append);
    // Not even a retry of its very first batch, which a new producer's would look like.
    log.check(random(1), 0, 1, Verdict::UnknownProducer);
    // The order of use is in the checkpoint: the next to go is the same after a restart.
    log.table.flushed(log.end);
    log.table = DedupTable::restore(&log.table.checkpoint()).expect("its own");
    log.append(random(u64::MAX - 1), 0, 1, T0);
    log.check(random(2), 1, 2, Verdict::UnknownProducer);
    log.check(random(0), 2, 3, Verdict::Append);
    log.check(random(3), 1, 2, Verdict::Append);
}

#[test]
fn a_silent_producer_goes_after_seven_days_and_an_origin_never() {
    let mut log = Log::new();
    log.append(random(1), 0, 1, T0);
    log.append(Writer::Origin(origin(1, 0)), 0, 5, T0);
    log.table.expire(later(PRODUCER_TTL_MILLIS));
    log.check(random(1), 1, 2, Verdict::Append);
    log.append(random(2), 0, 1, later(PRODUCER_TTL_MILLIS + 1));
    log.check(random(1), 1, 2, Verdict::UnknownProducer);
    assert_eq!(log.table.origin(origin(1, 0)).map(|o| o.appended), Some(5));
}

#[test]
fn a_named_producer_must_be_opened() {
    let mut table = DedupTable::new();
    let key = ProducerKey::Named("feed".to_owned());
    let writer = Writer::Named(name_hash("feed"));
    assert_eq!(table.decide(writer, 0, 1, None), Verdict::UnknownProducer);
    let opened = table.open(&key, T0).expect("free");
    assert_eq!((opened.writer, opened.last_sequence), (writer, 0));
    assert_eq!(table.decide(writer, 0, 1, None), Verdict::Append);
    for bad in ["".to_owned(), "x".repeat(129)] {
        assert_eq!(
            table.open(&ProducerKey::Named(bad), T0),
            Err(OpenError::InvalidName)
        );
    }
}

#[test]
fn a_producer_that_was_never_opened_is_unknown_and_an_opened_one_outlives_a_recovery() {
    let mut table = DedupTable::new();
    assert_eq!(table.decide(random(1), 0, 1, None), Verdict::UnknownProducer);
    table.reopened(random(1), T0);
    assert_eq!(table.decide(random(1), 0, 1, None), Verdict::Append);
    table.forget_unwritten(random(1));
    assert_eq!(table.decide(random(1), 0, 1, None), Verdict::UnknownProducer);
    let mut log = Log::new();
    log.append(random(1), 0, 1, T0);
    log.table.forget_unwritten(random(1));
    log.check(random(1), 1, 2, Verdict::Append);
    // What recovery is told does not take anything back.
    log.table.reopened(random(1), T0);
    log.check(random(1), 0, 1, duplicate(0, 1));
}

#[test]
fn two_names_with_one_hash_do_not_share_an_entry() {
    // No collision of the hash is known, so one is planted: the entry under the second name's hash bears the
    // first.
    let mut table = DedupTable::new();
    let hash = name_hash("second");
    table.restore_producer(Writer::Named(hash), Some("first"), T0, None);
    let opened = table.open(&ProducerKey::Named("second".to_owned()), T0);
    assert_eq!(opened, Err(OpenError::ProducerNameTaken));
}

#[test]
fn an_open_is_answered_only_when_the_last_batch_is_flushed() {
    let mut log = Log::new();
    let Writer::Random(id) = random(1) else {
        unreachable!()
    };
    let open = |log: &mut Log| log.table.open(&ProducerKey::Random(id), T0).expect("free");
    log.append(random(1), 0, 3, T0);
    log.table.flushed(Offset(3));
    log.append(random(1), 3, 5, T0);
    let opened = open(&mut log);
    assert_eq!(
        (opened.last_sequence, opened.unflushed_until),
        (5, Some(Offset(5)))
    );
    log.table.flushed(Offset(4));
    assert_eq!(open(&mut log).unflushed_until, Some(Offset(5)));
    log.table.flushed(Offset(5));
    assert_eq!(open(&mut log).unflushed_until, None);
}

#[test]
fn a_flush_of_a_forgotten_producer_s_batch_does_not_touch_its_next_life() {
    let mut log = Log::new();
    log.append(random(1), 0, 9, T0);
    let flushed_first = log.end;
    log.table.expire(later(PRODUCER_TTL_MILLIS + 1));
    log.append(random(1), 0, 2, later(PRODUCER_TTL_MILLIS + 1));
    log.table.flushed(flushed_first);
    // Only a batch of the first life is flushed: the second life has nothing to put into a checkpoint.
    let restored = DedupTable::restore(&log.table.checkpoint()).expect("its own");
    assert_eq!(restored.decide(random(1), 0, 2, None), Verdict::Append);
    log.table.flushed(log.end);
    let restored = DedupTable::restore(&log.table.checkpoint()).expect("its own");
    assert_eq!(restored.decide(random(1), 2, 3, None), Verdict::Append);
}

#[test]
fn recovery_follows_a_producer_that_began_anew() {
    // The owner had let go of the producer between the two batches; a recovery that reads both has not.
    let mut log = Log::new();
    log.append(random(1), 0, 9, T0);
    log.append(random(1), 0, 2, T0);
    log.check(random(1), 2, 3, Verdict::Append);
    log.check(random(1), 0, 9, Verdict::OutOfOrder { expected: 2 });
    log.check(random(1), 0, 2, duplicate(9, 11));
}

#[test]
fn origins_go_with_their_epoch_and_only_with_it() {
    let mut log = Log::new();
    for (epoch, partition) in [(1, 0), (2, 0), (2, 7), (2, u32::MAX), (3, 0)] {
        log.append(Writer::Origin(origin(epoch, partition)), 0, 1, T0);
    }
    let gone = EpochGone::by_leader(Epoch([2; 8]), 11);
    assert_eq!(log.table.forget_origins(&gone), 3);
    assert_eq!(
        log.table.origins().collect::<Vec<_>>(),
        [origin(1, 0), origin(3, 0)]
    );
    log.table.flushed(log.end); // batches of forgotten origins are passed over
    assert!(log.table.is_all_flushed());
}

#[test]
fn a_batch_of_another_lineage_follows_and_its_mark_takes_the_old_one_s_place() {
    // The parent is a `written` topic that crashed: a new history over what it had kept. Whether it is that is the
    // cursor's to find out; the watermark is the same number in both.
    let mut log = Log::new();
    let writer = Writer::Origin(origin(1, 0));
    log.append(writer, 0, 5, T0);
    log.table.flushed(log.end);
    log.check(writer, 5, 9, Verdict::Append);
    let mark = OriginMark {
        lineage: Lineage([4; 8]),
        parent_crc: 1,
        parent_commit_time: T0,
    };
    let base_offset = log.end;
    log.end = base_offset.plus(4);
    log.table.appended(&AppendedBatch {
        writer,
        previous: 5,
        sequence: 9,
        base_offset,
        end_offset: log.end,
        commit_time: T0,
        origin: Some(mark),
    });
    let remembered = |table: &DedupTable| table.origin(origin(1, 0)).and_then(|origin| origin.mark);
    assert_eq!(remembered(&log.table), Some(mark));
    let before = DedupTable::restore(&log.table.checkpoint()).expect("its own");
    assert_eq!(
        remembered(&before).map(|mark| mark.lineage),
        Some(Lineage([3; 8])),
        "it is not flushed yet"
    );
    log.table.flushed(log.end);
    let after = DedupTable::restore(&log.table.checkpoint()).expect("its own");
    assert_eq!(remembered(&after), Some(mark));
}

#[test]
fn the_greatest_table_s_checkpoint_is_within_its_bound() {
    let mut log = Log::new();
    for n in 0..PRODUCERS_PER_PARTITION {
        let key = ProducerKey::Named(format!("{n:0128}"));
        let opened = log.table.open(&key, T0).expect("free");
        log.append(opened.writer, 0, 1, T0);
    }
    assert!(
        log.table.producer_count() >= NAMES_BYTES_MAX / 128,
        "as many as the names' bound allows"
    );
    for n in 0..PRODUCERS_PER_PARTITION as u64 {
        log.append(random(n), 0, 1, T0);
    }
    for n in (0..PRODUCERS_PER_PARTITION).rev() {
        log.table
            .open(&ProducerKey::Named(format!("{n:090}")), T0)
            .expect("free");
    }
    for partition in 0..1_024 {
        log.append(Writer::Origin(origin(1, partition)), 0, 1, T0);
    }
    log.table.flushed(log.end);
    assert_eq!(log.table.producer_count(), PRODUCERS_PER_PARTITION);
    let bytes = log.table.checkpoint();
    assert!(bytes.len() <= checkpoint_bytes_max(1), "{}", bytes.len());
    let restored = DedupTable::restore(&bytes).expect("its own");
    assert_eq!(restored.checkpoint(), bytes);
}
