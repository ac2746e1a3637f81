//! Batches: one layout in the producer's memory, on the wire, on disk and in the consumer's memory.

pub mod body;
pub mod builder;
pub mod control;
pub mod header;
pub mod view;
