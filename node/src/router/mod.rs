//! Between the shards of a node: which one owns a partition, and how a request gets there and its answer back.
//! Mailboxes are bounded by credits, and nobody waits to send while others wait for it.

pub mod placement;
pub mod message;
pub mod credit;
pub mod mesh;
