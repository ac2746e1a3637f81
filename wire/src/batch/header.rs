//! The batch header: 128 bytes, little-endian, coded by hand; the same in memory, on the wire and on disk.
//!
//! ```text
//!   0  magic "TWBA"            u32 |  64  sequence            u64
//!   4  format version           u8 |  72  previous sequence   u64
//!   5  header length (128)      u8 |  80  lineage              8 bytes
//!   6  flags                   u16 |  88  owner epoch         u64
//!   8  body length             u32 |  96  reserved, zero     24 bytes
//!  12  record count            u32 | 120  body crc32c         u32
//!  16  base offset             u64 | 124  header crc32c of bytes 0..124
//!  24  commit time, ns         u64 |
//!  32  durable through         u64 | flags: 0 data, 1 control, 2 frontier; 4-5 writer kind (0 anonymous, 1 random,
//!  40  segment nonce           u64 |        2 named, 3 origin); 8-9 partitioner of the key hashes; others zero
//!  48  writer id          16 bytes |
//! ```
//!
//! The producer fills flags, lengths, count, writer, sequences and the body's crc; the partition's owner stamps base
//! offset, commit time, durable through, nonce, lineage and owner epoch, and computes the header's crc again. The
//! body and its crc are the same bytes from the producer's memory to the consumer's.

use crate::checksum::crc;
use crate::ids::{CommitTime, Epoch, Lineage, Offset, OriginId, OwnerEpoch, PartitionId, Writer};
use crate::limits::{BATCH_ALIGN, BATCH_BYTES_MAX, BATCH_RECORDS_MAX};
use crate::partitioner::Partitioner;

/// Bytes of a batch header.
pub const HEADER_BYTES: usize = 128;
/// The first four bytes of every batch.
pub const MAGIC: u32 = u32::from_le_bytes(*b"TWBA");
/// The one version of the batch format that this code writes, and the newest that it reads.
pub const BATCH_VERSION: u8 = 1;

const FLAG_CONTROL: u16 = 1 << 1;
const FLAG_DATA: u16 = 1 << 0;
const FLAG_FRONTIER: u16 = 1 << 2;
const WRITER_SHIFT: u16 = 4;
const PARTITIONER_SHIFT: u16 = 8;
const FLAGS_KNOWN: u16 = 0b11_0011_0111;

/// What a batch holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// Records of producers or of a parent topic.
    Data,
    /// Records that the system wrote for its own (drop-behind notices); consumers pass over them.
    Control,
    /// No records: only proof of how far the log is durable. One that names a producer also says that it was opened.
    Frontier,
}

/// A decoded batch header; see the module for the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    /// What the batch holds.
    pub kind: BatchKind,
    /// The partitioner that the body's key hashes were made with.
    pub partitioner: Partitioner,
    /// Bytes of the body, padding not counted.
    pub body_len: u32,
    /// Records in the body.
    pub record_count: u32,
    /// The first record's offset (owner's).
    pub base_offset: Offset,
    /// When the owner committed it (owner's).
    pub commit_time: CommitTime,
    /// Every record below this offset was durable when the batch was written (owner's).
    pub durable_through: Offset,
    /// The nonce of the segment that the batch was written into (owner's).
    pub segment_nonce: u64,
    /// Who wrote it, for dedup.
    pub writer: Writer,
    /// The writer's watermark after this batch: for producers the sequence of its last record, counted from 1; for
    /// origins the parent offset below which everything for this partition is in the log. 0 for anonymous writers.
    pub sequence: u64,
    /// The writer's watermark that this batch follows.
    pub previous: u64,
    /// The history of the partition that it was written into (owner's).
    pub lineage: Lineage,
    /// The ownership under which it was written (owner's).
    pub owner_epoch: OwnerEpoch,
    /// CRC-32C of the body.
    pub body_crc: u32,
}

/// Why bytes are no batch header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Fewer than [`HEADER_BYTES`].
    #[error("the bytes end inside a batch header")]
    Short,
    /// The magic is not there: zeros, padding, or something else altogether.
    #[error("no batch begins here")]
    NotABatch,
    /// The header's checksum is wrong.
    #[error("the batch header's checksum is wrong")]
    Checksum,
    /// A batch of a newer format.
    #[error("batch format version {0} is newer than {BATCH_VERSION}, the newest that this version reads")]
    NewerVersion(u8),
    /// The checksum is right and the fields contradict each other or a limit.
    #[error("the batch header is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl BatchHeader {
    /// A header as a producer sends it: the owner's fields are empty.
    #[must_use]
    pub fn unstamped(
        kind: BatchKind,
        partitioner: Partitioner,
        record_count: u32,
        body: &[u8],
    ) -> BatchHeader {
        BatchHeader {
            kind,
            partitioner,
            body_len: body.len() as u32,
            record_count,
            base_offset: Offset::ZERO,
            commit_time: CommitTime(0),
            durable_through: Offset::ZERO,
            segment_nonce: 0,
            writer: Writer::Anonymous,
            sequence: 0,
            previous: 0,
            lineage: Lineage([0; 8]),
            owner_epoch: OwnerEpoch(0),
            body_crc: crc(body),
        }
    }

    /// Bytes of the whole batch, header, body and padding to 64.
    #[must_use]
    pub fn batch_len(&self) -> usize {
        (HEADER_BYTES + self.body_len as usize).next_multiple_of(BATCH_ALIGN)
    }

    /// The offset after the last record.
    #[must_use]
    pub fn end_offset(&self) -> Offset {
        self.base_offset.plus(u64::from(self.record_count))
    }

    /// Writes the header, with its checksum, into the first 128 bytes of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`HEADER_BYTES`].
    pub fn encode(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_BYTES];
        out.fill(0);
        let (writer_kind, writer_id) = encode_writer(self.writer);
        let kind = match self.kind {
            BatchKind::Data => FLAG_DATA,
            BatchKind::Control => FLAG_CONTROL,
            BatchKind::Frontier => FLAG_FRONTIER,
        };
        let partitioner = u16::from(self.partitioner.number()) << PARTITIONER_SHIFT;
        let flags = kind | (writer_kind << WRITER_SHIFT) | partitioner;
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = BATCH_VERSION;
        out[5] = HEADER_BYTES as u8;
        out[6..8].copy_from_slice(&flags.to_le_bytes());
        out[8..12].copy_from_slice(&self.body_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.record_count.to_le_bytes());
        out[16..24].copy_from_slice(&self.base_offset.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.commit_time.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.durable_through.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.segment_nonce.to_le_bytes());
        out[48..64].copy_from_slice(&writer_id);
        out[64..72].copy_from_slice(&self.sequence.to_le_bytes());
        out[72..80].copy_from_slice(&self.previous.to_le_bytes());
        out[80..88].copy_from_slice(&self.lineage.0);
        out[88..96].copy_from_slice(&self.owner_epoch.0.to_le_bytes());
        out[120..124].copy_from_slice(&self.body_crc.to_le_bytes());
        let header_crc = crc(&out[..124]);
        out[124..128].copy_from_slice(&header_crc.to_le_bytes());
    }

    /// Reads a header and checks everything that can be checked without the body. Every version of the format keeps
    /// magic, version and header checksum where they are, so a newer format is told from damage: its checksum is right.
    ///
    /// # Errors
    /// [`HeaderError`], never a panic, for any bytes.
    pub fn decode(bytes: &[u8]) -> Result<BatchHeader, HeaderError> {
        let h: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(HeaderError::Short)?;
        let u32_at = |at: usize| u32::from_le_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let bytes_at = |at: usize| -> [u8; 8] { std::array::from_fn(|i| h[at + i]) };
        let u64_at = |at: usize| u64::from_le_bytes(bytes_at(at));
        if u32_at(0) != MAGIC {
            return Err(HeaderError::NotABatch);
        }
        if crc(&h[..124]) != u32_at(124) {
            return Err(HeaderError::Checksum);
        }
        if h[4] != BATCH_VERSION {
            return Err(HeaderError::NewerVersion(h[4]));
        }
        let flags = u16::from_le_bytes([h[6], h[7]]);
        if usize::from(h[5]) != HEADER_BYTES
            || flags & !FLAGS_KNOWN != 0
            || h[96..120].iter().any(|&b| b != 0)
        {
            return Err(HeaderError::Inconsistent("unknown flags or fields"));
        }
        let kind = match flags & (FLAG_DATA | FLAG_CONTROL | FLAG_FRONTIER) {
            FLAG_DATA => BatchKind::Data,
            FLAG_CONTROL => BatchKind::Control,
            FLAG_FRONTIER => BatchKind::Frontier,
            _ => return Err(HeaderError::Inconsistent("not exactly one kind")),
        };
        let partitioner = Partitioner::from_number((flags >> PARTITIONER_SHIFT) as u8 & 3)
            .ok_or(HeaderError::Inconsistent("unknown partitioner"))?;
        let header = BatchHeader {
            kind,
            partitioner,
            body_len: u32_at(8),
            record_count: u32_at(12),
            base_offset: Offset(u64_at(16)),
            commit_time: CommitTime(u64_at(24)),
            durable_through: Offset(u64_at(32)),
            segment_nonce: u64_at(40),
            writer: decode_writer((flags >> WRITER_SHIFT) & 3, &std::array::from_fn(|i| h[48 + i]))?,
            sequence: u64_at(64),
            previous: u64_at(72),
            lineage: Lineage(bytes_at(80)),
            owner_epoch: OwnerEpoch(u64_at(88)),
            body_crc: u32_at(120),
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), HeaderError> {
        let empty = self.record_count == 0;
        if empty != (self.kind == BatchKind::Frontier) || empty != (self.body_len == 0) {
            return Err(HeaderError::Inconsistent("only a frontier batch is empty"));
        }
        if self.record_count as usize > BATCH_RECORDS_MAX {
            return Err(HeaderError::Inconsistent("too many records"));
        }
        if self.body_len as usize > BATCH_BYTES_MAX - HEADER_BYTES {
            return Err(HeaderError::Inconsistent("too many bytes"));
        }
        if self
            .base_offset
            .0
            .checked_add(u64::from(self.record_count))
            .is_none()
        {
            return Err(HeaderError::Inconsistent("offsets overflow"));
        }
        match self.writer {
            Writer::Anonymous if self.sequence != 0 || self.previous != 0 => {
                Err(HeaderError::Inconsistent("a sequence without a writer"))
            }
            Writer::Random(_) | Writer::Named(_)
                if self.previous.checked_add(u64::from(self.record_count)) != Some(self.sequence) =>
            {
                Err(HeaderError::Inconsistent(
                    "a sequence that does not count the records",
                ))
            }
            Writer::Origin(_) if self.sequence <= self.previous => {
                Err(HeaderError::Inconsistent("a watermark that does not rise"))
            }
            _ => Ok(()),
        }
    }
}

fn encode_writer(writer: Writer) -> (u16, [u8; 16]) {
    match writer {
        Writer::Anonymous => (0, [0; 16]),
        Writer::Random(id) => (1, id),
        Writer::Named(id) => (2, id),
        Writer::Origin(origin) => {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&origin.epoch.0);
            id[8..12].copy_from_slice(&origin.partition.0.to_le_bytes());
            (3, id)
        }
    }
}

fn decode_writer(kind: u16, id: &[u8; 16]) -> Result<Writer, HeaderError> {
    let zero_from = |at: usize| id[at..].iter().all(|&b| b == 0);
    match kind {
        0 if zero_from(0) => Ok(Writer::Anonymous),
        1 => Ok(Writer::Random(*id)),
        2 => Ok(Writer::Named(*id)),
        3 if zero_from(12) => Ok(Writer::Origin(OriginId {
            epoch: Epoch(std::array::from_fn(|i| id[i])),
            partition: PartitionId(u32::from_le_bytes([id[8], id[9], id[10], id[11]])),
        })),
        _ => Err(HeaderError::Inconsistent(
            "a writer id that does not fit its kind",
        )),
    }
}
