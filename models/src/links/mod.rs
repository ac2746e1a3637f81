//! One pair of topics that is attached, detached, attached again, deleted and made anew, while every part of the cluster
//! sees the metadata late, leaders change, and messages are late, doubled or given up (SPEC.md F6, F7, F8, F12).
//!
//! One partition on each side. The metadata's leader, the node's replica, the parent's owner and the child's owner each
//! stand at a place of their own in one log of commands.

mod meta;
mod owner;
mod child;
mod world;
mod steps;
pub mod model;
