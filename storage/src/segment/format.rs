//! The start of a segment file: one header block, then the checkpoint of the dedup table as a chain of blocks.
//!
//! ```text
//! block 0, the header                                 | block 1.., the checkpoint, if there is one
//!    0  magic "TWSG"            u32                   |    0  magic "TWCK"             u32
//!    4  format version          u16                   |    4  number in the chain, 1.. u32
//!    6  zero                    u16                   |    8  segment nonce            u64
//!    8  blocks before the data  u32                   |   16  payload bytes here       u32
//!   12  checkpoint bytes        u32                   |   20  payload, then zeros
//!   16  topic incarnation        8 bytes              | 4092  crc32c of bytes 0..4092
//!   24  partition               u32                   |
//!   28  zero                    u32                   | then the data, from a block boundary on: chunks of batches
//!   32  lineage                  8 bytes              |
//!   40  base offset             u64                   | +---------+---------+-------+------+--------------+------
//!   48  segment nonce           u64                   | | batch   | batch   | batch | 0000 | batch        | 0000..
//!   56  proved through          u64                   | +---------+---------+-------+------+--------------+------
//!   64  created at, ns          u64                   | ^ 4 KiB   ^ 64 B                   ^ 4 KiB
//!   72  commit time floor, ns   u64                   |
//!   80  previous segment's base u64 (!0 when none)    | What follows the last chunk are the zeros that the
//!   88  owner epoch             u64                   | segment was prepared with.
//!   96  eras                    u32, version 2       |
//!  100  zero                    u32                   |
//!  104  each: below, offset     u64; end, ns u64      |
//!       zeros                                         |
//! 4092  crc32c of bytes 0..4092                       |
//! ```
//!
//! The header is written and flushed before the file gets its name, and never changed: a file with a segment's name
//! has a whole header, or has rotted. The nonce is random, stands in every batch of the segment too, and thereby tells
//! them from whatever else lies in these blocks. `proved through`: every offset below it was flushed, in this file or
//! an earlier one, before the file got its name. The commit time floor is the last commit time below the base, so that
//! commit times cannot go back when all earlier segments are gone; it is also the last commit time of the previous
//! segment, which is how retention and `find_time` judge a sealed segment without opening it. The previous segment's
//! base makes a missing segment visible. Eras (see [`crate::eras`]) stand in version 2 alone, which is written only
//! where there are any; the commit time floor counts as they say.

use tailwater_wire::checksum::crc;
use tailwater_wire::ids::{CommitTime, Incarnation, Lineage, Offset, OwnerEpoch, PartitionId};
use tailwater_wire::limits::{CHILDREN_MAX, PARTITIONS_MAX};

use crate::dedup::checkpoint::checkpoint_bytes_max;
use crate::disk::device::BLOCK;
use crate::eras::{ERAS_MAX, Era, Eras};

/// The first four bytes of every segment.
pub const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"TWSG");
/// The first four bytes of every checkpoint block.
pub const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"TWCK");
/// The newest version of the segment format that this code writes and reads: that of a segment whose log has eras.
pub const SEGMENT_VERSION: u16 = 2;
/// The version of a segment whose log has no eras.
const VERSION_WITHOUT_ERAS: u16 = 1;

const CRC_AT: usize = BLOCK - 4;
const PAYLOAD_AT: usize = 20;
const PAYLOAD_BYTES: usize = CRC_AT - PAYLOAD_AT;
const NO_PREVIOUS: u64 = u64::MAX;
const ERAS_AT: usize = 96;
const ERA_BYTES: usize = 16;
const FIRST_ERA_AT: usize = ERAS_AT + 8;
/// The longest checkpoint that is believed; far more than what the most links and producers need.
pub const CHECKPOINT_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(FIRST_ERA_AT + ERAS_MAX * ERA_BYTES <= CRC_AT);
const _: () = assert!(checkpoint_bytes_max(4 * CHILDREN_MAX) <= CHECKPOINT_BYTES_MAX);

/// A decoded header block; see the module for the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Bytes of the dedup checkpoint that follows.
    pub checkpoint_bytes: u32,
    /// The topic's life.
    pub incarnation: Incarnation,
    /// The partition.
    pub partition: PartitionId,
    /// The history of offsets that was current when the segment was begun.
    pub lineage: Lineage,
    /// The first offset that belongs here.
    pub base_offset: Offset,
    /// Stands in every batch of this segment.
    pub nonce: u64,
    /// Everything below was flushed before the file got its name. Not below `base_offset`.
    pub proved_through: Offset,
    /// When the segment was begun, on the owner's clock.
    pub created_at: CommitTime,
    /// The last commit time below `base_offset`.
    pub commit_time_floor: CommitTime,
    /// The base offset of the segment before this one.
    pub previous_base: Option<Offset>,
    /// The ownership under which it was begun.
    pub owner_epoch: OwnerEpoch,
    /// The eras of the log that had ended when it was begun. None reaches above `base_offset`.
    pub eras: Eras,
}

/// Why a header block or checkpoint block cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Damaged, or never a segment.
    #[error("{0}")]
    Corrupt(&'static str),
    /// A sound header of a newer format.
    #[error("segment format version {0} is newer than {SEGMENT_VERSION}")]
    NewerVersion(u16),
}

/// Bytes before the data of a segment whose checkpoint has this many bytes: a multiple of [`BLOCK`].
#[must_use]
pub fn data_start(checkpoint_bytes: usize) -> u64 {
    ((1 + checkpoint_bytes.div_ceil(PAYLOAD_BYTES)) * BLOCK) as u64
}

impl SegmentHeader {
    /// Where the first chunk lies.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        data_start(self.checkpoint_bytes as usize)
    }

    /// Writes header and checkpoint blocks into `out`, which has exactly `data_start` bytes.
    ///
    /// # Panics
    /// When `out` or the checkpoint is not as long as the header says.
    pub fn encode(&self, checkpoint: &[u8], out: &mut [u8]) {
        assert_eq!(checkpoint.len(), self.checkpoint_bytes as usize);
        assert_eq!(out.len() as u64, self.data_start());
        assert!(self.proved_through >= self.base_offset);
        out.fill(0);
        let (head, chain) = out.split_at_mut(BLOCK);
        let blocks = 1 + (chain.len() / BLOCK) as u32;
        head[0..4].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        let version = if self.eras.list().is_empty() {
            VERSION_WITHOUT_ERAS
        } else {
            SEGMENT_VERSION
        };
        head[4..6].copy_from_slice(&version.to_le_bytes());
        head[8..12].copy_from_slice(&blocks.to_le_bytes());
        head[12..16].copy_from_slice(&self.checkpoint_bytes.to_le_bytes());
        head[16..24].copy_from_slice(&self.incarnation.0);
        head[24..28].copy_from_slice(&self.partition.0.to_le_bytes());
        head[32..40].copy_from_slice(&self.lineage.0);
        head[40..48].copy_from_slice(&self.base_offset.0.to_le_bytes());
        head[48..56].copy_from_slice(&self.nonce.to_le_bytes());
        head[56..64].copy_from_slice(&self.proved_through.0.to_le_bytes());
        head[64..72].copy_from_slice(&self.created_at.0.to_le_bytes());
        head[72..80].copy_from_slice(&self.commit_time_floor.0.to_le_bytes());
        let previous = self.previous_base.map_or(NO_PREVIOUS, |base| base.0);
        head[80..88].copy_from_slice(&previous.to_le_bytes());
        head[88..96].copy_from_slice(&self.owner_epoch.0.to_le_bytes());
        let eras = self.eras.list();
        head[ERAS_AT..ERAS_AT + 4].copy_from_slice(&(eras.len() as u32).to_le_bytes());
        for (era, out) in eras.iter().zip(head[FIRST_ERA_AT..].chunks_exact_mut(ERA_BYTES)) {
            out[..8].copy_from_slice(&era.below.0.to_le_bytes());
            out[8..].copy_from_slice(&era.end.0.to_le_bytes());
        }
        seal(head);
        let parts = checkpoint.chunks(PAYLOAD_BYTES);
        for ((number, part), block) in (1u32..).zip(parts).zip(chain.chunks_exact_mut(BLOCK)) {
            block[0..4].copy_from_slice(&CHECKPOINT_MAGIC.to_le_bytes());
            block[4..8].copy_from_slice(&number.to_le_bytes());
            block[8..16].copy_from_slice(&self.nonce.to_le_bytes());
            block[16..20].copy_from_slice(&(part.len() as u32).to_le_bytes());
            block[PAYLOAD_AT..PAYLOAD_AT + part.len()].copy_from_slice(part);
            seal(block);
        }
    }

    /// Reads the header block at the start of `bytes`. The version is looked at before the other fields, so that a
    /// newer format is told from damage.
    ///
    /// # Errors
    /// [`FormatError`], never a panic, for any bytes.
    pub fn decode(bytes: &[u8]) -> Result<SegmentHeader, FormatError> {
        let head: &[u8; BLOCK] = bytes
            .first_chunk()
            .ok_or(FormatError::Corrupt("the file is shorter than its header"))?;
        if u32_at(head, 0) != SEGMENT_MAGIC {
            return Err(FormatError::Corrupt("no segment magic"));
        }
        if !is_sealed(head) {
            return Err(FormatError::Corrupt("wrong header checksum"));
        }
        let version = u16::from_le_bytes([head[4], head[5]]);
        if version > SEGMENT_VERSION {
            return Err(FormatError::NewerVersion(version));
        }
        let eras = decode_eras(head, version)?;
        let eras_end = FIRST_ERA_AT + eras.list().len() * ERA_BYTES;
        let header = SegmentHeader {
            checkpoint_bytes: u32_at(head, 12),
            incarnation: Incarnation(bytes_at(head, 16)),
            partition: PartitionId(u32_at(head, 24)),
            lineage: Lineage(bytes_at(head, 32)),
            base_offset: Offset(u64_at(head, 40)),
            nonce: u64_at(head, 48),
            proved_through: Offset(u64_at(head, 56)),
            created_at: CommitTime(u64_at(head, 64)),
            commit_time_floor: CommitTime(u64_at(head, 72)),
            previous_base: Some(Offset(u64_at(head, 80))).filter(|base| base.0 != NO_PREVIOUS),
            owner_epoch: OwnerEpoch(u64_at(head, 88)),
            eras,
        };
        let zeros = [
            &head[6..8],
            &head[28..32],
            &head[100..104],
            &head[eras_end..CRC_AT],
        ];
        if zeros.iter().any(|part| part.iter().any(|&b| b != 0)) {
            return Err(FormatError::Corrupt("unknown fields"));
        }
        if header.checkpoint_bytes as usize > CHECKPOINT_BYTES_MAX
            || header.data_start() != u64::from(u32_at(head, 8)) * BLOCK as u64
        {
            return Err(FormatError::Corrupt("a checkpoint of another length"));
        }
        if header.partition.0 >= PARTITIONS_MAX {
            return Err(FormatError::Corrupt("a partition that cannot be"));
        }
        if header.proved_through < header.base_offset
            || header
                .previous_base
                .is_some_and(|base| base >= header.base_offset)
        {
            return Err(FormatError::Corrupt("offsets that contradict each other"));
        }
        if header
            .eras
            .list()
            .iter()
            .any(|era| era.below > header.base_offset)
        {
            return Err(FormatError::Corrupt("an era that has not ended"));
        }
        Ok(header)
    }

    /// Puts the checkpoint together from the blocks that follow the header block.
    ///
    /// # Errors
    /// [`FormatError::Corrupt`] for a block that is missing, damaged, or of another segment.
    pub fn decode_checkpoint(&self, chain: &[u8]) -> Result<Vec<u8>, FormatError> {
        let mut checkpoint = Vec::with_capacity(self.checkpoint_bytes as usize);
        let mut blocks = chain.chunks_exact(BLOCK);
        let mut number = 1;
        while checkpoint.len() < self.checkpoint_bytes as usize {
            let block = blocks
                .next()
                .ok_or(FormatError::Corrupt("the file ends in its checkpoint"))?;
            let len = (self.checkpoint_bytes as usize - checkpoint.len()).min(PAYLOAD_BYTES);
            let sound = u32_at(block, 0) == CHECKPOINT_MAGIC
                && is_sealed(block)
                && u32_at(block, 4) == number
                && u64_at(block, 8) == self.nonce
                && u32_at(block, 16) as usize == len;
            if !sound {
                return Err(FormatError::Corrupt("a damaged checkpoint block"));
            }
            checkpoint.extend_from_slice(&block[PAYLOAD_AT..PAYLOAD_AT + len]);
            number += 1;
        }
        Ok(checkpoint)
    }
}

/// Version 2 has one era at least, and version 1 none.
fn decode_eras(head: &[u8; BLOCK], version: u16) -> Result<Eras, FormatError> {
    let count = u32_at(head, ERAS_AT) as usize;
    if !(VERSION_WITHOUT_ERAS..=SEGMENT_VERSION).contains(&version)
        || (version == VERSION_WITHOUT_ERAS) != (count == 0)
        || count > ERAS_MAX
    {
        return Err(FormatError::Corrupt("unknown fields"));
    }
    let era = |n: usize| Era {
        below: Offset(u64_at(head, FIRST_ERA_AT + n * ERA_BYTES)),
        end: CommitTime(u64_at(head, FIRST_ERA_AT + n * ERA_BYTES + 8)),
    };
    Eras::of((0..count).map(era).collect()).ok_or(FormatError::Corrupt("eras that do not rise"))
}

fn seal(block: &mut [u8]) {
    let sum = crc(&block[..CRC_AT]);
    block[CRC_AT..].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(block: &[u8]) -> bool {
    crc(&block[..CRC_AT]) == u32_at(block, CRC_AT)
}

fn bytes_at(block: &[u8], at: usize) -> [u8; 8] {
    std::array::from_fn(|i| block[at + i])
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(block, at))
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(checkpoint_bytes: u32) -> SegmentHeader {
        SegmentHeader {
            checkpoint_bytes,
            incarnation: Incarnation(*b"incarnat"),
            partition: PartitionId(3),
            lineage: Lineage(*b"lineage."),
            base_offset: Offset(0x0102_0304),
            nonce: 0x1122_3344_5566_7788,
            proved_through: Offset(0x0102_0310),
            created_at: CommitTime(1_700_000_000_000_000_000),
            commit_time_floor: CommitTime(1_699_999_999_000_000_000),
            previous_base: Some(Offset(0x0102)),
            owner_epoch: OwnerEpoch(9),
            eras: Eras::default(),
        }
    }

    fn encoded(header: &SegmentHeader, checkpoint: &[u8]) -> Vec<u8> {
        let mut out = vec![0xA5; header.data_start() as usize];
        header.encode(checkpoint, &mut out);
        out
    }

    #[test]
    fn golden_header_and_checkpoint_still_read() {
        let checkpoint: Vec<u8> = (0..5_000u32).map(|i| i as u8).collect();
        let golden: &[u8] = include_bytes!("../../testdata/segment_header_v1.bin");
        let written = encoded(&header(5_000), &checkpoint);
        assert!(written == golden, "the segment header's layout changed");
        let read = SegmentHeader::decode(golden).unwrap();
        assert_eq!(read, header(5_000));
        assert_eq!(read.decode_checkpoint(&golden[BLOCK..]).unwrap(), checkpoint);
    }

    #[test]
    fn checkpoints_of_every_length_come_back() {
        for len in [0, 1, PAYLOAD_BYTES - 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 3 << 20] {
            let checkpoint: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let header = header(len as u32);
            let bytes = encoded(&header, &checkpoint);
            assert_eq!(SegmentHeader::decode(&bytes).unwrap(), header);
            assert!(header.decode_checkpoint(&bytes[BLOCK..]).unwrap() == checkpoint);
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let checkpoint = [7; 5_000];
        let header = header(5_000);
        let sound = encoded(&header, &checkpoint);
        for at in (0..sound.len()).step_by(37) {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x10;
            let read = SegmentHeader::decode(&bytes).and_then(|h| h.decode_checkpoint(&bytes[BLOCK..]));
            assert!(read.is_err(), "byte {at}");
        }
        assert!(
            header.decode_checkpoint(&sound[BLOCK..2 * BLOCK]).is_err(),
            "a short chain"
        );
    }

    #[test]
    fn eras_make_the_second_version_and_come_back() {
        let era = |below, end| Era {
            below: Offset(below),
            end: CommitTime(end),
        };
        let eras = Eras::of(vec![era(7, 70), era(0x0102_0304, 9)]).expect("rising");
        let header = SegmentHeader { eras, ..header(0) };
        let bytes = encoded(&header, &[]);
        assert_eq!(bytes[4], 2, "a program that knows no eras refuses it");
        assert_eq!(SegmentHeader::decode(&bytes).unwrap(), header);
        for (at, value, why) in [
            (96, 0, "unknown fields"),
            (96, 255, "unknown fields"),
            (96, 1, "unknown fields"),
            (104, 0xFF, "eras that do not rise"),
            (124, 0xFF, "an era that has not ended"),
            (4, 1, "unknown fields"),
            (4, 0, "unknown fields"),
        ] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            if at == 104 {
                bytes[108] = value;
            }
            seal(&mut bytes[..BLOCK]);
            assert_eq!(
                SegmentHeader::decode(&bytes),
                Err(FormatError::Corrupt(why)),
                "{at}"
            );
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let mut bytes = encoded(&header(0), &[]);
        bytes[4] = 3;
        seal(&mut bytes[..BLOCK]);
        assert_eq!(SegmentHeader::decode(&bytes), Err(FormatError::NewerVersion(3)));
        bytes[100] = 1;
        assert_eq!(
            SegmentHeader::decode(&bytes),
            Err(FormatError::Corrupt("wrong header checksum"))
        );
    }
}
