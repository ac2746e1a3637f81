//! What fails on the disk, and what the log does about it: latch, refuse, take back; never try again.

use std::path::Path;

use futures_lite::future::{block_on, poll_once};
use tailwater_storage::disk::device::DiskErrorKind;
use tailwater_storage::disk::latch::LatchStep;
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk, OpKind};
use tailwater_storage::error::{AppendError, CommitError, OpenError, ProducerError};
use tailwater_storage::log::PartitionLog;
use tailwater_storage::log::options::LogIdentity;
use tailwater_storage::log::round::commit_round;
use tailwater_storage::slab::ReadLimits;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::checksum::crc;
use tailwater_wire::ids::{Incarnation, Offset, PartitionId, Writer};
use tailwater_wire::message::ProducerKey;

use crate::lying::{Lying, STALL_SYNC, STALLED};
use crate::support::*;

#[test]
fn a_failed_flush_latches_every_partition_it_covered() {
    let disk = MemoryDisk::new(1);
    let logs: Vec<Log> = (0..3)
        .map(|n| {
            try_open_as(&disk, &format!("/topics/ticks/q{n}"), identity(), options())
                .unwrap()
                .0
        })
        .collect();
    for log in &logs {
        commit(log, &disk, 1, 10, 1);
    }
    let waits: Vec<_> = logs[..2]
        .iter()
        .map(|log| log.committed(append(log, 1, 10, 2).end))
        .collect();
    disk.fail_next(OpKind::Sync, "", DiskErrorKind::Io, 1);
    let outcome = block_on(commit_round(&disk, &logs, at(2)));
    assert_eq!((outcome.latched, outcome.partitions, outcome.records), (2, 0, 0));
    for wait in waits {
        assert!(matches!(block_on(wait), Err(CommitError::OutcomeUnknown(_))));
    }
    for log in &logs[..2] {
        assert_eq!(log.latched().unwrap().at, LatchStep::Flush);
        let refused = try_append(log, &batch(9, 1, 1), 3);
        assert!(matches!(refused, Err(AppendError::Latched(_))));
        assert!(!log.needs_round() && !log.needs_preparation() && !log.needs_frontier(at(99_999)));
        assert_eq!(log.high_water_mark(), Offset(1));
        let slab = block_on(log.read(Offset(0), ReadLimits::default())).unwrap();
        assert_eq!(slab.records, 1, "what is below the high-water mark is still read");
        assert!(block_on(log.close(at(4))).is_err());
    }
    commit(&logs[2], &disk, 1, 10, 3);
    // Recovery copies what the flush did not prove. What it did prove must be there whatever the power does.
    let after = disk.crash(CrashPlan::LoseAll);
    for n in 0..2 {
        let (log, _) = try_open_as(&after, &format!("/topics/ticks/q{n}"), identity(), options()).unwrap();
        assert!(log.next_offset().0 >= 1);
        commit(&log, &after, 1, 10, 5);
        check_content(&log, log.next_offset().0, &[]);
    }
}

#[test]
fn a_failed_write_latches_its_partition_alone() {
    let disk = MemoryDisk::new(1);
    let logs: Vec<Log> = (0..2)
        .map(|n| {
            try_open_as(&disk, &format!("/topics/ticks/q{n}"), identity(), options())
                .unwrap()
                .0
        })
        .collect();
    for log in &logs {
        append(log, 1, 10, 1);
    }
    disk.fail_next(OpKind::Write, "q0", DiskErrorKind::Io, 1);
    let outcome = block_on(commit_round(&disk, &logs, at(2)));
    assert_eq!((outcome.latched, outcome.partitions), (1, 1));
    assert_eq!(logs[0].latched().unwrap().at, LatchStep::Write);
    check_content(&logs[1], 1, &[]);
    // The failed write's waiter is told at once, also when it begins to wait only now.
    let late = logs[0].committed(Offset(1));
    assert!(matches!(block_on(late), Err(CommitError::OutcomeUnknown(_))));
}

#[test]
fn a_duplicate_fails_with_its_original() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let writer = Writer::Random([3; 16]);
    open_random(&log, &disk, [3; 16]);
    let bytes = batch_of(writer, 0, 0, 1, 10);
    let original = log.committed(try_append(&log, &bytes, 1).unwrap().end);
    let repeat = log.committed(try_append(&log, &bytes, 1).unwrap().end);
    disk.fail_next(OpKind::Sync, "", DiskErrorKind::Io, 1);
    round(&log, &disk, 1);
    for wait in [original, repeat] {
        assert!(matches!(block_on(wait), Err(CommitError::OutcomeUnknown(_))));
    }
}

#[test]
fn an_abandoned_round_latches() {
    // The second batch makes a new segment, so that the round is dropped in the midst of that.
    for value_bytes in [10, 40_000] {
        let disk = Lying::<STALL_SYNC>(MemoryDisk::new(1));
        let dir = DIR.into();
        let opened = PartitionLog::open(disk.clone(), dir, identity(), options(), at(1), numbers());
        let (log, _) = block_on(opened).unwrap();
        let bytes = batch(0, 1, value_bytes);
        let view = BatchView::parse(&bytes).unwrap();
        let end = log.append(bytes.clone(), &view, at(1), None).unwrap().end;
        let wait = log.committed(end);
        let mut round = Box::pin(commit_round(&disk, std::slice::from_ref(&log), at(1)));
        STALLED.set(true);
        assert!(block_on(poll_once(&mut round)).is_none());
        drop(round);
        STALLED.set(false);
        assert!(matches!(block_on(wait), Err(CommitError::OutcomeUnknown(_))));
        assert!(log.latched().is_some() && !log.needs_round());
        assert!(
            block_on(log.close(at(2))).is_err(),
            "nothing waits for its end for ever"
        );
        assert_eq!(log.high_water_mark(), Offset(0));
    }
}

#[test]
fn a_full_disk_takes_back_what_was_not_written() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let writer = Writer::Random([3; 16]);
    open_random(&log, &disk, [3; 16]);
    try_append(&log, &batch_of(writer, 0, 0, 1, 10), 1).unwrap();
    round(&log, &disk, 1);
    let used: u64 = segments(&disk)
        .iter()
        .map(|p| disk.peek(p).unwrap().len() as u64)
        .sum();
    disk.set_capacity(Some(used));
    let second = batch_of(writer, 1, 1, 1, 40_000);
    let appended = try_append(&log, &second, 2).unwrap();
    let wait = log.committed(appended.end);
    let outcome = round(&log, &disk, 2);
    assert_eq!((outcome.full, outcome.latched), (1, 0));
    assert!(matches!(block_on(wait), Err(CommitError::DiskFull)));
    assert_eq!((log.next_offset(), log.latched().is_none()), (Offset(1), true));
    assert!(matches!(try_append(&log, &second, 3), Err(AppendError::DiskFull)));
    assert!(log.needs_preparation());
    assert_eq!(
        block_on(log.prepare_next()).unwrap_err().kind,
        DiskErrorKind::NoSpace
    );
    assert!(log.latched().is_none());
    // What still fits is taken, and when there is space all is.
    let small = batch_of(writer, 1, 1, 1, 10);
    let wait = log.committed(try_append(&log, &small, 4).unwrap().end);
    round(&log, &disk, 4);
    assert!(block_on(wait).is_ok());
    disk.set_capacity(None);
    block_on(log.prepare_next()).unwrap();
    let third = batch_of(writer, 2, 2, 1, 40_000);
    assert!(
        !try_append(&log, &third, 5).unwrap().duplicate,
        "it was taken back from the writer too"
    );
    round(&log, &disk, 5);
    check_content(&log, 3, &[]);
    drop(log);
    check_content(&open(&disk).0, 3, &[]);
}

/// A log whose active segment has no room left, on a disk that has none for the next one. The producer is known and has
/// written one record.
fn without_room(known: [u8; 16]) -> (Log, MemoryDisk) {
    let fill = |chunks: u64| {
        let disk = MemoryDisk::new(1);
        let (log, _) = open(&disk);
        open_random(&log, &disk, known);
        try_append(&log, &batch_of(Writer::Random(known), 0, 0, 1, 10), 1).unwrap();
        round(&log, &disk, 1);
        (0..chunks).for_each(|_| commit(&log, &disk, 1, 10, 1));
        (log, disk)
    };
    // As many small chunks as the first segment takes.
    let chunks = (0..).find(|&chunks| segments(&fill(chunks + 1).1).len() > 1);
    let (log, disk) = fill(chunks.expect("a segment ends"));
    let used: u64 = segments(&disk)
        .iter()
        .map(|path| disk.peek(path).unwrap().len() as u64)
        .sum();
    disk.set_capacity(Some(used));
    (log, disk)
}

#[test]
fn an_open_that_found_no_room_has_not_happened() {
    let refused_as_full = |log: &Log, key: &ProducerKey| {
        let refused = log.open_producer(key, at(3)).err();
        assert!(
            matches!(refused, Some(ProducerError::Refused(AppendError::DiskFull))),
            "{refused:?}"
        );
        assert!(!log.needs_round(), "nothing was begun");
    };
    for key in [
        ProducerKey::Random([7; 16]),
        ProducerKey::Named("feed".to_owned()),
    ] {
        let (log, disk) = without_room([3; 16]);
        let end = log.next_offset();
        let (opened, known) = log.open_producer(&key, at(2)).unwrap();
        let (again, known_again) = log.open_producer(&key, at(2)).unwrap();
        assert!(opened.is_new && !again.is_new);
        // Who does not wait for the answer is taken back as well.
        let first = batch_of(opened.writer, 0, 0, 1, 10);
        let early = log.committed(try_append(&log, &first, 2).unwrap().end);
        let outcome = round(&log, &disk, 2);
        assert_eq!((outcome.full, outcome.latched), (1, 0));
        assert!(matches!(block_on(known), Err(CommitError::DiskFull)));
        assert!(matches!(block_on(known_again), Err(CommitError::DiskFull)));
        assert!(matches!(block_on(early), Err(CommitError::DiskFull)));
        assert_eq!(log.next_offset(), end);
        let check_unknown = || {
            let refused = try_append(&log, &first, 3);
            assert!(
                matches!(refused, Err(AppendError::UnknownProducer)),
                "{refused:?}"
            );
        };
        check_unknown();
        refused_as_full(&log, &key);
        check_unknown();
        // Who was known before still is, with its sequence.
        let retried = batch_of(Writer::Random([3; 16]), 0, 0, 1, 10);
        assert!(try_append(&log, &retried, 3).unwrap().duplicate);
        disk.set_capacity(None);
        block_on(log.prepare_next()).unwrap();
        check_unknown();
        let (opened, known) = log.open_producer(&key, at(4)).unwrap();
        assert_eq!((opened.last_sequence, opened.is_new), (0, true));
        while log.needs_round() {
            round(&log, &disk, 4);
        }
        block_on(known).expect("there is room");
        let appended = try_append(&log, &first, 5).expect("its first batch");
        assert_eq!((appended.duplicate, appended.base_offset), (false, Some(end)));
        round(&log, &disk, 5);
        drop(log);
        let (log, _) = open(&disk.crash(CrashPlan::LoseAll));
        assert!(
            try_append(&log, &first, 6).unwrap().duplicate,
            "and is there once"
        );
    }
}

#[test]
fn a_failure_while_beginning_a_segment_latches() {
    for kind in [OpKind::Sync, OpKind::Rename, OpKind::SyncDir, OpKind::Write] {
        let disk = MemoryDisk::new(1);
        let (log, _) = open(&disk);
        commit(&log, &disk, 1, 10, 1);
        append(&log, 1, 40_000, 2);
        disk.fail_next(kind, "", DiskErrorKind::Io, 1);
        assert_eq!(round(&log, &disk, 2).latched, 1, "{kind:?}");
        assert_eq!(log.latched().unwrap().at, LatchStep::Prepare, "{kind:?}");
        drop(log);
        for plan in [CrashPlan::LoseAll, CrashPlan::KeepAll, CrashPlan::Random(3)] {
            let after = disk.crash(plan);
            let (log, _) = open(&after);
            check_content(&log, 1, &[]);
            commit(&log, &after, 1, 40_000, 3);
            check_content(&open(&after.crash(CrashPlan::LoseAll)).0, 2, &[]);
        }
    }
}

#[test]
fn too_much_pending_is_refused_as_busy() {
    let disk = MemoryDisk::new(1);
    let (log, _) = try_open(
        &disk,
        tailwater_storage::log::options::LogOptions {
            pending_bytes_max: 10_000,
            ..options()
        },
    )
    .unwrap();
    append(&log, 1, 20_000, 1);
    assert!(matches!(
        try_append(&log, &batch(1, 1, 1), 1),
        Err(AppendError::Busy)
    ));
    while log.needs_round() {
        round(&log, &disk, 1);
    }
    commit(&log, &disk, 1, 10, 2);
    check_content(&log, 2, &[]);
}

/// Opens after the first segment was changed, and checks that the error is the one expected and that no file changed.
fn check_refused(
    name: &str,
    identity: LogIdentity,
    damage: impl Fn(&MemoryDisk, &Path),
    expected: impl Fn(&OpenError) -> bool,
) {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    for _ in 0..6 {
        commit(&log, &disk, 1, 20_000, 1);
    }
    drop(log);
    let files = segments(&disk);
    assert!(files.len() >= 3, "{name}");
    damage(&disk, &files[0]);
    let files = segments(&disk);
    let before: Vec<_> = files.iter().map(|path| disk.peek(path)).collect();
    let error = try_open_as(&disk, DIR, identity, options()).err().expect(name);
    assert!(expected(&error), "{name}: {error}");
    let after: Vec<_> = segments(&disk).iter().map(|path| disk.peek(path)).collect();
    assert!(
        before == after && files == segments(&disk),
        "{name}: the files changed"
    );
}

fn poke(disk: &MemoryDisk, path: &Path, at: u64, to: u8) {
    let now = disk.peek(path).unwrap()[at as usize];
    if now != to {
        assert!(disk.flip(path, at, now ^ to));
    }
}

fn seal_header(disk: &MemoryDisk, path: &Path) {
    let sum = crc(&disk.peek(path).unwrap()[..4092]);
    for (n, byte) in sum.to_le_bytes().into_iter().enumerate() {
        poke(disk, path, 4092 + n as u64, byte);
    }
}

#[test]
fn what_cannot_be_trusted_is_refused_and_left_alone() {
    use tailwater_storage::disk::device::Disk;
    check_refused(
        "rotten header",
        identity(),
        |d, p| assert!(d.flip(p, 50, 1)),
        |e| matches!(e, OpenError::CorruptHeader { .. }),
    );
    let newer = |d: &MemoryDisk, p: &Path| {
        poke(d, p, 4, 3);
        seal_header(d, p);
    };
    check_refused("newer version", identity(), newer, |e| {
        matches!(e, OpenError::NewerVersion { version: 3, .. })
    });
    let newer_last = |d: &MemoryDisk, _: &Path| newer(d, segments(d).last().unwrap());
    check_refused("newer active segment", identity(), newer_last, |e| {
        matches!(e, OpenError::NewerVersion { version: 3, .. })
    });
    let checkpoint = |d: &MemoryDisk, _: &Path| assert!(d.flip(segments(d).last().unwrap(), 4096 + 30, 1));
    check_refused("rotten checkpoint", identity(), checkpoint, |e| {
        matches!(e, OpenError::CorruptHeader { .. })
    });
    let foreign = LogIdentity {
        incarnation: Incarnation(*b"another."),
        ..identity()
    };
    check_refused(
        "another life",
        foreign,
        |_, _| (),
        |e| matches!(e, OpenError::ForeignIncarnation { .. }),
    );
    let other = LogIdentity {
        partition: PartitionId(5),
        ..identity()
    };
    check_refused(
        "another partition",
        other,
        |_, _| (),
        |e| matches!(e, OpenError::ForeignPartition { .. }),
    );
    let swapped = |d: &MemoryDisk, p: &Path| {
        let other = &segments(d)[1];
        block_on(d.rename(other, p)).unwrap();
    };
    check_refused("swapped", identity(), swapped, |e| {
        matches!(e, OpenError::SwappedFile { .. })
    });
    let missing = |d: &MemoryDisk, _: &Path| block_on(d.remove_file(&segments(d)[1])).unwrap();
    check_refused("missing", identity(), missing, |e| {
        matches!(e, OpenError::MissingSegment { .. })
    });
}

#[test]
fn leftovers_are_removed() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    commit(&log, &disk, 1, 20_000, 1);
    block_on(log.prepare_next()).unwrap();
    let count = |disk: &MemoryDisk| {
        use tailwater_storage::disk::device::Disk;
        block_on(disk.list(Path::new(DIR))).unwrap().len()
    };
    assert_eq!(count(&disk), 2);
    drop(log);
    let (log, _) = open(&disk);
    check_content(&log, 1, &[]);
    assert_eq!(
        count(&disk),
        1,
        "nothing was proved: the new segment took the place and name of the old one"
    );
    block_on(log.prepare_next()).unwrap();
    block_on(log.close(at(3))).unwrap();
    assert_eq!(count(&disk), 1);
    let mut waiting = Box::pin(log.beyond(Offset(1)));
    assert!(
        block_on(poll_once(&mut waiting)).is_some(),
        "nothing will come any more"
    );
}
