//! The owner's clock: what it decides, how its course is shared, and who drives it.

pub mod course;
pub mod owner_clock;
pub mod published;
pub mod reading;

pub mod source;
pub mod order;
pub mod system;

pub mod keeper;
pub mod service;
