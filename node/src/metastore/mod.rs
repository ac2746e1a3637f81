//! The metastore: topics, links and their epochs, replicated by Raft and kept in one redb file (SPEC.md M1).
//!
//! In reading order: what can be asked, which rules hold, what a command does; how that is stored; how it is
//! replicated; how the rest of the node asks. It lives on the control thread, on a tokio current-thread runtime.
//! Commits to the file block that thread for a flush or two; nothing on the data path waits for it.

pub mod command;
pub mod rules;
pub mod state;

pub mod database;
pub mod error;
mod hex16;
pub mod row;

pub mod machine;
pub mod network;
pub mod store;
pub mod types;
pub mod watchdog;

pub mod handle;
pub mod proof;
