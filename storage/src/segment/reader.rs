//! Walking a segment batch by batch through large reads, and scanning it whole.
//!
//! A walk hands out views of its read buffers. A batch that a buffer cuts in two is read again as a whole, from the
//! block that it begins in, so that no batch is ever put together from pieces. Every batch that is handed out had both
//! its checksums verified on this walk: bytes from a disk are never served unchecked.

use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use bytes::Bytes;
use tailwater_wire::batch::header::{BatchHeader, BatchKind, HEADER_BYTES};
use tailwater_wire::checksum::crc;
use tailwater_wire::ids::Offset;

use crate::disk::device::{BLOCK, DiskResult, File};
use crate::segment::index::SparseIndex;
use crate::segment::recovery::Hole;
use crate::segment::scan::{Scan, Scanner};

/// Bytes of one read of a walk that wants no more, or does not know yet.
pub const READ_BYTES: usize = 256 << 10;
/// Bytes of one read of a walk that wants more than that. Reads of a walk come one after the other, so between two of them
/// the device idles for a request's latency: at 256 KiB that is near half of the time, at 1 MiB a tenth. One large request
/// is taken apart by the kernel and served side by side, like several small ones would be, but a batch is cut by its end
/// only once, and nothing is read that the walk did not ask for. Beyond 1 MiB little is gained, and a reader that keeps a
/// few batches of a buffer keeps all of it.
pub const READ_BYTES_MAX: usize = 1 << 20;
/// Bytes of one read of a scan.
pub const SCAN_BYTES: usize = 1 << 20;

/// A segment as one read sees it: a snapshot, good while the segment grows or is removed.
#[derive(Debug, Clone)]
pub struct Source<F> {
    /// Open to read.
    pub file: F,
    /// Its name, for errors.
    pub path: PathBuf,
    /// Its first offset.
    pub base: Offset,
    /// Where the walk ends: the next segment's base, or what may be read of the active one.
    pub end: Offset,
    /// The nonce of its batches.
    pub nonce: u64,
    /// Where its first chunk lies.
    pub data_start: u64,
    /// Behind everything that may be read; no multiple of [`BLOCK`] when the file was cut.
    pub data_end: u64,
    /// Where to begin.
    pub index: Rc<SparseIndex>,
    /// What is known to have rotted.
    pub holes: Rc<[Hole]>,
}

/// What a walk came to.
#[derive(Debug, Clone)]
pub enum Step {
    /// A batch with records, at a range of a buffer.
    Batch {
        /// The buffer.
        buffer: Bytes,
        /// The batch in it.
        range: Range<usize>,
        /// Its header.
        header: BatchHeader,
    },
    /// Offsets that are known to have rotted.
    Quarantined(Range<Offset>),
    /// Something else lies where the next batch should: scan the segment to learn how far that goes.
    Damaged,
    /// The segment has no more.
    End,
}

/// A walk in progress.
#[derive(Debug)]
pub struct Walk<F> {
    source: Source<F>,
    buffer: Bytes,
    buffer_at: u64,
    position: u64,
    expected: Offset,
    /// Of the first read; 0 when it is done.
    read_bytes: usize,
    /// What the caller still wants.
    wanted: usize,
}

impl<F: File> Walk<F> {
    /// A walk from the batch that holds `from`, which lies in the segment. `read_bytes` sizes its first read, at least
    /// one block and at most [`READ_BYTES_MAX`].
    #[must_use]
    pub fn new(source: Source<F>, from: Offset, read_bytes: usize) -> Walk<F> {
        debug_assert!(source.base <= from && from < source.end);
        let mut start = (source.base, source.data_start);
        if let Some(entry) = source.index.at_or_below(from) {
            start = (entry.offset, entry.position);
        }
        let behind_hole = source.holes.iter().rev().find(|hole| hole.offsets.end <= from);
        if let Some(hole) = behind_hole
            && hole.offsets.end > start.0
            && let Some(resume) = hole.resume
        {
            start = (hole.offsets.end, resume);
        }
        Walk {
            source,
            buffer: Bytes::new(),
            buffer_at: 0,
            position: start.1,
            expected: from,
            read_bytes: read_bytes.clamp(BLOCK, READ_BYTES_MAX).next_multiple_of(BLOCK),
            wanted: 0,
        }
    }

    /// About how many bytes the caller still wants, to size the next read.
    pub fn wants(&mut self, bytes: usize) {
        self.wanted = bytes;
    }

    /// The next batch that holds or follows the offset expected.
    ///
    /// # Errors
    /// A read that failed.
    pub async fn next(&mut self) -> DiskResult<Step> {
        loop {
            if self.expected >= self.source.end {
                return Ok(Step::End);
            }
            if let Some(offsets) = self.skip_hole() {
                return Ok(Step::Quarantined(offsets));
            }
            let Some(at) = self.window(HEADER_BYTES).await? else {
                return Ok(Step::Damaged);
            };
            let Ok(header) = BatchHeader::decode(&self.buffer[at..]) else {
                if self.skip_padding(at) {
                    continue;
                }
                return Ok(Step::Damaged);
            };
            if header.segment_nonce != self.source.nonce || header.base_offset > self.expected {
                return Ok(Step::Damaged);
            }
            let len = header.batch_len();
            if header.end_offset() <= self.expected {
                self.position += len as u64;
                continue;
            }
            let Some(at) = self.window(len).await? else {
                return Ok(Step::Damaged);
            };
            let body = at + HEADER_BYTES..at + HEADER_BYTES + header.body_len as usize;
            // The header again: when the window moved, these are other bytes than those decoded above.
            let same = BatchHeader::decode(&self.buffer[at..]).as_ref() == Ok(&header);
            if header.kind == BatchKind::Frontier || !same || crc(&self.buffer[body]) != header.body_crc {
                return Ok(Step::Damaged);
            }
            self.position += len as u64;
            self.expected = header.end_offset();
            return Ok(Step::Batch {
                buffer: self.buffer.clone(),
                range: at..at + len,
                header,
            });
        }
    }

    fn skip_hole(&mut self) -> Option<Range<Offset>> {
        let hole = self
            .source
            .holes
            .iter()
            .find(|hole| hole.offsets.contains(&self.expected))?;
        let end = hole.offsets.end.min(self.source.end);
        let offsets = self.expected..end;
        self.expected = end;
        self.position = hole.resume.unwrap_or(self.source.data_end);
        Some(offsets)
    }

    /// Padding fills a block up; a whole block of it, where a chunk should begin, is a chunk that was lost.
    fn skip_padding(&mut self, at: usize) -> bool {
        let block_end = self.position.next_multiple_of(BLOCK as u64);
        let padding = (block_end - self.position) as usize;
        let is_padding = padding > 0
            && self.buffer[at..]
                .get(..padding)
                .is_some_and(|bytes| bytes.iter().all(|&b| b == 0));
        if is_padding {
            self.position = block_end;
        }
        is_padding
    }

    /// Where in the buffer the walk stands, with at least `len` bytes from there on; `None` when the segment has not so
    /// many.
    async fn window(&mut self, len: usize) -> DiskResult<Option<usize>> {
        if self.position + len as u64 > self.source.data_end {
            return Ok(None);
        }
        let held = self.position >= self.buffer_at
            && self.position + len as u64 <= self.buffer_at + self.buffer.len() as u64;
        if !held {
            let block = BLOCK as u64;
            let start = self.position / block * block;
            let needed = (self.position - start) as usize + len;
            let left = (self.source.data_end - start) as usize;
            let next = match self.read_bytes {
                0 => self.wanted.clamp(READ_BYTES, READ_BYTES_MAX),
                first => first,
            };
            let wanted = needed.max(next.min(left)).next_multiple_of(BLOCK);
            self.buffer = self.source.file.read_at(start, wanted).await?;
            self.buffer_at = start;
            self.read_bytes = 0;
            if self.buffer.len() < needed {
                return Ok(None);
            }
        }
        Ok(Some((self.position - self.buffer_at) as usize))
    }
}

/// Searches `[from, to)` of a file for batches of a nonce. `from` is a multiple of [`BLOCK`]; `to` need not be one, and
/// may lie behind the file's end: a file that was cut is as long as whoever cut it left it.
///
/// # Errors
/// A read that failed.
pub async fn scan<F: File>(file: &F, nonce: u64, from: u64, to: u64) -> DiskResult<Scan> {
    let mut scanner = Scanner::new(nonce, from);
    let mut position = from;
    while position < to {
        let left = (to - position).min(SCAN_BYTES as u64) as usize;
        let wanted = left.next_multiple_of(BLOCK);
        let bytes = file.read_at(position, wanted).await?;
        scanner.push(&bytes[..bytes.len().min(left)]);
        position += bytes.len() as u64;
        if bytes.len() < wanted {
            break;
        }
    }
    Ok(scanner.finish())
}
