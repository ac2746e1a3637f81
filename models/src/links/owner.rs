//! The parent's owner: its view of the metadata, what lies on its disk, and the one cursor.

use std::collections::BTreeMap;
use std::path::Path;

use futures_lite::future::block_on;
use tailwater_node::fanout::desired::{self, CursorKey, CursorSpec};
use tailwater_node::fanout::diff::{Pass, Running, diff};
use tailwater_storage::cursor_file::{self, CursorFile};
use tailwater_storage::disk::device::Disk;
use tailwater_storage::disk::memory::MemoryDisk;
use tailwater_storage::layout::{CursorPath, partition_dir};
use tailwater_storage::proof::{Acknowledged, LeaderConfirmed, Persist};
use tailwater_wire::ids::{Offset, OwnerEpoch, PartitionId};

use super::meta::{self, Log, epoch, epoch_number, incarnation, incarnation_number, name};

/// Which life of the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The attachment.
    pub epoch: u8,
    /// The parent's life.
    pub parent: u8,
    /// The child's life.
    pub child: u8,
    /// Tells this run of it from others.
    pub run: u8,
}

/// The cursor's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum File {
    /// None.
    Absent,
    /// Of an epoch, at an offset.
    At(u8, u64),
}

/// A running cursor. It copies one record at a time: what the production cursor does is the other model's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Which.
    pub identity: Identity,
    /// Everything below is in the child.
    pub position: u64,
    /// Where it was started.
    pub start: u64,
    /// The child's watermark, once it has told it.
    pub watermark: Option<u64>,
    /// The request that is unanswered.
    pub asked: Option<u8>,
    /// Requests so far.
    pub requests: u8,
    /// It was told to stop.
    pub stopping: bool,
    /// Its epoch was refused.
    pub refused: bool,
}

/// A cursor that is being started: what the file said before the leader was asked, and its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Asking {
    /// The file then.
    pub seen: File,
    /// The epoch that the leader says links the pair, when it has answered.
    pub word: Option<Option<u8>>,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// How much of the log it has seen.
    pub view: usize,
    /// The parent's data on its disk: which life, and for each record whether it was produced while nothing was attached.
    pub data: Option<(u8, Vec<bool>)>,
    /// The cursor's file beside it.
    pub file: File,
    /// The cursor.
    pub cursor: Option<Cursor>,
    /// A cursor that is being started.
    pub starting: Option<Asking>,
    /// A file that is being swept.
    pub sweeping: Option<Asking>,
    /// Cursors that were started so far.
    pub runs: u8,
}

impl Owner {
    /// The key of the one cursor.
    #[must_use]
    pub fn key() -> CursorKey {
        CursorKey {
            parent: name(true),
            partition: PartitionId(0),
            child: name(false),
        }
    }

    /// The life of the parent whose log is open.
    #[must_use]
    pub fn open(&self, log: &Log) -> Option<u8> {
        let life = self.data.as_ref().map(|(life, _)| *life);
        life.filter(|life| log.life_at(self.view, true) == Some(*life))
    }

    /// The parent's end.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.data.as_ref().map_or(0, |(_, records)| records.len() as u64)
    }

    /// Takes metadata into force: cursors of lives that are over stop, data of a life that begins is made.
    pub fn learn(&mut self, view: usize, log: &Log) {
        self.view = view;
        let lives = [true, false].map(|parent| log.life_at(view, parent));
        if let Some(cursor) = &mut self.cursor {
            let its = [cursor.identity.parent, cursor.identity.child].map(Some);
            cursor.stopping |= lives != its;
        }
        if let (None, Some(life)) = (&self.data, lives[0]) {
            self.data = Some((life, Vec::new()));
        }
    }

    /// What the production deciders say that should run.
    #[must_use]
    pub fn desired(&self, log: &Log) -> BTreeMap<CursorKey, CursorSpec> {
        let is_open = self.open(log).is_some();
        desired::desired(log.snapshot(self.view), |topic, _| {
            is_open && *topic == name(true)
        })
    }

    /// What the production deciders start and stop.
    #[must_use]
    pub fn pass(&self, log: &Log) -> Pass {
        let running = self.cursor.iter().map(|cursor| {
            let identity = desired::Identity {
                epoch: epoch(cursor.identity.epoch),
                parent_incarnation: incarnation(cursor.identity.parent),
                child_incarnation: incarnation(cursor.identity.child),
                owner_epoch: OwnerEpoch(1),
            };
            let stopping = cursor.stopping;
            (Owner::key(), Running { identity, stopping })
        });
        diff(&self.desired(log), &running.collect())
    }

    /// A cursor begins to run.
    pub fn run(&mut self, spec: &CursorSpec, start: u64) {
        self.runs += 1;
        self.cursor = Some(Cursor {
            identity: Identity {
                epoch: epoch_number(spec.identity.epoch),
                parent: incarnation_number(spec.identity.parent_incarnation),
                child: incarnation_number(spec.identity.child_incarnation),
                run: self.runs,
            },
            position: start,
            start,
            watermark: None,
            asked: None,
            requests: 0,
            stopping: false,
            refused: false,
        });
    }

    /// The process dies and comes back with a replica that may have been restored from an older copy.
    pub fn restart(&mut self, view: usize) {
        (self.cursor, self.starting, self.sweeping) = (None, None, None);
        self.view = view;
    }

    /// The position that the children's acknowledgements allow to be stored.
    #[must_use]
    pub fn persist(&self) -> Option<Persist> {
        let cursor = self.cursor.as_ref()?;
        let start = Offset(cursor.start);
        let mut acknowledged = Acknowledged::start(epoch(cursor.identity.epoch), start, 1);
        acknowledged.acknowledge(0, Offset(cursor.position))
    }

    /// A running cursor's file moves on, as the production code allows.
    pub fn store(&mut self, persist: Persist) {
        let (disk, at) = self.disk();
        // What is refused stays as it was, and is a cursor's to try again.
        let _refused = block_on(cursor_file::advance(&disk, &at, 1, persist));
        self.file = File::read(&disk, &at);
    }

    /// A starting cursor's file is written, as the production code allows.
    pub fn write_start(&mut self, number: u8, at: u64, seen: File, proof: &LeaderConfirmed) -> bool {
        let (disk, path) = self.disk();
        let seen = seen.says();
        let written = cursor_file::start(&disk, &path, 1, epoch(number), Offset(at), &seen, proof);
        let written = block_on(written).is_ok();
        self.file = File::read(&disk, &path);
        written
    }

    /// A swept file is removed, as the production code allows.
    pub fn remove_file(&mut self, seen: File, proof: &LeaderConfirmed) {
        let (disk, at) = self.disk();
        let _refused = block_on(cursor_file::remove(&disk, &at, &seen.says(), proof));
        self.file = File::read(&disk, &at);
    }

    fn disk(&self) -> (MemoryDisk, CursorPath) {
        let (disk, data) = (MemoryDisk::new(1), Path::new("/"));
        let at = CursorPath::new(data, &name(true), PartitionId(0), &name(false));
        let dir = partition_dir(data, &name(true), PartitionId(0));
        block_on(disk.create_dir_all(&dir)).expect("an empty disk");
        if let File::At(number, next) = self.file {
            let text = cursor_file::encode(epoch(number), Offset(next));
            block_on(disk.write_small(at.path(), text.as_bytes())).expect("an empty disk");
        }
        (disk, at)
    }
}

impl File {
    /// As the production code reads it.
    #[must_use]
    pub fn says(self) -> CursorFile {
        match self {
            File::Absent => CursorFile::Absent,
            File::At(number, next) => CursorFile::Present {
                epoch: epoch(number),
                next_offset: Offset(next),
            },
        }
    }

    fn read(disk: &MemoryDisk, at: &CursorPath) -> File {
        match block_on(cursor_file::read(disk, at)) {
            Ok(CursorFile::Present { epoch, next_offset }) => {
                File::At(meta::epoch_number(epoch), next_offset.0)
            }
            Ok(CursorFile::Absent | CursorFile::Damaged(_)) | Err(_) => File::Absent,
        }
    }
}
