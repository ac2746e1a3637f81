//! What a log knows of itself between two steps on the disk, and how appends and rounds change that; no I/O.
//!
//! ```text
//!   log start            flushed        written            next offset
//!   |--- sealed --|- active ---|-- in a round --|-- pending --|
//!                              ^ high-water mark of an `fsync` topic
//!                                               ^ of a `written` topic
//! ```
//!
//! One round of a log runs at a time, so between rounds `written == flushed`. Offsets and commit times are given at
//! append; `durable_through` and the nonce when a round packs the batch.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use tailwater_wire::batch::builder::frontier_batch;
use tailwater_wire::batch::header::{BatchHeader, BatchKind, HEADER_BYTES};
use tailwater_wire::ids::{CommitTime, Delay, Lineage, Offset, Writer};
use tailwater_wire::message::ProducerKey;
use tailwater_wire::meta::Durability;
use tailwater_wire::mutant::{Mutant, planted};

use bytes::Bytes;

use crate::dedup::table::DedupTable;
use crate::dedup::verdict::{AppendedBatch, Opened, OriginMark, Verdict};
use crate::disk::latch::Latch;
use crate::eras::Eras;
use crate::error::{AppendError, ProducerError};
use crate::group_commit::{Take, take};
use crate::log::opens::{OPENS_WAITING_MAX, Opens};
use crate::log::options::{Appended, LogOptions};
use crate::log::segments::Segments;
use crate::segment::appender::{ChunkStamp, Prepared, Stamped, chunk_len};
use crate::segment::index::IndexEntry;

/// See the module. On the shard that owns the partition.
#[derive(Debug)]
pub(crate) struct LogState<F> {
    pub(crate) options: LogOptions,
    pub(crate) segments: Segments<F>,
    pub(crate) lineage: Lineage,
    pub(crate) dedup: DedupTable,
    pub(crate) latch: Latch,
    pub(crate) closed: bool,
    /// The next record's offset. `flushed <= written <= next_offset`.
    pub(crate) next_offset: Offset,
    pub(crate) written: Offset,
    pub(crate) flushed: Offset,
    /// Every later batch gets at least this commit time.
    pub(crate) last_commit_time: CommitTime,
    /// The eras that have ended: what lies in them counts as they say. No offset at or above `flushed` is in one.
    pub(crate) eras: Rc<Eras>,
    /// An era is being ended: nothing is appended.
    pub(crate) ending_era: bool,
    /// The last commit time below `flushed`.
    pub(crate) flushed_commit_time: CommitTime,
    /// The highest frontier that something flushed states: what recovery would take for D.
    pub(crate) stated: Offset,
    /// When the last batch was appended.
    pub(crate) active_at: CommitTime,
    pub(crate) pending: VecDeque<Stamped>,
    pub(crate) pending_bytes: u64,
    /// Producers that were opened and are not on the disk; a round takes them before batches, and alone.
    pub(crate) opens: Opens,
    pub(crate) frontier_wanted: bool,
    /// A round has taken something and has not ended.
    pub(crate) in_round: bool,
    /// The active segment's last flushed batch has records. Only then may a `written` topic release waiters before the
    /// flush: otherwise a power cut could take released records back and leave a log that looks closed (SPEC.md D12).
    pub(crate) tail_is_open: bool,
    pub(crate) prepared: Option<Prepared<F>>,
    pub(crate) preparing: bool,
    /// Set when the next segment will soon be needed: whoever prepares it stops pausing.
    pub(crate) hurry: Rc<Cell<bool>>,
    /// The last attempt to make room met a full disk.
    pub(crate) full: bool,
    pub(crate) retaining: bool,
}

/// What a round writes for one log.
pub(crate) struct Taken {
    pub(crate) batches: Vec<Stamped>,
    pub(crate) position: u64,
    pub(crate) stamp: ChunkStamp,
    pub(crate) end: Offset,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// The number of the last open that it writes down.
    pub(crate) opened: Option<u64>,
}

impl<F: Clone> LogState<F> {
    pub(crate) fn high_water_mark(&self) -> Offset {
        match self.options.durability {
            Durability::Fsync => self.flushed,
            Durability::Written => self.written,
        }
    }

    /// Gives a batch its place, or says why not. Decides everything that order and dedup depend on.
    pub(crate) fn append(
        &mut self,
        bytes: Bytes,
        header: &BatchHeader,
        origin: Option<OriginMark>,
        now: CommitTime,
        origin_floor: Option<Offset>,
    ) -> Result<Appended, AppendError> {
        if self.closed {
            return Err(AppendError::Closed);
        }
        self.latch.check()?;
        if header.kind == BatchKind::Frontier {
            return Err(AppendError::Malformed("a frontier batch"));
        }
        if bytes.len() != header.batch_len() {
            return Err(AppendError::Malformed("not exactly one batch"));
        }
        let floor = origin_floor.map(|offset| offset.0);
        match self
            .dedup
            .decide(header.writer, header.previous, header.sequence, floor)
        {
            Verdict::Append => {}
            Verdict::Duplicate {
                base_offset,
                end_offset,
                commit_time,
            } => {
                let early = planted(Mutant::AcknowledgeDuplicateEarly);
                return Ok(Appended {
                    base_offset,
                    end: if early { Offset::ZERO } else { end_offset },
                    commit_time,
                    duplicate: true,
                });
            }
            Verdict::OutOfOrder { expected } => return Err(AppendError::OutOfOrder { expected }),
            Verdict::Expected { watermark } => {
                return Err(AppendError::Expected {
                    watermark: Offset(watermark),
                });
            }
            Verdict::UnknownProducer => return Err(AppendError::UnknownProducer),
        }
        if self.ending_era {
            return Err(AppendError::Busy);
        }
        let len = bytes.len() as u64;
        if self.pending_bytes > 0 && self.pending_bytes + len > self.options.pending_bytes_max {
            return Err(AppendError::Busy);
        }
        if self.full && chunk_len(self.pending_bytes + len) > self.segments.active.room() {
            return Err(AppendError::DiskFull);
        }
        Ok(self.place(bytes, header, origin, now))
    }

    fn place(
        &mut self,
        bytes: Bytes,
        header: &BatchHeader,
        origin: Option<OriginMark>,
        now: CommitTime,
    ) -> Appended {
        let at_least = if planted(Mutant::RawCommitTime) {
            now
        } else {
            self.last_commit_time
        };
        let stamped = BatchHeader {
            base_offset: self.next_offset,
            commit_time: now.max(at_least),
            lineage: self.lineage,
            owner_epoch: self.options.owner_epoch,
            ..header.clone()
        };
        self.active_at = now;
        self.last_commit_time = stamped.commit_time;
        self.next_offset = stamped.end_offset();
        if header.writer != Writer::Anonymous {
            self.dedup.appended(&appended_batch(&stamped, origin));
        }
        self.pending_bytes += bytes.len() as u64;
        let appended = Appended {
            base_offset: Some(stamped.base_offset),
            end: stamped.end_offset(),
            commit_time: Some(stamped.commit_time),
            duplicate: false,
        };
        self.pending.push_back(Stamped {
            bytes,
            header: stamped,
        });
        appended
    }

    /// Begins or resumes a producer. The number is to be waited for, when there is one: the open is not on the disk.
    pub(crate) fn open_producer(
        &mut self,
        key: &ProducerKey,
        now: CommitTime,
    ) -> Result<(Opened, Option<u64>), ProducerError> {
        if !self.dedup.is_known(key) {
            if self.closed {
                return Err(AppendError::Closed.into());
            }
            self.latch.check().map_err(AppendError::from)?;
            if self.opens.waiting() >= OPENS_WAITING_MAX {
                return Err(AppendError::Busy.into());
            }
            let wanted = ((self.opens.waiting() + 1) * HEADER_BYTES) as u64;
            if self.full && chunk_len(wanted) > self.segments.active.room() {
                return Err(AppendError::DiskFull.into());
            }
        }
        let opened = self.dedup.open(key, now)?;
        let number = match opened.is_new {
            true => Some(self.opens.note(opened.writer, now.max(self.last_commit_time))),
            false => self.opens.number_of(opened.writer),
        };
        Ok((opened, number))
    }

    /// What the next round would do.
    pub(crate) fn next_take(&self) -> Take {
        if self.in_round || !self.latch.is_open() {
            return Take::Nothing;
        }
        let room = self.segments.active.room();
        if self.opens.waiting() > 0 {
            return take(
                std::iter::repeat_n(HEADER_BYTES as u64, self.opens.waiting()),
                room,
            );
        }
        if self.pending.is_empty() && self.frontier_wanted && self.stated < self.flushed {
            let bytes = frontier_batch().len() as u64;
            return take(std::iter::once(bytes), room);
        }
        take(self.pending.iter().map(|batch| batch.bytes.len() as u64), room)
    }

    /// Takes what the round writes and reserves its place in the segment.
    pub(crate) fn take(&mut self) -> Option<Taken> {
        let Take::Batches { count, bytes } = self.next_take() else {
            return None;
        };
        let mut opened = None;
        let batches: Vec<Stamped> = if self.opens.waiting() > 0 {
            let (writers, number) = self.opens.take(count);
            opened = Some(number);
            let batch = |(writer, at)| self.frontier(self.written, at, writer);
            writers.into_iter().map(batch).collect()
        } else if self.pending.is_empty() {
            self.frontier_wanted = false;
            vec![self.frontier(self.next_offset, self.last_commit_time, Writer::Anonymous)]
        } else {
            self.pending_bytes -= bytes;
            self.pending.drain(..count).collect()
        };
        let active = &mut self.segments.active;
        let position = active.position;
        active.position += chunk_len(bytes);
        if active.position > active.capacity / 4 * 3 {
            self.hurry.set(true);
        }
        assert!(active.position <= active.capacity);
        self.in_round = true;
        Some(Taken {
            end: batches.last().map_or(self.written, |b| b.header.end_offset()),
            records: batches.iter().map(|b| u64::from(b.header.record_count)).sum(),
            batches,
            position,
            stamp: ChunkStamp {
                durable_through: self.flushed,
                nonce: active.header.nonce,
            },
            bytes,
            opened,
        })
    }

    /// A batch without records: proof of the frontier, and of a producer that was opened if it names one.
    fn frontier(&self, base_offset: Offset, commit_time: CommitTime, writer: Writer) -> Stamped {
        let bytes = frontier_batch();
        let header = BatchHeader::decode(&bytes).expect("our own frontier batch is sound");
        Stamped {
            bytes,
            header: BatchHeader {
                base_offset,
                commit_time,
                lineage: self.lineage,
                owner_epoch: self.options.owner_epoch,
                writer,
                ..header
            },
        }
    }

    /// The round's write completed: readers of a `written` topic may see it, unless this is the first after a frontier.
    pub(crate) fn written(&mut self, taken: &Taken) {
        self.segments.written_end = taken.position + chunk_len(taken.bytes);
        let mut position = taken.position;
        let index = std::rc::Rc::make_mut(&mut self.segments.index);
        for batch in &taken.batches {
            if batch.header.kind != BatchKind::Frontier {
                index.note(IndexEntry {
                    offset: batch.header.base_offset,
                    position,
                    commit_time: batch.header.commit_time,
                });
            }
            position += batch.bytes.len() as u64;
        }
        if self.tail_is_open {
            self.written = taken.end;
        }
    }

    /// The round's flush succeeded.
    pub(crate) fn flushed(&mut self, taken: &Taken) {
        assert!(self.in_round && taken.end >= self.flushed);
        self.written = taken.end;
        self.flushed = taken.end;
        self.stated = self.stated.max(taken.stamp.durable_through);
        self.tail_is_open = taken.records > 0;
        if let Some(last) = taken.batches.last() {
            // Opens go first, with a later time than what was appended before them.
            if taken.records > 0 {
                self.flushed_commit_time = last.header.commit_time;
            }
        }
        if let Some(number) = taken.opened {
            self.opens.flushed(number);
        }
        self.dedup.flushed(taken.end);
    }

    /// Whether the last flush is still to be proved by a frontier batch.
    pub(crate) fn needs_frontier(&self, now: CommitTime) -> bool {
        let idle = Delay {
            millis: self.options.frontier_idle_ms,
        };
        self.stated < self.flushed
            && self.pending.is_empty()
            && !self.in_round
            && !self.frontier_wanted
            && !self.closed
            && self.latch.is_open()
            && now >= self.active_at.plus(idle)
    }

    /// An era has ended with what is flushed, which is everything: times are counted as the eras say from now on.
    pub(crate) fn adopt(&mut self, eras: Eras) {
        assert!(self.pending.is_empty() && self.flushed == self.next_offset);
        self.flushed_commit_time = eras.counted_below(self.flushed, self.flushed_commit_time);
        self.last_commit_time = eras.counted_below(self.flushed, self.last_commit_time);
        self.segments.recount(&eras);
        self.eras = Rc::new(eras);
    }

    /// Takes back what is pending, of which nothing was written: its offsets were never seen by anyone, and its
    /// writers are as if it had never been sent.
    ///
    /// # Panics
    /// When a round is under way.
    pub(crate) fn take_back_pending(&mut self) {
        assert!(!self.in_round && self.written == self.flushed);
        self.pending.clear();
        self.pending_bytes = 0;
        self.next_offset = self.flushed;
        // A checkpoint holds what was flushed, and nothing else.
        self.dedup = DedupTable::restore(&self.dedup.checkpoint()).expect("our own checkpoint is sound");
        for writer in self.opens.take_back() {
            self.dedup.forget_unwritten(writer);
        }
    }
}

/// A stamped batch as the dedup table is told of it.
pub(crate) fn appended_batch(header: &BatchHeader, origin: Option<OriginMark>) -> AppendedBatch {
    AppendedBatch {
        writer: header.writer,
        previous: header.previous,
        sequence: header.sequence,
        base_offset: header.base_offset,
        end_offset: header.end_offset(),
        commit_time: header.commit_time,
        origin,
    }
}
