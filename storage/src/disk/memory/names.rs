//! The directories of the simulated disk: every create, rename and remove is volatile until its directory is synced.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use crate::disk::memory::luck::{Luck, NameOrder};

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    /// A file, by its number.
    File(u64),
    /// A directory, by its number.
    Dir(u64),
}

#[derive(Debug, Clone, Default)]
struct Directory {
    cached: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
}

/// A name in a directory.
pub(super) type Place = (u64, String);

/// One change of names that is not durable yet. A rename is one change, also between two directories: it never
/// leaves the file under no name.
#[derive(Debug, Clone)]
struct Change {
    from: Option<Place>,
    to: Option<(Place, Node)>,
}

impl Change {
    fn touches(&self, dir: u64) -> bool {
        self.dirs().any(|d| d == dir)
    }

    fn dirs(&self) -> impl Iterator<Item = u64> + '_ {
        self.from
            .iter()
            .map(|(d, _)| *d)
            .chain(self.to.iter().map(|((d, _), _)| *d))
    }
}

/// The root's number; it always exists.
const ROOT: u64 = 0;

/// All directories, by number.
#[derive(Debug, Clone)]
pub(super) struct Names {
    dirs: BTreeMap<u64, Directory>,
    pending: Vec<Change>,
    next_dir: u64,
}

impl Names {
    pub(super) fn new() -> Self {
        Self {
            dirs: BTreeMap::from([(ROOT, Directory::default())]),
            pending: Vec::new(),
            next_dir: ROOT + 1,
        }
    }

    /// What a path names now. Relative paths start at the root.
    pub(super) fn resolve(&self, path: &Path) -> Option<Node> {
        components(path).try_fold(Node::Dir(ROOT), |node, name| match node {
            Node::Dir(dir) => self.dirs[&dir].cached.get(&name).copied(),
            Node::File(_) => None,
        })
    }

    /// The directory and name of a path; `None` when the directory does not exist or the path is the root.
    pub(super) fn place(&self, path: &Path) -> Option<Place> {
        let name = components(path).last()?;
        match self.resolve(path.parent()?)? {
            Node::Dir(dir) => Some((dir, name)),
            Node::File(_) => None,
        }
    }

    pub(super) fn at(&self, place: &Place) -> Option<Node> {
        self.dirs[&place.0].cached.get(&place.1).copied()
    }

    pub(super) fn list(&self, dir: u64) -> impl Iterator<Item = (&String, Node)> {
        self.dirs[&dir].cached.iter().map(|(name, node)| (name, *node))
    }

    pub(super) fn link(&mut self, place: Place, node: Node) {
        self.change(Change {
            from: None,
            to: Some((place, node)),
        });
    }

    pub(super) fn unlink(&mut self, place: Place) {
        self.change(Change {
            from: Some(place),
            to: None,
        });
    }

    pub(super) fn rename(&mut self, from: Place, to: Place) {
        if let (Some(node), true) = (self.at(&from), from != to) {
            self.change(Change {
                from: Some(from),
                to: Some((to, node)),
            });
        }
    }

    fn change(&mut self, change: Change) {
        apply(&mut self.dirs, &change, |dir| &mut dir.cached);
        self.pending.push(change);
    }

    /// Makes a directory whose name is durable at once, with whatever was pending beside it.
    pub(super) fn make_dir(&mut self, place: Place) -> u64 {
        let (parent, number) = (place.0, self.next_dir);
        self.next_dir += 1;
        self.dirs.insert(number, Directory::default());
        self.link(place, Node::Dir(number));
        self.sync(parent, &mut Luck::Good);
        number
    }

    /// Removes everything below a directory, deepest first; its own name is the caller's.
    pub(super) fn unlink_below(&mut self, dir: u64) {
        let entries: Vec<(String, Node)> = self.list(dir).map(|(name, node)| (name.clone(), node)).collect();
        for (name, node) in entries {
            if let Node::Dir(below) = node {
                self.unlink_below(below);
            }
            self.unlink((dir, name));
        }
    }

    /// A directory's flush: its changes that `luck` keeps become durable, in order.
    pub(super) fn sync(&mut self, dir: u64, luck: &mut Luck) {
        for (change, covered) in self.take_covered(dir) {
            if covered && luck.keeps() {
                apply(&mut self.dirs, &change, |dir| &mut dir.durable);
            } else {
                self.pending.push(change);
            }
        }
    }

    /// A directory's failed flush: its changes stay visible, and no later flush makes them durable.
    pub(super) fn doom(&mut self, dir: u64) {
        let left = self.take_covered(dir).into_iter().filter(|(_, covered)| !covered);
        self.pending = left.map(|(change, _)| change).collect();
    }

    /// Takes all pending changes, each with whether a flush of `dir` covers it: those of the directory itself and,
    /// where a rename ties two directories together, those before it in the other.
    fn take_covered(&mut self, dir: u64) -> Vec<(Change, bool)> {
        let pending = std::mem::take(&mut self.pending);
        let mut dirs = BTreeSet::from([dir]);
        let mut covered = vec![false; pending.len()];
        for (n, change) in pending.iter().enumerate().rev() {
            if change.dirs().any(|d| dirs.contains(&d)) {
                covered[n] = true;
                dirs.extend(change.dirs());
            }
        }
        pending.into_iter().zip(covered).collect()
    }

    /// The directories as a power cut leaves them, all durable.
    pub(super) fn survivor(&self, luck: &mut Luck) -> Self {
        luck.redraw();
        let mut left = self.clone();
        let kept: Vec<bool> = match luck.name_order() {
            NameOrder::Independent => self.pending.iter().map(|_| luck.keeps()).collect(),
            NameOrder::Journal => {
                let cut = luck.prefix_of(self.pending.len());
                (0..self.pending.len()).map(|n| n < cut).collect()
            }
            NameOrder::PerDirectory => self.kept_per_directory(luck),
        };
        for (change, _) in self.pending.iter().zip(kept).filter(|(_, kept)| *kept) {
            apply(&mut left.dirs, change, |dir| &mut dir.durable);
        }
        left.pending.clear();
        for dir in left.dirs.values_mut() {
            dir.cached = dir.durable.clone();
        }
        left.forget_unreachable();
        left
    }

    fn kept_per_directory(&self, luck: &mut Luck) -> Vec<bool> {
        let mut quota: BTreeMap<u64, usize> = BTreeMap::new();
        for dir in self.dirs.keys() {
            let n = self.pending.iter().filter(|change| change.touches(*dir)).count();
            quota.insert(*dir, luck.prefix_of(n));
        }
        let mut kept = Vec::with_capacity(self.pending.len());
        for change in &self.pending {
            let fits = change.dirs().all(|dir| quota[&dir] > 0);
            for dir in change.dirs().collect::<BTreeSet<_>>() {
                // Once one change of a directory is lost, so are those behind it.
                quota
                    .entry(dir)
                    .and_modify(|left| *left = if fits { *left - 1 } else { 0 });
            }
            kept.push(fits);
        }
        kept
    }

    /// Drops the directories that no durable, visible or pending name leads to.
    pub(super) fn forget_unreachable(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut next = vec![ROOT];
        while let Some(dir) = next.pop() {
            let pending = self
                .pending
                .iter()
                .filter_map(|c| c.to.as_ref().filter(|((d, _), _)| *d == dir));
            let dir = &self.dirs[&dir];
            let nodes = dir
                .cached
                .values()
                .chain(dir.durable.values())
                .chain(pending.map(|(_, node)| node));
            next.extend(nodes.filter_map(|node| match node {
                Node::Dir(below) if reached.insert(*below) => Some(*below),
                _ => None,
            }));
        }
        self.dirs.retain(|number, _| reached.contains(number));
        self.pending
            .retain(|change| change.dirs().all(|dir| reached.contains(&dir)));
    }

    /// The files that some durable, visible or pending name leads to.
    pub(super) fn files(&self) -> BTreeSet<u64> {
        let entries = self
            .dirs
            .values()
            .flat_map(|dir| dir.cached.values().chain(dir.durable.values()));
        let pending = self
            .pending
            .iter()
            .filter_map(|change| change.to.as_ref().map(|(_, node)| node));
        entries
            .chain(pending)
            .filter_map(|node| match node {
                Node::File(file) => Some(*file),
                Node::Dir(_) => None,
            })
            .collect()
    }
}

fn apply(
    dirs: &mut BTreeMap<u64, Directory>,
    change: &Change,
    side: impl Fn(&mut Directory) -> &mut BTreeMap<String, Node>,
) {
    if let Some((dir, name)) = &change.from {
        dirs.get_mut(dir).map(|dir| side(dir).remove(name));
    }
    if let Some(((dir, name), node)) = &change.to {
        dirs.get_mut(dir).map(|dir| side(dir).insert(name.clone(), *node));
    }
}

fn components(path: &Path) -> impl Iterator<Item = String> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    })
}
