//! A parent partition: its log in memory, its producer, its retention, and the reads of cursors.

use bytes::Bytes;
use tailwater_node::fanout::cursor::message::ParentVerdict;
use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::ids::{CommitTime, Lineage, Offset, OwnerEpoch, PartitionId, Writer};
use tailwater_wire::limits::BATCH_BYTES_MAX;
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

use super::rng::Rng;

/// One committed batch.
#[derive(Debug, Clone)]
pub(super) struct ParentBatch {
    pub header: BatchHeader,
    pub bytes: Bytes,
    pub records: Vec<Record>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Parent {
    pub partition: PartitionId,
    pub lineage: Lineage,
    pub batches: Vec<ParentBatch>,
    /// What retention has left.
    pub log_start: Offset,
    partitioner: Partitioner,
}

/// What a read found.
#[derive(Debug)]
pub(super) enum Found {
    Slab {
        runs: Vec<Bytes>,
        next: Offset,
        full: bool,
        next_commit: Option<CommitTime>,
    },
    /// Nothing is committed at this place yet.
    AtTail,
    Behind(Offset),
    Ahead(Offset),
}

impl Parent {
    pub fn new(partition: u32, partitioner: Partitioner) -> Parent {
        Parent {
            partition: PartitionId(partition),
            lineage: Lineage([partition as u8 + 1; 8]),
            batches: Vec::new(),
            log_start: Offset::ZERO,
            partitioner,
        }
    }

    pub fn high_water_mark(&self) -> Offset {
        self.batches
            .last()
            .map_or(Offset::ZERO, |batch| batch.header.end_offset())
    }

    /// Commits a batch of random records.
    pub fn produce(&mut self, now: CommitTime, rng: &mut Rng) {
        let base = self.high_water_mark();
        let count = rng.range(1, 12);
        let record = |n: u64| {
            let headers = match rng.range(0, 2) {
                0 => vec![("kind".to_owned(), Bytes::from_static(b"trade"))],
                1 => vec![("kind".to_owned(), Bytes::from_static(b"quote"))],
                _ => Vec::new(),
            };
            Record {
                key: rng.chance(850).then(|| rng.range(0, 40).to_string().into()),
                value: format!("{}/{}", self.partition, base.plus(n)).into(),
                headers,
                timestamp: now.0 as i64 - rng.range(0, 1_000_000) as i64,
            }
        };
        let records: Vec<Record> = (0..count).map(record).collect();
        let mut builder = BatchBuilder::new(self.partitioner, BATCH_BYTES_MAX);
        for record in &records {
            builder.push(record).expect("a small record");
        }
        let mut bytes = builder
            .finish(Writer::Anonymous, 0)
            .expect("at least one record")
            .to_vec();
        let header = BatchHeader {
            base_offset: base,
            commit_time: now,
            lineage: self.lineage,
            owner_epoch: OwnerEpoch(1),
            ..BatchHeader::decode(&bytes).expect("just built")
        };
        header.encode(&mut bytes);
        self.batches.push(ParentBatch {
            header,
            bytes: bytes.into(),
            records,
        });
    }

    /// Where the log would start if retention left so many batches; `None` when it starts there already.
    pub fn expired(&self, batches: usize) -> Option<Offset> {
        let first = self.batches.len().saturating_sub(batches);
        let start = self.batches.get(first)?.header.base_offset;
        (start > self.log_start).then_some(start)
    }

    /// The batches that hold offsets of a range.
    pub fn batches_of(&self, from: Offset, to: Offset) -> impl Iterator<Item = &ParentBatch> {
        let within = move |header: &BatchHeader| header.end_offset() > from && header.base_offset < to;
        self.batches.iter().filter(move |batch| within(&batch.header))
    }

    pub fn read(&self, from: Offset, committed_at_max: Option<CommitTime>, records_max: usize) -> Found {
        let end = self.high_water_mark();
        if from > end {
            return Found::Ahead(end);
        }
        if from < self.log_start {
            return Found::Behind(self.log_start);
        }
        if from == end {
            return Found::AtTail;
        }
        let due = |batch: &ParentBatch| committed_at_max.is_none_or(|max| batch.header.commit_time <= max);
        let first = self
            .batches
            .partition_point(|batch| batch.header.end_offset() <= from);
        let mut runs = Vec::new();
        let (mut next, mut records) = (from, 0);
        for batch in self.batches[first..].iter().take_while(|batch| due(batch)) {
            if records >= records_max {
                break;
            }
            runs.push(batch.bytes.clone());
            records += batch.records.len();
            next = batch.header.end_offset();
        }
        let following = self.batches.get(first + runs.len());
        Found::Slab {
            next,
            full: following.is_some_and(due),
            next_commit: following.map(|batch| batch.header.commit_time),
            runs,
        }
    }

    /// Compares what a child remembers of the batch that holds `offset`.
    pub fn verify(&self, offset: Offset, mark: &OriginMark) -> ParentVerdict {
        if offset < self.log_start {
            return ParentVerdict::Gone;
        }
        let at = self
            .batches
            .partition_point(|batch| batch.header.end_offset() <= offset);
        let same = |batch: &ParentBatch| {
            batch.header.body_crc == mark.parent_crc && batch.header.commit_time == mark.parent_commit_time
        };
        if self.batches.get(at).is_some_and(same) {
            ParentVerdict::Same
        } else {
            ParentVerdict::Differs
        }
    }

    /// All records with their offset and commit time.
    pub fn records(&self) -> impl Iterator<Item = (Offset, CommitTime, &Record)> {
        self.batches.iter().flat_map(|batch| {
            let base = batch.header.base_offset;
            let with_place = move |(n, record)| (base.plus(n as u64), batch.header.commit_time, record);
            batch.records.iter().enumerate().map(with_place)
        })
    }
}
