//! The partition log on the simulated disk: what is appended comes back, what is damaged is told, what fails latches.

#[path = "../common/lying.rs"]
mod lying;
mod support;

mod append;
mod era;
mod failures;
mod flushes;
mod missing;
mod reading;
mod recovery;
mod shortened;
