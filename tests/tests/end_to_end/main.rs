//! End-to-end tests: the release binary as a process, a real disk, real sockets, and the CLI as a script uses it.
//!
//! Each test brings its own node; each that loads or judges by time takes the machine for itself. Each ends by letting
//! everything arrive and checking that it did.

mod fan_out;
mod attach_rounds;
mod fencing;
mod field_cases;
mod delay_cases;
mod connections;
mod grown_topic;
mod shards;
mod storm;
mod many_cursors;
mod kill;
mod written_parent;
mod lost_metadata;
mod flush;
mod cursor_file;
mod wrong_requests;
mod wrong_frames;
mod memory;
mod unfit_machine;
mod full_disk;
mod stopping;
mod clock;
mod compressed;
mod command_line;
mod demo;
mod delay;
mod drop_behind;
mod metrics;
mod metadata;
mod idempotent;
