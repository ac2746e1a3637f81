//! What Tailwater's tests stand on: the fake disk, and whatever else several of them share.
#![forbid(unsafe_code)]

pub mod fakedisk;
