//! `link verify`: proof from the two logs that a child holds what it must, once, in order and not early.

pub mod decider;
pub mod stream;
pub mod row;
pub mod driver;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
