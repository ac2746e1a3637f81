//! A disk that loses power, tears sectors and fails on command, as real as a mounted filesystem.
//!
//! The fake disk is one file, served over FUSE by a thread of this process. A loop device on top of that file
//! makes it a block device with a volatile write cache, so that an unmodified ext4 or XFS can be mounted on it and an
//! unmodified program can run on that:
//!
//! ```text
//!   program  ->  ext4 / XFS  ->  /dev/loopN  ->  FUSE  ->  this process
//!   fdatasync .. journal ....... FLUSH ........ fsync ....  pending writes become durable
//! ```
//!
//! A power cut is an image file: what was durable, plus whichever part of the pending writes the caller asks for.
//! Mounted by itself, that image goes through the filesystem's own recovery, while the original runs on undisturbed.
//!
//! Needs root, `/dev/fuse`, loop devices and `mkfs.ext4` or `mkfs.xfs`; mounting needs no fusermount as root.
//! Everything is undone when the guards are dropped, also on a panic; to be safe from SIGKILL as well, start the program
//! in its own mount namespace (`unshare --mount`).

pub mod image;

pub mod cache;

pub mod disk;

pub mod mount;

pub use cache::{Counters, Cut, CutReport, FailedFlush};
pub use disk::FakeDisk;
pub use mount::{Filesystem, LoopMount};
