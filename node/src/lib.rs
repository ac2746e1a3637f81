//! A Tailwater node, composed from the outside in: the process and its configuration, the control thread with the
//! metastore, and the shard along a record's way: ingress, router, partition, fan-out.
#![deny(unsafe_code)]

pub mod config;
pub mod process;
pub mod shard;
pub mod commands;
pub mod control;
pub mod metastore;
pub mod ingress;
pub mod router;
pub mod partition;
pub mod fanout;
pub mod clock;
pub mod signal;
pub mod budget;
pub mod telemetry;
