//! Cutting a slab of the parent into child batches, one chain for each child partition.
//!
//! A slab is a list of runs of whole parent batches that covers `[from, next)`. Each child partition that takes part
//! receives its records at or above its own read position, in batches whose watermarks form a chain: the first
//! follows the watermark that the cursor names, the last leaves the slab's end, so that everything in between is
//! accounted for, also what the filter held back.

use bytes::Bytes;
use tailwater_wire::batch::builder::{BatchBuilder, OriginStamp, PushError};
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::batch::header::{BatchHeader, BatchKind};
use tailwater_wire::batch::view::{BatchError, BatchIter, RecordView};
use tailwater_wire::ids::{CommitTime, Lineage, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::limits::BATCH_BYTES_MAX;
use tailwater_wire::partitioner::Partitioner;

use crate::fanout::filter::Filter;
use crate::fanout::gaps;
use crate::fanout::rekey::Rekey;

/// One batch for one child partition, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildBatch {
    /// Header and body; the child's owner stamps its fields.
    pub bytes: Bytes,
    /// The child's watermark that it follows.
    pub previous: Offset,
    /// The watermark that it leaves.
    pub end: Offset,
    /// Its records; none of a notice.
    pub records: u32,
    /// Records that it says were dropped, if it is a notice.
    pub dropped: u64,
}

impl ChildBatch {
    /// The notice of what a child partition lost, which follows its watermark `previous`.
    #[must_use]
    pub fn notice(dropped: &Dropped, origin: OriginId, previous: Offset, stamp: OriginStamp) -> ChildBatch {
        ChildBatch {
            bytes: dropped.batch(Partitioner::Murmur2, origin, previous, stamp),
            previous,
            end: dropped.to,
            records: 0,
            dropped: dropped.records,
        }
    }
}

/// What one child partition is to get of a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    /// The child partition.
    pub bucket: PartitionId,
    /// Its first parent offset: at or above the slab's start.
    pub from: Offset,
    /// The watermark that its first batch follows.
    pub previous: Offset,
}

/// How a slab is to be cut; made by the cursor when the slab is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutPlan {
    /// The link's epoch and the parent partition.
    pub origin: OriginId,
    /// The parent partition's lineage.
    pub lineage: Lineage,
    /// When the delay gate let the slab pass, on the owner's clock.
    pub released_at: CommitTime,
    /// The slab covers `[from, next)`.
    pub from: Offset,
    /// Where the slab ends.
    pub next: Offset,
    /// Filtered records are counted at and above this offset, so that a second read counts none twice.
    pub count_from: Offset,
    /// Who takes part, by rising partition.
    pub takes: Vec<Take>,
}

/// What one child partition got of a slab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// As in the plan.
    pub take: Take,
    /// In order; empty when the slab has no record for it.
    pub batches: Vec<ChildBatch>,
}

/// A slab that was cut.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cut {
    /// One for each that takes part, in the plan's order.
    pub parts: Vec<Part>,
    /// Records that the filter held back.
    pub filtered: u64,
}

/// Why a slab cannot be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// A parent batch cannot be read.
    #[error("a parent batch cannot be read: {0}")]
    Parent(#[from] BatchError),
    /// A record that was in the parent is refused in the child.
    #[error("a parent record does not fit into a child batch: {0}")]
    Record(#[from] PushError),
}

/// Cuts slabs; keeps the memory of its builders from one slab to the next. One for each core and partitioner is enough.
#[derive(Debug)]
pub struct Cutter {
    rekey: Rekey,
    bytes_max: usize,
    spare: Vec<BatchBuilder>,
}

/// The work on one child partition while a slab is walked.
struct Chain {
    take: Take,
    builder: Option<BatchBuilder>,
    batches: Vec<ChildBatch>,
    previous: Offset,
    first: Offset,
    last: Offset,
    last_parent: ParentBatch,
}

/// What a child batch remembers of the parent batch that holds its last record.
#[derive(Debug, Clone, Copy, Default)]
struct ParentBatch {
    end: Offset,
    crc: u32,
    commit_time: u64,
}

impl Cutter {
    /// A cutter for a child's partitions; batches are at most `bytes_max` bytes, unless one record alone is larger.
    #[must_use]
    pub fn new(rekey: Rekey, bytes_max: usize) -> Cutter {
        Cutter {
            rekey,
            bytes_max: bytes_max.min(BATCH_BYTES_MAX),
            spare: Vec::new(),
        }
    }

    /// Cuts the slab that lies in `runs`.
    ///
    /// # Errors
    /// [`CutError`]; nothing of the slab may be used then.
    pub fn cut(&mut self, runs: &[Bytes], plan: &CutPlan, filter: Option<&Filter>) -> Result<Cut, CutError> {
        let mut walk = Walk::new(plan, self.rekey);
        for run in runs {
            for batch in BatchIter::new(run) {
                let batch = batch?;
                let header = batch.header();
                if batch.is_empty() || header.end_offset() <= plan.from || header.base_offset >= plan.next {
                    continue;
                }
                walk.enter(header);
                if header.kind != BatchKind::Data {
                    continue; // the system's own records are passed over, as any consumer does
                }
                let skip = plan.from.since(header.base_offset) as usize;
                let stop = plan.next.since(header.base_offset).min(batch.len() as u64) as usize;
                for record in (skip..stop).filter_map(|k| batch.record(k)) {
                    self.one(&mut walk, &record, header, filter)?;
                }
            }
        }
        Ok(walk.finish(&mut self.spare))
    }

    fn one(
        &mut self,
        walk: &mut Walk<'_>,
        record: &RecordView<'_>,
        header: &BatchHeader,
        filter: Option<&Filter>,
    ) -> Result<(), CutError> {
        let placement = self.rekey.place(record, header.partitioner);
        let chain = walk.slots[placement.partition.0 as usize]
            .map(|slot| slot as usize)
            .filter(|&slot| walk.chains[slot].take.from <= record.offset);
        let counts = record.offset >= walk.plan.count_from;
        if chain.is_none() && !counts {
            return Ok(());
        }
        if filter.is_some_and(|filter| !filter.passes(record)) {
            walk.filtered += u64::from(counts);
            return Ok(());
        }
        let Some(slot) = chain else { return Ok(()) };
        let last_parent = walk.last_parent;
        let chain = &mut walk.chains[slot];
        let builder = chain.builder.get_or_insert_with(|| {
            self.spare
                .pop()
                .unwrap_or_else(|| BatchBuilder::new(self.rekey.partitioner, self.bytes_max))
        });
        let deltas_fit = builder.is_empty() || record.offset.since(chain.first) <= u64::from(u32::MAX);
        let pushed = if deltas_fit {
            builder.push_copy(record, placement.key_hash)
        } else {
            Err(PushError::Full)
        };
        match pushed {
            Ok(()) => {}
            Err(PushError::Full) => {
                chain.seal(walk.plan, chain.last.plus(1), chain.last_parent);
                chain
                    .builder
                    .get_or_insert_with(|| BatchBuilder::new(self.rekey.partitioner, self.bytes_max))
                    .push_copy(record, placement.key_hash)?;
            }
            Err(refused) => return Err(refused.into()),
        }
        if chain.builder.as_ref().is_some_and(|builder| builder.len() == 1) {
            chain.first = record.offset;
        }
        chain.last = record.offset;
        chain.last_parent = last_parent;
        Ok(())
    }
}

/// The state of walking one slab.
struct Walk<'p> {
    plan: &'p CutPlan,
    rekey: Rekey,
    chains: Vec<Chain>,
    /// By child partition: its chain, if it takes part.
    slots: Vec<Option<u32>>,
    /// The last parent batch with records that was entered.
    last_parent: ParentBatch,
    /// Everything below was seen, or passed with a notice.
    seen_to: Offset,
    filtered: u64,
}

impl<'p> Walk<'p> {
    fn new(plan: &'p CutPlan, rekey: Rekey) -> Walk<'p> {
        let mut slots = vec![None; rekey.partitions as usize];
        for (slot, take) in plan.takes.iter().enumerate() {
            debug_assert!(take.from >= plan.from && take.from < plan.next && take.previous <= take.from);
            slots[take.bucket.0 as usize] = Some(slot as u32);
        }
        let chain = |&take: &Take| Chain {
            take,
            builder: None,
            batches: Vec::new(),
            previous: take.previous,
            first: take.from,
            last: take.from,
            last_parent: ParentBatch::default(),
        };
        Walk {
            plan,
            rekey,
            chains: plan.takes.iter().map(chain).collect(),
            slots,
            last_parent: ParentBatch::default(),
            seen_to: plan.from,
            filtered: 0,
        }
    }

    /// Notes a parent batch with records, and the gap before it.
    fn enter(&mut self, header: &BatchHeader) {
        self.gap_to(header.base_offset.min(self.plan.next));
        self.seen_to = self.seen_to.max(header.end_offset().min(self.plan.next));
        self.last_parent = ParentBatch {
            end: header.end_offset().min(self.plan.next),
            crc: header.body_crc,
            commit_time: header.commit_time.0,
        };
    }

    /// No batch of the slab holds what lies before `offset`: it has rotted. Each chain says how much of it counts for
    /// its child partition.
    fn gap_to(&mut self, offset: Offset) {
        if offset <= self.seen_to {
            return;
        }
        for chain in &mut self.chains {
            let from = self.seen_to.max(chain.take.from);
            if from >= offset {
                continue;
            }
            let dropped = Dropped {
                from,
                to: offset,
                records: gaps::unreadable(&self.rekey, chain.take.bucket, from, offset),
                filtered: 0,
            };
            if dropped.records > 0 {
                chain.seal(self.plan, self.last_parent.end, self.last_parent);
                chain.lose(self.plan, &dropped);
            }
        }
    }

    /// Every chain's last batch leaves the end of the last parent batch that is there: the slab's end, unless the
    /// slab ends in a gap; a watermark must lie right after a record whose parent batch can be looked up.
    fn finish(mut self, spare: &mut Vec<BatchBuilder>) -> Cut {
        self.gap_to(self.plan.next);
        let last_parent = self.last_parent;
        let mut parts = Vec::with_capacity(self.chains.len());
        for mut chain in self.chains {
            chain.seal(self.plan, last_parent.end, last_parent);
            spare.extend(chain.builder);
            parts.push(Part {
                take: chain.take,
                batches: chain.batches,
            });
        }
        Cut {
            parts,
            filtered: self.filtered,
        }
    }
}

impl Chain {
    /// Ends the batch that is being built, if it has records.
    fn seal(&mut self, plan: &CutPlan, end: Offset, parent: ParentBatch) {
        let Some(builder) = self.builder.as_mut() else {
            return;
        };
        let records = builder.len() as u32;
        let stamp = OriginStamp {
            end,
            // Commit times may run ahead of a clock that was set back; nothing is released before it is committed.
            released_at: plan.released_at.0.max(parent.commit_time),
            lineage: plan.lineage.as_u64(),
            parent_crc: parent.crc,
            parent_commit_time: parent.commit_time,
        };
        if let Some(bytes) = builder.finish_copy(Writer::Origin(plan.origin), self.previous, stamp) {
            assert!(end > self.last, "a watermark above the batch's last record");
            self.batches.push(ChildBatch {
                bytes,
                previous: self.previous,
                end,
                records,
                dropped: 0,
            });
            self.previous = end;
        }
    }

    /// Adds a notice, behind what was sealed.
    fn lose(&mut self, plan: &CutPlan, dropped: &Dropped) {
        let stamp = OriginStamp {
            released_at: plan.released_at.0,
            lineage: plan.lineage.as_u64(),
            ..OriginStamp::default()
        };
        self.batches
            .push(ChildBatch::notice(dropped, plan.origin, self.previous, stamp));
        self.previous = dropped.to;
    }
}

#[cfg(test)]
mod tests;
