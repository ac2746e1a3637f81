//! A log on a simulated disk, with records whose values tell which they are.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use futures_lite::future::block_on;
use tailwater_storage::disk::memory::MemoryDisk;
use tailwater_storage::error::{AppendError, OpenError, ReadError, RecoveryReport};
use tailwater_storage::log::PartitionLog;
use tailwater_storage::log::options::{Appended, LogIdentity, LogOptions, RemovedSegment};
use tailwater_storage::log::round::{RoundOutcome, commit_round};
use tailwater_storage::proof::Accounted;
use tailwater_storage::slab::{ReadLimits, Slab};
use tailwater_storage::tail_cache::TailCache;
use tailwater_wire::batch::builder::{BatchBuilder, OriginStamp};
use tailwater_wire::batch::view::{BatchIter, BatchView};
use tailwater_wire::ids::{CommitTime, Incarnation, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::message::ProducerKey;
use tailwater_wire::meta::Retention;
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

pub type Log = Rc<PartitionLog<MemoryDisk>>;

pub const DIR: &str = "/topics/ticks/p00000";

pub fn identity() -> LogIdentity {
    LogIdentity {
        topic: "ticks".parse().unwrap(),
        incarnation: Incarnation(*b"incarnat"),
        partition: PartitionId(0),
    }
}

/// Small segments, and no cache unless a test asks for one: what is read comes from the disk.
pub fn options() -> LogOptions {
    LogOptions {
        segment_bytes_first: 32 << 10,
        segment_bytes_max: 128 << 10,
        index_interval_bytes: 8 << 10,
        tail_cache: TailCache::shared(0),
        ..LogOptions::default()
    }
}

/// Numbers that never repeat, also not between two opens.
pub fn numbers() -> Rc<dyn Fn() -> u64> {
    thread_local!(static NEXT: Cell<u64> = const { Cell::new(0x9E37_79B9) });
    Rc::new(|| {
        NEXT.with(|next| {
            next.set(next.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            next.get()
        })
    })
}

pub fn at(ms: u64) -> CommitTime {
    CommitTime::from_millis(ms)
}

pub fn try_open(disk: &MemoryDisk, options: LogOptions) -> Result<(Log, RecoveryReport), OpenError> {
    try_open_as(disk, DIR, identity(), options)
}

pub fn try_open_as(
    disk: &MemoryDisk,
    dir: &str,
    identity: LogIdentity,
    options: LogOptions,
) -> Result<(Log, RecoveryReport), OpenError> {
    let dir = PathBuf::from(dir);
    block_on(PartitionLog::open(
        disk.clone(),
        dir,
        identity,
        options,
        at(1_000),
        numbers(),
    ))
}

pub fn open(disk: &MemoryDisk) -> (Log, RecoveryReport) {
    try_open(disk, options()).expect("opens")
}

/// A batch of the records numbered `[first, first + count)`, with values of `bytes` bytes.
pub fn batch_of(writer: Writer, previous: u64, first: u64, count: u64, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 23);
    for n in first..first + count {
        let mut value = n.to_le_bytes().to_vec();
        value.resize(bytes.max(8), n as u8);
        let record = Record {
            value: value.into(),
            ..Record::default()
        };
        builder.push(&record).unwrap();
    }
    builder.finish(writer, previous).unwrap()
}

pub fn batch(first: u64, count: u64, bytes: usize) -> Bytes {
    batch_of(Writer::Anonymous, 0, first, count, bytes)
}

pub fn try_append(log: &Log, bytes: &Bytes, ms: u64) -> Result<Appended, AppendError> {
    let view = BatchView::parse(bytes).unwrap();
    log.append(bytes.clone(), &view, at(ms), None)
}

/// Appends the records that come next by their number: record n gets offset n.
pub fn append(log: &Log, count: u64, bytes: usize, ms: u64) -> Appended {
    let first = log.next_offset().0;
    let appended = try_append(log, &batch(first, count, bytes), ms).expect("appends");
    assert_eq!(appended.base_offset, Some(Offset(first)));
    appended
}

/// Removes what retention lets go of, with nobody to account for.
pub fn expire(log: &Log, ms: u64, retention: Retention) -> Vec<RemovedSegment> {
    let accounted = log.expired(at(ms), retention).map(Accounted::by_ledgers);
    let removed = accounted.map(|accounted| block_on(log.remove_expired(&accounted)).unwrap());
    removed.unwrap_or_default()
}

pub fn round(log: &Log, disk: &MemoryDisk, ms: u64) -> RoundOutcome {
    block_on(commit_round(disk, std::slice::from_ref(log), at(ms)))
}

/// Appends and commits; the records must be committed then.
pub fn commit(log: &Log, disk: &MemoryDisk, count: u64, bytes: usize, ms: u64) {
    let appended = append(log, count, bytes, ms);
    let committed = log.committed(appended.end);
    while log.needs_round() {
        round(log, disk, ms);
    }
    block_on(committed).expect("committed");
}

/// One record of a slab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    pub offset: u64,
    pub value: Vec<u8>,
    pub commit_time: CommitTime,
}

pub fn records(slab: &Slab) -> Vec<Read> {
    let mut out = Vec::new();
    for run in &slab.runs {
        for view in BatchIter::new(run) {
            let view = view.expect("whole batches");
            let commit_time = view.header().commit_time;
            out.extend(view.records().map(|record| Read {
                offset: record.offset.0,
                value: record.value.to_vec(),
                commit_time,
            }));
        }
    }
    out
}

/// Everything in the log, with what was quarantined on the way.
pub fn read_all(log: &Log, limits: ReadLimits) -> Result<(Vec<Read>, Vec<std::ops::Range<u64>>), ReadError> {
    let (mut out, mut quarantined) = (Vec::new(), Vec::new());
    let mut from = log.log_start();
    while from < log.high_water_mark() {
        let slab = block_on(log.read(from, limits))?;
        assert!(
            slab.next_offset > from,
            "a read below the high-water mark goes on"
        );
        out.extend(records(&slab));
        quarantined.extend(slab.quarantined.iter().map(|r| r.start.0..r.end.0));
        from = slab.next_offset;
    }
    Ok((out, quarantined))
}

/// Checks that the log holds the records `[first, end)`, but for `missing`, each with the value of its number and with
/// commit times that never fall.
#[track_caller]
pub fn check_content(log: &Log, end: u64, missing: &[std::ops::Range<u64>]) {
    let (read, quarantined) = read_all(log, ReadLimits::default()).expect("reads");
    let first = log.log_start().0;
    let expected: Vec<u64> = (first..end)
        .filter(|n| !missing.iter().any(|range| range.contains(n)))
        .collect();
    let offsets: Vec<u64> = read.iter().map(|r| r.offset).collect();
    assert_eq!(offsets, expected);
    for record in &read {
        assert_eq!(
            record.value[..8],
            record.offset.to_le_bytes(),
            "offset {}",
            record.offset
        );
    }
    assert!(
        read.is_sorted_by_key(|r| r.commit_time),
        "commit times never fall"
    );
    assert_eq!(quarantined, missing);
    assert_eq!((log.high_water_mark().0, log.next_offset().0), (end, end));
}

/// The log's segments, by name.
pub fn segments(disk: &MemoryDisk) -> Vec<PathBuf> {
    use tailwater_storage::disk::device::Disk;
    let names = block_on(disk.list(Path::new(DIR))).unwrap();
    names
        .into_iter()
        .filter(|entry| entry.name.ends_with(".log") && !entry.name.starts_with("prepared"))
        .map(|entry| Path::new(DIR).join(entry.name))
        .collect()
}

/// Where the batch with this base offset begins in a file.
pub fn position_of(disk: &MemoryDisk, path: &Path, base: u64) -> u64 {
    let bytes = disk.peek(path).unwrap();
    let found = (0..bytes.len()).step_by(64).find(|&at| {
        BatchView::parse(&bytes[at..])
            .is_ok_and(|view| view.header().base_offset.0 == base && !view.is_empty())
    });
    found.expect("the batch is there") as u64
}

/// A child batch with the parent's record `end - 1`, which follows `previous` and leaves `end`.
pub fn copy_batch(id: OriginId, previous: u64, end: u64) -> Bytes {
    let mut parent = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    parent.push(&Record::default()).unwrap();
    let parent = parent.finish(Writer::Anonymous, 0).unwrap();
    let view = BatchView::parse(&parent).unwrap();
    let mut record = view.record(0).unwrap();
    record.offset = Offset(end - 1);
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    builder.push_copy(&record, 0).unwrap();
    let stamp = OriginStamp {
        end: Offset(end),
        parent_crc: 77,
        ..OriginStamp::default()
    };
    builder
        .finish_copy(Writer::Origin(id), Offset(previous), stamp)
        .unwrap()
}

/// Lets a random producer be known, on the disk as well.
pub fn open_random(log: &Log, disk: &MemoryDisk, id: [u8; 16]) {
    let (opened, known) = log.open_producer(&ProducerKey::Random(id), at(1)).unwrap();
    assert_eq!((opened.last_sequence, opened.is_new), (0, true));
    round(log, disk, 1);
    block_on(known).unwrap();
}
