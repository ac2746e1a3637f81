//! What goes wrong on the simulated disk: injected failures, a full device, a misdirected write, and the power switch.

use std::path::{Path, PathBuf};

use crate::disk::device::{DiskError, DiskErrorKind};

/// A kind of operation, for injected faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Opening an existing file.
    Open,
    /// Opening a new file.
    Create,
    /// A read of any kind, and a directory listing.
    Read,
    /// One direct write: alone, or one of a batch.
    Write,
    /// A flush of a file.
    Sync,
    /// Preparing a range of a file.
    Prepare,
    /// Cutting or extending a file.
    SetLen,
    /// A small file written whole.
    WriteSmall,
    /// A rename.
    Rename,
    /// Removing a file, or a directory with all below it.
    Remove,
    /// Creating a directory.
    CreateDir,
    /// A flush of a directory.
    SyncDir,
}

impl OpKind {
    /// Whether it changes the disk: such operations are numbered, and the power can be cut at them.
    pub const fn is_counted(self) -> bool {
        !matches!(self, Self::Open | Self::Read)
    }

    /// The step's name in error messages.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "flush",
            Self::Prepare => "prepare",
            Self::SetLen => "set length",
            Self::WriteSmall => "write file",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::CreateDir => "create directory",
            Self::SyncDir => "flush directory",
        }
    }
}

/// On which side of an operation the power goes. Whoever asked for the operation gets an error in all three cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    /// It has had no effect.
    Before,
    /// It has had an effect drawn from the disk's seed: a torn write, a rename that may or may not have happened.
    Inside,
    /// It has had its whole effect; only the answer was lost.
    After,
}

/// How far an operation gets.
#[derive(Debug, Clone)]
pub(super) enum Verdict {
    /// All the way.
    Run,
    /// It fails with this error and has the effect that such a failure has.
    Fail(DiskError),
    /// The power goes at it.
    Cut(When, DiskError),
    /// The power was gone before it.
    Off(DiskError),
}

#[derive(Debug, Clone)]
struct Injected {
    kind: OpKind,
    path_contains: String,
    error: DiskErrorKind,
    left: u32,
}

#[derive(Debug, Clone)]
struct Misdirected {
    path_contains: String,
    to: PathBuf,
    position: u64,
}

/// The faults still to come, and the numbering of operations.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    ops: u64,
    cut_at: Option<(u64, When)>,
    power_is_off: bool,
    injected: Vec<Injected>,
    misdirected: Vec<Misdirected>,
    /// Operations before which a flush of another shard fails.
    beside: Vec<(OpKind, String)>,
}

impl Faults {
    pub(super) fn ops(&self) -> u64 {
        self.ops
    }

    pub(super) fn power_is_off(&self) -> bool {
        self.power_is_off
    }

    pub(super) fn cut_at(&mut self, op: u64, when: When) {
        self.cut_at = Some((op, when));
    }

    pub(super) fn inject(&mut self, kind: OpKind, path_contains: &str, error: DiskErrorKind, count: u32) {
        self.injected.push(Injected {
            kind,
            path_contains: path_contains.into(),
            error,
            left: count,
        });
    }

    pub(super) fn clear_injected(&mut self) {
        self.injected.clear();
        self.misdirected.clear();
        self.beside.clear();
    }

    pub(super) fn fail_beside(&mut self, kind: OpKind, path_contains: &str) {
        self.beside.push((kind, path_contains.into()));
    }

    /// Whether another shard's flush fails just before this operation.
    pub(super) fn take_beside(&mut self, kind: OpKind, path: &Path) -> bool {
        let text = path.to_string_lossy();
        let matches = |(of, part): &(OpKind, String)| *of == kind && text.contains(part);
        let at = self.beside.iter().position(matches);
        at.inspect(|at| drop(self.beside.remove(*at))).is_some()
    }

    pub(super) fn misdirect(&mut self, path_contains: &str, to: &Path, position: u64) {
        self.misdirected.push(Misdirected {
            path_contains: path_contains.into(),
            to: to.into(),
            position,
        });
    }

    /// Where a write to `path` really goes, if not where it should.
    pub(super) fn take_misdirected(&mut self, path: &Path) -> Option<(PathBuf, u64)> {
        let text = path.to_string_lossy();
        let at = self
            .misdirected
            .iter()
            .position(|m| text.contains(&m.path_contains))?;
        let taken = self.misdirected.remove(at);
        Some((taken.to, taken.position))
    }

    /// Numbers an operation and says how far it gets.
    pub(super) fn judge(&mut self, kind: OpKind, path: &Path) -> Verdict {
        let error = |kind_of_error, detail: &str| DiskError {
            op: kind.as_str(),
            path: path.into(),
            kind: kind_of_error,
            detail: detail.into(),
        };
        if self.power_is_off {
            return Verdict::Off(error(DiskErrorKind::Io, "power cut"));
        }
        if kind.is_counted() {
            let number = self.ops;
            self.ops += 1;
            if let Some((op, when)) = self.cut_at.filter(|(op, _)| number >= *op) {
                self.power_is_off = true;
                // A point that was set too late is a cut before the next operation.
                let when = if number == op { when } else { When::Before };
                return Verdict::Cut(when, error(DiskErrorKind::Io, "power cut"));
            }
        }
        let text = path.to_string_lossy();
        let matching = self
            .injected
            .iter()
            .position(|i| i.kind == kind && text.contains(&i.path_contains));
        let Some(at) = matching else {
            return Verdict::Run;
        };
        let injected = &mut self.injected[at];
        let verdict = Verdict::Fail(error(injected.error, "injected fault"));
        injected.left = injected.left.saturating_sub(1);
        if injected.left == 0 {
            self.injected.remove(at);
        }
        verdict
    }
}
