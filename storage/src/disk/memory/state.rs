//! The simulated disk itself: every operation as a plain step on names and contents, with its faults applied.
//!
//! No step waits, and none draws from the seed unless it fails or its order is free: a run that is cut at one
//! operation is the same as the uncut run up to there.

use std::collections::BTreeMap;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::disk::device::{BLOCK, DirEntry, DiskError, DiskErrorKind, DiskResult, FlushScope, OpenMode};
use crate::disk::memory::content::{Content, Scope};
use crate::disk::memory::faults::{Faults, OpKind, Verdict, When};
use crate::disk::memory::luck::{CrashPlan, Luck};
use crate::disk::memory::names::{Names, Node, Place};

/// What a simulated disk has done since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Direct writes that reached the cache whole.
    pub writes: u64,
    /// Their bytes.
    pub bytes_written: u64,
    /// Direct reads.
    pub reads: u64,
    /// Their bytes.
    pub bytes_read: u64,
    /// Flushes of files, without those inside `prepare` and `write_small`.
    pub syncs: u64,
    /// Flushes of directories, without those inside `create_dir_all`.
    pub dir_syncs: u64,
}

#[derive(Debug, Clone, Default)]
struct FileNode {
    content: Content,
    /// Open handles: while there is one, the content outlives its last name.
    handles: usize,
}

#[derive(Debug)]
pub(super) struct State {
    names: Names,
    files: BTreeMap<u64, FileNode>,
    next_file: u64,
    rng: StdRng,
    capacity_bytes: Option<u64>,
    pub(super) flush_scope: FlushScope,
    pub(super) failed_flushes: u64,
    pub(super) faults: Faults,
    pub(super) stats: MemoryStats,
}

fn failure<T>(kind: OpKind, path: &Path, error: DiskErrorKind, detail: &str) -> DiskResult<T> {
    Err(DiskError {
        op: kind.as_str(),
        path: path.into(),
        kind: error,
        detail: detail.into(),
    })
}

fn not_found<T>(kind: OpKind, path: &Path) -> DiskResult<T> {
    failure(kind, path, DiskErrorKind::NotFound, "no such file or directory")
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            names: Names::new(),
            files: BTreeMap::new(),
            next_file: 1,
            rng: StdRng::seed_from_u64(seed),
            capacity_bytes: None,
            flush_scope: FlushScope::Device,
            failed_flushes: 0,
            faults: Faults::default(),
            stats: MemoryStats::default(),
        }
    }

    /// The disk as a power cut at this moment leaves it.
    pub(super) fn survivor(&mut self, plan: CrashPlan) -> Self {
        let mut luck = Luck::of(plan);
        let names = self.names.survivor(&mut luck);
        let named = names.files();
        // Drawn for every file, named or not, so that the draw for one does not hang on the names of the others.
        let files = self
            .files
            .iter()
            .map(|(number, file)| (*number, file.content.survivor(&mut luck)));
        let files = files.filter(|(number, _)| named.contains(number));
        let files = files
            .map(|(number, content)| (number, FileNode { content, handles: 0 }))
            .collect();
        let mut left = Self::new(self.rng.clone().random());
        (left.names, left.files, left.next_file) = (names, files, self.next_file);
        (left.capacity_bytes, left.flush_scope) = (self.capacity_bytes, self.flush_scope);
        left
    }

    pub(super) fn set_capacity(&mut self, bytes: Option<u64>) {
        self.capacity_bytes = bytes;
    }

    /// How many more blocks fit; those of files without a name and a handle are free.
    fn free_blocks(&self) -> u64 {
        let Some(capacity) = self.capacity_bytes else {
            return u64::MAX;
        };
        let used: u64 = self
            .files
            .values()
            .map(|file| file.content.allocated_blocks())
            .sum();
        (capacity / BLOCK as u64).saturating_sub(used)
    }

    fn luck(&mut self) -> Luck {
        Luck::seeded(self.rng.random())
    }

    /// The luck of an operation that the power was cut at; `None` when it has no effect.
    fn luck_of_cut(&mut self, when: When) -> Option<Luck> {
        match when {
            When::Before => None,
            When::Inside => Some(self.luck()),
            When::After => Some(Luck::Good),
        }
    }

    pub(super) fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            order.swap(last, self.rng.random_range(0..=last));
        }
        order
    }

    /// Runs a change of names: `Inside` a cut, it happens or it does not.
    fn change(&mut self, kind: OpKind, path: &Path, effect: impl FnOnce(&mut Self)) -> DiskResult<()> {
        match self.judge(kind, path) {
            Verdict::Run => {
                effect(self);
                Ok(())
            }
            Verdict::Fail(error) | Verdict::Off(error) => Err(error),
            Verdict::Cut(when, error) => {
                if self.luck_of_cut(when).is_some_and(|mut luck| luck.keeps()) {
                    effect(self);
                }
                Err(error)
            }
        }
    }

    /// Numbers an operation and says how far it gets; another shard's flush may fail first, and take along what no flush
    /// has covered yet.
    fn judge(&mut self, kind: OpKind, path: &Path) -> Verdict {
        if self.faults.take_beside(kind, path) {
            self.failed_flushes += 1;
            for node in self.files.values_mut() {
                node.content.doom(Scope::Shared);
            }
        }
        self.faults.judge(kind, path)
    }

    /// Runs an operation that changes nothing.
    fn look(&mut self, kind: OpKind, path: &Path) -> DiskResult<()> {
        match self.judge(kind, path) {
            Verdict::Run => Ok(()),
            Verdict::Fail(error) | Verdict::Off(error) | Verdict::Cut(_, error) => Err(error),
        }
    }

    fn place(&self, kind: OpKind, path: &Path) -> DiskResult<Place> {
        self.names.place(path).map_or_else(|| not_found(kind, path), Ok)
    }

    fn content(&mut self, file: u64) -> &mut Content {
        &mut self.files.entry(file).or_default().content
    }

    fn new_file(&mut self, place: Place) -> u64 {
        let number = self.next_file;
        self.next_file += 1;
        self.files.insert(number, FileNode::default());
        self.names.link(place, Node::File(number));
        number
    }

    pub(super) fn open(&mut self, path: &Path, mode: OpenMode) -> DiskResult<u64> {
        let kind = if mode == OpenMode::CreateNew {
            OpKind::Create
        } else {
            OpKind::Open
        };
        let number = match (self.names.resolve(path), mode) {
            (Some(Node::File(number)), OpenMode::Read | OpenMode::ReadWrite) => {
                self.look(kind, path)?;
                number
            }
            (Some(Node::Dir(_)), OpenMode::Read | OpenMode::ReadWrite) => {
                return failure(kind, path, DiskErrorKind::Io, "is a directory");
            }
            (Some(_), OpenMode::CreateNew) => {
                return failure(kind, path, DiskErrorKind::AlreadyExists, "file exists");
            }
            (None, OpenMode::Read | OpenMode::ReadWrite) => return not_found(kind, path),
            (None, OpenMode::CreateNew) => {
                let place = self.place(kind, path)?;
                if self.free_blocks() == 0 {
                    return failure(kind, path, DiskErrorKind::NoSpace, "no space left on device");
                }
                let mut made = 0;
                self.change(kind, path, |state| made = state.new_file(place))?;
                made
            }
        };
        self.files.entry(number).or_default().handles += 1;
        Ok(number)
    }

    pub(super) fn close(&mut self, file: u64) {
        if let Some(node) = self.files.get_mut(&file) {
            node.handles -= 1;
            if node.handles == 0 && !self.names.files().contains(&file) {
                self.files.remove(&file);
            }
        }
    }

    pub(super) fn write(&mut self, file: u64, path: &Path, position: u64, bytes: &[u8]) -> DiskResult<()> {
        let verdict = self.judge(OpKind::Write, path);
        let (file, position) = self.aim(file, path, position);
        let end = position + bytes.len() as u64;
        match verdict {
            Verdict::Run => {
                let free = self.free_blocks();
                if self.content(file).unallocated(position, end) > free {
                    // What fits is written, from the front: the short write that the contract calls an error.
                    let mut fits = bytes.len();
                    while self.content(file).unallocated(position, position + fits as u64) > free {
                        fits -= BLOCK;
                    }
                    self.content(file)
                        .write(position, &bytes[..fits], &mut Luck::Good);
                    return failure(
                        OpKind::Write,
                        path,
                        DiskErrorKind::NoSpace,
                        "no space left on device",
                    );
                }
                self.content(file).write(position, bytes, &mut Luck::Good);
                self.stats.writes += 1;
                self.stats.bytes_written += bytes.len() as u64;
                Ok(())
            }
            Verdict::Fail(error) => {
                if error.kind != DiskErrorKind::NoSpace {
                    let mut luck = self.luck();
                    self.content(file).write(position, bytes, &mut luck);
                }
                Err(error)
            }
            Verdict::Cut(when, error) => {
                if let Some(mut luck) = self.luck_of_cut(when) {
                    self.content(file).write(position, bytes, &mut luck);
                }
                Err(error)
            }
            Verdict::Off(error) => Err(error),
        }
    }

    /// Where a write lands: where it should, unless a misdirection waits for this path.
    fn aim(&mut self, file: u64, path: &Path, position: u64) -> (u64, u64) {
        match self.faults.take_misdirected(path) {
            Some((to, astray)) => match self.names.resolve(&to) {
                Some(Node::File(other)) => (other, astray),
                _ => (file, astray),
            },
            None => (file, position),
        }
    }

    pub(super) fn read(&mut self, file: u64, path: &Path, position: u64, len: usize) -> DiskResult<Vec<u8>> {
        self.look(OpKind::Read, path)?;
        let bytes = self.content(file).read(position, len);
        self.stats.reads += 1;
        self.stats.bytes_read += bytes.len() as u64;
        Ok(bytes)
    }

    pub(super) fn len(&mut self, file: u64, path: &Path) -> DiskResult<u64> {
        self.look(OpKind::Read, path)?;
        Ok(self.content(file).len())
    }

    /// One flush: all of this file, and where it is the device's, the overwrites of durable extents of every other.
    fn flush(&mut self, file: u64, luck: &mut Luck) {
        for (number, node) in &mut self.files {
            match (*number == file, self.flush_scope) {
                (true, _) => node.content.settle(Scope::Own, luck),
                (false, FlushScope::Device) => node.content.settle(Scope::Shared, luck),
                (false, FlushScope::File) => {}
            }
        }
    }

    /// A failed flush. What the device drops is not the file's alone, whatever a successful one would have covered.
    fn doom(&mut self, file: u64) {
        self.failed_flushes += 1;
        for (number, node) in &mut self.files {
            node.content.doom(if *number == file {
                Scope::Own
            } else {
                Scope::Shared
            });
        }
    }

    pub(super) fn sync(&mut self, file: u64, path: &Path) -> DiskResult<()> {
        match self.judge(OpKind::Sync, path) {
            Verdict::Run => {
                self.flush(file, &mut Luck::Good);
                self.stats.syncs += 1;
                Ok(())
            }
            Verdict::Fail(error) => {
                self.doom(file);
                Err(error)
            }
            Verdict::Cut(when, error) => {
                if let Some(mut luck) = self.luck_of_cut(when) {
                    self.flush(file, &mut luck);
                }
                Err(error)
            }
            Verdict::Off(error) => Err(error),
        }
    }

    pub(super) fn prepare(&mut self, file: u64, path: &Path, from: u64, to: u64) -> DiskResult<()> {
        match self.judge(OpKind::Prepare, path) {
            Verdict::Run => {
                let free = self.free_blocks();
                if self.content(file).unallocated(from, to) > free {
                    return failure(
                        OpKind::Prepare,
                        path,
                        DiskErrorKind::NoSpace,
                        "no space left on device",
                    );
                }
                self.content(file).write_zeros(from, to, &mut Luck::Good);
                self.flush(file, &mut Luck::Good);
                Ok(())
            }
            Verdict::Fail(error) => {
                if error.kind != DiskErrorKind::NoSpace {
                    let mut luck = self.luck();
                    self.content(file).write_zeros(from, to, &mut luck);
                    self.doom(file);
                }
                Err(error)
            }
            Verdict::Cut(when, error) => {
                if let Some(mut luck) = self.luck_of_cut(when) {
                    self.content(file).write_zeros(from, to, &mut luck);
                    self.flush(file, &mut luck);
                }
                Err(error)
            }
            Verdict::Off(error) => Err(error),
        }
    }

    pub(super) fn set_len(&mut self, file: u64, path: &Path, len: u64) -> DiskResult<()> {
        self.change(OpKind::SetLen, path, |state| state.content(file).set_len(len))
    }

    pub(super) fn read_small(&mut self, path: &Path) -> DiskResult<Option<Vec<u8>>> {
        self.look(OpKind::Read, path)?;
        match self.names.resolve(path) {
            None => Ok(None),
            Some(Node::Dir(_)) => failure(OpKind::Read, path, DiskErrorKind::Io, "is a directory"),
            Some(Node::File(number)) => Ok(Some(self.whole(number))),
        }
    }

    fn whole(&mut self, file: u64) -> Vec<u8> {
        let content = self.content(file);
        content.read(0, content.len() as usize)
    }

    /// A file's bytes as readers see them, without counting as a read.
    pub(super) fn peek(&mut self, path: &Path) -> Option<Vec<u8>> {
        match self.names.resolve(path)? {
            Node::File(number) => Some(self.whole(number)),
            Node::Dir(_) => None,
        }
    }

    pub(super) fn flip(&mut self, path: &Path, byte: u64, mask: u8) -> bool {
        match self.names.resolve(path) {
            Some(Node::File(number)) => self.content(number).flip(byte, mask),
            _ => false,
        }
    }

    pub(super) fn write_small(&mut self, path: &Path, bytes: &[u8]) -> DiskResult<()> {
        let kind = OpKind::WriteSmall;
        let place = self.place(kind, path)?;
        if let Some(Node::Dir(_)) = self.names.at(&place) {
            return failure(kind, path, DiskErrorKind::Io, "is a directory");
        }
        match self.judge(kind, path) {
            Verdict::Run => {
                let file = self.fill_small(place, path, bytes, &mut Luck::Good)?;
                self.flush(file, &mut Luck::Good);
                Ok(())
            }
            Verdict::Fail(error) => {
                let mut luck = self.luck();
                if luck.keeps() {
                    let file = self.fill_small(place, path, bytes, &mut luck)?;
                    self.doom(file);
                }
                Err(error)
            }
            Verdict::Cut(when, error) => {
                if let Some(mut luck) = self.luck_of_cut(when) {
                    let file = self.fill_small(place, path, bytes, &mut luck)?;
                    self.flush(file, &mut luck);
                }
                Err(error)
            }
            Verdict::Off(error) => Err(error),
        }
    }

    /// Creates or truncates a file and writes into its cache what `luck` keeps of the bytes.
    fn fill_small(&mut self, place: Place, path: &Path, bytes: &[u8], luck: &mut Luck) -> DiskResult<u64> {
        let free = self.free_blocks();
        let full = || {
            failure(
                OpKind::WriteSmall,
                path,
                DiskErrorKind::NoSpace,
                "no space left on device",
            )
        };
        let file = match self.names.at(&place) {
            Some(Node::File(number)) => number,
            _ if free == 0 => return full(),
            _ => self.new_file(place),
        };
        self.content(file).set_len(0);
        // The blocks just freed are not free again before the journal's next commit: the count from before holds.
        if bytes.len().div_ceil(BLOCK) as u64 > free {
            return full();
        }
        self.content(file).write(0, bytes, luck);
        Ok(file)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> DiskResult<()> {
        let kind = OpKind::Rename;
        let source = self.place(kind, from)?;
        let Some(node) = self.names.at(&source) else {
            return not_found(kind, from);
        };
        let target = self.place(kind, to)?;
        match (node, self.names.at(&target)) {
            (_, Some(Node::Dir(_))) => return failure(kind, to, DiskErrorKind::Io, "is a directory"),
            (Node::Dir(_), Some(Node::File(_))) => {
                return failure(kind, to, DiskErrorKind::Io, "not a directory");
            }
            _ => {}
        }
        self.change(kind, to, |state| state.names.rename(source, target))
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> DiskResult<()> {
        let place = self.place(OpKind::Remove, path)?;
        match self.names.at(&place) {
            None => not_found(OpKind::Remove, path),
            Some(Node::Dir(_)) => failure(OpKind::Remove, path, DiskErrorKind::Io, "is a directory"),
            Some(Node::File(_)) => self.change(OpKind::Remove, path, |state| state.names.unlink(place)),
        }
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path) -> DiskResult<()> {
        let (Some(place), Some(node)) = (self.names.place(path), self.names.resolve(path)) else {
            return self.look(OpKind::Read, path);
        };
        let Node::Dir(dir) = node else {
            return failure(OpKind::Remove, path, DiskErrorKind::Io, "not a directory");
        };
        self.change(OpKind::Remove, path, |state| {
            state.names.unlink_below(dir);
            state.names.unlink(place);
        })
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> DiskResult<()> {
        let mut missing = Vec::new();
        for ancestor in path.ancestors() {
            match self.names.resolve(ancestor) {
                Some(Node::Dir(_)) => break,
                Some(Node::File(_)) => {
                    return failure(OpKind::CreateDir, path, DiskErrorKind::Io, "not a directory");
                }
                None => missing.push(ancestor),
            }
        }
        if missing.is_empty() {
            return self.look(OpKind::Read, path);
        }
        self.change(OpKind::CreateDir, path, |state| {
            for dir in missing.into_iter().rev() {
                if let Some(place) = state.names.place(dir) {
                    state.names.make_dir(place);
                }
            }
        })
    }

    pub(super) fn list(&mut self, path: &Path) -> DiskResult<Vec<DirEntry>> {
        self.look(OpKind::Read, path)?;
        match self.names.resolve(path) {
            None => not_found(OpKind::Read, path),
            Some(Node::File(_)) => failure(OpKind::Read, path, DiskErrorKind::Io, "not a directory"),
            Some(Node::Dir(dir)) => Ok(self
                .names
                .list(dir)
                .map(|(name, node)| DirEntry {
                    name: name.clone(),
                    is_dir: matches!(node, Node::Dir(_)),
                })
                .collect()),
        }
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> DiskResult<()> {
        let Some(Node::Dir(dir)) = self.names.resolve(path) else {
            return not_found(OpKind::SyncDir, path);
        };
        match self.judge(OpKind::SyncDir, path) {
            Verdict::Run => {
                self.names.sync(dir, &mut Luck::Good);
                self.stats.dir_syncs += 1;
                self.forget_unnamed();
                Ok(())
            }
            Verdict::Fail(error) => {
                self.names.doom(dir);
                self.failed_flushes += 1;
                Err(error)
            }
            Verdict::Cut(when, error) => {
                if let Some(mut luck) = self.luck_of_cut(when) {
                    self.names.sync(dir, &mut luck);
                }
                Err(error)
            }
            Verdict::Off(error) => Err(error),
        }
    }

    /// Drops what neither a name nor a handle can reach any more.
    fn forget_unnamed(&mut self) {
        self.names.forget_unreachable();
        let named = self.names.files();
        self.files
            .retain(|number, node| node.handles > 0 || named.contains(number));
    }
}
