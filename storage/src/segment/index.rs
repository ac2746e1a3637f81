//! The sparse index of one segment: where to begin reading for an offset or a commit time.
//!
//! It never answers more than where to begin: the reader goes on from there, batch by batch. While a segment is active its
//! index is in memory; a sealed segment's is also a file, which may be lost or stale at any time and is then made anew from
//! the segment. Little-endian:
//!
//! ```text
//!   0  magic "TWIX"            u32 |  24  base offset         u64
//!   4  format version           u8 |  32  end offset          u64
//!   5  zero                 3 bytes |  40  last commit time    u64, ns
//!   8  segment nonce           u64 |  48  entries             u32
//!  16  segment length, bytes   u64 |  52  bytes between them  u32
//!  56  entries, 24 bytes each: offset u64, position u64, commit time u64
//!   .  crc32c of all before    u32
//! ```

use tailwater_wire::checksum::crc;
use tailwater_wire::ids::{CommitTime, Offset};

/// The first four bytes of an index file.
pub const INDEX_MAGIC: u32 = u32::from_le_bytes(*b"TWIX");
/// The one version that this code writes, and the newest that it reads.
pub const INDEX_VERSION: u8 = 1;

const HEADER_BYTES: usize = 56;
const ENTRY_BYTES: usize = 24;
const CRC_BYTES: usize = 4;

/// Where one batch of the segment begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// Its first offset.
    pub offset: Offset,
    /// Its place in the file, in bytes.
    pub position: u64,
    /// Its commit time.
    pub commit_time: CommitTime,
}

/// Which segment an index file is of; a file of another one, or of the same one when it was shorter, is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexedSegment {
    /// The segment's random number.
    pub nonce: u64,
    /// Where its last batch ends in the file, padding included.
    pub bytes: u64,
    /// Its first offset.
    pub base: Offset,
    /// The offset after its last record.
    pub end: Offset,
    /// The commit time of its last record: what retention needs to know of a sealed segment.
    pub last_commit_time: CommitTime,
}

/// The index: at most one entry in every `interval_bytes` of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseIndex {
    interval_bytes: u32,
    /// Offsets and positions rise, commit times do not fall. The first is that of the first batch noted.
    entries: Vec<IndexEntry>,
}

impl SparseIndex {
    /// An index of nothing yet.
    #[must_use]
    pub fn new(interval_bytes: u32) -> SparseIndex {
        SparseIndex {
            interval_bytes,
            entries: Vec::new(),
        }
    }

    /// A batch lies at a position. Called for every batch with records, in log order; most leave no entry.
    pub fn note(&mut self, batch: IndexEntry) {
        let Some(last) = self.entries.last() else {
            self.entries.push(batch);
            return;
        };
        debug_assert!(batch.position > last.position && batch.offset > last.offset);
        if batch.position - last.position >= u64::from(self.interval_bytes) {
            let commit_time = batch.commit_time.max(last.commit_time);
            self.entries.push(IndexEntry { commit_time, ..batch });
        }
    }

    /// The last entry at or below an offset; `None` when the offset lies before the first batch.
    #[must_use]
    pub fn at_or_below(&self, offset: Offset) -> Option<IndexEntry> {
        let above = self.entries.partition_point(|entry| entry.offset <= offset);
        self.entries[..above].last().copied()
    }

    /// The last entry committed before a time. The first batch committed at or after the time lies behind it; `None`
    /// means that the search begins at the segment's first batch.
    #[must_use]
    pub fn before(&self, time: CommitTime) -> Option<IndexEntry> {
        let from = self.entries.partition_point(|entry| entry.commit_time < time);
        self.entries[..from].last().copied()
    }

    /// The entries, by offset.
    #[must_use]
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// The content of a sealed segment's index file.
    #[must_use]
    pub fn encode(&self, of: &IndexedSegment) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.entries.len() * ENTRY_BYTES + CRC_BYTES);
        out.extend_from_slice(&INDEX_MAGIC.to_le_bytes());
        out.extend_from_slice(&[INDEX_VERSION, 0, 0, 0]);
        for number in [of.nonce, of.bytes, of.base.0, of.end.0, of.last_commit_time.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.interval_bytes.to_le_bytes());
        for entry in &self.entries {
            for number in [entry.offset.0, entry.position, entry.commit_time.0] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        out.extend_from_slice(&crc(&out).to_le_bytes());
        out
    }

    /// Reads an index file. Whoever calls compares the [`IndexedSegment`] with the segment that lies there.
    ///
    /// # Errors
    /// [`IndexError`], never a panic, for any bytes.
    pub fn decode(bytes: &[u8]) -> Result<(IndexedSegment, SparseIndex), IndexError> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if bytes.len() < HEADER_BYTES + CRC_BYTES {
            return Err(IndexError::Short);
        }
        if u32_at(0) != INDEX_MAGIC {
            return Err(IndexError::NotAnIndex);
        }
        let body_len = bytes.len() - CRC_BYTES;
        if crc(&bytes[..body_len]) != u32_at(body_len) {
            return Err(IndexError::Checksum);
        }
        if bytes[4] != INDEX_VERSION {
            return Err(IndexError::OtherVersion(bytes[4]));
        }
        let count = u32_at(48) as usize;
        if count.checked_mul(ENTRY_BYTES) != Some(body_len - HEADER_BYTES) {
            return Err(IndexError::Inconsistent("another number of entries"));
        }
        let of = IndexedSegment {
            nonce: u64_at(8),
            bytes: u64_at(16),
            base: Offset(u64_at(24)),
            end: Offset(u64_at(32)),
            last_commit_time: CommitTime(u64_at(40)),
        };
        let entry = |n: usize| {
            let at = HEADER_BYTES + n * ENTRY_BYTES;
            IndexEntry {
                offset: Offset(u64_at(at)),
                position: u64_at(at + 8),
                commit_time: CommitTime(u64_at(at + 16)),
            }
        };
        let entries: Vec<IndexEntry> = (0..count).map(entry).collect();
        check(&of, &entries)?;
        let interval_bytes = u32_at(52);
        Ok((
            of,
            SparseIndex {
                interval_bytes,
                entries,
            },
        ))
    }
}

fn check(of: &IndexedSegment, entries: &[IndexEntry]) -> Result<(), IndexError> {
    let within = |entry: &IndexEntry| {
        entry.offset >= of.base
            && entry.offset < of.end
            && entry.position < of.bytes
            && entry.commit_time <= of.last_commit_time
    };
    let rises = |pair: &[IndexEntry]| {
        pair[0].offset < pair[1].offset
            && pair[0].position < pair[1].position
            && pair[0].commit_time <= pair[1].commit_time
    };
    if !entries.iter().all(within) {
        return Err(IndexError::Inconsistent("an entry outside the segment"));
    }
    if !entries.windows(2).all(rises) {
        return Err(IndexError::Inconsistent("entries that do not rise"));
    }
    Ok(())
}

/// Why bytes are no index; whatever it is, the index is made anew from its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// Fewer bytes than an empty index has.
    #[error("the bytes end inside the index's header")]
    Short,
    /// The magic is not there.
    #[error("no index begins here")]
    NotAnIndex,
    /// The checksum is wrong.
    #[error("the index's checksum is wrong")]
    Checksum,
    /// An index of another format version.
    #[error("index format version {0}, and this version reads {INDEX_VERSION}")]
    OtherVersion(u8),
    /// The checksum is right and the content contradicts itself.
    #[error("the index is inconsistent: {0}")]
    Inconsistent(&'static str),
}
