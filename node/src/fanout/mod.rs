//! The fan-out engine: cursors that copy a parent's partitions into its children, and never lose their place.
//!
//! The files here decide; none of them does any I/O, reads a clock or draws a random number.

pub mod desired;
pub mod diff;

pub mod anchor;
pub mod cursor;
pub mod delay_gate;

pub mod batch;
pub mod filter;
pub mod rekey;

pub mod probe;
