//! Segments that were cut at rest, at lengths of every kind: what was whole before the cut stays, the rest is named.

use std::ops::Range;
use std::path::Path;

use futures_lite::future::block_on;
use tailwater_storage::disk::device::{Disk, File, OpenMode};
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk};
use tailwater_storage::error::OpenError;
use tailwater_storage::slab::ReadLimits;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::Offset;

use crate::support::*;

fn cut(disk: &MemoryDisk, path: &Path, len: u64) {
    let file = block_on(disk.open(path, OpenMode::ReadWrite)).unwrap();
    block_on(file.set_len(len)).unwrap();
    block_on(file.sync()).unwrap();
}

/// Rounds of two batches each until there are `segments` of them, closed; the disk and how many records there are.
fn written(count: usize) -> (MemoryDisk, u64) {
    let disk = MemoryDisk::new(1);
    let (log, _) = open(&disk);
    let mut ms = 0;
    while segments(&disk).len() < count || log.next_offset().0 < 12 {
        ms += 1;
        append(&log, 1, 700, ms);
        append(&log, 2, 900, ms);
        round(&log, &disk, ms);
        block_on(log.prepare_next()).unwrap();
    }
    block_on(log.close(at(ms))).unwrap();
    (disk, log.next_offset().0)
}

/// The batches with records of a file: first offset, end offset, and where each begins and ends.
fn batches(disk: &MemoryDisk, path: &Path) -> Vec<(u64, u64, u64, u64)> {
    let bytes = disk.peek(path).unwrap();
    let mut found = Vec::new();
    for at in (4096..bytes.len()).step_by(64) {
        if let Ok(view) = BatchView::parse(&bytes[at..])
            && !view.is_empty()
        {
            let header = view.header();
            let end = at + header.batch_len();
            found.push((header.base_offset.0, header.end_offset().0, at as u64, end as u64));
        }
    }
    found
}

/// Lengths of every kind: nothing, within the header, at it, and around each boundary of a batch in the middle, of a
/// block, and of the file.
fn lengths(disk: &MemoryDisk, path: &Path) -> Vec<u64> {
    let len = disk.peek(path).unwrap().len() as u64;
    let found = batches(disk, path);
    let (_, _, start, end) = found[found.len() / 2];
    let last = found[found.len() - 1].3;
    let mut lengths = vec![
        0,
        1,
        100,
        4095,
        4096,
        4097,
        4096 + 64,
        len - 1,
        len - 4096,
        len - 4097,
    ];
    for at in [
        start,
        end,
        last,
        end.next_multiple_of(4096),
        last.next_multiple_of(4096),
    ] {
        lengths.extend([at - 1, at, at + 1, at + 70]);
    }
    lengths.extend([start + 500, end - 64, end.next_multiple_of(4096) - 2048]);
    lengths.retain(|&l| l < len);
    lengths
}

/// What of a file is whole within a length: the offset behind it.
fn whole_end(base: u64, found: &[(u64, u64, u64, u64)], len: u64) -> u64 {
    let whole = found.iter().take_while(|batch| batch.3 <= len);
    whole.last().map_or(base, |batch| batch.1)
}

// Incident: a sealed segment was truncated to 200,000 bytes while the node was stopped. Every read of the partition
// failed from then on, because the file's length went into an aligned read as it was.
#[test]
fn a_sealed_segment_that_was_cut_loses_what_was_behind_the_cut_and_nothing_else() {
    let (disk, end) = written(4);
    let paths = segments(&disk);
    for which in [0, 1] {
        let found = batches(&disk, &paths[which]);
        let next = batches(&disk, &paths[which + 1])[0].0;
        for len in lengths(&disk, &paths[which]) {
            for (with_index, with_log_open) in [(true, false), (false, false), (true, true)] {
                let context =
                    format!("segment {which} cut to {len}, index {with_index}, open {with_log_open}");
                let kept = whole_end(found[0].0, &found, len);
                let missing: Vec<Range<u64>> =
                    Some(kept..next).filter(|r| !r.is_empty()).into_iter().collect();
                eprintln!("{context}: {missing:?} is missing");
                let disk = disk.crash(CrashPlan::LoseAll);
                if with_log_open {
                    let (log, _) = open(&disk);
                    check_content(&log, end, &[]);
                    cut(&disk, &paths[which], len);
                    check_content(&log, end, &missing);
                    continue;
                }
                cut(&disk, &paths[which], len);
                if !with_index {
                    block_on(disk.remove_file(&paths[which].with_extension("idx"))).unwrap();
                }
                let (log, report) = open(&disk);
                let lost_whole = if len < 4096 { missing.clone() } else { Vec::new() };
                let reported: Vec<_> = report.quarantined.iter().map(|r| r.start.0..r.end.0).collect();
                assert_eq!(reported, lost_whole, "{context}");
                assert_eq!(report.cut_at, None, "{context}");
                check_content(&log, end, &missing);
                check_content(&log, end, &missing);
                if let [hole] = &missing[..] {
                    let slab = block_on(log.read(Offset(hole.end - 1), ReadLimits::default())).unwrap();
                    assert_eq!(
                        slab.quarantined,
                        [Offset(hole.end - 1)..Offset(hole.end)],
                        "{context}"
                    );
                }
                let first = missing
                    .first()
                    .filter(|hole| hole.start == 0)
                    .map_or(0, |hole| hole.end);
                assert_eq!(
                    block_on(log.find_time(at(0))).unwrap(),
                    Offset(first),
                    "{context}"
                );
                assert_eq!(
                    disk.peek(&paths[which]).unwrap().len() as u64,
                    len,
                    "{context}: touched"
                );
            }
        }
    }
}

fn check_active(disk: &MemoryDisk, path: &Path, base: u64, len: u64) {
    let found = batches(disk, path);
    let (lineage, end) = {
        let (log, _) = open(&disk.crash(CrashPlan::LoseAll));
        (log.lineage(), log.next_offset().0)
    };
    let disk = disk.crash(CrashPlan::LoseAll);
    cut(&disk, path, len);
    // Without its checkpoint nothing is known of the producers, without its header nothing at all.
    if len < found[0].2 {
        let refused = try_open(&disk, options()).err().expect("refused");
        assert!(matches!(refused, OpenError::CorruptHeader { .. }), "{refused}");
        assert_eq!(disk.peek(path).unwrap().len() as u64, len);
        return;
    }
    let kept = whole_end(base, &found, len);
    let (log, report) = open(&disk);
    check_content(&log, kept, &[]);
    assert!(report.quarantined.is_empty() && kept <= end);
    let is_odd = !len.is_multiple_of(4096);
    assert_eq!(
        log.lineage() != lineage,
        is_odd,
        "cut to {len}: offsets may be handed out again"
    );
    for n in 0..8 {
        commit(&log, &disk, 2, 3_000, 1_000 + n);
    }
    check_content(&log, kept + 16, &[]);
    let now = log.lineage();
    drop(log);
    for _ in 0..2 {
        let (log, _) = open(&disk.crash(CrashPlan::LoseAll));
        check_content(&log, kept + 16, &[]);
        assert_eq!(log.lineage(), now);
    }
}

#[test]
fn an_active_segment_that_was_cut_opens_at_what_is_whole() {
    for count in [1, 3] {
        let (disk, _) = written(count);
        let path = segments(&disk).last().unwrap().clone();
        let found = batches(&disk, &path);
        if found.is_empty() {
            panic!("the active segment holds records");
        }
        for len in lengths(&disk, &path) {
            eprintln!("{count} segments, active one cut to {len}");
            check_active(&disk, &path, found[0].0, len);
        }
    }
}
