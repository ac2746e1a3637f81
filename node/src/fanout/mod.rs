//! The fan-out engine: cursors that copy a parent's partitions into its children, and never lose their place.
//!
//! The files here decide; none of them does any I/O, reads a clock or draws a random number.

pub mod batch;
pub mod cursor;
pub mod delay_gate;
pub mod filter;
pub mod probe;
pub mod rekey;
