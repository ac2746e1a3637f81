//! Fuzzing of everything that is read from outside or from a disk: one target for each format, in a file of its own.
//!
//! A target takes any bytes and asserts what holds for all of them: `fuzz/run` looks for bytes for which it does not
//! hold, and `tests/corpus.rs` replays those that are known. In reading order: what targets have in common, then the
//! targets, from the socket to the disk.
#![deny(unsafe_code)]

pub mod memory;
pub mod input;
pub mod target;
pub mod feed;

pub mod frame;
pub mod batch;
pub mod segment;
pub mod recovery;
pub mod cursor_file;
pub mod gap_ledger;
pub mod snapshot;
pub mod names;
pub mod filter;
pub mod replay;
