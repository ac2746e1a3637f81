//! Recovery of a partition's last segment: whatever bytes are in it, what is served afterwards was whole, in order, and
//! stays the same.
//!
//! The search finds the same in pieces as at once, and nothing whose checksum is wrong. The plan quarantines below D and
//! cuts above it. The log, opened by the production code on a simulated disk, serves exactly what the plan keeps; and a
//! power cut later it serves the same, with nothing left to repair.
//!
//! Mode: 0 the segment's data as it is; 1 with checksums and nonces made right; 2 and 3 batches are made of groups of
//! four bytes, see [`made`]. Bit 2: the topic is `written`. Bits 3 to 5: how much the header proves. Bit 6: the file
//! does not end with a block.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;

use bytes::Bytes;
use futures_lite::future::block_on;
use tailwater_storage::atomic_file;
use tailwater_storage::disk::device::{BLOCK, Disk};
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk};
use tailwater_storage::eras::Eras;
use tailwater_storage::error::{OpenError, ReadError, RecoveryReport};
use tailwater_storage::layout::segment_name;
use tailwater_storage::log::PartitionLog;
use tailwater_storage::log::options::{LogIdentity, LogOptions};
use tailwater_storage::segment::format::SegmentHeader;
use tailwater_storage::segment::recovery::{Plan, Straddles, Verdict, plan};
use tailwater_storage::segment::scan::{Scan, Scanner};
use tailwater_storage::slab::ReadLimits;
use tailwater_storage::tail_cache::TailCache;
use tailwater_wire::batch::builder::{BatchBuilder, frontier_batch};
use tailwater_wire::batch::header::{BatchHeader, BatchKind};
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::{CommitTime, Incarnation, Lineage, Offset, OwnerEpoch, PartitionId, Writer};
use tailwater_wire::limits::BATCH_ALIGN;
use tailwater_wire::meta::Durability;
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

use crate::input::{join, mend_batches, split};
use crate::memory;
use crate::target::Seed;

const MEND: u8 = 1;
const MADE: u8 = 2;
const NONCE: u64 = 77;
const BASE: u64 = 100;
const DIR: &str = "/topics/ticks/p00000";
const DATA_BYTES_MAX: usize = 256 << 10;
/// What the search takes for each byte of the segment, and beside that.
const BYTES_FOR_EACH: usize = 16;
const BYTES_BESIDE: usize = 64 << 10;

/// A batch that is served: first offset, offset behind the last, crc of the body.
type Served = (u64, u64, u32);

/// See the module.
pub fn check(input: &[u8]) {
    let (mode, bytes) = split(input);
    let mut data = match mode & 3 {
        0 => bytes.to_vec(),
        MEND => {
            let mut bytes = bytes.to_vec();
            mend_batches(&mut bytes, Some(NONCE));
            bytes
        }
        _ => made(bytes),
    };
    data.truncate(DATA_BYTES_MAX);
    if mode & 0x40 == 0 {
        data.resize(data.len().next_multiple_of(BLOCK), 0);
    }
    let header = header(Offset(BASE + u64::from(mode >> 3 & 7)));
    let most = BYTES_BESIDE + BYTES_FOR_EACH * data.len();
    let whole = memory::within(most, || scan(&header, &data, data.len().max(1)));
    for piece in [BATCH_ALIGN, 3 * BATCH_ALIGN, BLOCK] {
        assert_eq!(whole, scan(&header, &data, piece), "pieces of {piece}");
    }
    check_scan(&whole, &header, &data);
    let planned = plan(
        header.base_offset,
        header.proved_through,
        header.data_start(),
        &whole,
    );
    if let Ok(plan) = &planned {
        check_plan(plan, &header, &whole);
    }
    let durability = if mode & 4 == 0 {
        Durability::Fsync
    } else {
        Durability::Written
    };
    check_log(&header, &data, durability, &whole, &planned);
}

fn header(proved_through: Offset) -> SegmentHeader {
    SegmentHeader {
        checkpoint_bytes: 0,
        incarnation: Incarnation(*b"incarnat"),
        partition: PartitionId(0),
        lineage: Lineage(*b"lineage."),
        base_offset: Offset(BASE),
        nonce: NONCE,
        proved_through,
        created_at: CommitTime(5),
        commit_time_floor: CommitTime(4),
        previous_base: None,
        owner_epoch: OwnerEpoch(1),
        eras: Eras::default(),
    }
}

fn scan(header: &SegmentHeader, data: &[u8], piece: usize) -> Scan {
    let mut scanner = Scanner::new(header.nonce, header.data_start());
    data.chunks(piece).for_each(|piece| scanner.push(piece));
    scanner.finish()
}

fn check_scan(scan: &Scan, header: &SegmentHeader, data: &[u8]) {
    let mut end = header.data_start();
    let file_end = end + data.len() as u64;
    for found in &scan.found {
        assert!(found.position >= end && found.end_position() <= file_end);
        let view = BatchView::parse(&data[(found.position - header.data_start()) as usize..]);
        let view = view.expect("no batch with a wrong checksum is found");
        assert_eq!(
            (view.header(), found.header.segment_nonce),
            (&found.header, header.nonce)
        );
        end = found.end_position();
    }
    assert!(scan.junk_end <= file_end && scan.bytes == data.len() as u64);
}

fn check_plan(plan: &Plan, header: &SegmentHeader, scan: &Scan) {
    let d = plan.proved_through;
    assert!(d >= header.proved_through && plan.next_offset >= d);
    assert!(scan.found.iter().all(|found| found.header.durable_through <= d));
    // What is kept and what is quarantined follow each other from the base to the end without a gap.
    let mut parts: Vec<(Offset, Offset)> = plan
        .kept
        .iter()
        .map(|found| (found.header.base_offset, found.header.end_offset()))
        .chain(
            plan.holes
                .iter()
                .map(|hole| (hole.offsets.start, hole.offsets.end)),
        )
        .collect();
    parts.sort_unstable();
    let mut next = header.base_offset;
    for (from, to) in parts {
        assert!(from == next && to > from, "no gap and no overlap at {next}");
        next = to;
    }
    assert_eq!(next, plan.next_offset);
    assert!(
        plan.holes.iter().all(|hole| hole.offsets.end <= d),
        "only what was proved is quarantined"
    );
    let positions = plan
        .kept
        .windows(2)
        .all(|pair| pair[0].position < pair[1].position);
    assert!(positions && plan.kept.iter().all(|found| scan.found.contains(found)));
    let proved = plan.kept.iter().take_while(|found| found.header.base_offset < d);
    assert_eq!(proved.count(), plan.kept_proved);
    // Judged once more with nothing but what it kept, a segment is worth the same.
    let kept = Scan {
        found: plan.kept.clone(),
        ..Scan::default()
    };
    let again = self::plan(header.base_offset, d, header.data_start(), &kept).expect("judged before");
    assert_eq!(
        (&again.kept, &again.holes, again.next_offset, again.dropped),
        (&plan.kept, &plan.holes, plan.next_offset, 0)
    );
    if let Verdict::Continue { position } = plan.verdict {
        assert!(position >= scan.junk_end && position >= scan.found_end());
        assert!(plan.kept_proved == plan.kept.len() && plan.next_offset == d);
    }
}

type Log = Rc<PartitionLog<MemoryDisk>>;

fn check_log(
    header: &SegmentHeader,
    data: &[u8],
    durability: Durability,
    scan: &Scan,
    planned: &Result<Plan, Straddles>,
) {
    let mut file = vec![0; header.data_start() as usize];
    header.encode(&[], &mut file);
    file.extend_from_slice(data);
    let disk = MemoryDisk::new(1);
    block_on(disk.create_dir_all(Path::new(DIR))).expect("no faults");
    let path = Path::new(DIR).join(segment_name(header.base_offset));
    block_on(atomic_file::replace(&disk, &path, 0, &file)).expect("no faults");
    let (log, report) = match open(&disk, durability) {
        Ok(opened) => opened,
        Err(OpenError::NewerVersion { .. }) => return assert!(scan.newer_version.is_some()),
        Err(OpenError::Inconsistent { .. }) => return assert!(planned.is_err()),
        Err(error) => panic!("refused for another reason: {error}"),
    };
    assert!(scan.newer_version.is_none());
    let plan = planned
        .as_ref()
        .expect("a log that contradicts itself is refused");
    assert_eq!(log.next_offset(), plan.next_offset);
    let quarantined: Vec<_> = plan.holes.iter().map(|hole| hole.offsets.clone()).collect();
    assert_eq!(report.quarantined, quarantined);
    let kept: Vec<Served> = plan.kept.iter().map(|found| served(&found.header)).collect();
    let Some(read) = read_all(&log) else {
        return assert!(overlap(scan), "a sound segment reads");
    };
    if !read.whole {
        return;
    }
    let read = (read.batches, read.gone);
    assert_eq!(read, (kept.clone(), quarantined.clone()));
    drop(log);
    if overlap(scan) {
        // Of sound batches that overlap, or lie below the base, the next start may keep others: the sealed segment is judged by its own end.
        return;
    }
    // What recovery did is durable, and there is nothing left to do.
    let (log, report) = open(&disk.crash(CrashPlan::LoseAll), durability).expect("opens again");
    assert_eq!(
        (report.cut_at, report.dropped_batches, report.copied_batches),
        (None, 0, 0)
    );
    assert_eq!(log.next_offset(), plan.next_offset);
    let read = read_all(&log).expect("it reads as before");
    assert!(!read.whole || (read.batches, read.gone) == (kept, quarantined));
}

fn open(disk: &MemoryDisk, durability: Durability) -> Result<(Log, RecoveryReport), OpenError> {
    let identity = LogIdentity {
        topic: "ticks".parse().expect("a name"),
        incarnation: Incarnation(*b"incarnat"),
        partition: PartitionId(0),
    };
    let options = LogOptions {
        durability,
        segment_bytes_first: 2 * BLOCK as u64,
        segment_bytes_max: 64 << 10,
        tail_cache: TailCache::shared(0),
        ..LogOptions::default()
    };
    let now = CommitTime(1_000_000);
    block_on(PartitionLog::open(
        disk.clone(),
        PathBuf::from(DIR),
        identity,
        options,
        now,
        Rc::new(|| 0x9E37_79B9),
    ))
}

fn served(header: &BatchHeader) -> Served {
    (header.base_offset.0, header.end_offset().0, header.body_crc)
}

/// What a log serves.
struct ReadBack {
    batches: Vec<Served>,
    /// What is said to be gone in between; a read may tell it in parts.
    gone: Vec<Range<Offset>>,
    /// Every body is one. Where a checksum holds and the body is none, which no owner takes in, recovery quarantines the
    /// batch; a reader looks at checksums alone, hands it out, and leaves the refusal to the consumer.
    whole: bool,
}

/// None when a read finds the segment unstable: it does so with sound batches that overlap, which no owner writes.
fn read_all(log: &Log) -> Option<ReadBack> {
    let (mut batches, mut whole) = (Vec::new(), true);
    let (mut gone, mut from) = (Vec::<Range<Offset>>::new(), log.log_start());
    while from < log.high_water_mark() {
        let slab = match block_on(log.read(from, ReadLimits::default())) {
            Err(ReadError::Unstable { .. }) => return None,
            read => read.expect("it reads"),
        };
        assert!(slab.next_offset > from, "a read goes on");
        for run in &slab.runs {
            let mut rest = &run[..];
            while !rest.is_empty() {
                let header = BatchHeader::decode(rest).expect("whole batches");
                let (batch, others) = rest.split_at(header.batch_len());
                whole &= BatchView::parse(batch).is_ok();
                batches.push(served(&header));
                rest = others;
            }
        }
        for part in slab.quarantined {
            match gone.last_mut().filter(|last| last.end == part.start) {
                Some(last) => last.end = part.end,
                None => gone.push(part),
            }
        }
        from = slab.next_offset;
    }
    Some(ReadBack { batches, gone, whole })
}

/// Whether sound batches overlap each other, or what lies below the segment's base.
fn overlap(scan: &Scan) -> bool {
    let batches = scan.found.iter().map(|found| served(&found.header));
    let mut ranges: Vec<Served> = batches.filter(|(from, to, _)| from < to).collect();
    ranges.sort_unstable();
    ranges.iter().any(|&(from, ..)| from < BASE) || ranges.windows(2).any(|pair| pair[0].1 > pair[1].0)
}

/// Batches by a script of groups of four bytes: how many records (0 is a frontier) and what goes wrong; how far the
/// first offset lies from where the last batch ended; how far below that the frontier lies; what lies between.
#[must_use]
pub fn made(script: &[u8]) -> Vec<u8> {
    static BODIES: OnceLock<Vec<Bytes>> = OnceLock::new();
    let bodies = BODIES.get_or_init(|| (0..4).map(body).collect());
    let (mut out, mut next) = (Vec::new(), BASE);
    for group in script.chunks_exact(4).take(512) {
        let (count, wrong) = (group[0] & 3, group[0] >> 2);
        let base = next.saturating_add_signed(i64::from(group[1] as i8));
        match group[3] & 3 {
            1 => out.resize(out.len().next_multiple_of(BLOCK), 0),
            2 => out.resize(out.len() + BATCH_ALIGN, 0),
            3 => out.resize(out.len() + BATCH_ALIGN, group[3]),
            _ => {}
        }
        let at = out.len();
        out.extend_from_slice(&bodies[usize::from(count)]);
        let mut header = BatchHeader::decode(&out[at..]).expect("built");
        header.base_offset = Offset(base);
        header.durable_through = Offset(base.saturating_add_signed(-i64::from(group[2] as i8)));
        header.segment_nonce = NONCE + u64::from(wrong & 7 == 1);
        header.commit_time = CommitTime(10 + u64::from(group[3] >> 2));
        header.encode(&mut out[at..]);
        match wrong & 7 {
            2 => out[at + 100] ^= 1,
            3 if count > 0 => out[at + 130] ^= 1,
            4 => out.truncate(at + BATCH_ALIGN),
            _ => {}
        }
        next = base.saturating_add(u64::from(count));
    }
    out
}

fn body(records: u8) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    for n in 0..records {
        let record = Record {
            value: Bytes::copy_from_slice(&[records, n]),
            ..Record::default()
        };
        builder.push(&record).expect("fits");
    }
    let built = builder
        .finish(Writer::Anonymous, 0)
        .unwrap_or_else(frontier_batch);
    let kind = BatchView::parse(&built).map(|view| view.header().kind);
    assert_eq!(kind == Ok(BatchKind::Frontier), records == 0);
    built
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    // Count and fault, distance, frontier, padding: as `made` reads them.
    let two_and_a_frontier: &[u8] = &[2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 1];
    let rot_below: &[u8] = &[2, 0, 0, 1, 2, 2, 0, 1, 0, 0, 0, 1];
    let torn: &[u8] = &[2, 0, 0, 1, 2 | (3 << 2), 0, 2, 1, 1, 0, 4, 1];
    let misplaced: &[u8] = &[1, 0, 0, 1, 1, 4, 0, 1, 1, 252, 0, 1, 1, 0, 0, 1];
    let straddling: &[u8] = &[3, 0, 0, 1, 0, 0, 1, 1];
    vec![
        ("empty", join(0, &[])),
        ("clean", join(MADE, two_and_a_frontier)),
        ("clean-bytes", join(0, &made(two_and_a_frontier))),
        ("clean-bytes-mended", join(MEND, &made(two_and_a_frontier))),
        ("unproved", join(MADE, &two_and_a_frontier[..8])),
        ("unproved-written", join(MADE | 4, &two_and_a_frontier[..8])),
        ("rot-below", join(MADE, rot_below)),
        ("torn", join(MADE, torn)),
        ("misplaced", join(MADE, misplaced)),
        ("frontier-inside-a-batch", join(MADE, straddling)),
        (
            "proved-by-the-header",
            join(MADE | 5 << 3, &two_and_a_frontier[..8]),
        ),
        ("cut-file", join(MADE | 0x40, two_and_a_frontier)),
        ("stale-nonce", join(MADE, &[2 | (1 << 2), 0, 0, 1])),
    ]
}
