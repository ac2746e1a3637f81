//! One parent partition and a child under lost, late, doubled and reordered messages: the production cursor against the
//! production dedup table, with several slabs in flight, cursors that were restarted (whose slabs are cut anew), messages
//! of the one before them, flushes that a crash forestalls, and a parent that was restored (SPEC.md F2, F4, D12).
//!
//! A world has no clock that runs: time moves when a cursor waits for it. A read gives any number of batches, which is
//! also how a slab comes to be cut otherwise the next time.

mod parent;
mod child;
mod life;
mod world;
pub mod model;
