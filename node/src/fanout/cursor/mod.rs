//! The cursor: one parent partition's progress into all partitions of one child, as `step(event, now) -> actions`.

pub mod bucket;
mod census;
pub mod gone;
mod child;
pub mod lane;
pub mod message;
pub mod receipt;
mod parent;
mod pump;
pub mod state;

#[cfg(test)]
mod tests;
