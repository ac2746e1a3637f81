//! A child partition: a log in memory whose tail is lost in a crash, in front of it the real dedup table.

use bytes::Bytes;
use tailwater_node::fanout::batch::ChildBatch;
use tailwater_node::fanout::cursor::message::{Event, RequestId};
use tailwater_node::fanout::cursor::receipt::Receipt;
use tailwater_storage::dedup::table::DedupTable;
use tailwater_storage::dedup::verdict::{AppendedBatch, OriginMark, Verdict};
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::batch::header::BatchKind;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Lineage, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::record::Record;

use super::meta::Meta;
use super::options::{Bug, Scenario};

/// What a cursor asks of a child partition.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub runner: usize,
    pub request: RequestId,
    pub origin: OriginId,
    /// The metadata index of the link, as the cursor knows it.
    pub index: u64,
    pub what: Ask,
}

/// See [`Request`].
#[derive(Debug, Clone)]
pub(super) enum Ask {
    Open,
    Commit(Bytes),
}

/// What it answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reply {
    pub runner: usize,
    pub request: RequestId,
    pub bucket: PartitionId,
    pub what: Answer,
}

/// See [`Reply`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Opened(Offset, Option<OriginMark>),
    Acked { end: Offset, duplicate: bool },
    Expected(Offset),
    Failed(ErrorCode),
}

impl Reply {
    pub fn event(&self) -> Event {
        let (request, bucket) = (self.request, self.bucket);
        match self.what {
            Answer::Opened(watermark, mark) => Event::Opened {
                request,
                bucket,
                watermark,
                mark,
            },
            Answer::Acked { end, duplicate } => Event::Acked {
                request,
                bucket,
                receipt: Receipt::flushed(end),
                duplicate,
            },
            Answer::Expected(watermark) => Event::Expected {
                request,
                bucket,
                watermark,
            },
            Answer::Failed(code) => Event::Failed {
                request,
                bucket,
                code,
            },
        }
    }
}

/// One batch in the log, as the oracle wants to see it.
#[derive(Debug, Clone)]
pub(super) struct Appended {
    pub origin: OriginId,
    pub base: Offset,
    pub batch: ChildBatch,
    pub appended_at: CommitTime,
    pub released_at: CommitTime,
    /// None of a notice.
    pub records: Vec<(Offset, Record)>,
    /// What a notice says.
    pub dropped: Option<Dropped>,
    /// The newest metadata that the partition had seen.
    pub view: u64,
    mark: Option<OriginMark>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Child {
    pub partition: PartitionId,
    pub log: Vec<Appended>,
    pub up: bool,
    /// Counts lives: what was begun in an earlier one is void.
    pub life: u64,
    /// The version of the metadata that it has seen; never falls.
    pub view: u64,
    flushed: Offset,
    flushing: Option<Offset>,
    dedup: DedupTable,
    /// Answers that wait for a flush.
    waiting: Vec<(Offset, Reply)>,
    floor_is_attach: bool,
    bug: Option<Bug>,
}

impl Child {
    pub fn new(partition: u32, scenario: &Scenario) -> Child {
        Child {
            partition: PartitionId(partition),
            log: Vec::new(),
            up: true,
            life: 0,
            view: 0,
            flushed: Offset::ZERO,
            flushing: None,
            dedup: DedupTable::new(),
            waiting: Vec::new(),
            floor_is_attach: scenario.floor_is_attach,
            bug: scenario.bug,
        }
    }

    fn next_offset(&self) -> Offset {
        self.log.last().map_or(Offset::ZERO, |batch| {
            batch.base.plus(u64::from(batch.batch.records))
        })
    }

    /// Sees metadata up to a version.
    pub fn see(&mut self, version: u64, meta: &Meta) {
        if version > self.view {
            self.view = version;
            let current = meta.snapshots[version as usize].link(&meta.parent, &meta.child);
            for gone in meta.gone() {
                if current.map(|link| link.epoch) != Some(gone.epoch())
                    && self.bug != Some(Bug::AcceptDeadEpoch)
                {
                    self.dedup.forget_origins(&gone);
                }
            }
        }
    }

    /// Takes a request, and answers now or after a flush.
    pub fn handle(&mut self, request: &Request, now: CommitTime, meta: &Meta) -> Option<Reply> {
        self.see(request.index, meta);
        let bucket = self.partition;
        let reply = |what| Reply {
            runner: request.runner,
            request: request.request,
            bucket,
            what,
        };
        let snapshot = &meta.snapshots[self.view as usize];
        let current = snapshot.link_by_epoch(&meta.child, request.origin.epoch);
        let link = if self.bug == Some(Bug::AcceptDeadEpoch) {
            meta.links.iter().find(|link| link.epoch == request.origin.epoch)
        } else {
            current
        };
        let Some(link) = link else {
            return Some(reply(Answer::Failed(ErrorCode::StaleEpoch)));
        };
        let floor = if self.floor_is_attach {
            link.attach_offset(request.origin.partition.0)
        } else {
            Offset::ZERO
        };
        match &request.what {
            Ask::Open => {
                let opened = self.dedup.origin(request.origin);
                let answer = opened.map_or(Answer::Opened(floor, None), |origin| {
                    Answer::Opened(Offset(origin.appended), origin.mark)
                });
                let until = opened.map_or(Offset::ZERO, |origin| origin.end_offset);
                let reply = reply(answer);
                self.once_flushed(until, reply)
            }
            Ask::Commit(bytes) => {
                let (until, answer) = self.commit(bytes, floor, now);
                let reply = reply(answer);
                self.once_flushed(until, reply)
            }
        }
    }

    fn once_flushed(&mut self, until: Offset, reply: Reply) -> Option<Reply> {
        if until <= self.flushed || self.bug == Some(Bug::AckBeforeFlush) {
            return Some(reply);
        }
        self.waiting.push((until, reply));
        None
    }

    fn commit(&mut self, bytes: &Bytes, floor: Offset, now: CommitTime) -> (Offset, Answer) {
        let Ok(view) = BatchView::parse(bytes) else {
            return (Offset::ZERO, Answer::Failed(ErrorCode::CorruptBatch));
        };
        let header = view.header();
        let mut verdict = self
            .dedup
            .decide(header.writer, header.previous, header.sequence, Some(floor.0));
        match (self.bug, verdict) {
            (Some(Bug::IgnoreDedup), _) => verdict = Verdict::Append,
            (Some(Bug::IgnorePrevious), Verdict::Expected { watermark }) if header.sequence > watermark => {
                verdict = Verdict::Append;
            }
            _ => {}
        }
        let end = Offset(header.sequence);
        match verdict {
            Verdict::Append => {
                self.append(&view, now);
                let duplicate = false;
                (self.next_offset(), Answer::Acked { end, duplicate })
            }
            Verdict::Duplicate { end_offset, .. } => {
                let duplicate = true;
                (end_offset, Answer::Acked { end, duplicate })
            }
            // The watermark is told once it is flushed, as an opened origin's is.
            Verdict::Expected { watermark } => (self.next_offset(), Answer::Expected(Offset(watermark))),
            Verdict::OutOfOrder { .. } | Verdict::UnknownProducer => {
                (Offset::ZERO, Answer::Failed(ErrorCode::UnknownProducer))
            }
        }
    }

    fn append(&mut self, view: &BatchView<'_>, now: CommitTime) {
        let header = view.header();
        let Writer::Origin(origin) = header.writer else {
            return;
        };
        let stamp = view.body().and_then(|body| body.origin.as_ref());
        let mark = stamp.map(|stamp| OriginMark {
            lineage: Lineage::from_u64(stamp.lineage.to_native()),
            parent_crc: stamp.parent_crc.to_native(),
            parent_commit_time: CommitTime(stamp.parent_commit_time.to_native()),
        });
        let appended = Appended {
            origin,
            base: self.next_offset(),
            batch: ChildBatch {
                bytes: Bytes::new(),
                previous: Offset(header.previous),
                end: Offset(header.sequence),
                records: header.record_count,
                dropped: 0,
            },
            appended_at: now,
            released_at: CommitTime(stamp.map_or(0, |stamp| stamp.released_at.to_native())),
            dropped: Dropped::of(view),
            records: view
                .records()
                .filter(|_| header.kind == BatchKind::Data)
                .map(|record| (record.origin.unwrap_or_default(), record.to_record()))
                .collect(),
            view: self.view,
            mark,
        };
        self.dedup.appended(&told(&appended));
        self.log.push(appended);
    }

    /// Begins a flush of all that is there, if one is needed and none is under way.
    pub fn begin_flush(&mut self) -> bool {
        let needed = self.flushing.is_none() && self.flushed < self.next_offset();
        if needed {
            self.flushing = Some(self.next_offset());
        }
        needed
    }

    /// The flush is done: the answers that it allows.
    pub fn end_flush(&mut self) -> Vec<Reply> {
        let Some(upto) = self.flushing.take() else {
            return Vec::new();
        };
        self.flushed = upto;
        self.dedup.flushed(upto);
        let (ready, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(until, _)| *until <= upto);
        self.waiting = waiting;
        ready.into_iter().map(|(_, reply)| reply).collect()
    }

    /// Loses what no flush covered, and everything in memory.
    pub fn crash(&mut self) {
        self.up = false;
        self.life += 1;
        self.flushing = None;
        self.waiting.clear();
        let flushed = self.flushed;
        self.log.retain(|batch| batch.base < flushed);
        self.dedup = DedupTable::new();
        for batch in &self.log {
            self.dedup.appended(&told(batch));
        }
        self.dedup.flushed(flushed);
    }

    /// What is flushed.
    pub fn durable(&self) -> &[Appended] {
        let upto = self.log.partition_point(|batch| batch.base < self.flushed);
        &self.log[..upto]
    }
}

fn told(appended: &Appended) -> AppendedBatch {
    AppendedBatch {
        writer: Writer::Origin(appended.origin),
        previous: appended.batch.previous.0,
        sequence: appended.batch.end.0,
        base_offset: appended.base,
        end_offset: appended.base.plus(u64::from(appended.batch.records)),
        commit_time: appended.appended_at,
        origin: appended.mark,
    }
}
