//! Recovery through the whole log: one kind of damage after another, and what must be left.

use std::ops::Range;
use std::path::PathBuf;

use futures_lite::future::block_on;
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk};
use tailwater_storage::error::OpenError;
use tailwater_storage::log::options::LogOptions;
use tailwater_storage::slab::ReadLimits;
use tailwater_wire::ids::Offset;

use crate::support::*;

/// A log of one segment with one record to a batch and one batch to a round; not closed.
fn written(rounds: u64, closed: bool) -> (MemoryDisk, PathBuf) {
    let disk = MemoryDisk::new(1);
    let (log, _) = try_open(&disk, one_segment()).unwrap();
    for n in 0..rounds {
        commit(&log, &disk, 1, 100, n);
    }
    if closed {
        block_on(log.close(at(100))).unwrap();
    }
    let path = segments(&disk)[0].clone();
    (disk, path)
}

/// All that these tests write fits into the first segment.
fn one_segment() -> LogOptions {
    LogOptions {
        segment_bytes_first: 4 << 20,
        segment_bytes_max: 4 << 20,
        ..options()
    }
}

/// What happens to the block of one record.
#[derive(Clone, Copy)]
enum Damage {
    Header(u64),
    Body(u64),
    /// Zeros: what is left of a chunk that was never flushed.
    Lost(u64),
}

fn damage(disk: &MemoryDisk, path: &std::path::Path, damages: &[Damage]) {
    let at: Vec<(u64, Damage)> = damages
        .iter()
        .map(|&d| {
            let (Damage::Header(n) | Damage::Body(n) | Damage::Lost(n)) = d;
            (position_of(disk, path, n), d)
        })
        .collect();
    for (position, damage) in at {
        match damage {
            Damage::Header(_) => assert!(disk.flip(path, position + 17, 1)),
            Damage::Body(_) => assert!(disk.flip(path, position + 150, 1)),
            Damage::Lost(_) => {
                let bytes = disk.peek(path).unwrap();
                for at in position..position + 4096 {
                    disk.flip(path, at, bytes[at as usize]);
                }
            }
        }
    }
}

/// Eight records, damaged, recovered: the log ends at `end` without `missing`, goes on, and is found again as it is.
fn check(name: &str, closed: bool, damages: &[Damage], end: u64, missing: &[Range<u64>], copied: u64) {
    let (disk, path) = written(8, closed);
    damage(&disk, &path, damages);
    let (log, report) = open(&disk);
    let quarantined: Vec<_> = report.quarantined.iter().map(|r| r.start.0..r.end.0).collect();
    assert_eq!(quarantined, missing, "{name}: quarantined");
    assert_eq!(report.copied_batches, copied, "{name}: copied");
    check_content(&log, end, missing);
    commit(&log, &disk, 2, 50, 200);
    check_content(&log, end + 2, missing);
    // Twice: the second recovery stands on what the first one wrote.
    let mut disk = disk.crash(CrashPlan::LoseAll);
    for _ in 0..2 {
        let (log, _) = open(&disk);
        check_content(&log, end + 2, missing);
        disk = disk.crash(CrashPlan::LoseAll);
    }
}

#[test]
#[allow(clippy::single_range_in_vec_init)]
fn each_kind_of_damage() {
    use Damage::{Body, Header, Lost};
    // Record 7's chunk states that 0..7 are flushed; a close states 0..8.
    check("none, not closed", false, &[], 8, &[], 1);
    check("none, closed", true, &[], 8, &[], 0);
    check("rot in a header", true, &[Header(3)], 8, &[3..4], 0);
    check("rot in a body", true, &[Body(3)], 8, &[3..4], 0);
    check("a lost block in the middle", true, &[Lost(3)], 8, &[3..4], 0);
    check(
        "rot at both ends",
        true,
        &[Body(0), Header(7)],
        8,
        &[0..1, 7..8],
        0,
    );
    check(
        "rot below D, not closed",
        false,
        &[Body(2), Lost(5)],
        8,
        &[2..3, 5..6],
        1,
    );
    check("torn body", false, &[Body(7)], 7, &[], 1);
    check("torn header", false, &[Header(7)], 7, &[], 1);
    check("a lost last block", false, &[Lost(7)], 7, &[], 1);
    check(
        "all lost from 4 on",
        false,
        &[Lost(4), Lost(5), Lost(6), Lost(7)],
        4,
        &[],
        1,
    );
    check(
        "a torn block behind a lost one",
        false,
        &[Lost(6), Body(7)],
        6,
        &[],
        1,
    );
}

/// One round of several batches, which one flush would have covered: damage inside it tears it.
#[test]
fn whole_batches_behind_a_torn_one_are_dropped() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    commit(&log, &disk, 1, 100, 1);
    for _ in 0..4 {
        append(&log, 1, 3_000, 2);
    }
    round(&log, &disk, 2);
    drop(log);
    let path = segments(&disk)[0].clone();
    let stale = disk.peek(&path).unwrap();
    damage(&disk, &path, &[Damage::Body(2)]);
    let (log, report) = open(&disk);
    assert_eq!((report.cut_at, report.dropped_batches), (Some(Offset(2)), 2));
    check_content(&log, 2, &[]);
    // What follows the cut lies whole in the old file and is never seen again: other records get these offsets.
    commit(&log, &disk, 3, 10, 3);
    check_content(&log, 5, &[]);
    assert_eq!(disk.peek(&path).unwrap().len(), stale.len());
    let (log, _) = open(&disk.crash(CrashPlan::LoseAll));
    check_content(&log, 5, &[]);
}

#[test]
fn a_hole_across_d_is_quarantined_and_its_offsets_are_not_given_out_again() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    commit(&log, &disk, 2, 100, 1);
    commit(&log, &disk, 3, 100, 1);
    // States 5 as flushed, is itself not flushed by anything later, and follows a hole that reaches above D.
    append(&log, 2, 3_000, 2);
    append(&log, 2, 3_000, 2);
    round(&log, &disk, 2);
    drop(log);
    let path = segments(&disk)[0].clone();
    damage(&disk, &path, &[Damage::Lost(2), Damage::Body(5)]);
    let (log, report) = open(&disk);
    assert_eq!(report.quarantined, [Offset(2)..Offset(5)]);
    assert_eq!((report.cut_at, log.next_offset()), (Some(Offset(5)), Offset(5)));
    #[allow(clippy::single_range_in_vec_init)]
    let missing = [2..5];
    check_content(&log, 5, &missing);
    commit(&log, &disk, 1, 10, 3);
    let (log, _) = open(&disk.crash(CrashPlan::LoseAll));
    check_content(&log, 6, &missing);
}

#[test]
#[allow(clippy::single_range_in_vec_init)]
fn rot_in_a_sealed_segment_is_found_by_readers() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    for n in 0..60 {
        commit(&log, &disk, 1, 2_000, n);
    }
    block_on(log.prepare_next()).unwrap();
    let paths = segments(&disk);
    assert!(paths.len() >= 3);
    damage(
        &disk,
        &paths[0],
        &[Damage::Body(2), Damage::Header(4), Damage::Lost(5)],
    );
    let missing = [2..3, 4..6];
    check_content(&log, 60, &missing);
    let slab = block_on(log.read(Offset(5), ReadLimits::default())).unwrap();
    assert_eq!(slab.quarantined, [Offset(5)..Offset(6)], "from inside a hole");
    assert!(block_on(log.batch_containing(Offset(5))).unwrap().is_none());
    assert_eq!(
        block_on(log.batch_containing(Offset(6)))
            .unwrap()
            .unwrap()
            .base_offset,
        Offset(6)
    );
    for with_indexes in [true, false] {
        if !with_indexes {
            use tailwater_storage::disk::device::Disk;
            for path in &paths {
                drop(block_on(disk.remove_file(&path.with_extension("idx"))));
            }
        }
        let (log, _) = open(&disk);
        check_content(&log, 60, &missing);
    }
}

#[test]
fn rot_in_the_active_segment_is_found_by_readers() {
    let (disk, path) = written(0, false);
    let (log, _) = open(&disk);
    for n in 0..5 {
        commit(&log, &disk, 1, 100, n);
    }
    damage(&disk, &path, &[Damage::Body(1)]);
    #[allow(clippy::single_range_in_vec_init)]
    let missing = [1..2];
    check_content(&log, 5, &missing);
    commit(&log, &disk, 1, 100, 9);
    check_content(&log, 6, &missing);
}

#[test]
fn a_misdirected_write_does_not_take_others_along() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    for n in 0..3 {
        commit(&log, &disk, 1, 100, n);
    }
    let path = segments(&disk)[0].clone();
    // The chunk of record 3 lands on that of record 1.
    disk.misdirect_next("0.log", &path, position_of(&disk, &path, 1));
    for n in 3..6 {
        commit(&log, &disk, 1, 100, n);
    }
    let missing = [1..2, 3..4];
    check_content(&log, 6, &missing);
    drop(log);
    let (log, report) = open(&disk);
    assert_eq!(report.quarantined.len(), 2);
    check_content(&log, 6, &missing);
}

#[test]
fn a_batch_of_a_newer_format_is_not_opened() {
    let (disk, path) = written(3, true);
    let position = position_of(&disk, &path, 2);
    disk.flip(&path, position + 4, 1 ^ 2);
    let bytes = disk.peek(&path).unwrap();
    let header = &bytes[position as usize..][..128];
    let sum = tailwater_wire::checksum::crc(&header[..124]).to_le_bytes();
    for n in 0..4 {
        disk.flip(&path, position + 124 + n as u64, header[124 + n] ^ sum[n]);
    }
    let before = disk.peek(&path);
    assert!(matches!(
        try_open(&disk, options()),
        Err(OpenError::NewerVersion { version: 2, .. })
    ));
    assert!(before == disk.peek(&path));
}

#[test]
fn recovery_reads_the_active_segment_alone() {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    for n in 0..100 {
        commit(&log, &disk, 1, 20_000, n);
    }
    drop(log);
    let count = segments(&disk).len() as u64;
    assert!(count > 10);
    let before = disk.stats().bytes_read;
    let (log, report) = open(&disk);
    let read = disk.stats().bytes_read - before;
    assert!(report.bytes_scanned <= 128 << 10);
    assert!(read <= 2 * (128 << 10) + (count + 20) * 4096, "{read} bytes");
    check_content(&log, 100, &[]);
}

#[test]
fn a_large_unproved_round_is_copied_whole() {
    let disk = MemoryDisk::new(1);
    let (log, _) = try_open(&disk, one_segment()).unwrap();
    commit(&log, &disk, 1, 10, 1);
    for _ in 0..300 {
        append(&log, 2, 2_000, 2);
    }
    // The first round takes 1 MiB; the second one proves it.
    round(&log, &disk, 2);
    let flushed = log.flushed().0;
    assert!(flushed > 400);
    let (log, report) = open(&disk.crash(CrashPlan::LoseAll));
    assert_eq!(report.cut_at, Some(Offset(flushed)));
    check_content(&log, flushed, &[]);
}
