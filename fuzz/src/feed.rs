//! The reader of recorded feeds. The command line is a program and not a library, so its sources are compiled here once
//! more.

#[path = "../../tools/src/feed/csv.rs"]
pub mod csv;
#[path = "../../tools/src/feed/event.rs"]
pub mod event;
#[path = "../../tools/src/feed/rows.rs"]
pub mod rows;
