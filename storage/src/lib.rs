//! Tailwater's partition logs, on a disk behind traits.
#![forbid(unsafe_code)]

pub mod disk;

pub mod layout;

pub mod segment;

pub mod dedup;
pub mod retention;

pub mod atomic_file;
pub mod cursor_file;
pub mod proof;

pub mod probe;
