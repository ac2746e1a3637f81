//! Tailwater's partition logs, on a disk behind traits.
#![forbid(unsafe_code)]

pub mod disk;
