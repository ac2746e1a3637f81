//! The simulated disk: a volatile cache over durable sectors and names, a power switch, and faults on demand.
//!
//! What it claims about real disks is what was measured on ext4 and XFS: names are durable only after a flush of
//! their directory; length and extents only after a flush of their file; overwrites of durable extents after any
//! flush; a failed flush followed by a successful one proves nothing. It never waits, and knows no clock.

pub mod handle;

mod state;

mod content;
mod names;

pub mod faults;
pub mod luck;

pub use faults::{OpKind, When};
pub use handle::{MemoryDisk, MemoryFile};
pub use luck::CrashPlan;
pub use state::MemoryStats;

#[cfg(test)]
mod tests;
