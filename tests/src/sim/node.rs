//! The node that owns the parent's partitions: its reconciler, its cursor files, and the cursors that it is starting.

use std::collections::BTreeMap;
use std::path::Path;

use futures_lite::future::block_on;
use tailwater_node::fanout::desired::{CursorKey, CursorSpec};
use tailwater_node::fanout::diff::{Reconciler, Running};
use tailwater_node::fanout::gaps::first_ledger;
use tailwater_storage::cursor_file::{self, CursorFile};
use tailwater_storage::disk::device::Disk;
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk};
use tailwater_storage::gap_file::{self, GapFile};
use tailwater_storage::gaps::Gaps;
use tailwater_storage::layout::{CursorPath, partition_dir};
use tailwater_storage::proof::{LeaderConfirmed, Persist};
use tailwater_wire::ids::{Epoch, Offset, PartitionId};
use tailwater_wire::meta::MetaSnapshot;

use super::meta::Meta;
use super::rng::Rng;

/// A cursor whose start waits for the leader's word.
#[derive(Debug, Clone)]
pub(super) struct Starting {
    pub spec: CursorSpec,
    /// What the file said before the leader was asked.
    pub file: CursorFile,
    /// Which asking; a later one makes the earlier void.
    pub asking: u64,
}

/// See the module.
pub(super) struct Node {
    pub up: bool,
    /// The version of the metadata that it has seen.
    pub view: u64,
    pub reconciler: Reconciler,
    /// By cursor: the runner.
    pub running: BTreeMap<CursorKey, (usize, Running)>,
    pub starting: BTreeMap<CursorKey, Starting>,
    /// Counts what the reconciler cannot see in the metadata.
    pub owned_version: u64,
    /// Counts crashes: what was begun before one is void.
    pub life: u64,
    /// By link and partition: what had gone from the parent before anybody counted for that link.
    pub uncounted: BTreeMap<(Epoch, PartitionId), Offset>,
    disk: MemoryDisk,
    unique: u64,
}

impl Node {
    pub fn new(seed: u64, meta: &Meta, partitions: u32) -> Node {
        let disk = MemoryDisk::new(seed);
        for partition in 0..partitions {
            let dir = partition_dir(Path::new("/"), &meta.parent, PartitionId(partition));
            block_on(disk.create_dir_all(&dir)).expect("an empty disk");
        }
        Node {
            up: true,
            view: 0,
            reconciler: Reconciler::new(),
            running: BTreeMap::new(),
            starting: BTreeMap::new(),
            owned_version: 0,
            life: 0,
            uncounted: BTreeMap::new(),
            disk,
            unique: 0,
        }
    }

    fn path(key: &CursorKey) -> CursorPath {
        CursorPath::new(Path::new("/"), &key.parent, key.partition, &key.child)
    }

    fn unique(&mut self) -> u64 {
        self.unique += 1;
        self.unique
    }

    pub fn read(&self, key: &CursorKey) -> CursorFile {
        block_on(cursor_file::read(&self.disk, &Node::path(key))).unwrap_or(CursorFile::Damaged("unreadable"))
    }

    /// Writes the file of a cursor that starts; false when that is refused.
    pub fn write_start(
        &mut self,
        key: &CursorKey,
        epoch: Epoch,
        offset: Offset,
        seen: &CursorFile,
        proof: &LeaderConfirmed,
    ) -> bool {
        let (unique, path) = (self.unique(), Node::path(key));
        block_on(cursor_file::start(
            &self.disk, &path, unique, epoch, offset, seen, proof,
        ))
        .is_ok()
    }

    pub fn advance(&mut self, key: &CursorKey, persist: Persist) -> bool {
        let (unique, path) = (self.unique(), Node::path(key));
        block_on(cursor_file::advance(&self.disk, &path, unique, persist)).is_ok()
    }

    pub fn remove(&self, key: &CursorKey, seen: &CursorFile, proof: &LeaderConfirmed) -> bool {
        block_on(cursor_file::remove(&self.disk, &Node::path(key), seen, proof)).is_ok()
    }

    /// The power goes: the disk keeps what it must and some of the rest.
    pub fn crash(&mut self, rng: &mut Rng) {
        let plan = match rng.range(0, 2) {
            0 => CrashPlan::LoseAll,
            1 => CrashPlan::KeepAll,
            _ => CrashPlan::Random(rng.next()),
        };
        self.disk = self.disk.crash(plan);
        self.running.clear();
        self.starting.clear();
        self.owned_version += 1;
        self.life += 1;
        self.up = false;
    }

    pub fn gap_file(&self, key: &CursorKey) -> GapFile {
        block_on(gap_file::read(&self.disk, &Node::path(key))).unwrap_or(GapFile::Damaged("unreadable"))
    }

    /// Stores a ledger; false when that is refused.
    pub fn put_gaps(
        &mut self,
        key: &CursorKey,
        epoch: Epoch,
        gaps: &Gaps,
        seen: &GapFile,
        proof: Option<&LeaderConfirmed>,
    ) -> bool {
        let (unique, path) = (self.unique(), Node::path(key));
        block_on(gap_file::store(
            &self.disk, &path, unique, epoch, gaps, seen, proof,
        ))
        .is_ok()
    }

    /// The ledger that a cursor starts or goes on with, as the node's driver finds or makes it.
    pub fn ledger(
        &mut self,
        key: &CursorKey,
        epoch: Epoch,
        from: Offset,
        log_start: Offset,
        meta: &Meta,
    ) -> Option<Gaps> {
        let seen = self.gap_file(key);
        if let Some(gaps) = seen.of(epoch) {
            return Some(gaps.clone());
        }
        let gaps = first_ledger(from, log_start);
        if gaps.through > Offset::ZERO {
            let word = meta.reachable.then(|| meta.confirm());
            if !self.put_gaps(key, epoch, &gaps, &seen, word.as_ref()) {
                return None;
            }
            self.uncounted.insert((epoch, key.partition), gaps.since);
        }
        Some(gaps)
    }

    pub fn remove_gaps(&self, key: &CursorKey, seen: &GapFile, proof: &LeaderConfirmed) -> bool {
        block_on(gap_file::remove(&self.disk, &Node::path(key), seen, proof)).is_ok()
    }

    /// Somebody restores, deletes or damages a cursor file while the node is down.
    pub fn tamper(&mut self, key: &CursorKey, meta: &Meta, rng: &mut Rng) {
        let path = Node::path(key);
        let write = |text: &str| block_on(self.disk.write_small(path.path(), text.as_bytes()));
        let done = match (rng.range(0, 7), self.read(key)) {
            (0, _) => block_on(self.disk.remove_file(path.path())),
            (1, _) => write(""),
            (2, _) => write("\0\0\0\0\0\0\0\0"),
            // An older state of the same attachment: never below its attach point.
            (3, CursorFile::Present { epoch, next_offset }) => {
                let link = meta.links.iter().find(|link| link.epoch == epoch);
                let attach = link.map_or(Offset::ZERO, |link| link.attach_offset(key.partition.0));
                let older = Offset(rng.range(attach.0, next_offset.0.max(attach.0)));
                write(&cursor_file::encode(epoch, older))
            }
            // The file of an attachment that is gone, or never was.
            (4, _) => {
                let to_come = &meta.snapshots[self.view as usize..];
                let may_live = |epoch: &Epoch| {
                    let lives =
                        |snapshot: &MetaSnapshot| snapshot.link_by_epoch(&meta.child, *epoch).is_some();
                    to_come.iter().any(lives)
                };
                let mut all = meta.links.iter().map(|link| link.epoch);
                let epoch = all.find(|epoch| !may_live(epoch));
                let epoch = epoch.unwrap_or(Epoch([0xee; 8]));
                write(&cursor_file::encode(epoch, Offset(rng.range(0, 400))))
            }
            _ => Ok(()),
        };
        // Removing what is not there is no harm done.
        drop(done);
    }

    /// The cursors that exist, as the reconciler compares them.
    pub fn exists(&self) -> BTreeMap<CursorKey, Running> {
        let running = |(key, (_, running)): (&CursorKey, &(usize, Running))| (key.clone(), *running);
        self.running.iter().map(running).collect()
    }

    /// A cursor is gone.
    pub fn forget(&mut self, runner: usize) {
        self.running.retain(|_, (index, _)| *index != runner);
        self.owned_version += 1;
    }
}
