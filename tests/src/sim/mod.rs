//! The simulator: cursors, children and a metadata leader in one thread, on a virtual clock, from one seed.
//!
//! What runs is the code that production runs: cursor, cutter, filter, anchor, reconciler, delay gate, dedup table,
//! cursor files and gap ledgers on the in-memory disk. What is modelled: the network, the two logs, the leader. Every run breaks
//! things for a while, then heals, drains, and asks the oracle.

pub mod options;
pub mod report;

mod rng;
mod schedule;

mod meta;
mod network;
mod parent;

mod child;
mod node;
mod runner;

mod chaos;
mod oracle;
mod reconcile;
mod retention;
mod world;
