//! Looking into a node's files without a node: segments, cursor files, and batches lying in a file.

pub mod batch;
pub mod cursor;
pub mod segment;
