//! Disks: the traits that storage is written against, and their two implementations.

pub mod device;
pub mod latch;
pub mod memory;
