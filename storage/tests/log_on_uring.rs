//! The partition log on the real disk: what the simulated one cannot show is that buffers, reads and rolls fit glommio.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;

use bytes::Bytes;
use tailwater_storage::disk::executor::{ExecutorOptions, spawn};
use tailwater_storage::disk::flush_watch::FailedFlushes;
use tailwater_storage::disk::uring::UringDisk;
use tailwater_storage::disk::watchdog::{Watchdog, WatchdogOptions};
use tailwater_storage::log::PartitionLog;
use tailwater_storage::log::options::{LogIdentity, LogOptions};
use tailwater_storage::log::round::commit_round;
use tailwater_storage::slab::ReadLimits;
use tailwater_storage::tail_cache::TailCache;
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::batch::view::{BatchIter, BatchView};
use tailwater_wire::ids::{CommitTime, Incarnation, Offset, PartitionId, Writer};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

type Log = Rc<PartitionLog<UringDisk>>;

fn batch(first: u64, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 23);
    let mut value = first.to_le_bytes().to_vec();
    value.resize(8 + bytes, first as u8);
    let record = Record {
        value: value.into(),
        ..Record::default()
    };
    builder.push(&record).unwrap();
    builder.finish(Writer::Anonymous, 0).unwrap()
}

async fn open(disk: &UringDisk, dir: PathBuf, partition: u32, cache_bytes: usize) -> Log {
    let identity = LogIdentity {
        topic: "ticks".parse().unwrap(),
        incarnation: Incarnation([1; 8]),
        partition: PartitionId(partition),
    };
    let options = LogOptions {
        segment_bytes_first: 256 << 10,
        segment_bytes_max: 2 << 20,
        tail_cache: TailCache::shared(cache_bytes),
        ..LogOptions::default()
    };
    let next = Cell::new(std::process::id().into());
    let random = Rc::new(move || {
        next.set(u64::wrapping_mul(next.get(), 6_364_136_223_846_793_005) | 1);
        next.get() + u64::from(partition)
    });
    let opened = PartitionLog::open(disk.clone(), dir, identity, options, CommitTime(1), random);
    opened.await.expect("opens").0
}

async fn check(log: &Log, end: u64) {
    let (mut from, mut next) = (Offset(0), 0);
    while from.0 < end {
        let limits = ReadLimits {
            bytes_max: 3 << 20,
            ..ReadLimits::default()
        };
        let slab = log.read(from, limits).await.expect("reads");
        assert!(slab.quarantined.is_empty());
        for view in slab.runs.iter().flat_map(|run| BatchIter::new(run)) {
            let view = view.expect("whole batches");
            assert_eq!(view.header().base_offset, Offset(next));
            assert_eq!(view.record(0).unwrap().value[..8], next.to_le_bytes());
            next += 1;
        }
        from = slab.next_offset;
    }
    assert_eq!((next, log.high_water_mark()), (end, Offset(end)));
}

async fn run(root: PathBuf) {
    let disk = UringDisk::start(&root, FailedFlushes::default())
        .await
        .expect("a disk");
    let dirs = [root.join("p00000"), root.join("p00001")];
    for (life, cache_bytes) in [(0, 0), (1, 1 << 20), (2, 0)] {
        let mut logs = Vec::new();
        for (partition, dir) in dirs.iter().enumerate() {
            logs.push(open(&disk, dir.clone(), partition as u32, cache_bytes).await);
        }
        for step in 0..30usize {
            let now = CommitTime(1_000 + step as u64);
            let mut waits = Vec::new();
            for log in &logs {
                // Small ones, some that no 256 KiB read holds whole, and one larger than any segment.
                for bytes in [
                    100,
                    [3_000, 40_000, 300_000][step % 3],
                    if step == 17 { 5 << 20 } else { 10 },
                ] {
                    let bytes = batch(log.next_offset().0, bytes);
                    let view = BatchView::parse(&bytes).unwrap();
                    let end = log.append(bytes.clone(), &view, now, None).expect("appends").end;
                    waits.push(log.committed(end));
                }
            }
            for log in logs.iter().filter(|log| log.needs_preparation()) {
                log.prepare_next().await.expect("prepares");
            }
            while logs.iter().any(|log| log.needs_round()) {
                commit_round(&disk, &logs, now).await;
            }
            for wait in waits {
                wait.await.expect("committed");
            }
        }
        for log in &logs {
            check(log, 90 * (life + 1)).await;
            // The second life ends as a killed process does.
            if life != 1 {
                log.close(CommitTime(9_000)).await.expect("closes");
            }
        }
    }
}

fn on_an_executor<F: Future<Output = ()> + 'static>(run: impl FnOnce(PathBuf) -> F + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    let watchdog = Watchdog::start(WatchdogOptions::default(), Box::new(|_, _| {})).unwrap();
    let options = ExecutorOptions {
        io_memory_bytes: 1 << 20,
        ..ExecutorOptions::default()
    };
    spawn(&options, &watchdog, move || run(path))
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_log_lives_on_the_real_disk() {
    on_an_executor(run);
}

/// Commits one record to a batch and one batch to a round, then closes.
async fn fill(disk: &UringDisk, log: &Log, records: u64) {
    for n in 0..records {
        let bytes = batch(log.next_offset().0, 9_000);
        let view = BatchView::parse(&bytes).unwrap();
        let end = log
            .append(bytes.clone(), &view, CommitTime(n), None)
            .expect("appends")
            .end;
        let committed = log.committed(end);
        while log.needs_round() {
            commit_round(disk, std::slice::from_ref(log), CommitTime(n)).await;
        }
        committed.await.expect("committed");
    }
    log.close(CommitTime(9_000)).await.expect("closes");
}

/// How many records a log gives, and what it passes over.
async fn read_through(log: &Log) -> (u64, Vec<std::ops::Range<Offset>>) {
    let (mut from, mut records, mut quarantined) = (log.log_start(), 0, Vec::new());
    while from < log.high_water_mark() {
        let slab = log.read(from, ReadLimits::default()).await.expect("reads");
        records += slab.records;
        quarantined.extend(slab.quarantined.iter().cloned());
        from = slab.next_offset;
    }
    (records, quarantined)
}

// Incident: a sealed segment was truncated to a length that is no multiple of a block while the node was stopped, and
// every read of the partition failed with `position or length is not a multiple of 4096`.
async fn cut_at_rest(root: PathBuf) {
    const RECORDS: u64 = 60;
    let disk = UringDisk::start(&root, FailedFlushes::default())
        .await
        .expect("a disk");
    for (n, len) in [
        0,
        1,
        100,
        4_095,
        4_096,
        4_097,
        100_000,
        200_000,
        200_704,
        (256 << 10) - 1,
    ]
    .into_iter()
    .enumerate()
    {
        let dir = root.join(format!("p{n:05}"));
        fill(&disk, &open(&disk, dir.clone(), n as u32, 0).await, RECORDS).await;
        let first = dir.join("00000000000000000000.log");
        std::fs::File::options()
            .write(true)
            .open(&first)
            .and_then(|file| file.set_len(len))
            .unwrap();
        let log = open(&disk, dir.clone(), n as u32, 0).await;
        let (records, quarantined) = read_through(&log).await;
        let lost: u64 = quarantined.iter().map(|range| range.end.0 - range.start.0).sum();
        assert_eq!(
            (records + lost, quarantined.len() <= 1),
            (RECORDS, true),
            "cut to {len}"
        );
        // Record n lies in 3 blocks from 2 + 3n on; 20 of them fill the segment, with two blocks of zeros behind.
        let whole = len.saturating_sub(8_192).div_ceil(4_096) / 3;
        let lost_from = Some(Offset(whole)).filter(|_| whole < 20);
        assert_eq!(
            quarantined.first().map(|range| range.start),
            lost_from,
            "cut to {len}"
        );
        log.close(CommitTime(9_000)).await.expect("closes");
        drop(log);
        // The active one, by the same lengths where it still has its header and checkpoint.
        let last = segment_names(&dir).pop().unwrap();
        if len > 8_192 {
            let file = std::fs::File::options().write(true).open(&last).unwrap();
            file.set_len(file.metadata().unwrap().len().min(len) - 1).unwrap();
            let log = open(&disk, dir, n as u32, 0).await;
            let (records, quarantined) = read_through(&log).await;
            assert!(quarantined.len() <= 1, "cut to {len}");
            fill(&disk, &log, 10).await;
            let log = open(&disk, log.dir().to_owned(), n as u32, 0).await;
            assert_eq!(read_through(&log).await, (records + 10, quarantined));
        }
    }
}

fn segment_names(dir: &std::path::Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<PathBuf> = names
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .collect();
    logs.sort();
    logs
}

#[test]
fn a_segment_that_was_cut_is_read_up_to_the_cut() {
    on_an_executor(cut_at_rest);
}
