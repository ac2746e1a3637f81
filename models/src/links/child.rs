//! The child's owner: its view of the metadata, its check of the epoch, and the production dedup table.

use std::hash::{Hash, Hasher};

use tailwater_storage::dedup::table::DedupTable;
use tailwater_storage::dedup::verdict::{AppendedBatch, Verdict};
use tailwater_wire::ids::{CommitTime, Offset, OriginId, PartitionId, Writer};

use super::meta::{self, Log, epoch, incarnation_number, name};
use super::model::Fault;
use super::owner::Identity;

/// What a cursor asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// The watermark.
    Open,
    /// To append the records of `[from, end)`, behind a watermark.
    Commit { previous: u64, from: u64, end: u64 },
}

/// What it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// It has everything below.
    Watermark(u64),
    /// The epoch is not current here.
    Stale,
}

/// What changed the table, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Records of an epoch, and the parent's life that they are of.
    Appended {
        epoch: u8,
        parent: u8,
        previous: u64,
        from: u64,
        end: u64,
    },
    /// An epoch was let go of.
    Forgotten(u8),
}

/// The data of one life of the child. The table follows from its changes.
#[derive(Debug, Clone)]
pub struct Data {
    /// Which life.
    pub incarnation: u8,
    /// In order.
    pub changes: Vec<Change>,
    table: DedupTable,
}

impl Data {
    /// Nothing yet.
    #[must_use]
    pub fn new(incarnation: u8) -> Data {
        Data {
            incarnation,
            changes: Vec::new(),
            table: DedupTable::new(),
        }
    }

    /// All records: epoch, the parent's life, offset.
    pub fn records(&self) -> impl Iterator<Item = (u8, u8, u64)> {
        self.changes.iter().flat_map(|change| {
            let (epoch, parent, range) = match *change {
                Change::Appended {
                    epoch,
                    parent,
                    from,
                    end,
                    ..
                } => (epoch, parent, from..end),
                Change::Forgotten(epoch) => (epoch, 0, 0..0),
            };
            range.map(move |offset| (epoch, parent, offset))
        })
    }

    /// How far an epoch has come.
    #[must_use]
    pub fn watermark(&self, number: u8) -> u64 {
        self.table
            .origin(origin(number))
            .map_or(0, |entry| entry.appended)
    }

    /// How far an epoch has ever come, also when it was let go of since.
    #[must_use]
    pub fn reached(&self, number: u8) -> u64 {
        let ends = self.changes.iter().map(|change| match *change {
            Change::Appended { epoch, end, .. } if epoch == number => end,
            Change::Appended { .. } | Change::Forgotten(_) => 0,
        });
        ends.max().unwrap_or(0)
    }

    /// Epochs that the table knows.
    #[must_use]
    pub fn epochs(&self) -> Vec<u8> {
        self.table
            .origins()
            .map(|origin| meta::epoch_number(origin.epoch))
            .collect()
    }

    /// Lets go of an epoch that the leader says is over. False when it is not.
    pub fn forget(&mut self, number: u8, log: &Log) -> bool {
        let Some(gone) = log.epoch_gone(number) else {
            return false;
        };
        self.changes.push(Change::Forgotten(number));
        self.table.forget_origins(&gone) > 0
    }

    fn append(&mut self, cursor: &Identity, previous: u64, from: u64, end: u64) {
        let base = self.records().count() as u64;
        let upto = Offset(base + (end - from));
        self.table.appended(&AppendedBatch {
            writer: Writer::Origin(origin(cursor.epoch)),
            previous,
            sequence: end,
            base_offset: Offset(base),
            end_offset: upto,
            commit_time: CommitTime(base + 1),
            origin: None,
        });
        self.table.flushed(upto);
        let (epoch, parent) = (cursor.epoch, cursor.parent);
        self.changes.push(Change::Appended {
            epoch,
            parent,
            previous,
            from,
            end,
        });
    }
}

fn origin(number: u8) -> OriginId {
    OriginId {
        epoch: epoch(number),
        partition: PartitionId(0),
    }
}

impl PartialEq for Data {
    fn eq(&self, other: &Data) -> bool {
        (self.incarnation, &self.changes) == (other.incarnation, &other.changes)
    }
}

impl Eq for Data {}

impl Hash for Data {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.incarnation, &self.changes).hash(state);
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Child {
    /// How much of the log it has seen.
    pub view: usize,
    /// What lies on its disk.
    pub data: Option<Data>,
}

impl Child {
    /// Takes metadata into force: data of a life that begins is made where none lies.
    pub fn learn(&mut self, view: usize, log: &Log) {
        self.view = view;
        if let (None, Some(life)) = (&self.data, log.life_at(view, false)) {
            self.data = Some(Data::new(life));
        }
    }

    /// Takes a request, as the production committer does: is the epoch current by its own metadata, is the data that of
    /// the link's child, and does the batch follow. Says the answer, and whether something was appended.
    pub fn handle(&mut self, cursor: &Identity, ask: Ask, log: &Log, fault: Option<Fault>) -> (Answer, bool) {
        let link = log
            .snapshot(self.view)
            .link_by_epoch(&name(false), epoch(cursor.epoch));
        let current = match fault {
            Some(Fault::ChildIgnoresEpoch) => Some(cursor.child),
            _ => link.map(|link| incarnation_number(link.child_incarnation)),
        };
        let open = log.life_at(self.view, false);
        let data = self.data.as_mut();
        let data = data.filter(|data| Some(data.incarnation) == current && open == current);
        let Some(data) = data else {
            return (Answer::Stale, false);
        };
        let Ask::Commit { previous, from, end } = ask else {
            return (Answer::Watermark(data.watermark(cursor.epoch)), false);
        };
        let writer = Writer::Origin(origin(cursor.epoch));
        let appends = data.table.decide(writer, previous, end, Some(0)) == Verdict::Append;
        if appends {
            data.append(cursor, previous, from, end);
        }
        (Answer::Watermark(data.watermark(cursor.epoch)), appends)
    }
}
