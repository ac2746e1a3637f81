//! The real disk: glommio's io_uring with direct I/O.

pub mod handle;

mod task;

mod blocking;
mod dir_syncs;
mod errno;
mod self_test;
mod zeros;

pub use handle::{UringBuf, UringDisk, UringFile, UringShared};

#[cfg(test)]
mod traps;
