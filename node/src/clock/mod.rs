//! The owner's clock.

pub mod system;
