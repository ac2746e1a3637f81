//! The cases: which filesystem, how its segments were prepared, who writes, what is flushed.

use tailwater_tests::fakedisk::Filesystem;

/// How a segment was made ready before anything was acknowledged in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    /// Zeros written over its whole length; file and directory synced.
    Zeroed,
    /// A retired segment, full of old data, renamed; directory synced.
    Recycled,
    /// Zeros written, but neither file nor directory synced.
    ZeroedNotSynced,
    /// Like `Zeroed`, and then copied by reflink, as a backup might do: the extents are shared, so that an overwrite
    /// must go elsewhere (XFS only).
    Cloned,
    /// Space reserved, extents unwritten; file and directory synced.
    Fallocated,
    /// Empty; file and directory synced.
    Growing,
}

/// Which files are flushed after the direct writes of a commit completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// One of those written.
    OneWritten,
    /// One that is never written.
    Idle,
    /// One that is never written, but grows before the flush: that makes the filesystem commit its journal.
    Grown,
    /// Each of those written.
    Each,
    /// None.
    Nothing,
}

/// Which system calls carry the writes and flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// pwrite and fdatasync, one thread for each file.
    Threads,
    /// io_uring through glommio, one task for each file.
    Glommio,
}

/// What the power cuts of a case must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Everything flushed is there after every cut.
    Kept,
    /// A control case: something flushed is missing after at least one cut.
    Lost,
    /// Either: the row tells, and judges nothing.
    Unknown,
}

/// One row of the result.
#[derive(Clone, Copy)]
pub struct Case {
    /// The filesystem and how it is made and mounted.
    pub filesystem: Filesystem,
    /// What is special about the filesystem or the device; empty if nothing is.
    pub setting: &'static str,
    /// How its segments are prepared.
    pub prepared: Prepared,
    /// What is flushed.
    pub flush: Flush,
    /// What writes.
    pub writer: Writer,
    /// Whether other files are created, renamed, synced and deleted all the while.
    pub noise: bool,
    /// Whether the kernel is told that the device has no volatile cache.
    pub write_through: bool,
    /// Whether cuts are reflink snapshots of what reached the device, instead of the fake disk's.
    pub reflink: bool,
    /// What must come of it.
    pub expected: Expected,
}

impl Case {
    fn new(filesystem: Filesystem, prepared: Prepared, flush: Flush) -> Case {
        Case {
            filesystem,
            setting: "",
            prepared,
            flush,
            writer: Writer::Threads,
            noise: false,
            write_through: false,
            reflink: false,
            expected: Expected::Kept,
        }
    }

    fn glommio(self) -> Case {
        Case {
            writer: Writer::Glommio,
            ..self
        }
    }

    fn noisy(self) -> Case {
        Case { noise: true, ..self }
    }

    fn reflinked(self) -> Case {
        Case {
            reflink: true,
            ..self
        }
    }

    fn expect(self, expected: Expected) -> Case {
        Case { expected, ..self }
    }

    /// The row's name.
    pub fn name(&self) -> String {
        let mut name = format!(
            "{}{} {:?} {:?}",
            self.filesystem.kind, self.setting, self.prepared, self.flush
        );
        if self.writer == Writer::Glommio {
            name.push_str(" glommio");
        }
        if self.noise {
            name.push_str(" noise");
        }
        if self.reflink {
            name.push_str(" reflink");
        }
        name
    }
}

/// Every case: the claim, its preconditions broken one by one, and settings of ext4 and of the device that matter.
pub fn all() -> Vec<Case> {
    use Prepared::{Cloned, Fallocated, Growing, Recycled, Zeroed, ZeroedNotSynced};
    let mut cases = Vec::new();
    for filesystem in [Filesystem::EXT4, Filesystem::XFS] {
        let case = |prepared, flush| Case::new(filesystem, prepared, flush);
        let control = |prepared, flush| case(prepared, flush).expect(Expected::Lost);
        cases.extend([
            case(Zeroed, Flush::OneWritten),
            case(Zeroed, Flush::Idle),
            case(Zeroed, Flush::OneWritten).noisy(),
            case(Zeroed, Flush::OneWritten).glommio(),
            case(Zeroed, Flush::OneWritten).reflinked(),
            case(Recycled, Flush::OneWritten),
            case(Recycled, Flush::OneWritten).glommio().noisy(),
            case(Zeroed, Flush::Each),
            case(Zeroed, Flush::Grown),
            case(Recycled, Flush::Idle),
            case(Recycled, Flush::Each),
            case(Recycled, Flush::Grown),
            case(Fallocated, Flush::Each),
            case(Growing, Flush::Each),
            case(Fallocated, Flush::Grown),
            case(Growing, Flush::Grown),
            control(Zeroed, Flush::Nothing),
            control(ZeroedNotSynced, Flush::Idle),
            control(Fallocated, Flush::Idle),
            control(Fallocated, Flush::Idle).reflinked(),
            control(Growing, Flush::Idle),
            control(Growing, Flush::Idle).reflinked(),
        ]);
        let lying = control(Zeroed, Flush::OneWritten);
        cases.push(Case {
            setting: ",write-through",
            write_through: true,
            ..lying
        });
    }
    let cloned = |flush| Case::new(Filesystem::XFS, Cloned, flush);
    cases.extend([
        cloned(Flush::Each),
        cloned(Flush::Grown),
        cloned(Flush::Idle).expect(Expected::Lost),
    ]);
    let ext4 = |setting, mkfs, options, flush| {
        let filesystem = Filesystem {
            mkfs,
            options,
            ..Filesystem::EXT4
        };
        Case {
            setting,
            ..Case::new(filesystem, Zeroed, flush)
        }
    };
    cases.extend([
        ext4(",no-journal", &["-O", "^has_journal"], "", Flush::OneWritten),
        ext4(",no-journal", &["-O", "^has_journal"], "", Flush::Idle),
        ext4(",barrier=0", &[], "barrier=0", Flush::OneWritten).expect(Expected::Lost),
        ext4(",data=journal", &[], "data=journal", Flush::Idle).expect(Expected::Lost),
        ext4(",fast_commit", &["-O", "fast_commit"], "", Flush::OneWritten).expect(Expected::Unknown),
        ext4(",fast_commit", &["-O", "fast_commit"], "", Flush::OneWritten)
            .noisy()
            .expect(Expected::Unknown),
    ]);
    cases
}
