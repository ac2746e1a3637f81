//! What a segment begins with: its header, and the checkpoint of the dedup table in the blocks behind it.
//!
//! A header that is accepted is written again to the byte; a checkpoint too, from the table that it was restored to.
//!
//! Mode: 0 blocks as they are; 1 blocks are filled up with zeros and sealed, one for each [`SHORT_BLOCK`] bytes; 2 a
//! checkpoint without blocks around it.

use tailwater_storage::dedup::checkpoint::CheckpointError;
use tailwater_storage::dedup::table::DedupTable;
use tailwater_storage::disk::device::BLOCK;
use tailwater_storage::eras::{Era, Eras};
use tailwater_storage::segment::format::{SEGMENT_VERSION, SegmentHeader};
use tailwater_wire::checksum::crc;
use tailwater_wire::ids::{
    CommitTime, Epoch, Incarnation, Lineage, Offset, OriginId, OwnerEpoch, PartitionId, Writer,
};
use tailwater_wire::message::ProducerKey;

use crate::input::{join, split, u32_at};
use crate::memory;
use crate::target::Seed;

const MEND: u8 = 1;
const CHECKPOINT: u8 = 2;
/// How much of a block an input gives: blocks are mostly zeros, and an input is better short.
pub const SHORT_BLOCK: usize = 256;

/// What a table takes for each byte of its checkpoint, and beside that.
const BYTES_FOR_EACH: usize = 64;
const BYTES_BESIDE: usize = 64 << 10;

/// See the module.
pub fn check(input: &[u8]) {
    let (mode, bytes) = split(input);
    match mode % 4 {
        CHECKPOINT => check_checkpoint(bytes),
        MEND => check_blocks(&blocks(bytes)),
        _ => check_blocks(bytes),
    }
}

/// Whole, sealed blocks of an input's short ones.
fn blocks(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for short in bytes.chunks(SHORT_BLOCK) {
        let start = out.len();
        out.extend_from_slice(short);
        out.resize(start + BLOCK - 4, 0);
        let sum = crc(&out[start..]);
        out.extend_from_slice(&sum.to_le_bytes());
    }
    out
}

fn check_blocks(bytes: &[u8]) {
    let Ok(header) = SegmentHeader::decode(bytes) else {
        return;
    };
    assert_eq!(
        u32_at(bytes, BLOCK - 4),
        crc(&bytes[..BLOCK - 4]),
        "no wrong checksum is accepted"
    );
    let chain = &bytes[BLOCK..];
    let most = header.checkpoint_bytes as usize + BLOCK;
    let checkpoint = memory::within(most, || header.decode_checkpoint(chain));
    let Ok(checkpoint) = checkpoint else { return };
    let mut again = vec![0; header.data_start() as usize];
    header.encode(&checkpoint, &mut again);
    assert_eq!(again[..BLOCK], bytes[..BLOCK], "the header as it was read");
    assert_eq!(SegmentHeader::decode(&again).as_ref(), Ok(&header));
    assert_eq!(
        header.decode_checkpoint(&again[BLOCK..]).as_ref(),
        Ok(&checkpoint)
    );
    if !checkpoint.is_empty() {
        check_checkpoint(&checkpoint);
    }
}

fn check_checkpoint(bytes: &[u8]) {
    let most = BYTES_BESIDE + BYTES_FOR_EACH * bytes.len();
    let restored = memory::within(most, || DedupTable::restore(bytes));
    let Ok(table) = restored else { return };
    assert_eq!(table.checkpoint(), bytes);
    assert!(table.is_all_flushed());
    let cut = DedupTable::restore(&bytes[..bytes.len() - 1]).err();
    assert_eq!(cut, Some(CheckpointError::Short));
    for id in table.origins() {
        let watermark = table.origin(id).expect("it is in there");
        assert_eq!(watermark.appended, watermark.flushed);
        let (writer, at) = (Writer::Origin(id), watermark.flushed);
        // Whatever comes next is judged, and is no reason to panic.
        let _ = table.decide(writer, at, at.saturating_add(1), None);
        let _ = table.decide(writer, at.saturating_sub(1), at, Some(at));
    }
}

fn header(checkpoint_bytes: u32, eras: Eras) -> SegmentHeader {
    SegmentHeader {
        checkpoint_bytes,
        incarnation: Incarnation(*b"incarnat"),
        partition: PartitionId(3),
        lineage: Lineage(*b"lineage."),
        base_offset: Offset(1_000),
        nonce: 0x1122_3344_5566_7788,
        proved_through: Offset(1_010),
        created_at: CommitTime(1_700_000_000_000_000_000),
        commit_time_floor: CommitTime(1_699_999_999_000_000_000),
        previous_base: Some(Offset(100)),
        owner_epoch: OwnerEpoch(9),
        eras,
    }
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let shorten = |header: &SegmentHeader, checkpoint: &[u8]| {
        let mut bytes = vec![0; header.data_start() as usize];
        header.encode(checkpoint, &mut bytes);
        let short = bytes.chunks(BLOCK).flat_map(|block| &block[..SHORT_BLOCK]);
        short.copied().collect::<Vec<u8>>()
    };
    let mut table = DedupTable::new();
    for name in ["feed", "idle"] {
        let key = ProducerKey::Named(name.to_owned());
        table.open(&key, CommitTime(2_000)).expect("free");
    }
    table
        .open(&ProducerKey::Random([5; 16]), CommitTime(3_000))
        .expect("free");
    let checkpoint = table.checkpoint();
    let era = |below, end| Era {
        below: Offset(below),
        end: CommitTime(end),
    };
    let eras = Eras::of(vec![era(7, 70), era(900, 9)]).expect("rising");
    assert_eq!(SEGMENT_VERSION, 2, "a new version needs seeds of its own");
    vec![
        ("plain", join(MEND, &shorten(&header(0, Eras::default()), &[]))),
        ("eras", join(MEND, &shorten(&header(0, eras), &[]))),
        (
            "with-checkpoint",
            join(
                MEND,
                &shorten(&header(checkpoint.len() as u32, Eras::default()), &checkpoint),
            ),
        ),
        ("checkpoint-producers", join(CHECKPOINT, &checkpoint)),
        ("checkpoint-origin", join(CHECKPOINT, &checkpoint_of_origin())),
        ("wrong-checksum", join(0, &[0x54; BLOCK])),
    ]
}

/// A checkpoint of one origin with a mark and one without, as the format draws it.
fn checkpoint_of_origin() -> Vec<u8> {
    let origin = |id: OriginId, mark: u8| {
        let mut bytes = id.epoch.0.to_vec();
        bytes.extend_from_slice(&id.partition.0.to_le_bytes());
        bytes.extend_from_slice(&5u32.to_le_bytes());
        for number in [70u64, 75, 12, 3_000] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&[mark * 3; 20]);
        bytes.extend_from_slice(&u32::from(mark).to_le_bytes());
        bytes
    };
    let id = |byte| OriginId {
        epoch: Epoch([byte; 8]),
        partition: PartitionId(3),
    };
    let mut bytes = DedupTable::new().checkpoint();
    bytes[12..16].copy_from_slice(&2u32.to_le_bytes());
    bytes.extend(origin(id(0xAB), 1));
    bytes.extend(origin(id(0xAC), 0));
    bytes
}
