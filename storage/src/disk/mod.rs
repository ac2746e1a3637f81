//! Disks: the traits that storage is written against, and their two implementations.

pub mod device;
pub mod filesystem;
pub mod flush_watch;
pub mod latch;
pub mod memory;
pub mod uring;

pub mod executor;
pub mod preflight;
pub mod watchdog;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod testing;
