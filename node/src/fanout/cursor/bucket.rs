//! One child partition as a cursor sees it: its position, the child's watermark, and what is in flight to it.
//!
//! ```text
//!   position <= read_to        everything below `position` is in the child partition, or was never meant for it
//!   watermark <= position      what the child itself says; below `position` when the last slabs had nothing for it
//!   watermark -> in_flight[0].end -> ... -> queue.last().end   a chain: each batch names the one before it
//!   read_to                    parent records below were read for this bucket
//! ```
//!
//! A position moves only by a [`Receipt`], by the child's own word, or over what holds no record for this bucket. The
//! cursor tells positions, and nothing else, to [`Acknowledged`](tailwater_storage::proof::Acknowledged), the one maker
//! of what a cursor file may be moved to.

use std::collections::VecDeque;

use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};

use crate::fanout::batch::{ChildBatch, Part, Take};
use crate::fanout::cursor::message::{RequestId, StallReason};
use crate::fanout::cursor::receipt::Receipt;

/// Batches of one bucket that may be unanswered at a time.
pub const IN_FLIGHT_MAX: usize = 1;

/// Where a bucket stands with its child partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not asked, or failed; asked (again) at this time.
    Closed { retry_at: CommitTime },
    /// Asked for its watermark.
    Opening(RequestId),
    /// Waiting for the parent's log to be compared with what the child remembers.
    Verifying(RequestId),
    /// Takes records.
    Open,
    /// Stands until an operator decides.
    Halted,
}

/// A batch that is unanswered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub request: RequestId,
    pub end: Offset,
    pub records: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Bucket {
    pub partition: PartitionId,
    pub phase: Phase,
    pub stall: Option<StallReason>,
    /// When it last took part in a read of those that are behind: who waited longest is served first.
    pub served: u64,
    position: Offset,
    watermark: Offset,
    read_to: Offset,
    in_flight: VecDeque<Sent>,
    queue: VecDeque<ChildBatch>,
    /// Batches whose outcome is not known. The child's next word tells which of them it has.
    doubted: VecDeque<Sent>,
}

/// What a child's word about its watermark means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// As far as was known, or at 0.
    Known,
    /// Further than was known: to be verified if the cursor is new.
    Further,
    /// Less than it had acknowledged.
    Regressed { acknowledged: Offset },
}

impl Bucket {
    pub fn new(partition: PartitionId, start: Offset, now: CommitTime) -> Bucket {
        Bucket {
            partition,
            phase: Phase::Closed { retry_at: now },
            stall: None,
            served: 0,
            position: start,
            watermark: Offset::ZERO,
            read_to: start,
            in_flight: VecDeque::with_capacity(IN_FLIGHT_MAX),
            queue: VecDeque::new(),
            doubted: VecDeque::new(),
        }
    }

    pub fn position(&self) -> Offset {
        self.position
    }

    pub fn watermark(&self) -> Offset {
        self.watermark
    }

    pub fn read_to(&self) -> Offset {
        self.read_to
    }

    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether it may take part in a read: nothing that was read waits to be sent.
    pub fn can_take(&self) -> bool {
        self.is_open() && self.queue.is_empty()
    }

    /// What it wants of a slab that covers `[from, next)`, if anything.
    pub fn take(&self, from: Offset, next: Offset) -> Option<Take> {
        let wants = self.can_take() && from <= self.read_to && self.read_to < next;
        wants.then(|| Take {
            bucket: self.partition,
            from: self.read_to,
            previous: self.chain_end(),
        })
    }

    fn chain_end(&self) -> Offset {
        let sent = self.in_flight.back().map(|sent| sent.end);
        let queued = self.queue.back().map(|batch| batch.end);
        queued.or(sent).unwrap_or(self.watermark)
    }

    /// Takes its part of a slab that was read to `next`. False when the part was cut for another state.
    pub fn took(&mut self, part: Part, next: Offset) -> bool {
        if self.take(part.take.from, next) != Some(part.take) {
            return false;
        }
        self.queue.extend(part.batches);
        self.read_to = next;
        self.settle();
        true
    }

    /// The next batch to be sent, if one may be.
    pub fn send(&mut self, request: RequestId) -> Option<ChildBatch> {
        if !self.is_open() || self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let batch = self.queue.pop_front()?;
        let follows = self.in_flight.back().map_or(self.watermark, |sent| sent.end);
        assert_eq!(batch.previous, follows, "batches of a bucket form a chain");
        self.in_flight.push_back(Sent {
            request,
            end: batch.end,
            records: batch.records,
        });
        Some(batch)
    }

    pub fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The oldest unanswered batch, if it is that of `request`.
    pub fn sent(&self, request: RequestId) -> Option<Sent> {
        self.in_flight
            .front()
            .copied()
            .filter(|sent| sent.request == request)
    }

    /// The oldest unanswered batch was acknowledged. False, and nothing changed, when the receipt covers less.
    pub fn acked(&mut self, receipt: &Receipt) -> bool {
        let Some(&sent) = self.in_flight.front() else {
            return false;
        };
        if receipt.watermark() < sent.end {
            return false;
        }
        self.in_flight.pop_front();
        self.watermark = sent.end;
        self.position = self.position.max(sent.end);
        self.settle();
        true
    }

    /// With nothing on its way, what was read and held no record for this bucket is passed too.
    fn settle(&mut self) {
        if self.in_flight.is_empty() && self.queue.is_empty() {
            self.position = self.read_to;
        }
        assert!(self.watermark <= self.position && self.position <= self.read_to);
    }

    /// The child told its watermark. Whatever was on its way is forgotten and read again, above it.
    pub fn told(&mut self, watermark: Offset, floor: Offset) -> Word {
        self.forget();
        if watermark < self.watermark {
            return Word::Regressed {
                acknowledged: self.watermark,
            };
        }
        let word = if watermark > self.watermark {
            Word::Further
        } else {
            Word::Known
        };
        self.watermark = watermark;
        self.position = self.position.max(watermark).max(floor);
        self.read_to = self.position;
        word
    }

    /// What is on its way is in doubt: it is forgotten, but for the count of its records.
    pub fn doubt(&mut self) {
        self.doubted.append(&mut self.in_flight);
        self.forget();
    }

    /// Records of doubted batches that the child turned out to have.
    pub fn resolve(&mut self) -> u64 {
        let there = self.doubted.drain(..).filter(|sent| sent.end <= self.watermark);
        there.map(|sent| u64::from(sent.records)).sum()
    }

    /// Forgets what was read and not acknowledged; it is read again.
    fn forget(&mut self) {
        self.in_flight.clear();
        self.queue.clear();
        self.read_to = self.position;
    }

    /// Retention took everything below `floor`. What is on its way still arrives; reads go on there.
    pub fn skip_to(&mut self, floor: Offset) {
        if self.read_to < floor {
            self.read_to = floor;
            self.settle();
        }
    }

    /// Waits for the comparison of what the child remembers, if there is something to compare.
    pub fn verify(&mut self, request: RequestId, mark: Option<OriginMark>) -> Option<(Offset, OriginMark)> {
        let mark = mark.filter(|_| self.watermark > Offset::ZERO)?;
        self.phase = Phase::Verifying(request);
        Some((Offset(self.watermark.0 - 1), mark))
    }
}
