//! The parent partition: one record a batch, in the history that it has now.

use std::sync::OnceLock;

use bytes::Bytes;
use tailwater_node::fanout::cursor::message::ParentVerdict;
use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::ids::{CommitTime, Lineage, Offset, OwnerEpoch, Writer};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

/// Records that a parent can have.
pub const RECORDS_MAX: usize = 8;
/// Histories that a parent can have, one after another.
pub const HISTORIES: usize = 2;

/// One record: the history that it was committed in, and its offset.
pub type Copied = (u8, u64);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parent {
    /// By offset: the history that the record is of.
    pub records: Vec<u8>,
    /// The history now.
    pub history: u8,
}

impl Parent {
    /// A parent in its first history.
    #[must_use]
    pub fn new(records: usize) -> Parent {
        Parent {
            records: vec![0; records],
            history: 0,
        }
    }

    /// The offset behind the last record.
    #[must_use]
    pub fn end(&self) -> Offset {
        Offset(self.records.len() as u64)
    }

    /// The name of the history now.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        lineage(self.history)
    }

    /// One more record.
    pub fn produce(&mut self) {
        self.records.push(self.history);
    }

    /// Everything from `kept` on is lost, and its offsets are given again.
    pub fn restore(&mut self, kept: usize) {
        self.records.truncate(kept);
        self.history += 1;
    }

    /// The batches of a range.
    #[must_use]
    pub fn batches(&self, from: Offset, next: Offset) -> Vec<Bytes> {
        (from.0..next.0)
            .map(|offset| batch(self.records[offset as usize], offset))
            .collect()
    }

    /// Compares what a child remembers of the batch that holds `offset`.
    #[must_use]
    pub fn verify(&self, offset: Offset, mark: &OriginMark) -> ParentVerdict {
        let found = self
            .records
            .get(offset.0 as usize)
            .map(|history| batch(*history, offset.0));
        let same = |bytes: &Bytes| {
            let header = header(bytes);
            header.body_crc == mark.parent_crc && header.commit_time == mark.parent_commit_time
        };
        if found.as_ref().is_some_and(same) {
            ParentVerdict::Same
        } else {
            ParentVerdict::Differs
        }
    }
}

/// The name of a history.
#[must_use]
pub fn lineage(history: u8) -> Lineage {
    Lineage([history + 1; 8])
}

fn header(bytes: &[u8]) -> BatchHeader {
    BatchHeader::decode(bytes).expect("built here")
}

/// The batch that holds the record of this history and offset. Made once: models ask for it at every read.
fn batch(history: u8, offset: u64) -> Bytes {
    static ALL: OnceLock<Vec<Bytes>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let every =
            (0..HISTORIES as u8).flat_map(|history| (0..RECORDS_MAX as u64).map(move |n| (history, n)));
        every.map(|(history, offset)| build(history, offset)).collect()
    });
    all[usize::from(history) * RECORDS_MAX + offset as usize].clone()
}

fn build(history: u8, offset: u64) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 4_096);
    let record = Record {
        key: None,
        value: format!("{history}/{offset}").into(),
        headers: Vec::new(),
        timestamp: 0,
    };
    builder.push(&record).expect("a small record");
    let mut bytes = builder.finish(Writer::Anonymous, 0).expect("one record").to_vec();
    let header = BatchHeader {
        base_offset: Offset(offset),
        commit_time: CommitTime(1 + u64::from(history) * 1_000 + offset),
        lineage: lineage(history),
        owner_epoch: OwnerEpoch(1),
        ..header(&bytes)
    };
    header.encode(&mut bytes);
    bytes.into()
}

/// What a copied record says that it is.
#[must_use]
pub fn read_value(value: &[u8]) -> Copied {
    let text = std::str::from_utf8(value).expect("written here");
    let (history, offset) = text.split_once('/').expect("written here");
    (
        history.parse().expect("a number"),
        offset.parse().expect("a number"),
    )
}
