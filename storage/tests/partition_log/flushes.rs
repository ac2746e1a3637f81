//! What a round's flush covers, and what it is worth when another one on the device fails.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::{block_on, poll_once};
use tailwater_storage::disk::device::{BLOCK, Disk, DiskErrorKind, File, FlushScope, OpenMode};
use tailwater_storage::disk::latch::LatchStep;
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk, OpKind};
use tailwater_storage::error::CommitError;
use tailwater_storage::log::PartitionLog;
use tailwater_storage::log::round::{RoundOutcome, commit_round, commit_round_timed};
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::Offset;

use crate::lying::{Lying, STALL_SYNC, STALLED};
use crate::support::*;

fn dir(n: usize) -> String {
    format!("/topics/ticks/q{n}")
}

fn open_many(disk: &MemoryDisk, count: usize) -> Vec<Log> {
    let open = |n| try_open_as(disk, &dir(n), identity(), options()).unwrap().0;
    (0..count).map(open).collect()
}

// With one file flushed where a flush covers no more than that, the others lost what was acknowledged.
#[test]
fn every_partition_of_a_round_survives_a_power_cut_whatever_a_flush_covers() {
    for (scope, flushes) in [(FlushScope::Device, 1), (FlushScope::File, 5)] {
        let disk = MemoryDisk::new(3);
        disk.set_flush_scope(scope);
        let logs = open_many(&disk, 5);
        for (ms, count) in [(1, 1), (2, 3), (3, 1)] {
            let appended = logs
                .iter()
                .map(|log| log.committed(append(log, count, 500, ms).end));
            let waits: Vec<_> = appended.collect();
            let before = disk.stats().syncs;
            let outcome = block_on(commit_round(&disk, &logs, at(ms)));
            assert_eq!((outcome.partitions, outcome.latched), (5, 0), "{scope:?}");
            let flushed = disk.stats().syncs - before;
            for wait in waits {
                block_on(wait).expect("acknowledged");
            }
            for plan in [CrashPlan::LoseAll, CrashPlan::KeepAll, CrashPlan::Random(ms)] {
                let after = disk.crash(plan);
                for (log, found) in logs.iter().zip(open_many(&after, 5)) {
                    check_content(&found, log.next_offset().0, &[]);
                }
            }
            assert_eq!(flushed, flushes, "{scope:?}");
        }
    }
}

#[test]
fn where_each_file_is_flushed_one_failure_latches_the_whole_round() {
    let disk = MemoryDisk::new(3);
    disk.set_flush_scope(FlushScope::File);
    let logs = open_many(&disk, 3);
    for log in &logs {
        append(log, 1, 10, 1);
    }
    disk.fail_next(OpKind::Sync, "q1", DiskErrorKind::Io, 1);
    let outcome = block_on(commit_round(&disk, &logs, at(1)));
    assert_eq!((outcome.latched, outcome.partitions), (3, 0));
    for log in &logs {
        let latched = log.latched().expect("latched");
        assert_eq!(latched.at, LatchStep::Flush);
        assert!(
            latched.reason.path.starts_with(dir(1)),
            "the flush that failed is named: {latched}"
        );
        assert_eq!(log.high_water_mark(), Offset(0));
    }
}

/// A round in which something happens on the disk between the writes and the flush.
fn round_beside(logs: &[Log], disk: &MemoryDisk, ms: u64, event: &dyn Fn()) -> RoundOutcome {
    let calls = Cell::new(0);
    let clock = || {
        calls.set(calls.get() + 1);
        if calls.get() == 3 {
            event(); // begun, rolled, written
        }
        Duration::ZERO
    };
    block_on(commit_round_timed(disk, logs, at(ms), &clock))
}

// The round's flush succeeded, but over a cache that the device had dropped when it failed another one.
#[test]
fn a_flush_that_fails_beside_a_round_latches_it_although_its_own_succeeds() {
    for (kind, latches) in [
        (OpKind::Sync, true),
        (OpKind::Prepare, true),
        (OpKind::SyncDir, true),
        (OpKind::Rename, false),
    ] {
        for scope in [FlushScope::Device, FlushScope::File] {
            let disk = MemoryDisk::new(3);
            disk.set_flush_scope(scope);
            let logs = open_many(&disk, 2);
            let other = block_on(disk.open(Path::new("/topics/other"), OpenMode::CreateNew)).unwrap();
            block_on(other.prepare(0, BLOCK as u64)).unwrap();
            let append_each = |ms| -> Vec<_> {
                let each = logs.iter().map(|log| log.committed(append(log, 1, 10, ms).end));
                each.collect()
            };
            append_each(1);
            assert_eq!(block_on(commit_round(&disk, &logs, at(1))).partitions, 2);
            let waits = append_each(2);
            let fail = || {
                disk.fail_next(kind, "", DiskErrorKind::Io, 1);
                let (old, new) = (Path::new("/topics/other"), Path::new("/topics/new"));
                let failed = match kind {
                    OpKind::Sync => block_on(other.sync()),
                    OpKind::Prepare => block_on(other.prepare(0, BLOCK as u64)),
                    OpKind::SyncDir => block_on(disk.sync_dir(Path::new("/topics"))),
                    _ => block_on(disk.rename(old, new)),
                };
                failed.expect_err("injected");
            };
            let syncs = disk.stats().syncs;
            let outcome = round_beside(&logs, &disk, 2, &fail);
            assert!(disk.stats().syncs > syncs, "its own flush succeeded");
            let expected = if latches { (2, 0) } else { (0, 2) };
            assert_eq!(
                (outcome.latched, outcome.partitions),
                expected,
                "{kind:?} {scope:?}"
            );
            let after = disk.crash(CrashPlan::LoseAll);
            for (n, wait) in waits.into_iter().enumerate() {
                let acknowledged = block_on(wait);
                assert_eq!(
                    matches!(acknowledged, Err(CommitError::OutcomeUnknown(_))),
                    latches
                );
                let (found, _) = try_open_as(&after, &dir(n), identity(), options()).unwrap();
                let end = if acknowledged.is_ok() { 2 } else { 1 };
                assert!(found.next_offset() >= Offset(end), "{kind:?} {scope:?}");
            }
            // What was there before the round is not in doubt, nor is what comes to another log after it.
            let late = try_open_as(&disk, &dir(7), identity(), options()).unwrap().0;
            commit(&late, &disk, 1, 10, 3);
        }
    }
}

// A segment's header was flushed over a dropped cache and the segment got its name: after a power cut the log could not
// be opened.
#[test]
fn a_flush_that_fails_beside_a_new_segment_latches_its_log() {
    for (kind, path) in [
        (OpKind::Prepare, "prepared"),
        (OpKind::Sync, "prepared"),
        (OpKind::SyncDir, "p00000"),
    ] {
        let disk = MemoryDisk::new(1);
        let (log, _) = open(&disk);
        commit(&log, &disk, 1, 10, 1);
        append(&log, 1, 40_000, 2);
        disk.fail_beside_next(kind, path);
        assert_eq!(round(&log, &disk, 2).latched, 1, "{kind:?}");
        assert_eq!(log.latched().unwrap().at, LatchStep::Prepare, "{kind:?}");
        drop(log);
        let (log, _) = open(&disk.crash(CrashPlan::LoseAll));
        assert!(log.next_offset() >= Offset(1), "{kind:?}");
    }
}

#[test]
fn a_flush_that_fails_beside_a_background_preparation_latches_its_log() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    commit(&log, &disk, 1, 20_000, 1);
    disk.fail_beside_next(OpKind::Prepare, "prepared");
    block_on(log.prepare_next()).expect_err("in doubt");
    assert_eq!(log.latched().unwrap().at, LatchStep::Prepare);
}

// Beginning a segment takes several flushes. The commits of all partitions of a shard waited for it, and for the next
// partition's behind it: 80 to 190 ms were seen in their tails.
#[test]
fn a_log_that_begins_a_segment_keeps_no_other_waiting() {
    let disk = Lying::<STALL_SYNC>(MemoryDisk::new(1));
    let open = |n| {
        let opened = PartitionLog::open(
            disk.clone(),
            dir(n).into(),
            identity(),
            options(),
            at(1),
            numbers(),
        );
        block_on(opened).unwrap().0
    };
    let (rolling, other) = (open(0), open(1));
    let large = batch(0, 1, 40_000);
    let end = rolling
        .append(large.clone(), &BatchView::parse(&large).unwrap(), at(1), None)
        .unwrap()
        .end;
    let wait = rolling.committed(end);
    assert!(rolling.needs_roll() && !other.needs_roll());
    let mut roll = Box::pin(rolling.roll_if_needed(at(1)));
    STALLED.set(true);
    assert!(block_on(poll_once(&mut roll)).is_none(), "it waits for its flush");
    STALLED.set(false);
    assert!(!rolling.needs_roll() && !rolling.needs_round());
    let small = batch(0, 1, 10);
    other
        .append(small.clone(), &BatchView::parse(&small).unwrap(), at(2), None)
        .unwrap();
    let logs = [Rc::clone(&rolling), Rc::clone(&other)];
    let outcome = block_on(commit_round(&disk, &logs, at(2)));
    assert_eq!((outcome.partitions, outcome.records), (1, 1), "the one that can");
    assert_eq!(other.high_water_mark(), Offset(1));
    drop(roll);
    assert!(matches!(block_on(wait), Err(CommitError::OutcomeUnknown(_))));
}
