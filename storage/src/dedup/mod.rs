//! Who has written what: the one mechanism behind idempotent producers and fan-out origins (SPEC.md D9, F4).

pub mod table;
pub mod verdict;

pub mod checkpoint;

mod lru;
mod name;

pub use name::name_hash;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
