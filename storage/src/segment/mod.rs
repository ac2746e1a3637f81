//! One segment of a partition's log.

pub mod index;
