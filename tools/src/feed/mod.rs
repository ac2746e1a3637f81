//! Tick feeds: events in time order, from the built-in generator or a recorded file, and the pace they are sent at.

pub mod builtin;
pub mod rows;
pub mod csv;
pub mod source;
pub mod event;
pub mod times;
pub mod columns;
pub mod replay;
pub mod player;
pub mod rng;
