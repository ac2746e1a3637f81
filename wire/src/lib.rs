//! Tailwater's formats and protocol, in reading order: what things are called, how they are bounded, how they are
//! refused, how records become batches, and how batches and requests travel.
//!
//! Nothing here does I/O, except the client library behind the feature `client`.
#![forbid(unsafe_code)]

pub mod batch;
pub mod checksum;
#[cfg(feature = "client")]
pub mod client;
pub mod code;
pub mod decoder;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod message;
pub mod meta;
pub mod mutant;
pub mod partitioner;
pub mod placement;
pub mod producer;
pub mod record;
pub mod session;
pub mod time;
