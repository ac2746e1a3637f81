//! How reads go to the disk: in few large pieces when much is wanted, and no further than what is wanted.

use futures_lite::future::block_on;
use tailwater_storage::disk::memory::MemoryDisk;
use tailwater_storage::log::options::LogOptions;
use tailwater_storage::slab::{ReadLimits, Slab};
use tailwater_wire::ids::Offset;

use crate::support::{Log, check_content, commit, options, try_open};

const MIB: u64 = 1 << 20;
/// Records of a batch, and the bytes of a value: a batch has about 25 KiB.
const COUNT: u64 = 200;
const BYTES: usize = 120;
const BATCHES: u64 = 400;

/// A log of one segment of about 10 MiB.
fn large() -> (MemoryDisk, Log) {
    let disk = MemoryDisk::new(1);
    let segment = LogOptions {
        segment_bytes_first: 16 << 20,
        segment_bytes_max: 16 << 20,
        ..options()
    };
    let (log, _) = try_open(&disk, segment).expect("opens");
    for n in 0..BATCHES {
        commit(&log, &disk, COUNT, BYTES, 1_000 + n);
    }
    (disk, log)
}

/// A read, with how many reads of the disk it took and of how many bytes.
fn read(disk: &MemoryDisk, log: &Log, from: u64, limits: ReadLimits) -> (Slab, u64, u64) {
    let before = disk.stats();
    let slab = block_on(log.read(Offset(from), limits)).expect("reads");
    let after = disk.stats();
    (
        slab,
        after.reads - before.reads,
        after.bytes_read - before.bytes_read,
    )
}

#[test]
fn a_read_of_much_takes_few_large_pieces() {
    let (disk, log) = large();
    let limits = ReadLimits {
        bytes_max: 4 << 20,
        ..ReadLimits::default()
    };
    let (slab, reads, bytes) = read(&disk, &log, 0, limits);
    assert!(slab.bytes as u64 > 4 * MIB - 64 * 1_024, "{} bytes", slab.bytes);
    assert!(reads <= 6, "{reads} reads of the disk");
    assert!(
        bytes < slab.bytes as u64 * 3 / 2,
        "{bytes} bytes for {}",
        slab.bytes
    );
    check_content(&log, BATCHES * COUNT, &[]);
}

#[test]
fn a_read_that_is_bounded_by_records_goes_no_further_than_them() {
    let (disk, log) = large();
    let limits = ReadLimits {
        bytes_max: 4 << 20,
        records_max: 4_096,
        ..ReadLimits::default()
    };
    let (slab, reads, bytes) = read(&disk, &log, 0, limits);
    assert_eq!(slab.records, 4_000);
    assert!(reads <= 3, "{reads} reads of the disk");
    assert!(
        bytes < slab.bytes as u64 + MIB / 2,
        "{bytes} bytes for {}",
        slab.bytes
    );
}

#[test]
fn a_small_read_stays_small() {
    let (disk, log) = large();
    let limits = ReadLimits {
        bytes_max: 30 << 10,
        ..ReadLimits::default()
    };
    let (slab, _, bytes) = read(&disk, &log, COUNT * 7, limits);
    assert_eq!((slab.batches, slab.records), (1, COUNT));
    assert!(bytes < 320 << 10, "{bytes} bytes for {}", slab.bytes);
}
