//! The fan-out engine: cursors that copy a parent's partitions into its children, and never lose their place.
//!
//! First what decides, without I/O, clock or randomness: which cursors there are to be, where each starts, what it does
//! next, and how a slab becomes child batches. Then what drives it on a shard: `cursors` and everything after it.

pub mod desired;
pub mod diff;
pub mod anchor;
pub mod cursor;
pub mod delay_gate;
pub mod filter;
pub mod gaps;
pub mod rekey;
pub mod batch;
pub mod probe;

pub mod cursors;
pub mod starting;
pub mod runner;
pub mod perform;
pub mod unsaved;
pub mod committer;
pub mod status;
pub mod sweeper;
pub mod ledger;
pub mod accounting;
pub mod shared;
