//! What one read of a log gives: runs of whole batches, byte for byte as they lie on disk.
//!
//! A run is a view of a read buffer or of a chunk in the tail cache; nothing is copied and no record is parsed. Padding
//! between chunks and frontier batches are left out by ending one run and beginning the next.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::ids::{CommitTime, Lineage, Offset};

use crate::eras::Eras;
use crate::segment::reader::READ_BYTES;

/// How much a read may give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// At most this many bytes, but always one batch.
    pub bytes_max: usize,
    /// At most this many records, but always one batch.
    pub records_max: usize,
    /// Stop before the first batch that was committed later than this; that one is not given even when it is the only
    /// one.
    pub committed_at_max: Option<CommitTime>,
    /// Read the flushed frontier only, also in a `written` topic: what cursors do (SPEC.md D11).
    pub flushed_only: bool,
}

impl Default for ReadLimits {
    fn default() -> ReadLimits {
        ReadLimits {
            bytes_max: 1 << 20,
            records_max: usize::MAX,
            committed_at_max: None,
            flushed_only: false,
        }
    }
}

/// Whole batches of one log, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slab {
    /// The batches, 64-byte aligned within each run. To be dropped on the shard that read them.
    pub runs: Vec<Bytes>,
    /// Where to read on: behind the last batch, and behind what was quarantined after it.
    pub next_offset: Offset,
    /// Bytes of all runs.
    pub bytes: usize,
    /// Records in the batches. The first batch may begin below the offset that was asked for.
    pub records: u64,
    /// Batches.
    pub batches: u64,
    /// Offsets that were passed over because their batches had rotted.
    pub quarantined: Vec<Range<Offset>>,
    /// When the read stopped at `committed_at_max`: the commit time of the batch that it stopped before.
    pub next_due: Option<CommitTime>,
    /// The log's high-water mark at the time of the read.
    pub high_water_mark: Offset,
    /// The log's lineage at the time of the read.
    pub lineage: Lineage,
}

impl Slab {
    /// Whether there is no batch in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Gathers batches into a [`Slab`] until a limit is met.
#[derive(Debug)]
pub(crate) struct SlabBuilder {
    limits: ReadLimits,
    /// As they were when the read began.
    eras: Rc<Eras>,
    slab: Slab,
    /// The run in progress: a buffer and the range of it.
    run: Option<(Bytes, Range<usize>)>,
}

impl SlabBuilder {
    pub(crate) fn new(
        from: Offset,
        limits: ReadLimits,
        high_water_mark: Offset,
        lineage: Lineage,
        eras: Rc<Eras>,
    ) -> SlabBuilder {
        SlabBuilder {
            limits,
            eras,
            slab: Slab {
                runs: Vec::new(),
                next_offset: from,
                bytes: 0,
                records: 0,
                batches: 0,
                quarantined: Vec::new(),
                next_due: None,
                high_water_mark,
                lineage,
            },
            run: None,
        }
    }

    /// The offset that the slab goes on at.
    pub(crate) fn next_offset(&self) -> Offset {
        self.slab.next_offset
    }

    /// Whether a batch may still be added; notes when it is due, if that is what stands against it.
    pub(crate) fn admits(&mut self, header: &BatchHeader) -> bool {
        if let Some(max) = self.limits.committed_at_max {
            let committed = self.eras.counted(header.base_offset, header.commit_time);
            if committed > max {
                self.slab.next_due = Some(committed);
                return false;
            }
        }
        self.slab.batches == 0
            || (self.slab.bytes + header.batch_len() <= self.limits.bytes_max
                && self.slab.records + u64::from(header.record_count) <= self.limits.records_max as u64)
    }

    /// About how many bytes will still be added, for sizing a read: what is left of the limit in bytes, or what the
    /// records that are left take when they are like those that came.
    pub(crate) fn bytes_wanted(&self) -> usize {
        let left = self.limits.bytes_max.saturating_sub(self.slab.bytes);
        if self.limits.records_max == usize::MAX {
            return left;
        }
        let records_left = (self.limits.records_max as u64).saturating_sub(self.slab.records);
        match (self.slab.bytes as u64).checked_div(self.slab.records) {
            Some(bytes_each) => left.min((bytes_each + 1).saturating_mul(records_left) as usize),
            None => left.min(READ_BYTES),
        }
    }

    /// Adds the batch at `range` of a buffer.
    pub(crate) fn add(&mut self, buffer: &Bytes, range: Range<usize>, header: &BatchHeader) {
        debug_assert!(header.end_offset() > self.slab.next_offset);
        self.slab.next_offset = header.end_offset();
        self.slab.bytes += range.len();
        self.slab.records += u64::from(header.record_count);
        self.slab.batches += 1;
        match &mut self.run {
            Some((run, grown)) if run.as_ptr() == buffer.as_ptr() && grown.end == range.start => {
                grown.end = range.end;
            }
            _ => {
                self.end_run();
                self.run = Some((buffer.clone(), range));
            }
        }
    }

    /// Passes over rotted offsets.
    pub(crate) fn quarantine(&mut self, offsets: Range<Offset>) {
        let offsets = offsets.start.max(self.slab.next_offset)..offsets.end;
        debug_assert!(offsets.start < offsets.end);
        self.slab.next_offset = offsets.end;
        self.slab.quarantined.push(offsets);
    }

    fn end_run(&mut self) {
        if let Some((buffer, range)) = self.run.take() {
            self.slab.runs.push(buffer.slice(range));
        }
    }

    pub(crate) fn finish(mut self) -> Slab {
        self.end_run();
        self.slab
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_wire::batch::header::BatchKind;
    use tailwater_wire::partitioner::Partitioner;

    fn header(base: u64, records: u32, at: u64) -> BatchHeader {
        let mut header = BatchHeader::unstamped(BatchKind::Data, Partitioner::Murmur2, records, b"some body");
        header.base_offset = Offset(base);
        header.commit_time = CommitTime(at);
        header
    }

    fn builder(limits: ReadLimits) -> SlabBuilder {
        SlabBuilder::new(Offset(0), limits, Offset(100), Lineage([1; 8]), Rc::default())
    }

    #[test]
    fn neighbours_in_one_buffer_become_one_run() {
        let mut slab = builder(ReadLimits::default());
        let buffer = Bytes::from((0..=255u8).collect::<Vec<_>>());
        slab.add(&buffer, 0..64, &header(0, 1, 0));
        slab.add(&buffer, 64..128, &header(1, 1, 0));
        slab.quarantine(Offset(2)..Offset(5));
        slab.add(&buffer, 192..256, &header(5, 1, 0));
        let slab = slab.finish();
        assert_eq!(slab.runs, [buffer.slice(0..128), buffer.slice(192..256)]);
        assert_eq!(slab.runs[0].as_ptr(), buffer.as_ptr(), "a view, not a copy");
        assert_eq!((slab.records, slab.bytes, slab.next_offset), (3, 192, Offset(6)));
        assert_eq!(slab.quarantined, [Offset(2)..Offset(5)]);
    }

    #[test]
    fn what_is_still_wanted_is_told_from_what_came() {
        let limits = ReadLimits {
            bytes_max: 4 << 20,
            records_max: 1_000,
            ..ReadLimits::default()
        };
        let mut slab = builder(limits);
        assert_eq!(slab.bytes_wanted(), READ_BYTES, "nothing is known yet");
        let buffer = Bytes::from(vec![0; 64 << 10]);
        slab.add(&buffer, 0..64 << 10, &header(0, 64, 0));
        assert_eq!(slab.bytes_wanted(), 936 * 1_025);
        slab.add(&buffer, 0..64, &header(64, 936, 0));
        assert_eq!(slab.bytes_wanted(), 0);
        let slab = builder(ReadLimits {
            records_max: usize::MAX,
            ..limits
        });
        assert_eq!(slab.bytes_wanted(), 4 << 20, "only the bytes are limited");
    }

    #[test]
    fn limits_hold_for_all_but_the_first_batch() {
        let mut slab = builder(ReadLimits {
            bytes_max: 300,
            records_max: 3,
            committed_at_max: Some(CommitTime(9)),
            flushed_only: false,
        });
        let buffer = Bytes::from(vec![0; 1024]);
        assert!(slab.admits(&header(0, 10, 0)), "the first always");
        slab.add(&buffer, 0..192, &header(0, 2, 0));
        assert!(!slab.admits(&header(2, 2, 0)), "too many records");
        assert!(!slab.admits(&header(2, 1, 0)), "too many bytes");
        assert!(!slab.admits(&header(2, 1, 10)), "not due");
        assert_eq!(slab.finish().next_due, Some(CommitTime(10)));
        let mut slab = builder(ReadLimits {
            committed_at_max: Some(CommitTime(9)),
            ..ReadLimits::default()
        });
        assert!(
            !slab.admits(&header(0, 1, 10)),
            "not even the first, when it is not due"
        );
    }
}
