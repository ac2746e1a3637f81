//! The sparse index of one segment: where to begin reading for an offset or a commit time.
//!
//! It never answers more than where to begin: the reader goes on from there, batch by batch. While a segment is
//! active its index is in memory; a sealed segment's is also a file, which may be lost or stale at any time and
//! is then made anew from the segment. It is written after the next segment is durable, and so proves that there was one.
//! Little-endian:
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

use crate::eras::Eras;

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

    /// The last entry committed before a time. The first batch committed at or after the time lies behind it;
    /// `None` means that the search begins at the segment's first batch.
    #[must_use]
    pub fn before(&self, time: CommitTime) -> Option<IndexEntry> {
        let from = self.entries.partition_point(|entry| entry.commit_time < time);
        self.entries[..from].last().copied()
    }

    /// The same index, with commit times as a log's eras count them.
    #[must_use]
    pub fn counted(mut self, eras: &Eras) -> SparseIndex {
        for entry in &mut self.entries {
            entry.commit_time = eras.counted(entry.offset, entry.commit_time);
        }
        self
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(offset: u64, position: u64, commit_time: u64) -> IndexEntry {
        IndexEntry {
            offset: Offset(offset),
            position,
            commit_time: CommitTime(commit_time),
        }
    }

    fn sample() -> (IndexedSegment, SparseIndex) {
        let mut index = SparseIndex::new(100);
        for batch in [
            entry(16, 4_096, 7),
            entry(17, 4_160, 7),
            entry(18, 4_224, 8),
            entry(256, 4_300, 9),
        ] {
            index.note(batch);
        }
        let of = IndexedSegment {
            nonce: 0x1122_3344_5566_7788,
            bytes: 8_192,
            base: Offset(16),
            end: Offset(300),
            last_commit_time: CommitTime(9),
        };
        (of, index)
    }

    #[test]
    fn golden_bytes() {
        let golden = concat!(
            "5457495801000000",
            "8877665544332211",
            "0020000000000000",
            "1000000000000000",
            "2c01000000000000",
            "0900000000000000",
            "02000000",
            "64000000",
            "1000000000000000",
            "0010000000000000",
            "0700000000000000",
            "1200000000000000",
            "8010000000000000",
            "0800000000000000",
            "26f92937",
        );
        let (of, index) = sample();
        let bytes = index.encode(&of);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
        assert_eq!(SparseIndex::decode(&bytes), Ok((of, index)));
    }

    #[test]
    fn what_contradicts_itself_is_refused_although_its_checksum_is_right() {
        let (of, index) = sample();
        let is_refused = |of: IndexedSegment| {
            let decoded = SparseIndex::decode(&index.encode(&of));
            matches!(decoded, Err(IndexError::Inconsistent(_)))
        };
        assert!(is_refused(IndexedSegment {
            end: Offset(18),
            ..of
        }));
        assert!(is_refused(IndexedSegment {
            base: Offset(17),
            ..of
        }));
        assert!(is_refused(IndexedSegment { bytes: 4_200, ..of }));
        let last_commit_time = CommitTime(7);
        assert!(is_refused(IndexedSegment {
            last_commit_time,
            ..of
        }));
        let falling = SparseIndex {
            entries: index.entries.iter().rev().copied().collect(),
            ..index.clone()
        };
        assert!(matches!(
            SparseIndex::decode(&falling.encode(&of)),
            Err(IndexError::Inconsistent(_))
        ));
    }

    #[test]
    fn another_version_is_named() {
        let (of, index) = sample();
        let mut bytes = index.encode(&of);
        let body_len = bytes.len() - CRC_BYTES;
        bytes[4] = 2;
        let sum = crc(&bytes[..body_len]);
        bytes[body_len..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(SparseIndex::decode(&bytes), Err(IndexError::OtherVersion(2)));
    }

    /// Batches of a segment: each has some records, bytes, and time since the one before.
    fn batches() -> impl Strategy<Value = Vec<IndexEntry>> {
        prop::collection::vec((1u64..9, 64u64..900, 0u64..3), 0..60).prop_map(|steps| {
            let mut at = entry(1_000, 4_096, 50);
            let step = |(records, bytes, time)| {
                let batch = at;
                at = entry(
                    at.offset.0 + records,
                    at.position + bytes,
                    at.commit_time.0 + time,
                );
                batch
            };
            steps.into_iter().map(step).collect()
        })
    }

    proptest! {
        #[test]
        fn like_a_scan(
            batches in batches(),
            interval in 1u32..2_000,
            offset in 990u64..1_500,
            time in 40u64..180,
        ) {
            let mut index = SparseIndex::new(interval);
            batches.iter().for_each(|&batch| index.note(batch));
            // From where the index says, a reader finds the batch that a scan of all finds, within the
            // interval.
            let found = batches.iter().rfind(|batch| batch.offset.0 <= offset);
            let from = index.at_or_below(Offset(offset));
            prop_assert_eq!(from.is_some(), found.is_some());
            if let (Some(from), Some(found)) = (from, found) {
                prop_assert!(batches.contains(&from) && from.position <= found.position);
                prop_assert!(found.position - from.position < u64::from(interval));
            }
            let first_at = batches.iter().position(|batch| batch.commit_time.0 >= time).unwrap_or(batches.len());
            let from = index.before(CommitTime(time));
            let last_before = batches[..first_at].last();
            prop_assert_eq!(from.is_some(), last_before.is_some());
            if let (Some(from), Some(last)) = (from, last_before) {
                prop_assert!(from.position <= last.position);
                prop_assert!(last.position - from.position < u64::from(interval));
            }
            let of = IndexedSegment {
                nonce: 5,
                bytes: u64::MAX,
                base: Offset(1_000),
                end: Offset(u64::MAX),
                last_commit_time: CommitTime(u64::MAX),
            };
            prop_assert_eq!(SparseIndex::decode(&index.encode(&of)), Ok((of, index)));
        }

        #[test]
        fn damage_is_noticed(at in 0usize..200, mask in 1u8.., cut in 0usize..200) {
            let (of, index) = sample();
            let mut bytes = index.encode(&of);
            let cut = cut % bytes.len();
            prop_assert!(SparseIndex::decode(&bytes[..cut]).is_err());
            let at = at % bytes.len();
            bytes[at] ^= mask;
            prop_assert!(SparseIndex::decode(&bytes).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SparseIndex::decode(&bytes);
            let _ = SparseIndex::decode(&[&INDEX_MAGIC.to_le_bytes()[..], &bytes].concat());
        }
    }
}
