//! Tailwater's partition logs, on a disk behind traits.
#![forbid(unsafe_code)]

pub mod disk;

pub mod error;

pub mod layout;

pub mod segment;

pub mod slab;
pub mod tail_cache;

pub mod dedup;
pub mod group_commit;
pub mod eras;
pub mod retention;

pub mod log;

pub mod atomic_file;
pub mod cursor_file;
pub mod gap_file;
pub mod gaps;
pub mod proof;
