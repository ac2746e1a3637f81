//! One partition of a producer: its batches in order, its sequence, and what a failure means for those behind it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::batch::builder::{BatchBuilder, PushError};
use crate::code::{ErrorCode, Refusal, Retry};
use crate::ids::{PartitionId, Writer};
use crate::message::Produced;
use crate::producer::action::{Action, BatchId, BatcherConfig, WriterKind};
use crate::record::Record;
use crate::session::action::Failure;

/// The first pause before a partition tries again; each failure in a row doubles it.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// The longest pause before a partition tries again.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A batch that was not cut yet.
#[derive(Debug)]
struct Gathering {
    id: BatchId,
    builder: BatchBuilder,
    since: Duration,
    flush: bool,
}

/// A batch that was cut and sent, and has not ended.
#[derive(Debug)]
struct Cut {
    id: BatchId,
    bytes: Bytes,
    since: Duration,
    in_flight: bool,
    sends: u32,
    /// Whether an attempt ended without saying whether it was done.
    maybe_done: bool,
    last_failure: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// No producer is open.
    Closed { renew: bool },
    /// Asked for.
    Opening { renew: bool },
    /// Batches follow this sequence.
    Open { writer: Writer, sequence: u64 },
    /// A batch failed for good; waiting for the answers still owed. Then closed, or dead when a name's last outcome
    /// is unknown.
    Failing { failure: Failure, unknown: bool },
    /// The name must not be used again.
    Dead { failure: Failure },
}

#[derive(Debug)]
pub(crate) struct Lane {
    partition: PartitionId,
    kind: WriterKind,
    state: State,
    /// Only the last takes more records.
    gathering: VecDeque<Gathering>,
    /// In order of sequence.
    unacknowledged: VecDeque<Cut>,
    /// After a failure: send nothing until all in flight is back, then again from the first.
    rewinding: bool,
    /// Another connection is the right one: send nothing until all in flight is back.
    rerouting: bool,
    hold_until: Option<Duration>,
    /// In a row.
    failures: u32,
    /// Why the producer was not opened at the last attempt.
    not_opened: Option<Failure>,
}

/// What a failure means for one batch.
struct Verdict {
    again: bool,
    maybe_done: bool,
}

impl Lane {
    pub(crate) fn new(partition: PartitionId, kind: WriterKind) -> Lane {
        let state = match kind {
            WriterKind::Anonymous => State::Open {
                writer: Writer::Anonymous,
                sequence: 0,
            },
            WriterKind::Random | WriterKind::Named => State::Closed { renew: false },
        };
        Lane {
            partition,
            kind,
            state,
            gathering: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            rewinding: false,
            rerouting: false,
            hold_until: None,
            failures: 0,
            not_opened: None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.gathering.is_empty() && self.unacknowledged.is_empty()
    }

    /// Whether new records without keys are welcome.
    pub(crate) fn is_healthy(&self) -> bool {
        self.failures == 0 && !matches!(self.state, State::Dead { .. } | State::Failing { .. })
    }

    pub(crate) fn sequence(&self) -> Option<u64> {
        match self.state {
            State::Open { sequence, .. } => Some(sequence),
            _ => None,
        }
    }

    /// Adds to the batch that is open; `Full` when there is none, or no room in it.
    pub(crate) fn push(
        &mut self,
        record: &Record,
        batch_records: usize,
    ) -> Result<(BatchId, u32), PushError> {
        let last = self.gathering.back_mut().ok_or(PushError::Full)?;
        if last.builder.len() >= batch_records {
            return Err(PushError::Full);
        }
        last.builder.push(record)?;
        Ok((last.id, last.builder.len() as u32 - 1))
    }

    pub(crate) fn begin(&mut self, id: BatchId, builder: BatchBuilder, now: Duration) {
        self.gathering.push_back(Gathering {
            id,
            builder,
            since: now,
            flush: false,
        });
    }

    /// Empties the way before another is taken.
    pub(crate) fn reroute(&mut self) {
        self.rerouting = self.unacknowledged.iter().any(|cut| cut.in_flight);
    }

    pub(crate) fn flush(&mut self) {
        for gathering in &mut self.gathering {
            gathering.flush = true;
        }
    }

    pub(crate) fn wake_at(&self, config: &BatcherConfig) -> Option<Duration> {
        let waiting = self.unacknowledged.iter().filter(|cut| !cut.in_flight);
        let late_cut = waiting
            .map(|cut| cut.since.saturating_add(config.delivery_timeout))
            .min();
        let front = self.gathering.front();
        let front = front.and_then(|front| match self.state {
            State::Open { .. } if self.has_room(config) && self.hold_until.is_none() => {
                Some(front.since.saturating_add(config.linger))
            }
            State::Closed { .. } | State::Opening { .. } => {
                Some(front.since.saturating_add(config.delivery_timeout))
            }
            _ => None,
        });
        [late_cut, front, self.hold_until].into_iter().flatten().min()
    }

    /// Settles what is late, opens the producer, sends again what has to be; false when nothing new may be sent.
    pub(crate) fn prepare(&mut self, now: Duration, config: &BatcherConfig, out: &mut Vec<Action>) -> bool {
        self.give_up_late(now, config, out);
        if let State::Failing { failure, unknown } = &self.state
            && self.unacknowledged.is_empty()
        {
            self.rewinding = false;
            self.hold_until = None;
            self.state = if *unknown && self.kind == WriterKind::Named {
                let why = format!("the producer's name must be opened again, after this: {failure}");
                State::Dead {
                    failure: Failure::Unreachable(why),
                }
            } else {
                State::Closed { renew: true }
            };
        }
        if let State::Dead { failure } = &self.state {
            let failure = failure.clone();
            self.fail_gathering(&failure, out);
        }
        if self.hold_until.is_some_and(|until| now < until) {
            return false;
        }
        self.hold_until = None;
        if let State::Closed { renew } = self.state
            && !self.gathering.is_empty()
        {
            self.state = State::Opening { renew };
            out.push(Action::Open {
                partition: self.partition,
                renew,
            });
        }
        if !matches!(self.state, State::Open { .. }) {
            return false;
        }
        self.send_again(out)
    }

    fn send_again(&mut self, out: &mut Vec<Action>) -> bool {
        if (self.rewinding || self.rerouting) && self.unacknowledged.iter().any(|cut| cut.in_flight) {
            return false;
        }
        (self.rewinding, self.rerouting) = (false, false);
        for cut in self.unacknowledged.iter_mut().filter(|cut| !cut.in_flight) {
            cut.in_flight = true;
            cut.sends += 1;
            out.push(Action::Produce {
                partition: self.partition,
                batch: cut.id,
                bytes: cut.bytes.clone(),
            });
        }
        true
    }

    fn has_room(&self, config: &BatcherConfig) -> bool {
        !self.rewinding && !self.rerouting && self.unacknowledged.len() < config.in_flight
    }

    /// Whether the next batch is to be cut: it is full, or nothing is in flight, or it has waited long enough.
    pub(crate) fn may_cut(&self, now: Duration, config: &BatcherConfig) -> bool {
        let Some(front) = self.gathering.front() else {
            return false;
        };
        let full = self.gathering.len() > 1
            || front.builder.len() >= config.batch_records
            || front.builder.size() >= config.batch_bytes;
        let due =
            self.unacknowledged.is_empty() || front.flush || now >= front.since.saturating_add(config.linger);
        self.has_room(config) && (full || due)
    }

    /// Cuts and sends the next batch; only when [`Lane::may_cut`]. Returns the emptied builder.
    pub(crate) fn cut(&mut self, config: &BatcherConfig, out: &mut Vec<Action>) -> BatchBuilder {
        debug_assert!(self.has_room(config));
        let mut next = self.gathering.pop_front().expect("may_cut saw one");
        let State::Open { writer, sequence } = &mut self.state else {
            unreachable!("prepare lets only open lanes cut");
        };
        let count = next.builder.len() as u64;
        let bytes = next
            .builder
            .finish(*writer, *sequence)
            .expect("a batch begins with a record");
        if *writer != Writer::Anonymous {
            *sequence += count;
        }
        out.push(Action::Produce {
            partition: self.partition,
            batch: next.id,
            bytes: bytes.clone(),
        });
        self.unacknowledged.push_back(Cut {
            id: next.id,
            bytes,
            since: next.since,
            in_flight: true,
            sends: 1,
            maybe_done: false,
            last_failure: None,
        });
        next.builder
    }

    pub(crate) fn opened(
        &mut self,
        result: Result<(Writer, u64), Failure>,
        now: Duration,
        out: &mut Vec<Action>,
    ) {
        let State::Opening { renew } = self.state else {
            return;
        };
        match result {
            Ok((writer, sequence)) => {
                self.failures = 0;
                self.not_opened = None;
                self.state = State::Open { writer, sequence };
            }
            Err(failure) => {
                self.state = State::Closed { renew };
                // Opening twice is harmless, so only a refusal for good ends it.
                if self.judge(&failure, false).again {
                    self.back_off(now);
                    self.not_opened = Some(failure);
                } else {
                    self.not_opened = None;
                    self.fail_gathering(&failure, out);
                }
            }
        }
    }

    pub(crate) fn settled(
        &mut self,
        batch: BatchId,
        resent: bool,
        result: Result<Produced, Failure>,
        now: Duration,
        out: &mut Vec<Action>,
    ) {
        let Some(index) = self.unacknowledged.iter().position(|cut| cut.id == batch) else {
            return;
        };
        let first_attempt = self.unacknowledged[index].sends == 1 && !resent;
        let failure = match result {
            Ok(produced) if produced.duplicate && first_attempt && self.kind != WriterKind::Anonymous => {
                // Not ours: the records that the node holds under this sequence are somebody else's.
                let what = "another producer with the same id or name is writing to this partition";
                Failure::Refused(Refusal::new(ErrorCode::OutOfOrderSequence, what))
            }
            Ok(produced) => {
                self.failures = 0;
                self.unacknowledged.remove(index);
                return self.done(batch, Ok(produced), out);
            }
            Err(failure) => failure,
        };
        let follows = index > 0;
        let verdict = self.judge(&failure, follows);
        let cut = &mut self.unacknowledged[index];
        cut.in_flight = false;
        cut.maybe_done |= verdict.maybe_done;
        cut.last_failure = Some(failure.clone());
        let stands_alone = self.kind == WriterKind::Anonymous;
        if let State::Failing { unknown, .. } = &mut self.state {
            *unknown |= cut.maybe_done;
            self.end_cut(index, out);
        } else if verdict.again {
            self.rewinding = !stands_alone;
            self.back_off(now);
        } else if stands_alone {
            self.end_cut(index, out);
        } else {
            self.fail(&failure, out);
        }
    }

    /// Whether to try again after a failure; `follows`: an earlier batch is still unacknowledged.
    fn judge(&self, failure: &Failure, follows: bool) -> Verdict {
        let deduplicated = self.kind != WriterKind::Anonymous;
        let (again, maybe_done) = match failure {
            // The one before it was not taken, so this one could not be.
            Failure::Refused(refusal) if refusal.code == ErrorCode::OutOfOrderSequence => (follows, false),
            Failure::Refused(refusal) => match refusal.code.retry() {
                Retry::Later => (true, false),
                Retry::Refresh => (refusal.code == ErrorCode::NotOwner, false),
                Retry::OutcomeUnknown => (deduplicated, true),
                Retry::Never => (false, false),
            },
            Failure::Unreachable(_) => (true, false),
            Failure::TimedOut(_) | Failure::OutcomeUnknown(_) => (deduplicated, true),
            Failure::Protocol(_) => (false, true),
        };
        Verdict { again, maybe_done }
    }

    fn back_off(&mut self, now: Duration) {
        let pause = BACKOFF_MIN
            .saturating_mul(1 << self.failures.min(16))
            .min(BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.hold_until = Some(now.saturating_add(pause));
    }

    fn give_up_late(&mut self, now: Duration, config: &BatcherConfig, out: &mut Vec<Action>) {
        let is_late = |since: Duration| now >= since.saturating_add(config.delivery_timeout);
        let late_cut = |cut: &Cut| !cut.in_flight && is_late(cut.since);
        if self.kind == WriterKind::Anonymous {
            while let Some(index) = self.unacknowledged.iter().position(late_cut) {
                self.end_cut(index, out);
            }
        } else if let Some(cut) = self.unacknowledged.iter().find(|cut| late_cut(cut)) {
            let failure = cut.ending();
            self.fail(&failure, out);
        }
        let not_open = matches!(self.state, State::Closed { .. } | State::Opening { .. });
        if not_open && self.gathering.front().is_some_and(|front| is_late(front.since)) {
            let failure = self.opened_too_late(config.delivery_timeout);
            self.fail_gathering(&failure, out);
        }
    }

    /// Why nothing was sent within the time that a delivery has: what kept the producer from being opened.
    fn opened_too_late(&self, after: Duration) -> Failure {
        let within = humantime::format_duration(after);
        match &self.not_opened {
            Some(Failure::Unreachable(why)) => Failure::Unreachable(why.clone()),
            Some(reason) => Failure::Refused(Refusal::new(
                ErrorCode::TimedOut,
                format!(
                    "partition {}: the producer was not opened within {within}, at last: {reason}",
                    self.partition
                ),
            )),
            None => Failure::TimedOut(after),
        }
    }

    /// Ends everything that is not in flight, so that nothing overtakes the batch that failed.
    fn fail(&mut self, failure: &Failure, out: &mut Vec<Action>) {
        let unknown = self.unacknowledged.iter().any(|cut| cut.maybe_done);
        self.state = State::Failing {
            failure: failure.clone(),
            unknown,
        };
        let behind = match failure {
            Failure::Refused(_) => failure.clone(),
            other => Failure::Unreachable(format!("a batch before it failed: {other}")),
        };
        while let Some(index) = self.unacknowledged.iter().position(|cut| !cut.in_flight) {
            self.end_cut(index, out);
        }
        self.fail_gathering(&behind, out);
    }

    fn end_cut(&mut self, index: usize, out: &mut Vec<Action>) {
        if let Some(cut) = self.unacknowledged.remove(index) {
            self.done(cut.id, Err(cut.ending()), out);
        }
    }

    fn fail_gathering(&mut self, failure: &Failure, out: &mut Vec<Action>) {
        for gathering in std::mem::take(&mut self.gathering) {
            self.done(gathering.id, Err(failure.clone()), out);
        }
    }

    fn done(&self, batch: BatchId, result: Result<Produced, Failure>, out: &mut Vec<Action>) {
        out.push(Action::Done {
            partition: self.partition,
            batch,
            result,
        });
    }
}

impl Cut {
    /// Why it failed: never a definite refusal when an earlier attempt may have been done.
    fn ending(&self) -> Failure {
        match &self.last_failure {
            Some(failure @ (Failure::Refused(_) | Failure::Unreachable(_))) if self.maybe_done => {
                Failure::OutcomeUnknown(failure.to_string())
            }
            Some(failure) => failure.clone(),
            None => Failure::Unreachable("a batch before it failed".to_owned()),
        }
    }
}
