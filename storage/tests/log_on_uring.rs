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

#[test]
fn a_log_lives_on_the_real_disk() {
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
