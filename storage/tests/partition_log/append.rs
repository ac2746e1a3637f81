//! Appending, committing and reading back without anything going wrong.

use futures_lite::future::{block_on, poll_once};
use proptest::prelude::*;
use tailwater_storage::disk::device::DiskErrorKind;
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk, OpKind};
use tailwater_storage::error::{AppendError, CommitError, ProducerError, ReadError};
use tailwater_storage::log::options::LogOptions;
use tailwater_storage::log::round::commit_round;
use tailwater_storage::proof::Accounted;
use tailwater_storage::slab::ReadLimits;
use tailwater_storage::tail_cache::TailCache;
use tailwater_wire::batch::view::{BatchIter, BatchView};
use tailwater_wire::ids::{Epoch, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::limits::PRODUCERS_PER_PARTITION;
use tailwater_wire::message::ProducerKey;
use tailwater_wire::meta::{Durability, Retention};

use crate::support::*;

#[test]
fn an_absent_log_is_made_and_is_empty() {
    let disk = MemoryDisk::new(1);
    let (log, report) = open(&disk);
    assert!(report.created);
    assert_eq!((log.high_water_mark(), log.log_start()), (Offset(0), Offset(0)));
    assert!(
        block_on(log.read(Offset(0), ReadLimits::default()))
            .unwrap()
            .is_empty()
    );
    assert!(matches!(
        block_on(log.read(Offset(1), ReadLimits::default())),
        Err(ReadError::Ahead { .. })
    ));
    let lineage = log.lineage();
    drop(log);
    let (log, report) = open(&disk);
    assert!(!report.created && report.cut_at.is_none());
    assert_eq!(log.lineage(), lineage);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn what_is_appended_comes_back(
        rounds in prop::collection::vec(prop::collection::vec((1u64..20, 0usize..6_000), 0..5), 1..25),
        cache in prop::sample::select(vec![0usize, 20_000, 1 << 20]),
        bytes_max in 0usize..100_000,
        records_max in 1usize..60,
        prepare in any::<bool>(),
    ) {
        let disk = MemoryDisk::new(7);
        let options = LogOptions { tail_cache: TailCache::shared(cache), ..options() };
        let (log, _) = try_open(&disk, options.clone()).unwrap();
        for (ms, batches) in rounds.iter().enumerate() {
            for &(count, bytes) in batches {
                append(&log, count, bytes, ms as u64);
            }
            if prepare && log.needs_preparation() {
                block_on(log.prepare_next()).unwrap();
            }
            while log.needs_round() {
                round(&log, &disk, ms as u64);
            }
        }
        let end = log.next_offset().0;
        let limits = ReadLimits { bytes_max, records_max, ..ReadLimits::default() };
        let (read, _) = read_all(&log, limits).unwrap();
        prop_assert_eq!(read.len() as u64, end);
        check_content(&log, end, &[]);
        for from in (0..end).step_by(13) {
            let slab = block_on(log.read(Offset(from), limits)).unwrap();
            prop_assert!(records(&slab).iter().any(|r| r.offset == from));
            let header = block_on(log.batch_containing(Offset(from))).unwrap().unwrap();
            prop_assert!(header.base_offset.0 <= from && from < header.end_offset().0);
        }
        block_on(log.close(at(9_999))).unwrap();
        let (log, report) = try_open(&disk, options).unwrap();
        prop_assert_eq!(report.cut_at, None);
        check_content(&log, end, &[]);
    }
}

#[test]
fn a_run_is_as_long_as_chunks_leave_it_and_holds_no_padding() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    for _ in 0..4 {
        append(&log, 3, 100, 1);
    }
    round(&log, &disk, 1);
    log.push_frontier();
    round(&log, &disk, 1);
    commit(&log, &disk, 1, 10, 2);
    let slab = block_on(log.read(Offset(0), ReadLimits::default())).unwrap();
    assert_eq!(slab.runs.len(), 2, "one a chunk, and none for the frontier batch");
    let batches: Vec<usize> = slab.runs.iter().map(|run| BatchIter::new(run).count()).collect();
    assert_eq!(batches, [4, 1]);
    assert_eq!((slab.records, slab.next_offset), (13, Offset(13)));
}

#[test]
fn the_body_is_the_same_from_the_producer_to_the_consumer() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let sent = batch(0, 5, 300);
    try_append(&log, &sent, 5).unwrap();
    round(&log, &disk, 5);
    let slab = block_on(log.read(Offset(0), ReadLimits::default())).unwrap();
    let (sent, got) = (
        BatchView::parse(&sent).unwrap(),
        BatchView::parse(&slab.runs[0]).unwrap(),
    );
    assert_eq!(sent.bytes()[128..], got.bytes()[128..]);
    assert_eq!(sent.header().body_crc, got.header().body_crc);
    assert_eq!(got.header().lineage, log.lineage());
}

#[test]
fn commit_times_never_go_back() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    commit(&log, &disk, 1, 10, 5_000);
    commit(&log, &disk, 1, 10, 3_000);
    assert_eq!(log.last_commit_time(), at(5_000));
    block_on(log.close(at(1))).unwrap();
    let (log, _) = open(&disk);
    commit(&log, &disk, 1, 10, 10);
    assert_eq!(log.last_commit_time(), at(5_000));
    check_content(&log, 3, &[]);
}

#[test]
fn commit_times_survive_the_removal_of_all_records() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    commit(&log, &disk, 1, 20_000, 7_000);
    commit(&log, &disk, 1, 60_000, 8_000);
    commit(&log, &disk, 1, 60_000, 9_000);
    let all = Retention {
        millis: None,
        bytes: Some(0),
    };
    let removed = expire(&log, 9_000, all);
    assert!(!removed.is_empty());
    assert_eq!(log.log_start(), removed.last().unwrap().offsets.end);
    assert!(matches!(
        block_on(log.read(Offset(0), ReadLimits::default())),
        Err(ReadError::Behind { .. })
    ));
    let end = log.next_offset().0;
    check_content(&log, end, &[]);
    drop(log);
    let (log, _) = open(&disk);
    assert_eq!(log.log_start(), removed.last().unwrap().offsets.end);
    check_content(&log, end, &[]);
    assert_eq!(log.last_commit_time(), at(9_000));
}

#[test]
fn only_what_is_accounted_for_goes() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    for n in 0..60 {
        commit(&log, &disk, 2, 3_000, n);
    }
    let all = Retention {
        millis: None,
        bytes: Some(0),
    };
    let end = log.expired(at(100), all).expect("sealed segments");
    let short = Accounted::by_ledgers(Offset(end.0 - 1));
    let removed = block_on(log.remove_expired(&short)).unwrap();
    assert!(
        !removed.is_empty() && log.log_start() < end,
        "all but the last of them"
    );
    assert_eq!(log.expired(at(100), all), Some(end));
    let none = Accounted::by_ledgers(Offset(0));
    assert!(block_on(log.remove_expired(&none)).unwrap().is_empty());
    block_on(log.remove_expired(&Accounted::by_ledgers(end))).unwrap();
    assert_eq!((log.log_start(), log.expired(at(100), all)), (end, None));
}

#[test]
fn find_time_finds_the_first_record_at_or_after() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    for n in 0..60 {
        commit(&log, &disk, 2, 3_000, 100 + 10 * (n / 2));
    }
    assert!(segments(&disk).len() > 2);
    let find = |log: &Log, ms| block_on(log.find_time(at(ms))).unwrap().0;
    for reopened in [false, true] {
        let log = if reopened { open(&disk).0 } else { log.clone() };
        assert_eq!(find(&log, 0), 0);
        for k in 0..30 {
            assert_eq!(find(&log, 100 + 10 * k), 4 * k);
            assert_eq!(find(&log, 95 + 10 * k), 4 * k);
        }
        assert_eq!(find(&log, 391), 120, "none: the high-water mark");
    }
}

#[test]
fn a_read_stops_before_what_is_not_due() {
    let disk = MemoryDisk::new(1);
    for cache in [0, 1 << 20] {
        let options = LogOptions {
            tail_cache: TailCache::shared(cache),
            ..options()
        };
        let dir = format!("/topics/ticks/c{cache}");
        let (log, _) = try_open_as(&disk, &dir, identity(), options).unwrap();
        commit(&log, &disk, 2, 10, 100);
        commit(&log, &disk, 2, 10, 200);
        let due = |ms| ReadLimits {
            committed_at_max: Some(at(ms)),
            ..ReadLimits::default()
        };
        let slab = block_on(log.read(Offset(0), due(150))).unwrap();
        assert_eq!((slab.records, slab.next_due), (2, Some(at(200))));
        let slab = block_on(log.read(Offset(2), due(150))).unwrap();
        assert_eq!(
            (slab.records, slab.next_offset, slab.next_due),
            (0, Offset(2), Some(at(200)))
        );
        let slab = block_on(log.read(Offset(0), due(200))).unwrap();
        assert_eq!((slab.records, slab.next_due), (4, None));
    }
}

#[test]
fn a_batch_larger_than_a_segment_gets_one_that_is_large_enough() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    commit(&log, &disk, 1, 10, 1);
    commit(&log, &disk, 1, 3 << 20, 2);
    commit(&log, &disk, 1, 10, 3);
    check_content(&log, 3, &[]);
    let (log, _) = open(&disk);
    check_content(&log, 3, &[]);
}

#[test]
fn one_flush_commits_many_partitions() {
    let disk = MemoryDisk::new(1);
    let logs: Vec<Log> = (0..20)
        .map(|n| {
            try_open_as(&disk, &format!("/topics/ticks/q{n}"), identity(), options())
                .unwrap()
                .0
        })
        .collect();
    for log in &logs {
        append(log, 2, 100, 1);
    }
    let before = disk.stats();
    let outcome = block_on(commit_round(&disk, &logs, at(1)));
    assert_eq!(
        (outcome.partitions, outcome.records, outcome.latched),
        (20, 40, 0)
    );
    assert_eq!(disk.stats().syncs - before.syncs, 1);
    assert_eq!(disk.stats().writes - before.writes, 20);
    let after = disk.crash(tailwater_storage::disk::memory::CrashPlan::LoseAll);
    for n in 0..20 {
        let (log, _) = try_open_as(&after, &format!("/topics/ticks/q{n}"), identity(), options()).unwrap();
        check_content(&log, 2, &[]);
    }
}

#[test]
fn waiters_are_released_by_the_flush_and_not_before() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let appended = append(&log, 2, 10, 1);
    let mut committed = Box::pin(log.committed(appended.end));
    let mut beyond = Box::pin(log.beyond(Offset(1)));
    let mut later = Box::pin(log.beyond(Offset(2)));
    assert!(block_on(poll_once(&mut committed)).is_none());
    assert!(block_on(poll_once(&mut beyond)).is_none());
    round(&log, &disk, 1);
    assert!(block_on(poll_once(&mut committed)).unwrap().is_ok());
    assert!(block_on(poll_once(&mut beyond)).is_some());
    assert!(block_on(poll_once(&mut later)).is_none());
    drop(later);
    block_on(log.close(at(2))).unwrap();
    assert!(matches!(
        try_append(&log, &batch(2, 1, 1), 3),
        Err(AppendError::Closed)
    ));
}

#[test]
fn a_retried_batch_is_appended_once() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let writer = Writer::Random([7; 16]);
    open_random(&log, &disk, [7; 16]);
    let (first, second) = (batch_of(writer, 0, 0, 3, 10), batch_of(writer, 3, 3, 2, 10));
    let original = try_append(&log, &first, 1).unwrap();
    let repeat = try_append(&log, &first, 2).unwrap();
    assert!(repeat.duplicate && !original.duplicate);
    assert_eq!(
        (repeat.end, repeat.base_offset),
        (original.end, original.base_offset)
    );
    let mut waits = Box::pin(log.committed(repeat.end));
    assert!(
        block_on(poll_once(&mut waits)).is_none(),
        "not before the original is flushed"
    );
    round(&log, &disk, 2);
    assert!(block_on(waits).is_ok());
    let gap = batch_of(writer, 9, 9, 1, 10);
    assert!(matches!(
        try_append(&log, &gap, 2),
        Err(AppendError::OutOfOrder { expected: 3 })
    ));
    drop(log);
    for _ in 0..2 {
        let (log, _) = open(&disk);
        assert!(
            try_append(&log, &first, 3).unwrap().duplicate,
            "also after a restart"
        );
        drop(log);
    }
    let (log, _) = open(&disk);
    try_append(&log, &second, 4).unwrap();
    round(&log, &disk, 4);
    check_content(&log, 5, &[]);
}

#[test]
fn an_open_is_answered_when_a_crash_cannot_take_it_back() {
    for plan in [CrashPlan::LoseAll, CrashPlan::KeepAll] {
        let disk = MemoryDisk::new(1);
        let (log, _) = open(&disk);
        let key = ProducerKey::Random([7; 16]);
        let first = batch_of(Writer::Random([7; 16]), 0, 0, 2, 10);
        let unknown = try_append(&log, &first, 1);
        assert!(matches!(unknown, Err(AppendError::UnknownProducer)));
        // Batches of others wait already, and are not overtaken in the log.
        let waiting = log.committed(try_append(&log, &batch(0, 3, 10), 1).unwrap().end);
        let (opened, known) = log.open_producer(&key, at(2)).unwrap();
        let (again, known_again) = log.open_producer(&key, at(2)).unwrap();
        assert!(opened.is_new && !again.is_new && log.needs_round());
        let (mut known, mut known_again) = (Box::pin(known), Box::pin(known_again));
        assert!(
            block_on(poll_once(&mut known)).is_none(),
            "nothing is on the disk"
        );
        round(&log, &disk, 2);
        assert!(block_on(poll_once(&mut known)).unwrap().is_ok());
        assert!(block_on(poll_once(&mut known_again)).unwrap().is_ok());
        drop(log);
        // A crash before the first batch, which is then sent again; and one after it.
        let disk = disk.crash(plan);
        drop(waiting);
        let (log, _) = open(&disk);
        assert_eq!(log.next_offset(), Offset(0));
        assert!(!try_append(&log, &first, 3).unwrap().duplicate);
        round(&log, &disk, 3);
        drop(log);
        let (log, _) = open(&disk.crash(plan));
        assert!(try_append(&log, &first, 3).unwrap().duplicate);
        let (opened, _) = log.open_producer(&key, at(4)).unwrap();
        assert_eq!((opened.last_sequence, opened.is_new), (2, false));
    }
}

#[test]
fn a_producer_that_was_let_go_is_unknown_before_and_after_a_crash() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let (old, kept) = (Writer::Random([7; 16]), Writer::Random([8; 16]));
    for id in [[7; 16], [8; 16]] {
        open_random(&log, &disk, id);
        try_append(&log, &batch_of(Writer::Random(id), 0, 0, 1, 10), 1).unwrap();
        round(&log, &disk, 1);
    }
    // 9,999 others: the oldest goes, and the other one stays.
    let mut refused = 0;
    for n in 0..PRODUCERS_PER_PARTITION as u64 - 1 {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&n.to_le_bytes());
        while let Err(error) = log.open_producer(&ProducerKey::Random(id), at(2)) {
            assert!(
                matches!(error, ProducerError::Refused(AppendError::Busy)),
                "{error}"
            );
            refused += 1;
            round(&log, &disk, 2);
        }
    }
    assert!(refused > 0, "opens that wait are bounded");
    while log.needs_round() {
        round(&log, &disk, 2);
    }
    let check = |log: &Log| {
        for previous in [0, 1] {
            let retry = try_append(log, &batch_of(old, previous, previous, 1, 10), 3);
            assert!(matches!(retry, Err(AppendError::UnknownProducer)), "{retry:?}");
        }
        assert!(
            try_append(log, &batch_of(kept, 0, 0, 1, 10), 3)
                .unwrap()
                .duplicate
        );
    };
    check(&log);
    drop(log);
    let disk = disk.crash(CrashPlan::LoseAll);
    let (log, _) = open(&disk);
    check(&log);
    for _ in 0..20 {
        commit(&log, &disk, 1, 20_000, 4);
    }
    drop(log);
    check(&open(&disk.crash(CrashPlan::LoseAll)).0);
}

#[test]
fn an_open_that_found_no_disk_has_not_happened() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let key = ProducerKey::Named("feed".to_owned());
    disk.fail_next(OpKind::Sync, "", DiskErrorKind::Io, 1);
    let (_, known) = log.open_producer(&key, at(1)).unwrap();
    round(&log, &disk, 1);
    assert!(matches!(block_on(known), Err(CommitError::OutcomeUnknown(_))));
    let refused = log.open_producer(&ProducerKey::Random([1; 16]), at(1));
    assert!(matches!(
        refused.err(),
        Some(ProducerError::Refused(AppendError::Latched(_)))
    ));
}

#[test]
fn dedup_survives_rolls_and_retention() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let writer = Writer::Random([7; 16]);
    open_random(&log, &disk, [7; 16]);
    try_append(&log, &batch_of(writer, 0, 0, 1, 10), 1).unwrap();
    round(&log, &disk, 1);
    for _ in 0..20 {
        commit(&log, &disk, 1, 20_000, 1);
    }
    let all = Retention {
        millis: None,
        bytes: Some(0),
    };
    assert!(!expire(&log, 1, all).is_empty());
    drop(log);
    let (log, _) = open(&disk);
    assert!(log.log_start().0 > 0);
    assert!(
        try_append(&log, &batch_of(writer, 0, 0, 1, 10), 3)
            .unwrap()
            .duplicate
    );
}

#[test]
fn an_origin_follows_its_watermark() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let id = OriginId {
        epoch: Epoch([1; 8]),
        partition: PartitionId(4),
    };
    let append = |log: &Log, previous: u64, end: u64, floor: Option<u64>| {
        let bytes = copy_batch(id, previous, end);
        let view = BatchView::parse(&bytes).unwrap();
        log.append(bytes.clone(), &view, at(1), floor.map(Offset))
    };
    assert!(matches!(
        append(&log, 50, 60, None),
        Err(AppendError::UnknownProducer)
    ));
    assert!(matches!(
        append(&log, 50, 60, Some(40)),
        Err(AppendError::Expected {
            watermark: Offset(40)
        })
    ));
    append(&log, 40, 60, Some(40)).unwrap();
    let watermark = log.origin_watermark(id).unwrap();
    assert_eq!((watermark.appended, watermark.flushed), (60, 0));
    round(&log, &disk, 1);
    let flushed = log.origin_watermark(id).unwrap();
    assert_eq!((flushed.appended, flushed.flushed), (60, 60));
    assert_eq!(flushed.mark.unwrap().parent_crc, 77);
    drop(log);
    let (log, _) = open(&disk);
    assert_eq!(log.origin_watermark(id), Some(flushed));
    assert!(append(&log, 40, 60, Some(40)).unwrap().duplicate);
}

#[test]
fn frontiers_are_written_once_when_idle() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    assert!(!log.needs_frontier(at(99_000)), "nothing to prove");
    commit(&log, &disk, 1, 10, 5_000);
    assert!(!log.needs_frontier(at(5_999)));
    assert!(log.needs_frontier(at(6_000)));
    log.push_frontier();
    assert!(log.needs_round());
    round(&log, &disk, 6_000);
    assert!(!log.needs_frontier(at(9_000)) && !log.needs_round());
    drop(log);
    let (log, report) = open(&disk);
    assert_eq!(report.cut_at, None, "all of it is proved");
    check_content(&log, 1, &[]);
}

#[test]
fn a_written_topic_answers_after_the_write_and_cursors_do_not() {
    let disk = MemoryDisk::new(1);
    let written = LogOptions {
        durability: Durability::Written,
        ..options()
    };
    let (log, _) = try_open(&disk, written.clone()).unwrap();
    commit(&log, &disk, 1, 10, 1);
    let lineage = log.lineage();
    disk.fail_next(
        tailwater_storage::disk::memory::OpKind::Sync,
        "",
        tailwater_storage::disk::device::DiskErrorKind::Io,
        1,
    );
    let appended = append(&log, 1, 10, 2);
    let committed = log.committed(appended.end);
    round(&log, &disk, 2);
    block_on(committed).expect("released by the write, although the flush failed");
    assert_eq!((log.high_water_mark(), log.flushed()), (Offset(2), Offset(1)));
    let flushed_only = ReadLimits {
        flushed_only: true,
        ..ReadLimits::default()
    };
    assert_eq!(block_on(log.read(Offset(0), flushed_only)).unwrap().records, 1);
    assert_eq!(
        block_on(log.read(Offset(0), ReadLimits::default()))
            .unwrap()
            .records,
        2
    );
    drop(log);
    let (log, _) = try_open(&disk, written.clone()).unwrap();
    assert_ne!(log.lineage(), lineage, "offsets may be given out again");
    let lineage = log.lineage();
    block_on(log.close(at(5))).unwrap();
    let (log, _) = try_open(&disk, written).unwrap();
    assert_eq!(log.lineage(), lineage, "nothing was lost");
}
