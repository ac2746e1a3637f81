//! Searching a segment's bytes for batches of its nonce, past zeros, stale bytes and damage; no I/O.
//!
//! A batch begins where a block begins or where the batch before it ended, so a sound segment is walked batch by batch.
//! Where nothing valid begins the search goes on at every 64 bytes, because a chunk whose first batch rotted still
//! holds the others. A sound header says how long its batch is, also when the body is damaged: nothing inside a body is
//! taken for a batch then.

use tailwater_wire::batch::header::{BatchHeader, HEADER_BYTES, HeaderError};
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::{CommitTime, Lineage};
use tailwater_wire::limits::BATCH_ALIGN;

use crate::dedup::verdict::OriginMark;
use crate::disk::device::BLOCK;

/// What a child batch says of the parent batch that it was last cut from; `None` when it has no origin.
#[must_use]
pub fn origin_mark(view: &BatchView<'_>) -> Option<OriginMark> {
    let origin = view.body()?.origin.as_ref()?;
    Some(OriginMark {
        lineage: Lineage::from_u64(origin.lineage.to_native()),
        parent_crc: origin.parent_crc.to_native(),
        parent_commit_time: CommitTime(origin.parent_commit_time.to_native()),
    })
}

/// A whole, sound batch of the segment's nonce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where it begins in the file.
    pub position: u64,
    /// Its header.
    pub header: BatchHeader,
    /// What it says of its parent.
    pub origin: Option<OriginMark>,
}

impl Found {
    /// Where it ends in the file.
    #[must_use]
    pub fn end_position(&self) -> u64 {
        self.position + self.header.batch_len() as u64
    }
}

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scan {
    /// The batches, by position.
    pub found: Vec<Found>,
    /// Behind the last byte that is neither zero nor part of a batch in `found`; 0 when there is none.
    pub junk_end: u64,
    /// A batch of a newer format, where a batch must begin.
    pub newer_version: Option<u8>,
    /// Bytes that were looked at.
    pub bytes: u64,
}

impl Scan {
    /// Behind the last sound batch; 0 when there is none.
    #[must_use]
    pub fn found_end(&self) -> u64 {
        self.found.last().map_or(0, Found::end_position)
    }
}

/// A search in progress: bytes are pushed in file order, in pieces of any multiple of 64, the last one of any length.
#[derive(Debug)]
pub struct Scanner {
    nonce: u64,
    /// Position in the file of `pending[0]`.
    position: u64,
    /// Bytes that are not decided yet: at most one incomplete batch and the piece pushed last.
    pending: Vec<u8>,
    /// Where the last sound batch ended: a batch may begin there without a block beginning.
    in_step_at: u64,
    scan: Scan,
}

impl Scanner {
    /// A search from `position` (a block's beginning) for batches of `nonce`.
    #[must_use]
    pub fn new(nonce: u64, position: u64) -> Scanner {
        Scanner {
            nonce,
            position,
            pending: Vec::new(),
            in_step_at: position,
            scan: Scan::default(),
        }
    }

    /// Takes the next bytes of the file.
    pub fn push(&mut self, bytes: &[u8]) {
        self.scan.bytes += bytes.len() as u64;
        self.pending.extend_from_slice(bytes);
        self.advance(false);
    }

    /// Ends the search at the end of the file.
    #[must_use]
    pub fn finish(mut self) -> Scan {
        self.advance(true);
        self.scan
    }

    fn advance(&mut self, at_end: bool) {
        let pending = std::mem::take(&mut self.pending);
        let mut at = 0;
        while at < pending.len() {
            match self.step(&pending[at..], self.position + at as u64, at_end) {
                Some(len) => at += len,
                None => break,
            }
        }
        let at = at.min(pending.len());
        self.position += at as u64;
        self.pending = pending;
        self.pending.drain(..at);
    }

    /// How many bytes are decided from here on; `None` when that takes more bytes.
    fn step(&mut self, rest: &[u8], position: u64, at_end: bool) -> Option<usize> {
        let unit = &rest[..BATCH_ALIGN.min(rest.len())];
        if unit.iter().all(|&b| b == 0) {
            return Some(unit.len());
        }
        if rest.len() < HEADER_BYTES && !at_end {
            return None;
        }
        let in_step = position.is_multiple_of(BLOCK as u64) || position == self.in_step_at;
        let junk_len = match BatchHeader::decode(rest) {
            Ok(header) if header.segment_nonce == self.nonce => {
                let len = header.batch_len();
                if rest.len() < len && !at_end {
                    return None;
                }
                if let Ok(view) = BatchView::parse(rest) {
                    let origin = origin_mark(&view);
                    self.scan.found.push(Found {
                        position,
                        header,
                        origin,
                    });
                    self.in_step_at = position + len as u64;
                    return Some(len);
                }
                len.min(rest.len())
            }
            Err(HeaderError::NewerVersion(version)) if in_step => {
                self.scan.newer_version = Some(version);
                unit.len()
            }
            _ => unit.len(),
        };
        self.scan.junk_end = position + junk_len as u64;
        Some(junk_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::recovery::testing::batch;

    const NONCE: u64 = 77;

    fn scan(bytes: &[u8], piece: usize) -> Scan {
        let mut scanner = Scanner::new(NONCE, 4096);
        bytes.chunks(piece).for_each(|piece| scanner.push(piece));
        scanner.finish()
    }

    fn bases(scan: &Scan) -> Vec<u64> {
        scan.found.iter().map(|f| f.header.base_offset.0).collect()
    }

    fn padded(batches: &[Vec<u8>]) -> Vec<u8> {
        let mut out = batches.concat();
        out.resize(out.len().next_multiple_of(BLOCK), 0);
        out
    }

    #[test]
    fn batches_are_found_in_pieces_of_any_size() {
        let chunk = padded(&[batch(0, 3, 0, NONCE), batch(3, 1, 0, NONCE)]);
        let bytes = [
            chunk,
            vec![0; 3 * BLOCK],
            padded(&[batch(4, 500, 0, NONCE)]),
            vec![0; BLOCK],
        ]
        .concat();
        for piece in [64, 4096, 1 << 20] {
            let scan = scan(&bytes, piece);
            assert_eq!(bases(&scan), [0, 3, 4], "pieces of {piece}");
            assert_eq!((scan.junk_end, scan.bytes), (0, bytes.len() as u64));
        }
    }

    #[test]
    fn a_chunk_outlives_its_first_header() {
        let mut bytes = padded(&[batch(0, 3, 0, NONCE), batch(3, 1, 0, NONCE)]);
        bytes[20] ^= 1;
        let scan = scan(&bytes, 4096);
        assert_eq!(bases(&scan), [3]);
        assert!(scan.junk_end > 4096 && scan.junk_end <= scan.found[0].position);
    }

    #[test]
    fn stale_batches_of_another_nonce_are_junk() {
        let scan = scan(&padded(&[batch(0, 3, 0, NONCE + 1)]), 4096);
        assert_eq!(bases(&scan), [0u64; 0]);
        assert!(scan.junk_end > 0);
    }

    #[test]
    fn nothing_inside_a_damaged_body_is_taken_for_a_batch() {
        // The value of a record is itself a batch of this nonce, 64-byte aligned in the file.
        let inner = batch(900, 2, 900, NONCE);
        let found = (0..64).any(|shift| {
            let mut outer = crate::segment::recovery::testing::batch_of_value(
                5,
                &[&vec![1; shift], &inner[..]].concat(),
                NONCE,
            );
            let at = outer.windows(inner.len()).position(|w| w == inner).unwrap();
            if at % 64 != 0 {
                return false;
            }
            outer[at - 1] ^= 1;
            assert_eq!(bases(&scan(&padded(&[outer]), 4096)), [0u64; 0]);
            true
        });
        assert!(found, "no alignment hit");
    }

    #[test]
    fn a_batch_of_a_newer_format_is_told() {
        let mut bytes = padded(&[batch(0, 3, 0, NONCE)]);
        bytes[4] = 2;
        let sum = tailwater_wire::checksum::crc(&bytes[..124]);
        bytes[124..128].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(scan(&bytes, 4096).newer_version, Some(2));
    }

    #[test]
    fn a_batch_cut_by_the_end_of_the_file_is_junk() {
        let bytes = padded(&[batch(0, 500, 0, NONCE)]);
        let scan = scan(&bytes[..BLOCK], 4096);
        assert_eq!(bases(&scan), [0u64; 0]);
        assert_eq!(scan.junk_end, 4096 + BLOCK as u64);
    }
}
