//! A child partition: a log whose end a crash takes, and in front of it the production dedup table, which is made from
//! the log at every question, as recovery makes it.

use bytes::Bytes;
use tailwater_node::fanout::cursor::message::{Event, RequestId};
use tailwater_node::fanout::cursor::receipt::Receipt;
use tailwater_storage::dedup::table::DedupTable;
use tailwater_storage::dedup::verdict::{AppendedBatch, OriginMark, Verdict};
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Lineage, Offset, OriginId, PartitionId, Writer};

use super::model::Fault;
use super::parent::{Copied, read_value};

/// What a cursor asks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// The watermark.
    Open,
    /// To append a batch.
    Commit(Bytes),
}

/// What the child answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The watermark, and of the parent batch behind it the lineage, crc and commit time.
    Opened(u64, Option<(Lineage, u32, u64)>),
    /// The batch that leaves this watermark is flushed.
    Acked {
        /// The watermark.
        end: u64,
        /// It was there before.
        duplicate: bool,
    },
    /// It goes on from here.
    Expected(u64),
    /// Nobody knows.
    Failed,
}

impl Answer {
    /// As the cursor hears it.
    #[must_use]
    pub fn event(self, request: RequestId, bucket: PartitionId) -> Event {
        match self {
            Answer::Opened(watermark, mark) => Event::Opened {
                request,
                bucket,
                watermark: Offset(watermark),
                mark: mark.map(|(lineage, parent_crc, time)| OriginMark {
                    lineage,
                    parent_crc,
                    parent_commit_time: CommitTime(time),
                }),
            },
            Answer::Acked { end, duplicate } => Event::Acked {
                request,
                bucket,
                receipt: Receipt::flushed(Offset(end)),
                duplicate,
            },
            Answer::Expected(watermark) => Event::Expected {
                request,
                bucket,
                watermark: Offset(watermark),
            },
            Answer::Failed => Event::Failed {
                request,
                bucket,
                code: ErrorCode::OutcomeUnknown,
            },
        }
    }
}

/// One batch in the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Appended {
    previous: u64,
    end: u64,
    records: Vec<Copied>,
    mark: Option<(Lineage, u32, u64)>,
}

/// Who asked, to be answered when the log is flushed up to a batch.
pub type Asker = (u8, RequestId);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Child {
    log: Vec<Appended>,
    /// Batches of it that are flushed.
    flushed: usize,
    /// By the number of batches that have to be flushed.
    waiting: Vec<(usize, Asker, Answer)>,
}

impl Child {
    fn table(&self, origin: OriginId) -> DedupTable {
        let (mut table, mut base) = (DedupTable::new(), 0);
        for (n, batch) in self.log.iter().enumerate() {
            let end = base + batch.records.len() as u64;
            table.appended(&AppendedBatch {
                writer: Writer::Origin(origin),
                previous: batch.previous,
                sequence: batch.end,
                base_offset: Offset(base),
                end_offset: Offset(end),
                commit_time: CommitTime(n as u64 + 1),
                origin: batch.mark.map(|(lineage, parent_crc, time)| OriginMark {
                    lineage,
                    parent_crc,
                    parent_commit_time: CommitTime(time),
                }),
            });
            base = end;
        }
        table.flushed(self.offset_of(self.flushed));
        table
    }

    fn offset_of(&self, batches: usize) -> Offset {
        let records = self.log[..batches].iter().map(|batch| batch.records.len() as u64);
        Offset(records.sum())
    }

    /// Takes a request. Answers at once, or keeps the answer until a flush.
    pub fn handle(
        &mut self,
        ask: &Ask,
        asker: Asker,
        origin: OriginId,
        fault: Option<Fault>,
    ) -> Option<Answer> {
        let table = self.table(origin);
        let (until, answer) = match ask {
            // As the node's committer: a child without anything of the origin has the watermark 0.
            Ask::Open => match table.origin(origin) {
                None => (Offset::ZERO, Answer::Opened(0, None)),
                Some(entry) => {
                    let mark = entry
                        .mark
                        .map(|m| (m.lineage, m.parent_crc, m.parent_commit_time.0));
                    (entry.end_offset, Answer::Opened(entry.appended, mark))
                }
            },
            Ask::Commit(bytes) => self.commit(bytes, &table, fault),
        };
        let batches = (0..=self.log.len()).find(|n| self.offset_of(*n) >= until);
        let batches = batches.expect("no answer waits for more than there is");
        if batches <= self.flushed || fault == Some(Fault::AckBeforeFlush) {
            return Some(answer);
        }
        self.waiting.push((batches, asker, answer));
        None
    }

    fn commit(&mut self, bytes: &Bytes, table: &DedupTable, fault: Option<Fault>) -> (Offset, Answer) {
        let view = BatchView::parse(bytes).expect("the cursor builds sound batches");
        let header = view.header();
        let verdict = table.decide(header.writer, header.previous, header.sequence, Some(0));
        let verdict = match (fault, verdict) {
            (Some(Fault::IgnoreDedup), Verdict::Duplicate { .. }) => Verdict::Append,
            (Some(Fault::IgnorePrevious), Verdict::Expected { watermark }) if header.sequence > watermark => {
                Verdict::Append
            }
            (_, verdict) => verdict,
        };
        let end = header.sequence;
        match verdict {
            Verdict::Append => {
                self.append(&view);
                let duplicate = false;
                (self.offset_of(self.log.len()), Answer::Acked { end, duplicate })
            }
            Verdict::Duplicate { end_offset, .. } => (end_offset, Answer::Acked { end, duplicate: true }),
            Verdict::Expected { watermark } => (self.offset_of(self.log.len()), Answer::Expected(watermark)),
            Verdict::OutOfOrder { .. } | Verdict::UnknownProducer => (Offset::ZERO, Answer::Failed),
        }
    }

    fn append(&mut self, view: &BatchView<'_>) {
        let stamp = view.body().and_then(|body| body.origin.as_ref());
        let mark = stamp.map(|stamp| {
            (
                Lineage::from_u64(stamp.lineage.to_native()),
                stamp.parent_crc.to_native(),
                stamp.parent_commit_time.to_native(),
            )
        });
        self.log.push(Appended {
            previous: view.header().previous,
            end: view.header().sequence,
            records: view.records().map(|record| read_value(record.value)).collect(),
            mark,
        });
    }

    /// Whether a flush has something to do.
    #[must_use]
    pub fn is_unflushed(&self) -> bool {
        self.flushed < self.log.len()
    }

    /// All is flushed: the answers that waited for it.
    pub fn flush(&mut self) -> Vec<(Asker, Answer)> {
        self.flushed = self.log.len();
        let waiting = std::mem::take(&mut self.waiting);
        waiting
            .into_iter()
            .map(|(_, asker, answer)| (asker, answer))
            .collect()
    }

    /// What no flush covers is lost, and nobody knows what became of it.
    pub fn crash(&mut self) -> Vec<(Asker, Answer)> {
        self.log.truncate(self.flushed);
        let waiting = std::mem::take(&mut self.waiting);
        waiting
            .into_iter()
            .map(|(_, asker, _)| (asker, Answer::Failed))
            .collect()
    }

    /// The records in the log, in order.
    #[must_use]
    pub fn records(&self) -> Vec<Copied> {
        self.log.iter().flat_map(|batch| batch.records.clone()).collect()
    }

    /// Those of them that no crash takes.
    #[must_use]
    pub fn durable(&self) -> Vec<Copied> {
        let flushed = &self.log[..self.flushed];
        flushed.iter().flat_map(|batch| batch.records.clone()).collect()
    }
}
