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
mod tests {
    use super::*;
    use tailwater_wire::batch::view::BatchView;
    use tailwater_wire::ids::{Epoch, OwnerEpoch};
    use tailwater_wire::record::Record;

    const LINEAGE: Lineage = Lineage([5; 8]);

    /// A parent batch as its owner stamped it: keys are decimal numbers, `kind` headers tell odd from even.
    fn parent(base: u64, keys: &[u64]) -> Bytes {
        let mut builder = BatchBuilder::new(Partitioner::Identity, BATCH_BYTES_MAX);
        for key in keys {
            let kind: &[u8] = if key % 2 == 0 { b"even" } else { b"odd" };
            let record = Record {
                key: Some(key.to_string().into()),
                value: Bytes::from(vec![b'v'; 100]),
                headers: vec![("kind".into(), Bytes::copy_from_slice(kind))],
                timestamp: *key as i64,
            };
            builder.push(&record).expect("fits");
        }
        let mut bytes = builder.finish(Writer::Anonymous, 0).expect("records").to_vec();
        let header = BatchHeader {
            base_offset: Offset(base),
            commit_time: CommitTime(1_000 + base),
            owner_epoch: OwnerEpoch(1),
            ..BatchHeader::decode(&bytes).expect("sound")
        };
        header.encode(&mut bytes);
        bytes.into()
    }

    fn rekey() -> Rekey {
        Rekey {
            partitioner: Partitioner::Identity,
            partitions: 3,
            parent: PartitionId(2),
        }
    }

    fn plan(from: u64, next: u64, takes: &[(u32, u64, u64)]) -> CutPlan {
        let take = |&(bucket, from, previous): &(u32, u64, u64)| Take {
            bucket: PartitionId(bucket),
            from: Offset(from),
            previous: Offset(previous),
        };
        CutPlan {
            origin: OriginId {
                epoch: Epoch([9; 8]),
                partition: PartitionId(2),
            },
            lineage: LINEAGE,
            released_at: CommitTime(5_077),
            from: Offset(from),
            next: Offset(next),
            count_from: Offset(from),
            takes: takes.iter().map(take).collect(),
        }
    }

    /// `bucket: previous->end offset,offset,...` for each batch, in order.
    fn told(cut: &Cut) -> Vec<String> {
        let mut lines = Vec::new();
        for part in &cut.parts {
            for batch in &part.batches {
                let view = BatchView::parse(&batch.bytes).expect("sound");
                let header = view.header();
                assert_eq!(
                    (header.previous, header.sequence),
                    (batch.previous.0, batch.end.0)
                );
                if batch.dropped > 0 {
                    let dropped = Dropped::of(&view).expect("a notice");
                    assert_eq!((dropped.to, dropped.records), (batch.end, batch.dropped));
                    let (bucket, previous, end) = (part.take.bucket, batch.previous, batch.end);
                    lines.push(format!("{bucket}: {previous}->{end} lost {}", batch.dropped));
                    continue;
                }
                assert_eq!(header.record_count, batch.records);
                let offsets: Vec<_> = view
                    .records()
                    .map(|record| record.origin.expect("a copy").to_string())
                    .collect();
                lines.push(format!(
                    "{}: {}->{} {}",
                    part.take.bucket,
                    batch.previous,
                    batch.end,
                    offsets.join(",")
                ));
            }
        }
        lines
    }

    fn check(runs: &[Bytes], plan: &CutPlan, filter: Option<&str>, expected: &[&str]) -> Cut {
        let filter = filter.map(|text| Filter::parse(text).expect("a filter"));
        let mut cutter = Cutter::new(rekey(), BATCH_BYTES_MAX);
        let cut = cutter.cut(runs, plan, filter.as_ref()).expect("sound");
        assert_eq!(told(&cut), expected);
        let again = cutter.cut(runs, plan, filter.as_ref()).expect("sound");
        assert_eq!(again, cut, "a builder that was used before builds the same");
        cut
    }

    #[test]
    fn each_bucket_gets_its_records_and_the_slabs_end() {
        let runs = [
            parent(10, &[0, 1, 2, 3]),
            Bytes::from([parent(14, &[3]), parent(15, &[4, 1])].concat()),
        ];
        let cut = check(
            &runs,
            &plan(10, 17, &[(0, 10, 4), (1, 10, 10), (2, 10, 0)]),
            None,
            &["0: 4->17 10,13,14", "1: 10->17 11,15,16", "2: 0->17 12"],
        );
        assert_eq!(cut.filtered, 0);
        let view = BatchView::parse(&cut.parts[2].batches[0].bytes).expect("sound");
        let origin = view.body().and_then(|body| body.origin.as_ref()).expect("a copy");
        let last = BatchHeader::decode(&runs[1][parent(14, &[3]).len()..]).expect("sound");
        assert_eq!(origin.parent_crc.to_native(), last.body_crc);
        assert_eq!(origin.parent_commit_time.to_native(), 1_015);
        assert_eq!(origin.lineage.to_native(), LINEAGE.as_u64());
        assert_eq!(origin.released_at.to_native(), 5_077);
        assert_eq!(view.header().writer, Writer::Origin(plan(0, 1, &[]).origin));
        let record = view.record(0).expect("one");
        assert_eq!(
            (record.key, record.key_hash, record.timestamp),
            (Some(&b"2"[..]), 2, 2)
        );
        assert_eq!(record.headers.clone().next(), Some(("kind", &b"even"[..])));
    }

    #[test]
    fn a_bucket_begins_at_its_own_place_and_others_are_left_out() {
        check(
            &[parent(0, &[0, 1, 2, 0, 1, 2, 0])],
            &plan(2, 7, &[(0, 4, 4), (1, 2, 1)]),
            None,
            &["0: 4->7 6", "1: 1->7 4"],
        );
    }

    #[test]
    fn what_has_rotted_is_told_to_whom_it_counts_for_and_the_filtered_are_counted_once() {
        let runs = [parent(0, &[0, 1, 2, 3]), parent(6, &[4, 5, 6])];
        let filter = Some("kind=odd");
        let everybody = [(0, 0, 0), (1, 0, 0), (2, 0, 0)];
        let cut = check(
            &runs,
            &plan(0, 10, &everybody),
            filter,
            &[
                "0: 0->4 3",
                "0: 4->6 lost 1",
                "1: 0->4 1",
                "1: 4->6 lost 1",
                "2: 0->9 7",
                "2: 9->10 lost 1",
            ],
        );
        assert_eq!(cut.filtered, 4);
        let again = CutPlan {
            count_from: Offset(7),
            ..plan(0, 9, &[(2, 0, 0)])
        };
        let cut = check(&runs, &again, filter, &["2: 0->9 7"]);
        assert_eq!(cut.filtered, 1);
    }

    #[test]
    fn what_is_too_much_for_one_batch_makes_a_chain() {
        let keys = vec![0; 40];
        let cut = Cutter::new(rekey(), 2_000)
            .cut(
                &[parent(0, &keys), parent(40, &[1, 1])],
                &plan(0, 42, &[(0, 0, 0)]),
                None,
            )
            .expect("sound");
        let batches = &cut.parts[0].batches;
        assert!(batches.len() > 2, "{}", batches.len());
        for pair in batches.windows(2) {
            assert_eq!(pair[0].end, pair[1].previous);
            assert!(pair[0].bytes.len() <= 2_000);
        }
        assert_eq!(batches[0].end, Offset(u64::from(batches[0].records)));
        assert_eq!(batches.last().map(|batch| batch.end), Some(Offset(42)));
        assert_eq!(batches.iter().map(|batch| batch.records).sum::<u32>(), 40);
    }

    #[test]
    fn offsets_that_lie_far_apart_go_into_batches_of_their_own() {
        let far = 1 << 33;
        check(
            &[parent(0, &[0]), parent(far, &[0])],
            &plan(0, far + 1, &[(0, 0, 0)]),
            None,
            &[
                "0: 0->1 0",
                "0: 1->8589934592 lost 2863311531",
                "0: 8589934592->8589934593 8589934592",
            ],
        );
    }

    #[test]
    fn a_slab_that_holds_nothing_leaves_nothing() {
        check(&[], &plan(5, 5, &[]), None, &[]);
        let cut = check(
            &[],
            &plan(5, 9, &[(0, 5, 5), (2, 8, 5)]),
            None,
            &["0: 5->9 lost 1"],
        );
        assert_eq!(cut.parts.len(), 2);
    }

    #[test]
    fn damage_is_an_error_and_spends_nothing() {
        let mut bytes = parent(3, &[0, 0]).to_vec();
        let last = bytes.len() - 70;
        bytes[last] ^= 1;
        let runs = [parent(0, &[0, 1, 2]), bytes.into()];
        let mut cutter = Cutter::new(rekey(), BATCH_BYTES_MAX);
        let plan = plan(0, 5, &[(0, 0, 0)]);
        assert!(matches!(cutter.cut(&runs, &plan, None), Err(CutError::Parent(_))));
        let cut = cutter.cut(&runs[..1], &plan, None).expect("sound");
        assert_eq!(told(&cut), ["0: 0->3 0", "0: 3->5 lost 1"]);
    }
}
