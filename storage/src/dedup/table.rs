//! The table of one partition's writers: per writer the appended and the flushed watermark, and its last
//! batches.
//!
//! Pure, and on the core that owns the partition. It is fed in log order, by commits and by recovery alike:
//! `appended` when a batch has its place in the log, `flushed` when a flush succeeded. It never rolls back:
//! when a flush fails the partition latches, and recovery makes a new table from the segment's checkpoint and
//! the batches behind it.
//!
//! **What is bounded.** Producers: 10,000 and 7 days without a batch, least recently used first (SPEC.md D9),
//! and their names by [`NAMES_BYTES_MAX`]. A producer that was let go is answered `UnknownProducer`, and so is one
//! that was never opened, because nobody can tell the two apart: a batch that follows 0 may be the first of a new
//! producer, or the retry of one that is in the log already. So an open must outlive a crash; the log writes it
//! down before it is answered, and recovery tells the table ([`DedupTable::reopened`]). Origins are not bounded here: links are, and an origin's entry lives
//! until the leader confirms that its epoch is gone.

use std::collections::{BTreeMap, VecDeque};

use tailwater_wire::ids::{CommitTime, Delay, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::limits::{PRODUCER_NAME_BYTES_MAX, PRODUCER_TTL_MILLIS, PRODUCERS_PER_PARTITION};
use tailwater_wire::message::ProducerKey;
use tailwater_wire::mutant::{Mutant, planted};

use crate::dedup::lru::Lru;
use crate::dedup::name::name_hash;
use crate::dedup::verdict::{AppendedBatch, OpenError, Opened, OriginMark, OriginWatermark, Verdict};
use crate::proof::EpochGone;

/// Bytes of all producers' names together; beyond it the least recently used producer goes, named or not. Keeps
/// a checkpoint within its bound when every name has the greatest length.
pub const NAMES_BYTES_MAX: usize = 900 << 10;

/// How many of a writer's last batches are remembered in memory, to answer a repeat with its original offset.
pub const RECENT_BATCHES: usize = 5;

/// One remembered batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) previous: u64,
    pub(super) sequence: u64,
    pub(super) base_offset: Offset,
    pub(super) end_offset: Offset,
    pub(super) commit_time: CommitTime,
}

/// What both kinds of writers have.
#[derive(Debug, Clone)]
pub(super) struct History {
    /// Tells this entry from an earlier one of the same writer that was let go.
    life: u64,
    /// The watermark that the next batch must follow.
    pub(super) appended: u64,
    /// At most `appended`, unless the writer began anew.
    pub(super) flushed: u64,
    /// The batch that `flushed` comes from.
    pub(super) last_flushed: Option<Batch>,
    /// The last batches, with rising sequences; the last one's is `appended`.
    recent: VecDeque<Batch>,
}

#[derive(Debug, Clone)]
pub(super) struct Producer {
    pub(super) history: History,
    /// Known once it was opened by name in this process's or a checkpoint's time: batch headers carry the hash
    /// alone.
    pub(super) name: Option<Box<str>>,
    /// Never falls from the table's oldest to its newest.
    pub(super) last_used: CommitTime,
}

#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) history: History,
    pub(super) mark: Option<OriginMark>,
    pub(super) flushed_mark: Option<OriginMark>,
}

#[derive(Debug, Clone)]
struct Unflushed {
    writer: Writer,
    life: u64,
    batch: Batch,
    mark: Option<OriginMark>,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct DedupTable {
    pub(super) producers: Lru<Writer, Producer>,
    pub(super) origins: BTreeMap<OriginId, Origin>,
    /// Appended and not flushed, in log order.
    unflushed: VecDeque<Unflushed>,
    names_bytes: usize,
    lives: u64,
    /// The latest time seen, so that `last_used` never falls.
    latest: CommitTime,
}

impl Default for DedupTable {
    fn default() -> DedupTable {
        DedupTable::new()
    }
}

impl DedupTable {
    /// A table that has met nobody.
    #[must_use]
    pub fn new() -> DedupTable {
        DedupTable {
            producers: Lru::new(),
            origins: BTreeMap::new(),
            unflushed: VecDeque::new(),
            names_bytes: 0,
            lives: 0,
            latest: CommitTime(0),
        }
    }

    /// What is to be done with a batch that follows `previous` and leaves `sequence`. `floor` is the attach
    /// offset of an origin's link, the watermark of an origin that has no entry yet; `None` for producers, and
    /// for an origin whose link this owner does not know.
    #[must_use]
    pub fn decide(&self, writer: Writer, previous: u64, sequence: u64, floor: Option<u64>) -> Verdict {
        match writer {
            Writer::Anonymous => Verdict::Append,
            Writer::Random(_) | Writer::Named(_) => self.decide_producer(writer, previous, sequence),
            Writer::Origin(id) => self.decide_origin(id, previous, sequence, floor),
        }
    }

    fn decide_producer(&self, writer: Writer, previous: u64, sequence: u64) -> Verdict {
        let Some(producer) = self.producers.get(&writer) else {
            return Verdict::UnknownProducer;
        };
        let history = &producer.history;
        let expected = history.appended;
        if planted(Mutant::IgnoreDedup) {
            Verdict::Append
        } else if previous >= sequence {
            Verdict::OutOfOrder { expected } // a batch without records has no place in a sequence
        } else if previous == expected {
            Verdict::Append
        } else if sequence <= expected {
            history.duplicate(previous, sequence)
        } else {
            Verdict::OutOfOrder { expected }
        }
    }

    fn decide_origin(&self, id: OriginId, previous: u64, sequence: u64, floor: Option<u64>) -> Verdict {
        let history = self.origins.get(&id).map(|origin| &origin.history);
        let Some(watermark) = history.map(|h| h.appended).max(floor) else {
            return Verdict::UnknownProducer;
        };
        if planted(Mutant::IgnoreDedup) {
            Verdict::Append
        } else if previous >= sequence {
            Verdict::Expected { watermark }
        } else if previous == watermark {
            Verdict::Append
        } else if sequence <= watermark {
            let nothing_written = Verdict::Duplicate {
                base_offset: None,
                end_offset: Offset::ZERO,
                commit_time: None,
            };
            history.map_or(nothing_written, |h| h.duplicate(previous, sequence))
        } else {
            Verdict::Expected { watermark }
        }
    }

    /// A batch has its place in the log. Called in log order for every batch, by commits after
    /// [`Verdict::Append`] and by recovery for what it reads; the log is the truth, so nothing is decided again
    /// here.
    ///
    /// # Panics
    /// When the batch does not lie behind the one before it.
    pub fn appended(&mut self, appended: &AppendedBatch) {
        let batch = Batch {
            previous: appended.previous,
            sequence: appended.sequence,
            base_offset: appended.base_offset,
            end_offset: appended.end_offset,
            commit_time: appended.commit_time,
        };
        self.pass_time(appended.commit_time);
        let life = match appended.writer {
            Writer::Anonymous => return,
            writer @ (Writer::Random(_) | Writer::Named(_)) => {
                let producer = self.touch_producer(writer);
                producer.history.append(batch);
                let life = producer.history.life;
                self.keep_bounds();
                life
            }
            Writer::Origin(id) => {
                let lives = &mut self.lives;
                let origin = self.origins.entry(id).or_insert_with(|| Origin {
                    history: History::new(next(lives)),
                    mark: None,
                    flushed_mark: None,
                });
                origin.history.append(batch);
                origin.mark = appended.origin.or(origin.mark);
                origin.history.life
            }
        };
        let in_order = |last: &Unflushed| last.batch.end_offset <= batch.base_offset;
        assert!(
            self.unflushed.back().is_none_or(in_order),
            "batches come in log order"
        );
        self.unflushed.push_back(Unflushed {
            writer: appended.writer,
            life,
            batch,
            mark: appended.origin,
        });
    }

    /// Everything below a log offset is flushed.
    pub fn flushed(&mut self, upto: Offset) {
        while let Some(first) = self.unflushed.front()
            && first.batch.end_offset <= upto
        {
            let (writer, life, batch, mark) = (first.writer, first.life, first.batch, first.mark);
            self.unflushed.pop_front();
            let history = match writer {
                Writer::Anonymous => None,
                Writer::Random(_) | Writer::Named(_) => {
                    self.producers.get_mut(&writer).map(|p| &mut p.history)
                }
                Writer::Origin(id) => self.origins.get_mut(&id).map(|origin| {
                    if origin.history.life == life {
                        origin.flushed_mark = mark.or(origin.flushed_mark);
                    }
                    &mut origin.history
                }),
            };
            if let Some(history) = history
                && history.life == life
            {
                history.flushed = batch.sequence;
                history.last_flushed = Some(batch);
            }
        }
    }

    /// Whether a flush covers everything that was appended. A checkpoint holds flushed batches alone, so a
    /// segment that opens with one may only be written to when this held as the checkpoint was made, or when
    /// recovery also reads the segment before it.
    #[must_use]
    pub fn is_all_flushed(&self) -> bool {
        self.unflushed.is_empty()
    }

    /// Begins or resumes a producer. `now` is the partition's commit clock.
    ///
    /// # Errors
    /// [`OpenError`]; the table is unchanged.
    pub fn open(&mut self, key: &ProducerKey, now: CommitTime) -> Result<Opened, OpenError> {
        let (writer, name) = match key {
            ProducerKey::Random(id) => (Writer::Random(*id), None),
            ProducerKey::Named(name) => {
                if name.is_empty() || name.len() > PRODUCER_NAME_BYTES_MAX {
                    return Err(OpenError::InvalidName);
                }
                (Writer::Named(name_hash(name)), Some(name.as_str()))
            }
        };
        self.pass_time(now);
        if let Some(name) = name
            && let Some(other) = self.producers.get(&writer).and_then(|p| p.name.as_deref())
            && other != name
        {
            return Err(OpenError::ProducerNameTaken);
        }
        let is_new = self.producers.get(&writer).is_none();
        let producer = self.touch_producer(writer);
        let named_now = producer.name.is_none().then_some(name).flatten();
        if let Some(name) = named_now {
            producer.name = Some(name.into());
        }
        let history = &producer.history;
        let opened = Opened {
            writer,
            last_sequence: history.appended,
            unflushed_until: history.unflushed_until(),
            is_new,
        };
        self.names_bytes += named_now.map_or(0, str::len);
        self.keep_bounds();
        Ok(opened)
    }

    /// Whether the producer is remembered.
    #[must_use]
    pub fn is_known(&self, key: &ProducerKey) -> bool {
        let writer = match key {
            ProducerKey::Random(id) => Writer::Random(*id),
            ProducerKey::Named(name) => Writer::Named(name_hash(name)),
        };
        self.producers.get(&writer).is_some()
    }

    /// Recovery found that a producer was opened then. Its name is learned when it is opened again.
    pub fn reopened(&mut self, writer: Writer, at: CommitTime) {
        if matches!(writer, Writer::Random(_) | Writer::Named(_)) {
            self.pass_time(at);
            self.touch_producer(writer);
            self.keep_bounds();
        }
    }

    /// Lets go of a producer whose open was not written down, unless it has written.
    pub fn forget_unwritten(&mut self, writer: Writer) {
        let is_unwritten = |producer: &Producer| producer.history.appended == 0;
        if self.producers.get(&writer).is_some_and(is_unwritten)
            && let Some(producer) = self.producers.remove(&writer)
        {
            self.names_bytes -= producer.name.map_or(0, |name| name.len());
        }
    }

    /// How far an origin has come; `None` when it has written nothing, so that its watermark is the attach
    /// offset.
    #[must_use]
    pub fn origin(&self, id: OriginId) -> Option<OriginWatermark> {
        let origin = self.origins.get(&id)?;
        let end_offset = origin
            .history
            .recent
            .back()
            .map_or(Offset::ZERO, |b| b.end_offset);
        Some(OriginWatermark {
            appended: origin.history.appended,
            flushed: origin.history.flushed,
            end_offset,
            mark: origin.mark,
        })
    }

    /// All origins that have written, by epoch and parent partition.
    pub fn origins(&self) -> impl Iterator<Item = OriginId> {
        self.origins.keys().copied()
    }

    /// Lets go of all origins of an epoch. Returns how many there were.
    pub fn forget_origins(&mut self, gone: &EpochGone) -> usize {
        let of = |partition| OriginId {
            epoch: gone.epoch(),
            partition: PartitionId(partition),
        };
        let ids: Vec<OriginId> = self
            .origins
            .range(of(0)..=of(u32::MAX))
            .map(|(&id, _)| id)
            .collect();
        for id in &ids {
            self.origins.remove(id);
        }
        ids.len()
    }

    /// Producers that are remembered.
    #[must_use]
    pub fn producer_count(&self) -> usize {
        self.producers.len()
    }

    /// Lets go of producers that have been silent for 7 days. Also done by `appended` and `open`; to be called
    /// on a partition that sees neither.
    pub fn expire(&mut self, now: CommitTime) {
        self.pass_time(now);
    }

    fn pass_time(&mut self, now: CommitTime) {
        self.latest = self.latest.max(now);
        let keep_from = self.latest.minus(Delay {
            millis: PRODUCER_TTL_MILLIS,
        });
        while self
            .producers
            .oldest()
            .is_some_and(|(_, producer)| producer.last_used < keep_from)
        {
            self.remove_oldest();
        }
    }

    fn keep_bounds(&mut self) {
        while self.producers.len() > PRODUCERS_PER_PARTITION || self.names_bytes > NAMES_BYTES_MAX {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        if let Some((_, producer)) = self.producers.remove_oldest() {
            self.names_bytes -= producer.name.map_or(0, |name| name.len());
        }
    }

    fn touch_producer(&mut self, writer: Writer) -> &mut Producer {
        let (lives, latest) = (&mut self.lives, self.latest);
        let producer = self.producers.touch_or_insert(writer, || Producer {
            history: History::new(next(lives)),
            name: None,
            last_used: latest,
        });
        producer.last_used = latest;
        producer
    }

    /// Puts back a producer of a checkpoint, as the newest.
    pub(super) fn restore_producer(
        &mut self,
        writer: Writer,
        name: Option<&str>,
        last_used: CommitTime,
        last: Option<Batch>,
    ) {
        self.latest = self.latest.max(last_used);
        let producer = self.touch_producer(writer);
        producer.name = name.map(Into::into);
        producer.history.restore(last);
        self.names_bytes += name.map_or(0, str::len);
    }

    /// Puts back an origin of a checkpoint.
    pub(super) fn restore_origin(&mut self, id: OriginId, last: Batch, mark: Option<OriginMark>) {
        let mut history = History::new(next(&mut self.lives));
        history.restore(Some(last));
        self.origins.insert(
            id,
            Origin {
                history,
                mark,
                flushed_mark: mark,
            },
        );
    }
}

fn next(lives: &mut u64) -> u64 {
    *lives += 1;
    *lives
}

impl History {
    fn new(life: u64) -> History {
        History {
            life,
            appended: 0,
            flushed: 0,
            last_flushed: None,
            recent: VecDeque::new(),
        }
    }

    fn append(&mut self, batch: Batch) {
        // A writer that was let go and began anew, met by a recovery that had not let go of it.
        if batch.sequence <= self.appended {
            self.recent.clear();
        }
        if self.recent.len() == RECENT_BATCHES {
            self.recent.pop_front();
        }
        self.appended = batch.sequence;
        self.recent.push_back(batch);
    }

    fn restore(&mut self, last: Option<Batch>) {
        self.recent.extend(last);
        self.last_flushed = last;
        self.appended = last.map_or(0, |batch| batch.sequence);
        self.flushed = self.appended;
    }

    /// The verdict on a batch whose records are all in the log: `sequence` is at most `appended`.
    fn duplicate(&self, previous: u64, sequence: u64) -> Verdict {
        let original = self.recent.iter().find(|batch| batch.sequence >= sequence);
        let exact = original.filter(|batch| batch.sequence == sequence && batch.previous == previous);
        Verdict::Duplicate {
            base_offset: exact.map(|batch| batch.base_offset),
            end_offset: original.map_or(Offset::ZERO, |batch| batch.end_offset),
            commit_time: exact.map(|batch| batch.commit_time),
        }
    }

    fn unflushed_until(&self) -> Option<Offset> {
        let last = self.recent.back()?;
        (self.last_flushed != Some(*last)).then_some(last.end_offset)
    }
}
