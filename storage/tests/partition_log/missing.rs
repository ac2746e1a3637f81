//! Segment files that went missing while the log was closed: a named error, never offsets that are handed out twice.

use std::path::{Path, PathBuf};

use futures_lite::future::block_on;
use tailwater_storage::disk::device::Disk;
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk};
use tailwater_storage::error::OpenError;

use crate::support::*;

/// A log of several segments, closed; indexes are written in the background only if `prepared`.
fn closed(prepared: bool) -> (MemoryDisk, Vec<PathBuf>) {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    for ms in 0..30 {
        commit(&log, &disk, 1, 9_000, ms);
        if prepared {
            block_on(log.prepare_next()).unwrap();
        }
    }
    block_on(log.close(at(50))).unwrap();
    let paths = segments(&disk);
    assert!(paths.len() >= 4);
    (disk, paths)
}

fn remove(disk: &MemoryDisk, path: &Path) {
    block_on(disk.remove_file(path)).unwrap();
    block_on(disk.sync_dir(Path::new(DIR))).unwrap();
}

fn content(disk: &MemoryDisk) -> Vec<(String, Option<Vec<u8>>)> {
    let names = block_on(disk.list(Path::new(DIR))).unwrap();
    let read = |name: String| (name.clone(), disk.peek(&Path::new(DIR).join(name)));
    names.into_iter().map(|entry| read(entry.name)).collect()
}

/// The error that opening ends with; it leaves every file as it is.
fn refused(disk: &MemoryDisk) -> OpenError {
    let before = content(disk);
    let error = try_open(disk, options()).err().expect("refused");
    assert!(before == content(disk), "{error}: the files changed");
    error
}

#[track_caller]
fn check_missing(disk: &MemoryDisk, expected: &Path, shown: &Path) {
    match refused(disk) {
        OpenError::MissingSegment { missing, shown_by } => {
            assert_eq!((&*missing, &*shown_by), (expected, shown));
        }
        other => panic!("{other}"),
    }
}

// Incident: a node was stopped, the newest segment of a partition was deleted, and the partition came up with an older
// end and the same lineage: offsets that consumers and cursors had passed were handed out a second time.
#[test]
fn a_log_without_its_last_segment_is_not_opened() {
    for prepared in [true, false] {
        let (disk, paths) = closed(prepared);
        let (last, before) = (&paths[paths.len() - 1], &paths[paths.len() - 2]);
        remove(&disk, last);
        check_missing(&disk, last, &before.with_extension("idx"));
        // Nor without its last two.
        remove(&disk, before);
        check_missing(&disk, before, &before.with_extension("idx"));
        remove(&disk, &before.with_extension("idx"));
        check_missing(&disk, before, &paths[paths.len() - 3].with_extension("idx"));
    }
}

#[test]
fn a_segment_sealed_by_recovery_shows_that_another_followed() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    commit(&log, &disk, 2, 500, 1);
    commit(&log, &disk, 2, 500, 2);
    drop(log);
    let (log, report) = open(&disk);
    assert!(report.cut_at.is_some());
    block_on(log.prepare_next()).unwrap();
    drop(log);
    let paths = segments(&disk);
    assert_eq!(paths.len(), 2);
    remove(&disk, &paths[1]);
    check_missing(&disk, &paths[1], &paths[0].with_extension("idx"));
}

#[test]
fn an_index_of_an_older_file_or_a_torn_one_shows_nothing() {
    let (disk, paths) = closed(true);
    let last = paths.last().unwrap();
    let other = paths[0].with_extension("idx");
    for bytes in [
        block_on(disk.read_small(&other)).unwrap().unwrap(),
        b"TWIX".to_vec(),
    ] {
        let disk = disk.crash(CrashPlan::LoseAll);
        block_on(disk.write_small(&last.with_extension("idx"), &bytes)).unwrap();
        let (log, _) = open(&disk);
        check_content(&log, 30, &[]);
    }
}

#[test]
fn a_log_without_any_segment_is_not_made_anew() {
    let (disk, paths) = closed(true);
    for path in &paths {
        remove(&disk, path);
    }
    assert!(matches!(refused(&disk), OpenError::NoSegments { .. }));
    for path in &paths {
        drop(block_on(disk.remove_file(&path.with_extension("idx"))));
    }
    let cursor = Path::new(DIR).join("fanout-analytics.offset");
    block_on(disk.write_small(&cursor, b"{}")).unwrap();
    match refused(&disk) {
        OpenError::NoSegments { shown_by } => assert_eq!(shown_by, cursor),
        other => panic!("{other}"),
    }
    // What a crash leaves while the very first segment is made.
    block_on(disk.remove_file(&cursor)).unwrap();
    for name in [
        "prepared-00000000000000ab.log",
        "fanout-analytics.offset.tmp-00000000000000ab",
    ] {
        block_on(disk.write_small(&Path::new(DIR).join(name), b"half")).unwrap();
    }
    let (log, report) = open(&disk);
    assert!(report.created);
    check_content(&log, 0, &[]);
    assert_eq!(content(&disk).len(), 1);
}
