//! The consumer: reads several partitions at once, checks every batch, and says what it could not read.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::batch::header::{BatchHeader, BatchKind};
use crate::batch::view::{BatchView, RecordView};
use crate::client::config::{ConsumerOptions, StartAt};
use crate::client::connection::Sink;
use crate::client::error::ClientError;
use crate::client::handle::Client;
use crate::code::{ErrorCode, Refusal, Retry};
use crate::ids::{Incarnation, Lineage, Offset, PartitionId};
use crate::limits::{FETCH_BYTES_MAX, FETCH_WAIT_MILLIS_MAX};
use crate::message::{FetchRequest, Fetched, Place, Reply, Request};
use crate::meta::Topic;
use crate::session::action::{Failure, Outcome};

/// Fetches of one consumer that may be unanswered: the connection's window is shared with other requests.
const FETCHES_MAX: usize = 64;
/// How long a fetch waits at most when there are more partitions than [`FETCHES_MAX`], so that each has its turn.
const CROWDED_WAIT: Duration = Duration::from_millis(50);
/// How long a fetch waits at least, so that an idle topic is not asked without pause.
const WAIT_MIN: Duration = Duration::from_millis(10);
/// The pause after a refusal that may pass.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What [`Consumer::next`] brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consumed {
    /// Records.
    Batch(ConsumedBatch),
    /// Records that cannot be read any more; the consumer goes on behind them.
    Gap(Gap),
}

/// One batch; its checksums were verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumedBatch {
    /// Where it was read.
    pub partition: PartitionId,
    /// The whole batch, as it lies on the node's disk.
    pub bytes: Bytes,
    /// Its header.
    pub header: BatchHeader,
    /// The first offset wanted; the batch may begin below it.
    pub first: Offset,
    /// The end of what is wanted: the batch's, or the consumer's.
    pub end: Offset,
}

impl ConsumedBatch {
    /// The records that are wanted, in order.
    pub fn records(&self) -> impl Iterator<Item = RecordView<'_>> + '_ {
        let base = self.header.base_offset;
        let wanted = self.first.since(base) as usize..self.end.since(base) as usize;
        let view = BatchView::parse_verified(&self.bytes);
        wanted.filter_map(move |k| view.as_ref().ok()?.record(k))
    }

    /// How many records are wanted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end.since(self.first) as usize
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A range that was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Where.
    pub partition: PartitionId,
    /// The first offset that cannot be read.
    pub from: Offset,
    /// The offset after the last one.
    pub to: Offset,
    /// Why.
    pub reason: GapReason,
}

/// Why a range cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapReason {
    /// It is damaged on the node's disk.
    Quarantined,
    /// Retention removed it before it was read.
    Retention,
}

/// Reads a topic, as many partitions as it had when the consumer was made. [`Consumer::next`] may be dropped while it
/// waits, and after an error it may be called again.
#[derive(Debug)]
pub struct Consumer {
    client: Client,
    topic: Topic,
    options: ConsumerOptions,
    lanes: Vec<Lane>,
    /// The lane that is asked next when there are more of them than fetches.
    turn: usize,
    in_flight: usize,
    /// From one fetch; the next answer is taken up when these are gone, so at most two slabs of a partition are held.
    ready: VecDeque<Result<Consumed, ClientError>>,
    answers: mpsc::UnboundedSender<(u64, Outcome)>,
    answered: mpsc::UnboundedReceiver<(u64, Outcome)>,
}

/// One partition.
#[derive(Debug)]
struct Lane {
    partition: PartitionId,
    next: Offset,
    /// Where to stop.
    end: Option<Offset>,
    incarnation: Incarnation,
    lineage: Lineage,
    /// A fetch is unanswered.
    waiting: bool,
    /// It went to a shard beside the first connection: without that shard it takes another way.
    beside: bool,
    /// Not before this, after a refusal that may pass; and since when it has been refused.
    hold: Option<Hold>,
    /// Something of it was read: a position that retention passes is then a gap, not a wrong start.
    started: bool,
    high_water_mark: Offset,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Instant,
    since: Instant,
}

impl Consumer {
    pub(crate) async fn open(
        client: Client,
        topic: Topic,
        options: ConsumerOptions,
    ) -> Result<Consumer, ClientError> {
        let all = || (0..topic.spec.partitions).map(PartitionId).collect();
        let partitions: Vec<PartitionId> = options.partitions.clone().unwrap_or_else(all);
        let place = match options.from {
            StartAt::Earliest | StartAt::Offset(_) => Place::Earliest,
            StartAt::Tail => Place::Tail,
            StartAt::Time(at) => Place::Time(at),
        };
        let mut lanes: Vec<Lane> = Vec::with_capacity(partitions.len());
        for partition in partitions {
            if partition.0 >= topic.spec.partitions {
                return Err(ClientError::no_partition(&topic, partition));
            }
            if lanes.iter().any(|lane| lane.partition == partition) {
                return Err(ClientError::invalid(format!(
                    "consumer: partition {partition} is named twice"
                )));
            }
            let found = client.find_offset(&topic.spec.name, partition, place).await?;
            lanes.push(Lane {
                partition,
                next: match options.from {
                    StartAt::Offset(offset) => offset,
                    _ => found.offset,
                },
                end: options.stop_at_end.then_some(found.high_water_mark),
                incarnation: found.incarnation,
                lineage: found.lineage,
                waiting: false,
                beside: false,
                hold: None,
                started: !matches!(options.from, StartAt::Offset(_)),
                high_water_mark: found.high_water_mark,
            });
        }
        let (answers, answered) = mpsc::unbounded_channel();
        Ok(Consumer {
            client,
            topic,
            options,
            lanes,
            turn: 0,
            in_flight: 0,
            ready: VecDeque::new(),
            answers,
            answered,
        })
    }

    /// The topic as it was when the consumer was made.
    #[must_use]
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// The end of what a partition has brought so far, and its committed end as last seen; `None` for one that is
    /// not read.
    #[must_use]
    pub fn position(&self, partition: PartitionId) -> Option<(Offset, Offset)> {
        let lane = self.lanes.iter().find(|lane| lane.partition == partition)?;
        Some((lane.next, lane.high_water_mark))
    }

    /// The next batch or gap, of any partition; in order within each. `None` at the end, for a consumer that stops
    /// there.
    ///
    /// # Errors
    /// Any [`ClientError`]; the same place is read again at the next call.
    pub async fn next(&mut self) -> Result<Option<Consumed>, ClientError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return item.map(Some);
            }
            let resume = self.ask().await?;
            if self.in_flight == 0 && resume.is_none() {
                return Ok(None);
            }
            let resume = resume.unwrap_or_else(|| Instant::now() + self.client.config().request_timeout);
            if let Ok(Some((tag, outcome))) = timeout_at(resume, self.answered.recv()).await {
                let lane = tag as usize;
                self.in_flight -= 1;
                self.lanes[lane].waiting = false;
                self.take(lane, outcome).await?;
                // The next slab is under way while the application works on this one.
                self.ask().await?;
            }
        }
    }

    /// Fetches for every partition that has no fetch under way, as far as there is room. Returns when the first
    /// that is held back may be asked again.
    async fn ask(&mut self) -> Result<Option<Instant>, ClientError> {
        let mut resume: Option<Instant> = None;
        let count = self.lanes.len();
        let crowded = count > FETCHES_MAX;
        let now = Instant::now();
        for _ in 0..count {
            if self.in_flight >= FETCHES_MAX {
                break;
            }
            let index = self.turn % count;
            self.turn = (index + 1) % count;
            let lane = &self.lanes[index];
            if lane.waiting || lane.is_done() {
                continue;
            }
            if let Some(hold) = lane.hold
                && now < hold.until
            {
                resume = Some(resume.map_or(hold.until, |earlier| earlier.min(hold.until)));
                continue;
            }
            let wait = match crowded {
                true => CROWDED_WAIT,
                false => self.options.wait.max(WAIT_MIN),
            };
            let request = Request::Fetch(FetchRequest {
                topic: self.topic.spec.name.clone(),
                incarnation: Some(lane.incarnation),
                lineage: Some(lane.lineage),
                partition: lane.partition,
                from: lane.next,
                bytes_max: self.options.bytes_max.clamp(1, FETCH_BYTES_MAX as u32),
                wait_millis: (wait.as_millis() as u64).min(FETCH_WAIT_MILLIS_MAX) as u32,
            });
            let limit = self.client.limit_of(&request);
            let connection = self.client.connection_to(&self.topic, lane.partition);
            let sink = Sink::Many(index as u64, self.answers.clone());
            let submitted = connection.submit(request, Bytes::new(), limit, sink).await;
            submitted.map_err(|failure| ClientError::of(failure, connection.server(), "fetch"))?;
            self.lanes[index].waiting = true;
            self.lanes[index].beside = connection.is_beside();
            self.in_flight += 1;
        }
        Ok(resume)
    }

    async fn take(&mut self, index: usize, outcome: Outcome) -> Result<(), ClientError> {
        let lane = &mut self.lanes[index];
        match outcome.result {
            Ok((Reply::Fetched(fetched), payload)) => {
                lane.hold = None;
                lane.accept(&self.topic, &fetched, &payload, &mut self.ready);
                Ok(())
            }
            Ok((other, _)) => Err(self.client.unexpected(&other)),
            Err(Failure::Refused(refusal)) if refusal.code == ErrorCode::PositionBehind && lane.started => {
                let (partition, from) = (lane.partition, lane.next);
                let name = &self.topic.spec.name;
                let found = self.client.find_offset(name, partition, Place::Earliest).await?;
                let lane = &mut self.lanes[index];
                if found.incarnation != lane.incarnation
                    || found.lineage != lane.lineage
                    || found.offset <= from
                {
                    return Err(ClientError::Refused(refusal));
                }
                lane.pass(found.offset, GapReason::Retention, &mut self.ready);
                Ok(())
            }
            Err(failure) if lane.may_pass(&failure) => {
                if let Failure::Refused(refusal) = &failure {
                    let (partition, was_straight) = (lane.partition, lane.beside);
                    self.client.refused(&self.topic, partition, refusal, was_straight);
                }
                let now = Instant::now();
                let since = lane.hold.map_or(now, |hold| hold.since);
                lane.hold = Some(Hold {
                    until: now + RETRY_PAUSE,
                    since,
                });
                if now - since < self.client.config().request_timeout {
                    return Ok(());
                }
                lane.hold = None;
                Err(self.failed(index, failure))
            }
            Err(failure) => Err(self.failed(index, failure)),
        }
    }

    fn failed(&self, index: usize, failure: Failure) -> ClientError {
        let partition = self.lanes[index].partition;
        let place = format!("fetch {} partition {partition}", self.topic.spec.name);
        ClientError::of(failure, &self.client.config().server, &place)
    }
}

impl Lane {
    /// Whether to ask again after a failure: the node says so, or there is another way to it.
    fn may_pass(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Refused(refusal) => {
                refusal.code.retry() == Retry::Later || refusal.code == ErrorCode::NotOwner
            }
            Failure::Unreachable(_) | Failure::OutcomeUnknown(_) => self.beside,
            Failure::TimedOut(_) | Failure::Protocol(_) => false,
        }
    }

    fn is_done(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    /// Takes a fetch apart: batches in order, and what is missing between them.
    fn accept(
        &mut self,
        topic: &Topic,
        fetched: &Fetched,
        payload: &Bytes,
        ready: &mut VecDeque<Result<Consumed, ClientError>>,
    ) {
        if fetched.incarnation != self.incarnation || fetched.lineage != self.lineage {
            let code = match fetched.incarnation == self.incarnation {
                true => ErrorCode::StaleLineage,
                false => ErrorCode::StaleIncarnation,
            };
            let what = format!(
                "topic {} partition {}: it is another one now",
                topic.spec.name, self.partition
            );
            ready.push_back(Err(ClientError::Refused(Refusal::new(code, what))));
            return;
        }
        self.started = true;
        self.high_water_mark = fetched.high_water_mark;
        let mut at = 0;
        while at < payload.len() && !self.is_done() {
            let header = match BatchView::parse(&payload[at..]) {
                Ok(view) => view.header().clone(),
                Err(error) => {
                    let (name, partition, next) = (&topic.spec.name, self.partition, self.next);
                    ready.push_back(Err(ClientError::Corrupt {
                        place: format!("topic {name} partition {partition} from offset {next}"),
                        why: error.to_string(),
                    }));
                    return;
                }
            };
            let bytes = payload.slice(at..at + header.batch_len());
            at += header.batch_len();
            if header.kind == BatchKind::Frontier || header.end_offset() <= self.next {
                continue;
            }
            self.pass_missing(header.base_offset, fetched, ready);
            let first = self.next;
            let end = self
                .end
                .map_or(header.end_offset(), |end| end.min(header.end_offset()));
            if end <= first {
                continue;
            }
            self.next = end;
            if header.kind == BatchKind::Data {
                ready.push_back(Ok(Consumed::Batch(ConsumedBatch {
                    partition: self.partition,
                    bytes,
                    header,
                    first,
                    end,
                })));
            }
        }
        self.pass_missing(fetched.next, fetched, ready);
    }

    /// Moves on to `to`, and says what of the way was quarantined and what is gone.
    fn pass_missing(
        &mut self,
        to: Offset,
        fetched: &Fetched,
        ready: &mut VecDeque<Result<Consumed, ClientError>>,
    ) {
        for &(bad_from, bad_to) in &fetched.quarantined {
            if bad_to > self.next && bad_from < to {
                self.pass(bad_from, GapReason::Retention, ready);
                self.pass(bad_to.min(to), GapReason::Quarantined, ready);
            }
        }
        self.pass(to, GapReason::Retention, ready);
    }

    fn pass(&mut self, to: Offset, reason: GapReason, ready: &mut VecDeque<Result<Consumed, ClientError>>) {
        let to = self.end.map_or(to, |end| end.min(to));
        if to > self.next {
            ready.push_back(Ok(Consumed::Gap(Gap {
                partition: self.partition,
                from: self.next,
                to,
                reason,
            })));
            self.next = to;
        }
    }
}
