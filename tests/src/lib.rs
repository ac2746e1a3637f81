//! What Tailwater's tests stand on: the fake disk, real nodes under test, and whatever else several of them share.
#![forbid(unsafe_code)]

pub mod fakedisk;
pub mod cluster;
