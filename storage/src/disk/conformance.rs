//! What `device` promises, asked of both disks with the same questions.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Waker};

use crate::disk::device::{BLOCK, Disk, DiskErrorKind, DiskResult, File, OpenMode, WriteOp};

const B: u64 = BLOCK as u64;

/// Each case runs as a test of its own on each disk, in an empty directory of its own.
macro_rules! cases {
    ($($case:ident)+) => {
        mod memory {
            $(#[test]
            fn $case() {
                super::on_memory(super::$case);
            })+
        }
        mod uring {
            $(#[test]
            fn $case() {
                super::on_uring(super::$case);
            })+
        }
    };
}

cases! {
    unaligned_calls_are_misuse
    a_file_opened_to_read_is_not_written
    reads_are_short_at_the_end_only
    patterns_of_every_size_come_back_whole
    an_overwrite_during_a_read_leaves_old_or_new_blocks
    a_batch_answers_in_order_and_writes_everything
    a_batch_reports_the_one_that_was_wrong
    a_shared_buffer_is_readable_during_and_after_its_write
    a_dropped_write_still_happens
    a_dropped_batch_still_happens
    preparing_zeroes_and_lengthens
    an_overwrite_of_prepared_space_keeps_the_length
    length_is_cut_and_extended
    what_is_not_there_is_not_found
    a_new_file_must_be_new
    names_are_listed_in_order
    a_rename_replaces_what_was_there
    an_open_file_outlives_its_name
    small_files_are_replaced_whole
    directories_are_made_and_removed_with_all_below
    clones_are_one_open_file
    many_files_are_opened_and_closed
}

fn on_memory<F: Future<Output = ()>>(case: impl FnOnce(crate::disk::memory::MemoryDisk, PathBuf) -> F) {
    let disk = crate::disk::memory::MemoryDisk::new(7);
    let dir = PathBuf::from("/data");
    futures_lite::future::block_on(async {
        disk.create_dir_all(&dir).await.unwrap();
        case(disk, dir).await;
    });
}

fn on_uring<F: Future<Output = ()> + 'static>(
    case: impl FnOnce(crate::disk::uring::UringDisk, PathBuf) -> F + Send + 'static,
) {
    crate::disk::testing::on_executor(|dir| async move {
        let disk =
            crate::disk::uring::UringDisk::start(&dir, crate::disk::flush_watch::FailedFlushes::default())
                .await
                .unwrap();
        case(disk, dir).await;
    });
}

/// A recognizable content: no block of it equals another, nor the same block of another seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |n: u64| {
        (n ^ (seed << 32))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .to_le_bytes()
    };
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}

fn shared<D: Disk>(file: &D::File, bytes: &[u8]) -> <D::File as File>::Shared {
    let mut buf = file.alloc(bytes.len().next_multiple_of(BLOCK));
    buf[..bytes.len()].copy_from_slice(bytes);
    buf[bytes.len()..].fill(0);
    <D::File as File>::freeze(buf)
}

async fn create<D: Disk>(disk: &D, path: &Path) -> D::File {
    disk.open(path, OpenMode::CreateNew).await.unwrap()
}

async fn write<D: Disk>(file: &D::File, position: u64, bytes: &[u8]) {
    file.write_at(&shared::<D>(file, bytes), position).await.unwrap();
}

async fn whole<D: Disk>(file: &D::File) -> Vec<u8> {
    let len = file.len().await.unwrap();
    file.read_at(0, (len as usize).next_multiple_of(BLOCK).max(BLOCK))
        .await
        .unwrap()
        .to_vec()
}

#[track_caller]
fn refused<T>(result: DiskResult<T>, kind: DiskErrorKind) {
    match result {
        Ok(_) => panic!("succeeded, {kind:?} expected"),
        Err(error) => assert_eq!(error.kind, kind, "{error}"),
    }
}

async fn unaligned_calls_are_misuse<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    let buf = shared::<D>(&file, &[1; BLOCK]);
    for position in [1, 511, 512, B - 1, B + 512] {
        refused(file.write_at(&buf, position).await, DiskErrorKind::Misuse);
        refused(file.read_at(position, BLOCK).await, DiskErrorKind::Misuse);
        refused(file.prepare(position, 4 * B).await, DiskErrorKind::Misuse);
        refused(file.prepare(0, position).await, DiskErrorKind::Misuse);
    }
    for len in [0, 1, 512, BLOCK + 512] {
        refused(file.read_at(0, len).await, DiskErrorKind::Misuse);
    }
    refused(file.prepare(B, B).await, DiskErrorKind::Misuse);
    refused(file.prepare(2 * B, B).await, DiskErrorKind::Misuse);
    let batch = disk
        .write_many(vec![WriteOp {
            file: file.clone(),
            position: 7,
            buf,
        }])
        .await;
    refused(batch.into_iter().next().unwrap(), DiskErrorKind::Misuse);
    assert_eq!(file.len().await.unwrap(), 0);
}

async fn a_file_opened_to_read_is_not_written<D: Disk>(disk: D, dir: PathBuf) {
    let path = dir.join("a");
    write::<D>(&create(&disk, &path).await, 0, &pattern(1, BLOCK)).await;
    let file = disk.open(&path, OpenMode::Read).await.unwrap();
    refused(
        file.write_at(&shared::<D>(&file, &[0; BLOCK]), 0).await,
        DiskErrorKind::Misuse,
    );
    refused(file.prepare(0, B).await, DiskErrorKind::Misuse);
    refused(file.set_len(0).await, DiskErrorKind::Misuse);
    assert_eq!(whole::<D>(&file).await, pattern(1, BLOCK));
}

async fn reads_are_short_at_the_end_only<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    assert!(file.read_at(0, BLOCK).await.unwrap().is_empty(), "an empty file");
    let bytes = pattern(1, 3 * BLOCK);
    write::<D>(&file, 0, &bytes).await;
    assert_eq!(file.read_at(B, 2 * BLOCK).await.unwrap(), bytes[BLOCK..]);
    assert_eq!(file.read_at(2 * B, 4 * BLOCK).await.unwrap(), bytes[2 * BLOCK..]);
    assert!(file.read_at(3 * B, BLOCK).await.unwrap().is_empty());
    assert!(file.read_at(99 * B, BLOCK).await.unwrap().is_empty());
    file.set_len(2 * B + 100).await.unwrap();
    assert_eq!(
        file.read_at(B, 4 * BLOCK).await.unwrap(),
        bytes[BLOCK..2 * BLOCK + 100]
    );
}

async fn patterns_of_every_size_come_back_whole<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    let sizes: Vec<usize> = (1..4097)
        .step_by(61)
        .chain([511, 512, 513, 4095, 4096, 4097, 70_000])
        .collect();
    let mut position = 0;
    for size in &sizes {
        write::<D>(&file, position, &pattern(position, *size)).await;
        position += size.next_multiple_of(BLOCK) as u64;
    }
    file.sync().await.unwrap();
    position = 0;
    for size in &sizes {
        let padded = size.next_multiple_of(BLOCK);
        let read = file.read_at(position, padded).await.unwrap();
        assert_eq!(
            read[..*size],
            pattern(position, *size),
            "{size} bytes at {position}"
        );
        assert!(
            read[*size..].iter().all(|b| *b == 0),
            "padding after {size} bytes"
        );
        position += padded as u64;
    }
}

async fn an_overwrite_during_a_read_leaves_old_or_new_blocks<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    file.prepare(0, 64 * B).await.unwrap();
    for round in 1..=8u8 {
        let new = shared::<D>(&file, &vec![round; 64 * BLOCK]);
        let write = file.write_at(&new, 0);
        let read = file.read_at(0, 64 * BLOCK).await.unwrap();
        write.await.unwrap();
        for sector in read.chunks(512) {
            assert!([round - 1, round].contains(&sector[0]) && sector.iter().all(|b| *b == sector[0]));
        }
        assert_eq!(
            file.read_at(0, 64 * BLOCK).await.unwrap(),
            vec![round; 64 * BLOCK]
        );
    }
}

async fn a_batch_answers_in_order_and_writes_everything<D: Disk>(disk: D, dir: PathBuf) {
    let files = [
        create(&disk, &dir.join("a")).await,
        create(&disk, &dir.join("b")).await,
    ];
    for file in &files {
        file.prepare(0, 128 * B).await.unwrap();
    }
    let op = |n: u64| {
        let file = files[(n % 2) as usize].clone();
        let buf = shared::<D>(&file, &pattern(n, BLOCK));
        WriteOp {
            file,
            position: n * B,
            buf,
        }
    };
    let results = disk.write_many((0..128).rev().map(op).collect()).await;
    assert!(results.len() == 128 && results.iter().all(Result::is_ok));
    files[0].sync().await.unwrap();
    for n in 0..128 {
        assert_eq!(
            files[(n % 2) as usize].read_at(n * B, BLOCK).await.unwrap(),
            pattern(n, BLOCK),
            "block {n}"
        );
    }
    assert!(disk.write_many(Vec::new()).await.is_empty());
}

async fn a_batch_reports_the_one_that_was_wrong<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    let buf = shared::<D>(&file, &pattern(1, BLOCK));
    let op = |position| WriteOp {
        file: file.clone(),
        position,
        buf: buf.clone(),
    };
    let results = disk.write_many(vec![op(0), op(9), op(B)]).await;
    assert_eq!(
        results.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false, true]
    );
    assert_eq!(
        whole::<D>(&file).await,
        [pattern(1, BLOCK), pattern(1, BLOCK)].concat()
    );
}

async fn a_shared_buffer_is_readable_during_and_after_its_write<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    let bytes = pattern(3, 2 * BLOCK);
    let buf = shared::<D>(&file, &bytes);
    let view = <D::File as File>::bytes(&buf);
    let write = file.write_at(&buf, 0);
    assert_eq!(view, bytes);
    write.await.unwrap();
    drop(buf);
    drop(file);
    assert_eq!(view.slice(BLOCK..), bytes[BLOCK..], "the view keeps the memory");
}

/// Polls a future once and drops it.
fn poke(future: impl Future) {
    let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
}

async fn a_dropped_write_still_happens<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    let bytes = pattern(4, BLOCK);
    drop(file.write_at(&shared::<D>(&file, &bytes), 0));
    poke(file.write_at(&shared::<D>(&file, &bytes), B));
    poke(file.sync());
    settled::<D>(&file, 2 * B).await;
    assert_eq!(whole::<D>(&file).await, [bytes.clone(), bytes].concat());
}

async fn a_dropped_batch_still_happens<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    let bytes = pattern(5, BLOCK);
    let op = |n| WriteOp {
        file: file.clone(),
        position: n * B,
        buf: shared::<D>(&file, &bytes),
    };
    drop(disk.write_many((0..16).map(op).collect()));
    settled::<D>(&file, 16 * B).await;
    assert_eq!(whole::<D>(&file).await, bytes.repeat(16));
}

/// Waits, for at most some seconds of disk time, until this many bytes have been written.
async fn settled<D: Disk>(file: &D::File, len: u64) {
    for _ in 0..10_000 {
        let bytes = file.read_at(0, len as usize).await.unwrap();
        if bytes.len() as u64 == len && bytes.chunks(BLOCK).all(|block| block.iter().any(|b| *b != 0)) {
            return;
        }
    }
    panic!("{len} bytes never arrived");
}

async fn preparing_zeroes_and_lengthens<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    write::<D>(&file, 0, &pattern(6, 3 * BLOCK)).await;
    // More than one chunk, and not a multiple of one.
    let to = 3 * (1 << 20) + 5 * B;
    file.prepare(B, to).await.unwrap();
    let bytes = whole::<D>(&file).await;
    assert_eq!(bytes.len() as u64, to);
    assert_eq!(
        bytes[..BLOCK],
        pattern(6, BLOCK),
        "what lies before the range stays"
    );
    assert!(bytes[BLOCK..].iter().all(|b| *b == 0));
    file.prepare(2 * B, 3 * B).await.unwrap();
    assert_eq!(file.len().await.unwrap(), to, "a range inside does not shorten");
}

async fn an_overwrite_of_prepared_space_keeps_the_length<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    file.prepare(0, 16 * B).await.unwrap();
    write::<D>(&file, 5 * B, &pattern(7, 2 * BLOCK)).await;
    file.sync().await.unwrap();
    let bytes = whole::<D>(&file).await;
    assert_eq!(bytes.len(), 16 * BLOCK);
    assert_eq!(bytes[5 * BLOCK..7 * BLOCK], pattern(7, 2 * BLOCK));
    assert!(
        bytes[..5 * BLOCK]
            .iter()
            .chain(&bytes[7 * BLOCK..])
            .all(|b| *b == 0)
    );
}

async fn length_is_cut_and_extended<D: Disk>(disk: D, dir: PathBuf) {
    let file = create(&disk, &dir.join("a")).await;
    write::<D>(&file, 0, &pattern(8, 4 * BLOCK)).await;
    file.set_len(2 * B).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 2 * B);
    file.set_len(5 * B).await.unwrap();
    let bytes = whole::<D>(&file).await;
    assert_eq!(bytes.len(), 5 * BLOCK);
    assert_eq!(bytes[..2 * BLOCK], pattern(8, 4 * BLOCK)[..2 * BLOCK]);
    assert!(
        bytes[2 * BLOCK..].iter().all(|b| *b == 0),
        "what was cut does not come back"
    );
    file.set_len(0).await.unwrap();
    file.sync().await.unwrap();
    assert_eq!(file.len().await.unwrap(), 0);
}

async fn what_is_not_there_is_not_found<D: Disk>(disk: D, dir: PathBuf) {
    let (absent, below) = (dir.join("absent"), dir.join("absent/x"));
    refused(disk.open(&absent, OpenMode::Read).await, DiskErrorKind::NotFound);
    refused(
        disk.open(&absent, OpenMode::ReadWrite).await,
        DiskErrorKind::NotFound,
    );
    refused(
        disk.open(&below, OpenMode::CreateNew).await,
        DiskErrorKind::NotFound,
    );
    refused(disk.remove_file(&absent).await, DiskErrorKind::NotFound);
    refused(
        disk.rename(&absent, &dir.join("b")).await,
        DiskErrorKind::NotFound,
    );
    refused(disk.list(&absent).await, DiskErrorKind::NotFound);
    refused(disk.sync_dir(&absent).await, DiskErrorKind::NotFound);
    refused(disk.write_small(&below, b"x").await, DiskErrorKind::NotFound);
    assert_eq!(disk.read_small(&absent).await.unwrap(), None);
    assert_eq!(disk.read_small(&below).await.unwrap(), None);
    disk.remove_dir_all(&absent).await.unwrap();
    disk.write_small(&dir.join("c"), b"c").await.unwrap();
    refused(disk.rename(&dir.join("c"), &below).await, DiskErrorKind::NotFound);
    assert_eq!(
        disk.read_small(&dir.join("c")).await.unwrap(),
        Some(b"c".to_vec())
    );
}

async fn a_new_file_must_be_new<D: Disk>(disk: D, dir: PathBuf) {
    let path = dir.join("a");
    write::<D>(&create(&disk, &path).await, 0, &pattern(9, BLOCK)).await;
    refused(
        disk.open(&path, OpenMode::CreateNew).await,
        DiskErrorKind::AlreadyExists,
    );
    let file = disk.open(&path, OpenMode::ReadWrite).await.unwrap();
    assert_eq!(whole::<D>(&file).await, pattern(9, BLOCK));
}

async fn names_are_listed_in_order<D: Disk>(disk: D, dir: PathBuf) {
    assert_eq!(disk.list(&dir).await.unwrap(), []);
    for name in ["b", "a.log", "c"] {
        create(&disk, &dir.join(name)).await;
    }
    disk.create_dir_all(&dir.join("p00003")).await.unwrap();
    let names: Vec<_> = disk
        .list(&dir)
        .await
        .unwrap()
        .into_iter()
        .map(|e| (e.name, e.is_dir))
        .collect();
    let expected = [("a.log", false), ("b", false), ("c", false), ("p00003", true)];
    assert_eq!(names, expected.map(|(name, is_dir)| (name.to_owned(), is_dir)));
}

async fn a_rename_replaces_what_was_there<D: Disk>(disk: D, dir: PathBuf) {
    let (old, new) = (dir.join("x"), dir.join("x.tmp"));
    disk.write_small(&old, b"old").await.unwrap();
    disk.write_small(&new, b"new").await.unwrap();
    disk.rename(&new, &old).await.unwrap();
    disk.sync_dir(&dir).await.unwrap();
    assert_eq!(disk.read_small(&old).await.unwrap(), Some(b"new".to_vec()));
    assert_eq!(disk.read_small(&new).await.unwrap(), None);
    disk.create_dir_all(&dir.join("d")).await.unwrap();
    disk.rename(&old, &dir.join("d/x")).await.unwrap();
    assert_eq!(
        disk.read_small(&dir.join("d/x")).await.unwrap(),
        Some(b"new".to_vec())
    );
    refused(
        disk.rename(&dir.join("d/x"), &dir.join("d")).await,
        DiskErrorKind::Io,
    );
}

async fn an_open_file_outlives_its_name<D: Disk>(disk: D, dir: PathBuf) {
    let (path, moved) = (dir.join("a"), dir.join("b"));
    let file = create(&disk, &path).await;
    write::<D>(&file, 0, &pattern(1, BLOCK)).await;
    disk.rename(&path, &moved).await.unwrap();
    write::<D>(&file, B, &pattern(2, BLOCK)).await;
    assert_eq!(
        disk.read_small(&moved).await.unwrap().unwrap().len(),
        2 * BLOCK,
        "the handle follows the file"
    );
    create(&disk, &path).await;
    assert_eq!(
        file.len().await.unwrap(),
        2 * B,
        "not the length of the file that has its old name"
    );
    disk.remove_file(&moved).await.unwrap();
    disk.sync_dir(&dir).await.unwrap();
    write::<D>(&file, 0, &pattern(3, BLOCK)).await;
    file.sync().await.unwrap();
    file.prepare(2 * B, 3 * B).await.unwrap();
    assert_eq!(file.len().await.unwrap(), 3 * B);
    assert_eq!(file.read_at(0, BLOCK).await.unwrap(), pattern(3, BLOCK));
    refused(disk.open(&moved, OpenMode::Read).await, DiskErrorKind::NotFound);
}

async fn small_files_are_replaced_whole<D: Disk>(disk: D, dir: PathBuf) {
    let path = dir.join("fanout-a.offset");
    for bytes in [&pattern(1, 9000)[..], b"{\"next_offset\":98332}", b""] {
        disk.write_small(&path, bytes).await.unwrap();
        assert_eq!(disk.read_small(&path).await.unwrap().as_deref(), Some(bytes));
    }
    refused(disk.write_small(&dir, b"x").await, DiskErrorKind::Io);
    refused(disk.read_small(&dir).await, DiskErrorKind::Io);
    refused(disk.remove_file(&dir).await, DiskErrorKind::Io);
}

async fn directories_are_made_and_removed_with_all_below<D: Disk>(disk: D, dir: PathBuf) {
    let deep = dir.join("topics/orders/p00003");
    disk.create_dir_all(&deep).await.unwrap();
    disk.create_dir_all(&deep).await.unwrap();
    let file = create(&disk, &deep.join("00.log")).await;
    disk.remove_dir_all(&dir.join("topics")).await.unwrap();
    disk.sync_dir(&dir).await.unwrap();
    assert_eq!(disk.list(&dir).await.unwrap(), []);
    write::<D>(&file, 0, &pattern(1, BLOCK)).await;
    disk.create_dir_all(&deep).await.unwrap();
    assert_eq!(disk.list(&deep).await.unwrap(), []);
    disk.write_small(&dir.join("file"), b"x").await.unwrap();
    refused(
        disk.create_dir_all(&dir.join("file/below")).await,
        DiskErrorKind::Io,
    );
}

async fn clones_are_one_open_file<D: Disk>(disk: D, dir: PathBuf) {
    let path = dir.join("a");
    let file = create(&disk, &path).await;
    let (clone, other) = (file.clone(), disk.open(&path, OpenMode::Read).await.unwrap());
    drop(file);
    write::<D>(&clone, 0, &pattern(1, BLOCK)).await;
    assert_eq!(whole::<D>(&other).await, pattern(1, BLOCK));
}

async fn many_files_are_opened_and_closed<D: Disk>(disk: D, dir: PathBuf) {
    for n in 0..300 {
        let file = create(&disk, &dir.join(format!("{n:03}"))).await;
        write::<D>(&file, 0, &pattern(n, BLOCK)).await;
    }
    assert_eq!(disk.list(&dir).await.unwrap().len(), 300);
    let file = disk.open(&dir.join("123"), OpenMode::Read).await.unwrap();
    assert_eq!(whole::<D>(&file).await, pattern(123, BLOCK));
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
        let target = std::fs::read_link(fd.as_ref().unwrap().path()).unwrap_or_default();
        target.starts_with(&dir) && target.parent() == Some(&dir)
    });
    assert!(open.count() < 10, "closed files stay open");
}
