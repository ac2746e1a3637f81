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
//!
//! **Several in flight.** Answers may come in any order; each is kept with its batch and counts only when everything
//! before it was acknowledged. The first that is anything else puts its batch and all behind it in doubt: they are
//! forgotten and read again, but only after each of them was answered and the child was then asked for its watermark.
//! So nothing that was sent before can still change what the child said, at most [`IN_FLIGHT_MAX`] batches of a bucket
//! are ever out, and a cursor that stops waits for the doubted ones too.
//!
//! **Memory.** A bucket takes part in a read only when it could send at once what it gets. One whose child stands still
//! therefore keeps what is in flight and the rest of one slab's part, and takes no more: level buckets read on without
//! it, and once it is answered it reads what it missed from the log, by itself (SPEC.md F10, F15).

use std::collections::VecDeque;

use tailwater_storage::dedup::table::RECENT_BATCHES;
use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Lineage, Offset, PartitionId};
use tailwater_wire::limits::FANOUT_BATCH_BYTES;
use tailwater_wire::mutant::{Mutant, planted};

use crate::fanout::batch::{ChildBatch, Part, Take};
use crate::fanout::cursor::message::{RequestId, StallReason};
use crate::fanout::cursor::receipt::Receipt;
use crate::fanout::gaps::Standing;

/// Batches of one bucket that may be unanswered at a time. A cursor that catches up keeps the child's commit rounds full
/// when one batch is being flushed, the next gathers for the round after it, a third is on its way there, and the
/// acknowledgement of a fourth on its way back while the next slab is read and cut. More would only wait at the child,
/// and would all be sent again when the first of them fails.
pub const IN_FLIGHT_MAX: usize = 4;
/// Bytes of one bucket that may be unanswered at a time, unless one batch alone is more: two full slabs, one being
/// flushed and one behind it. It bounds what a child partition that stands still can keep from other cursors.
pub const IN_FLIGHT_BYTES_MAX: usize = 2 * FANOUT_BATCH_BYTES;
/// How many ends of batches that may arrive late are remembered: one a second is sent anew at most.
const LATE_MAX: usize = 64;

// A repeat of anything that can be in flight is still answered with its own original.
const _: () = assert!(IN_FLIGHT_MAX <= RECENT_BATCHES);

/// Where a bucket stands with its child partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not asked, or failed; asked (again) at this time.
    Closed { retry_at: CommitTime },
    /// Asked for its watermark.
    Opening(RequestId),
    /// Waiting for the parent's log to be compared with what the child remembers, of this lineage.
    Verifying { request: RequestId, lineage: Lineage },
    /// Takes records.
    Open,
    /// Stands until an operator decides.
    Halted,
}

impl Phase {
    /// The question that is unanswered.
    pub fn asked(self) -> Option<RequestId> {
        match self {
            Phase::Opening(request) | Phase::Verifying { request, .. } => Some(request),
            Phase::Closed { .. } | Phase::Open | Phase::Halted => None,
        }
    }
}

/// A child partition's answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Acked { receipt: Receipt, duplicate: bool },
    Expected(Offset),
    Failed(ErrorCode),
}

/// A batch that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    request: RequestId,
    end: Offset,
    records: u32,
    /// Records that a notice says were dropped.
    dropped: u64,
    bytes: usize,
    answer: Option<Outcome>,
}

impl Sent {
    /// Whether the answer says that the child has the batch: an acknowledgement that covers it, or the refusal of a
    /// child that has just this batch, whose acknowledgement was lost.
    fn is_acked(&self) -> bool {
        match &self.answer {
            Some(Outcome::Acked { receipt, .. }) => receipt.watermark() >= self.end,
            Some(Outcome::Expected(watermark)) => *watermark == self.end,
            Some(Outcome::Failed(_)) | None => false,
        }
    }

    fn is_refused(&self) -> bool {
        self.answer.is_some() && !self.is_acked()
    }

    /// Whether its records had been in the child before it was sent.
    fn is_repeat(&self) -> bool {
        matches!(
            self.answer,
            Some(Outcome::Acked { duplicate: true, .. } | Outcome::Expected(_))
        )
    }
}

/// Records that a child partition turned out to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counted {
    /// By a batch of this cursor.
    pub committed: u64,
    /// Before it was sent.
    pub repeated: u64,
    /// Records that it now knows were dropped.
    pub dropped: u64,
}

impl Counted {
    fn add(&mut self, sent: &Sent) {
        let count = if sent.is_repeat() {
            &mut self.repeated
        } else {
            &mut self.committed
        };
        *count += u64::from(sent.records);
        self.dropped += sent.dropped;
    }
}

/// Why the oldest unacknowledged batch was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The child goes on from elsewhere; at once it can be asked from where.
    AskAgain,
    /// It failed, or the child contradicts itself.
    Failed(ErrorCode),
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    pub partition: PartitionId,
    pub phase: Phase,
    pub stall: Option<StallReason>,
    /// When it last took part in a read of those that are behind: who waited longest is served first.
    pub served: u64,
    position: Offset,
    watermark: Offset,
    read_to: Offset,
    /// In the order of the chain. Those behind the first may be answered already.
    in_flight: VecDeque<Sent>,
    queue: VecDeque<ChildBatch>,
    /// Batches that are in doubt, answered or not. The child's next word tells which of them it has.
    doubted: Vec<Sent>,
    /// Ends of batches that the child did not have when it was last asked, though one may still be on its way if its
    /// answer was given up: its watermark may come to stand there. The last few.
    late: VecDeque<Offset>,
    /// Whether the child partition has told its watermark since the cursor started.
    heard: bool,
    /// It takes nothing below: that is being counted before it goes.
    pub gate: Offset,
    /// Records copied, and records that the child partition knows were dropped, since the cursor started.
    pub committed: u64,
    pub dropped: u64,
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
            doubted: Vec::new(),
            late: VecDeque::new(),
            heard: false,
            gate: Offset::ZERO,
            committed: 0,
            dropped: 0,
        }
    }

    pub fn position(&self) -> Offset {
        self.position
    }

    pub fn read_to(&self) -> Offset {
        self.read_to
    }

    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether something that was sent is unanswered, also what is in doubt.
    pub fn has_unanswered(&self) -> bool {
        !self.in_flight.is_empty() || !self.is_settled()
    }

    fn is_settled(&self) -> bool {
        self.doubted.iter().all(|sent| sent.answer.is_some())
    }

    /// When it is to be asked for its watermark, if nothing that was sent can change that any more.
    pub fn ask_at(&self) -> Option<CommitTime> {
        match self.phase {
            Phase::Closed { retry_at } => Some(retry_at).filter(|_| self.is_settled()),
            _ => None,
        }
    }

    /// Whether it may take part in a read: what it gets can be sent.
    pub fn can_take(&self) -> bool {
        self.queue.is_empty() && self.read_to >= self.gate && self.can_send(1)
    }

    fn can_send(&self, bytes: usize) -> bool {
        let out: usize = self.in_flight.iter().map(|sent| sent.bytes).sum();
        let fits = self.in_flight.len() < IN_FLIGHT_MAX && out + bytes <= IN_FLIGHT_BYTES_MAX;
        let refused = self.in_flight.iter().any(Sent::is_refused);
        self.is_open() && !refused && (fits || self.in_flight.is_empty())
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
        let bytes = self.queue.front()?.bytes.len();
        if !self.can_send(bytes) {
            return None;
        }
        let batch = self.queue.pop_front()?;
        let follows = self.in_flight.back().map_or(self.watermark, |sent| sent.end);
        assert_eq!(batch.previous, follows, "batches of a bucket form a chain");
        self.in_flight.push_back(Sent {
            request,
            end: batch.end,
            records: batch.records,
            dropped: batch.dropped,
            bytes,
            answer: None,
        });
        Some(batch)
    }

    pub fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Keeps the answer to a batch that was sent. False when none is waiting for it.
    pub fn answered(&mut self, request: RequestId, outcome: Outcome) -> bool {
        let mut sent = self.in_flight.iter_mut().chain(&mut self.doubted);
        let waiting = sent.find(|sent| sent.request == request && sent.answer.is_none());
        let Some(sent) = waiting else { return false };
        sent.answer = Some(outcome);
        true
    }

    /// Passes the oldest batches as far as they are acknowledged, in order; an acknowledgement counts for its own batch
    /// alone. Says what was counted, if any was passed, and what stands behind it.
    pub fn pass(&mut self) -> (Option<Counted>, Option<Refused>) {
        let mut passed = None;
        while let Some(sent) = self.in_flight.pop_front_if(|sent| sent.is_acked()) {
            self.watermark = sent.end;
            self.position = self.position.max(sent.end);
            passed.get_or_insert(Counted::default()).add(&sent);
        }
        self.settle();
        self.tally(passed.unwrap_or_default());
        let answer = self.in_flight.front().and_then(|sent| sent.answer.as_ref());
        let refused = match answer {
            None => None,
            Some(Outcome::Failed(code)) => Some(Refused::Failed(*code)),
            // An acknowledgement of less than was sent is none.
            Some(Outcome::Acked { .. }) => Some(Refused::Failed(ErrorCode::Internal)),
            // A child that refuses what follows its own watermark: as any other refusal.
            Some(&Outcome::Expected(at)) if at == self.watermark && passed.is_none() => {
                Some(Refused::Failed(ErrorCode::Internal))
            }
            // Its word may be older than the acknowledgements before it, so nothing is concluded from it.
            Some(Outcome::Expected(_)) => Some(Refused::AskAgain),
        };
        (passed, refused)
    }

    /// With nothing on its way, what was read and held no record for this bucket is passed too.
    fn settle(&mut self) {
        if self.in_flight.is_empty() && self.queue.is_empty() {
            self.position = self.read_to;
        }
        assert!(self.watermark <= self.position && self.position <= self.read_to);
    }

    /// The child told its watermark, and nothing is on its way there. Reads go on above it.
    pub fn told(&mut self, watermark: Offset) -> Word {
        assert!(
            !self.has_unanswered(),
            "a watermark is asked for when all is answered"
        );
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
        self.heard = true;
        self.position = self.position.max(watermark);
        if planted(Mutant::ResendAcknowledged) {
            (self.watermark, self.position) = (Offset::ZERO, self.gate);
        }
        self.read_to = self.position;
        word
    }

    /// Everything that was sent and not passed is in doubt. What was read is forgotten, and read again.
    pub fn doubt(&mut self, retry_at: CommitTime) {
        self.phase = Phase::Closed { retry_at };
        self.doubted.extend(self.in_flight.drain(..));
        assert!(
            self.doubted.len() <= IN_FLIGHT_MAX,
            "so many were in flight at most"
        );
        self.queue.clear();
        self.read_to = self.position;
    }

    /// Records of doubted batches that the child turned out to have.
    pub fn resolve(&mut self) -> Counted {
        let mut counted = Counted::default();
        for sent in self.doubted.drain(..) {
            if sent.end <= self.watermark {
                counted.add(&sent);
            } else if !self.late.contains(&sent.end) {
                self.late.push_back(sent.end);
            }
        }
        while self.late.len() > LATE_MAX {
            self.late.pop_front();
        }
        self.tally(counted);
        counted
    }

    fn tally(&mut self, counted: Counted) {
        self.committed += counted.committed;
        self.dropped += counted.dropped;
    }

    /// Everything from `read_to` to here is gone; the notice that says so, if this bucket lost records, takes its
    /// place in the chain behind what is on its way.
    pub fn lose(&mut self, to: Offset, notice: impl FnOnce(Offset) -> Option<ChildBatch>) {
        assert!(self.read_to < to, "what was read is not lost");
        let notice = notice(self.chain_end());
        self.queue.extend(notice);
        self.read_to = to;
        self.settle();
    }

    /// Where it stands when retention asks.
    pub fn standing(&self, floor: Offset) -> Standing {
        let sent = self.in_flight.iter().chain(&self.doubted).map(|sent| sent.end);
        let queued = self.queue.iter().map(|batch| batch.end);
        let ends = sent.chain(queued).chain(self.late.iter().copied());
        let mut ends: Vec<Offset> = ends
            .chain([self.read_to, floor])
            .filter(|end| *end > self.position)
            .collect();
        ends.sort_unstable();
        ends.dedup();
        Standing {
            position: self.position,
            ends: self.heard.then_some(ends),
        }
    }

    /// Waits for the comparison of what the child remembers, if there is something to compare.
    pub fn verify(&mut self, request: RequestId, mark: Option<OriginMark>) -> Option<(Offset, OriginMark)> {
        let mark = mark.filter(|_| self.watermark > Offset::ZERO)?;
        let lineage = mark.lineage;
        self.phase = Phase::Verifying { request, lineage };
        Some((self.copied_last(), mark))
    }

    /// The parent record that the child's watermark ends with; offset 0 where there is none.
    pub fn copied_last(&self) -> Offset {
        Offset(self.watermark.0.saturating_sub(1))
    }
}
