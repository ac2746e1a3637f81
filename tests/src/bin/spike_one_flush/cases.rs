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

/// One row of the result.
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
    /// Whether it is a control case.
    pub must_lose: bool,
}

impl Case {
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
        name
    }
}

/// Every case: the claim, its preconditions broken one by one, and settings of ext4 and of the device that matter.
pub fn all() -> Vec<Case> {
    use Prepared::{Fallocated, Growing, Recycled, Zeroed, ZeroedNotSynced};
    let mut cases = Vec::new();
    for filesystem in [Filesystem::EXT4, Filesystem::XFS] {
        let case = |prepared, flush| Case {
            filesystem,
            setting: "",
            prepared,
            flush,
            writer: Writer::Threads,
            noise: false,
            write_through: false,
            must_lose: false,
        };
        let control = |prepared, flush| Case {
            must_lose: true,
            ..case(prepared, flush)
        };
        cases.extend([
            case(Zeroed, Flush::OneWritten),
            case(Zeroed, Flush::Idle),
            Case {
                noise: true,
                ..case(Zeroed, Flush::OneWritten)
            },
            Case {
                writer: Writer::Glommio,
                ..case(Zeroed, Flush::OneWritten)
            },
            case(Recycled, Flush::OneWritten),
            Case {
                writer: Writer::Glommio,
                noise: true,
                ..case(Recycled, Flush::OneWritten)
            },
            case(Fallocated, Flush::Each),
            case(Growing, Flush::Each),
            control(Zeroed, Flush::Nothing),
            control(ZeroedNotSynced, Flush::Idle),
            control(Fallocated, Flush::Idle),
            control(Growing, Flush::Idle),
            Case {
                setting: ",write-through",
                write_through: true,
                ..control(Zeroed, Flush::OneWritten)
            },
        ]);
    }
    let ext4 = |setting, mkfs, options, must_lose| Case {
        filesystem: Filesystem {
            mkfs,
            options,
            ..Filesystem::EXT4
        },
        setting,
        prepared: Zeroed,
        flush: Flush::OneWritten,
        writer: Writer::Threads,
        noise: true,
        write_through: false,
        must_lose,
    };
    cases.extend([
        ext4(",fast_commit", &["-O", "fast_commit"], "", false),
        Case {
            noise: false,
            ..ext4(",no-journal", &["-O", "^has_journal"], "", false)
        },
        Case {
            noise: false,
            ..ext4(",barrier=0", &[], "barrier=0", true)
        },
        Case {
            noise: false,
            flush: Flush::Idle,
            ..ext4(",data=journal", &[], "data=journal", true)
        },
    ]);
    cases
}
