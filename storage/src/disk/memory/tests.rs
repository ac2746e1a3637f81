//! What the simulated disk loses, keeps and breaks, and when.

use std::path::Path;

use bytes::Bytes;
use futures_lite::future::block_on;

use crate::disk::device::{BLOCK, Disk, DiskErrorKind, DiskResult, File, OpenMode, WriteOp};
use crate::disk::memory::faults::{OpKind, When};
use crate::disk::memory::handle::{MemoryDisk, MemoryFile};
use crate::disk::memory::luck::CrashPlan;

const B: u64 = BLOCK as u64;

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn disk() -> MemoryDisk {
    let disk = MemoryDisk::new(1);
    block_on(disk.create_dir_all(p("/d"))).unwrap();
    disk
}

fn create(disk: &MemoryDisk, path: &str) -> MemoryFile {
    block_on(disk.open(p(path), OpenMode::CreateNew)).unwrap()
}

/// A file whose name, length and extents are durable, and whose bytes are zeros.
fn prepared(disk: &MemoryDisk, path: &str, blocks: u64) -> MemoryFile {
    let file = create(disk, path);
    block_on(file.prepare(0, blocks * B)).unwrap();
    block_on(disk.sync_dir(p("/d"))).unwrap();
    file
}

fn filled(blocks: usize, byte: u8) -> Bytes {
    Bytes::from(vec![byte; blocks * BLOCK])
}

fn write(file: &MemoryFile, block: u64, byte: u8) -> DiskResult<()> {
    block_on(file.write_at(&filled(1, byte), block * B))
}

fn byte_at(disk: &MemoryDisk, path: &str, block: u64) -> Option<u8> {
    disk.peek(p(path))?.get((block * B) as usize).copied()
}

#[test]
fn a_name_is_lost_without_a_directory_flush_and_kept_with_one() {
    let disk = disk();
    let file = create(&disk, "/d/a");
    write(&file, 0, 7).unwrap();
    block_on(file.sync()).unwrap();
    assert_eq!(
        disk.crash(CrashPlan::LoseAll).peek(p("/d/a")),
        None,
        "fdatasync does not make the name durable"
    );
    block_on(disk.sync_dir(p("/d"))).unwrap();
    assert_eq!(byte_at(&disk.crash(CrashPlan::LoseAll), "/d/a", 0), Some(7));
}

#[test]
fn a_rename_is_lost_without_a_directory_flush() {
    let disk = disk();
    for (path, text) in [("/d/x", "old"), ("/d/x.tmp", "new")] {
        block_on(disk.write_small(p(path), text.as_bytes())).unwrap();
    }
    block_on(disk.sync_dir(p("/d"))).unwrap();
    block_on(disk.rename(p("/d/x.tmp"), p("/d/x"))).unwrap();
    let lost = disk.crash(CrashPlan::LoseAll);
    assert_eq!(
        (lost.peek(p("/d/x")), lost.peek(p("/d/x.tmp"))),
        (Some(b"old".to_vec()), Some(b"new".to_vec()))
    );
    block_on(disk.sync_dir(p("/d"))).unwrap();
    let kept = disk.crash(CrashPlan::LoseAll);
    assert_eq!(
        (kept.peek(p("/d/x")), kept.peek(p("/d/x.tmp"))),
        (Some(b"new".to_vec()), None)
    );
}

#[test]
fn a_rename_between_directories_is_one_change() {
    let disk = disk();
    block_on(disk.create_dir_all(p("/e"))).unwrap();
    for (path, text) in [("/d/x", "new"), ("/e/y", "old")] {
        block_on(disk.write_small(p(path), text.as_bytes())).unwrap();
        block_on(disk.sync_dir(p(path).parent().unwrap())).unwrap();
    }
    block_on(disk.remove_file(p("/e/y"))).unwrap();
    block_on(disk.rename(p("/d/x"), p("/e/y"))).unwrap();
    for seed in 0..50 {
        let left = disk.crash(CrashPlan::Random(seed));
        let found = [left.peek(p("/d/x")), left.peek(p("/e/y"))];
        assert_eq!(
            found.iter().flatten().filter(|bytes| *bytes == b"new").count(),
            1,
            "seed {seed}"
        );
    }
    // The flush of one directory covers the rename, and so also what came before it in the other.
    block_on(disk.sync_dir(p("/d"))).unwrap();
    block_on(disk.sync_dir(p("/e"))).unwrap();
    let left = disk.crash(CrashPlan::LoseAll);
    assert_eq!(
        (left.peek(p("/d/x")), left.peek(p("/e/y"))),
        (None, Some(b"new".to_vec()))
    );
}

#[test]
fn a_removal_is_undone_without_a_directory_flush() {
    let disk = disk();
    let file = prepared(&disk, "/d/a", 1);
    block_on(disk.remove_file(p("/d/a"))).unwrap();
    assert!(write(&file, 0, 1).is_ok(), "an open file outlives its name");
    assert!(disk.crash(CrashPlan::LoseAll).peek(p("/d/a")).is_some());
    block_on(disk.sync_dir(p("/d"))).unwrap();
    assert_eq!(disk.crash(CrashPlan::LoseAll).peek(p("/d/a")), None);
}

#[test]
fn independent_names_survive_in_every_combination() {
    let disk = disk();
    create(&disk, "/d/a");
    create(&disk, "/d/b");
    let mut seen = [false; 4];
    for seed in 0..200 {
        let left = disk.crash(CrashPlan::Random(seed));
        let has = |path| usize::from(left.peek(p(path)).is_some());
        seen[has("/d/a") + 2 * has("/d/b")] = true;
    }
    assert_eq!(seen, [true; 4]);
}

#[test]
fn any_flush_covers_overwrites_of_durable_extents_but_no_growth() {
    let disk = disk();
    let (a, b) = (prepared(&disk, "/d/a", 2), prepared(&disk, "/d/b", 1));
    write(&a, 1, 7).unwrap();
    write(&a, 2, 8).unwrap();
    assert_eq!(
        byte_at(&disk.crash(CrashPlan::LoseAll), "/d/a", 1),
        Some(0),
        "nothing was flushed yet"
    );
    block_on(b.sync()).unwrap();
    let left = disk.crash(CrashPlan::LoseAll);
    assert_eq!(byte_at(&left, "/d/a", 1), Some(7));
    assert_eq!(
        byte_at(&left, "/d/a", 2),
        None,
        "the new length needs a flush of the file itself"
    );
    block_on(a.sync()).unwrap();
    assert_eq!(byte_at(&disk.crash(CrashPlan::LoseAll), "/d/a", 2), Some(8));
}

#[test]
fn a_flush_of_another_file_does_not_cover_a_write_into_a_hole() {
    let disk = disk();
    let (a, b) = (create(&disk, "/d/a"), prepared(&disk, "/d/b", 1));
    block_on(a.set_len(4 * B)).unwrap();
    block_on(a.sync()).unwrap();
    write(&a, 3, 9).unwrap();
    block_on(b.sync()).unwrap();
    assert_eq!(byte_at(&disk.crash(CrashPlan::LoseAll), "/d/a", 3), Some(0));
    block_on(a.sync()).unwrap();
    assert_eq!(byte_at(&disk.crash(CrashPlan::LoseAll), "/d/a", 3), Some(9));
}

#[test]
fn a_cut_tears_at_512_bytes_and_nowhere_else() {
    let disk = disk();
    let file = prepared(&disk, "/d/a", 2);
    block_on(file.write_at(&filled(2, 5), 0)).unwrap();
    let mut torn = false;
    for seed in 0..100 {
        let bytes = disk.crash(CrashPlan::Random(seed)).peek(p("/d/a")).unwrap();
        assert_eq!(bytes.len(), 2 * BLOCK);
        for sector in bytes.chunks(512) {
            assert!(
                sector == [0; 512] || sector == [5; 512],
                "seed {seed}: a torn sector"
            );
        }
        torn |= bytes.contains(&0) && bytes.contains(&5);
    }
    assert!(torn);
}

#[test]
fn a_truncation_is_durable_only_after_a_flush_and_stale_bytes_do_not_come_back() {
    let disk = disk();
    let file = prepared(&disk, "/d/a", 3);
    block_on(file.write_at(&filled(3, 1), 0)).unwrap();
    block_on(file.sync()).unwrap();
    block_on(file.set_len(B)).unwrap();
    assert_eq!(
        disk.crash(CrashPlan::LoseAll).peek(p("/d/a")).unwrap().len(),
        3 * BLOCK
    );
    block_on(file.set_len(3 * B)).unwrap();
    let kept = disk.crash(CrashPlan::KeepAll).peek(p("/d/a")).unwrap();
    assert_eq!(kept[BLOCK..], [0; 2 * BLOCK]);
    for seed in 0..100 {
        let bytes = disk.crash(CrashPlan::Random(seed)).peek(p("/d/a")).unwrap();
        if bytes.len() == 3 * BLOCK {
            let rest = &bytes[BLOCK..];
            assert!(rest.iter().all(|b| *b == rest[0]), "seed {seed}: half cut");
        }
    }
    block_on(file.sync()).unwrap();
    let bytes = disk.crash(CrashPlan::LoseAll).peek(p("/d/a")).unwrap();
    assert_eq!((bytes.len(), &bytes[BLOCK..]), (3 * BLOCK, &[0; 2 * BLOCK][..]));
}

// After one failed fdatasync the kernel answered the retry with success, while the data never reached the disk.
#[test]
fn after_a_failed_flush_the_retry_succeeds_and_the_data_is_lost() {
    let disk = disk();
    let (a, b) = (prepared(&disk, "/d/a", 2), prepared(&disk, "/d/b", 1));
    write(&a, 0, 7).unwrap();
    write(&b, 0, 7).unwrap();
    disk.fail_next(OpKind::Sync, "/d/a", DiskErrorKind::Io, 1);
    assert_eq!(block_on(a.sync()).unwrap_err().kind, DiskErrorKind::Io);
    block_on(a.sync()).unwrap();
    block_on(b.sync()).unwrap();
    assert_eq!(byte_at(&disk, "/d/a", 0), Some(7), "it still reads back");
    for plan in [CrashPlan::LoseAll, CrashPlan::KeepAll] {
        let left = disk.crash(plan);
        assert_eq!(
            (byte_at(&left, "/d/a", 0), byte_at(&left, "/d/b", 0)),
            (Some(0), Some(0)),
            "shared flush"
        );
    }
    write(&a, 0, 8).unwrap();
    block_on(a.sync()).unwrap();
    assert_eq!(
        byte_at(&disk.crash(CrashPlan::LoseAll), "/d/a", 0),
        Some(8),
        "a new write is a new chance"
    );
}

#[test]
fn a_failed_directory_flush_dooms_its_changes() {
    let disk = disk();
    create(&disk, "/d/a");
    disk.fail_next(OpKind::SyncDir, "/d", DiskErrorKind::Io, 1);
    assert!(block_on(disk.sync_dir(p("/d"))).is_err());
    block_on(disk.sync_dir(p("/d"))).unwrap();
    assert!(disk.peek(p("/d/a")).is_some());
    assert_eq!(disk.crash(CrashPlan::KeepAll).peek(p("/d/a")), None);
}

#[test]
fn a_full_disk_refuses_growth_and_takes_overwrites() {
    let disk = disk();
    let file = prepared(&disk, "/d/a", 2);
    disk.set_capacity(Some(3 * B));
    write(&file, 1, 1).unwrap();
    let error = block_on(file.write_at(&filled(2, 2), 2 * B)).unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::NoSpace);
    assert_eq!(
        byte_at(&disk, "/d/a", 2),
        Some(2),
        "what fitted is there: a short write"
    );
    write(&file, 0, 3).unwrap();
    let kinds = [
        block_on(file.prepare(0, 4 * B)).unwrap_err().kind,
        block_on(disk.write_small(p("/d/s"), b"x")).unwrap_err().kind,
        block_on(disk.open(p("/d/n"), OpenMode::CreateNew))
            .unwrap_err()
            .kind,
    ];
    assert_eq!(kinds, [DiskErrorKind::NoSpace; 3]);
    disk.set_capacity(None);
    block_on(disk.write_small(p("/d/s"), b"x")).unwrap();
}

#[test]
fn the_power_goes_before_inside_or_after_an_operation() {
    let run = |when| {
        let disk = disk();
        let file = prepared(&disk, "/d/a", 64);
        let op = disk.ops();
        disk.crash_at(op, when);
        let error = block_on(file.write_at(&filled(64, 9), 0)).unwrap_err();
        assert_eq!(
            (error.kind, error.detail.as_str()),
            (DiskErrorKind::Io, "power cut")
        );
        assert!(disk.power_is_off());
        assert!(block_on(file.sync()).is_err() && block_on(disk.list(p("/d"))).is_err());
        assert_eq!(disk.ops(), op + 1, "nothing is begun without power");
        disk.crash(CrashPlan::KeepAll)
            .peek(p("/d/a"))
            .unwrap()
            .iter()
            .filter(|b| **b == 9)
            .count()
    };
    assert_eq!(run(When::Before), 0);
    assert_eq!(run(When::After), 64 * BLOCK);
    assert!(run(When::Inside) % 512 == 0);
}

#[test]
fn inside_a_rename_both_outcomes_occur_and_no_third() {
    let mut outcomes = [0; 2];
    for seed in 0..64 {
        let disk = MemoryDisk::new(seed);
        block_on(disk.write_small(p("/x"), b"old")).unwrap();
        block_on(disk.write_small(p("/x.tmp"), b"new")).unwrap();
        block_on(disk.sync_dir(p("/"))).unwrap();
        disk.crash_at(disk.ops(), When::Inside);
        assert!(block_on(disk.rename(p("/x.tmp"), p("/x"))).is_err());
        let found = disk.crash(CrashPlan::KeepAll).peek(p("/x")).unwrap();
        outcomes[usize::from(found == b"new")] += 1;
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    let run = |seed| {
        let disk = MemoryDisk::new(seed);
        let file = block_on(disk.open(p("/a"), OpenMode::CreateNew)).unwrap();
        block_on(disk.sync_dir(p("/"))).unwrap();
        block_on(file.prepare(0, 8 * B)).unwrap();
        disk.crash_at(disk.ops() + 3, When::Inside);
        let ops = (0..8).map(|n| WriteOp {
            file: file.clone(),
            position: n * B,
            buf: filled(1, n as u8 + 1),
        });
        let done: Vec<bool> = block_on(disk.write_many(ops.collect()))
            .iter()
            .map(Result::is_ok)
            .collect();
        (
            done,
            disk.crash(CrashPlan::KeepAll).peek(p("/a")),
            disk.crash(CrashPlan::Random(seed)).peek(p("/a")),
        )
    };
    assert_eq!(run(5), run(5));
    assert!(
        (6..12).any(|seed| run(seed).0 != run(5).0),
        "the order of a batch is drawn"
    );
    assert_eq!(
        run(5).0.iter().filter(|ok| **ok).count(),
        3,
        "three writes before the cut"
    );
}

#[test]
fn rot_and_misdirected_writes_are_there_to_be_found() {
    let disk = disk();
    let (a, b) = (prepared(&disk, "/d/a", 1), prepared(&disk, "/d/b", 2));
    assert!(disk.flip(p("/d/a"), 100, 0x10) && !disk.flip(p("/d/a"), B, 1));
    assert_eq!(disk.crash(CrashPlan::LoseAll).peek(p("/d/a")).unwrap()[100], 0x10);
    disk.misdirect_next("/d/a", p("/d/b"), B);
    write(&a, 0, 6).unwrap();
    assert_eq!(
        (byte_at(&disk, "/d/a", 0), byte_at(&disk, "/d/b", 1)),
        (Some(0), Some(6))
    );
    drop(b);
}

#[test]
fn a_removed_directory_comes_back_in_part_until_its_parent_is_flushed() {
    let disk = disk();
    prepared(&disk, "/d/a", 1);
    block_on(disk.remove_dir_all(p("/d"))).unwrap();
    assert!(block_on(disk.list(p("/d"))).is_err());
    assert!(block_on(disk.crash(CrashPlan::LoseAll).list(p("/d"))).is_ok());
    block_on(disk.create_dir_all(p("/d/e"))).unwrap();
    let left = disk.crash(CrashPlan::LoseAll);
    let names: Vec<String> = block_on(left.list(p("/d")))
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    assert_eq!(names, ["e"], "the new directory is not the old one");
}

#[test]
fn a_small_write_can_end_at_any_of_its_steps() {
    let mut lens = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = MemoryDisk::new(seed);
        block_on(disk.write_small(p("/s"), b"first")).unwrap();
        block_on(disk.sync_dir(p("/"))).unwrap();
        disk.crash_at(disk.ops(), When::Inside);
        assert!(block_on(disk.write_small(p("/s"), &[7; 2000])).is_err());
        lens.insert(disk.crash(CrashPlan::Random(seed)).peek(p("/s")).unwrap().len());
    }
    assert!([0, 5, 2000].iter().all(|len| lens.contains(len)), "{lens:?}");
}

#[test]
fn where_a_flush_covers_its_file_alone_another_file_loses_its_overwrite() {
    use crate::disk::device::FlushScope;
    for (scope, expected) in [(FlushScope::Device, 7), (FlushScope::File, 0)] {
        let disk = disk();
        disk.set_flush_scope(scope);
        let (a, b) = (prepared(&disk, "/d/a", 1), prepared(&disk, "/d/b", 1));
        write(&a, 0, 7).unwrap();
        write(&b, 0, 7).unwrap();
        block_on(b.sync()).unwrap();
        let after = disk.crash(CrashPlan::LoseAll);
        assert_eq!(byte_at(&after, "/d/b", 0), Some(7));
        assert_eq!(byte_at(&after, "/d/a", 0), Some(expected), "{scope:?}");
        assert_eq!((disk.flush_scope(), after.flush_scope()), (scope, scope));
    }
}

#[test]
fn failed_flushes_are_counted_and_other_failures_are_not() {
    let disk = disk();
    let file = prepared(&disk, "/d/a", 1);
    let fail = |kind, error| disk.fail_next(kind, "/d", error, 1);
    fail(OpKind::Write, DiskErrorKind::Io);
    write(&file, 0, 1).unwrap_err();
    fail(OpKind::Prepare, DiskErrorKind::NoSpace);
    block_on(file.prepare(0, B)).unwrap_err();
    fail(OpKind::Rename, DiskErrorKind::Io);
    block_on(disk.rename(p("/d/a"), p("/d/b"))).unwrap_err();
    assert_eq!(disk.failed_flushes(), 0);
    fail(OpKind::Sync, DiskErrorKind::Io);
    block_on(file.sync()).unwrap_err();
    fail(OpKind::Prepare, DiskErrorKind::Io);
    block_on(file.prepare(0, B)).unwrap_err();
    fail(OpKind::SyncDir, DiskErrorKind::Io);
    block_on(disk.sync_dir(p("/d"))).unwrap_err();
    assert_eq!(disk.failed_flushes(), 3);
}
