//! A Tailwater node: the engine of shards, partitions, fan-out and metadata.
#![forbid(unsafe_code)]

pub mod fanout;
