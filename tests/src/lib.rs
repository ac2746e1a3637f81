//! What Tailwater is tested with: the simulator, the fake disk, and what end-to-end tests share.
#![forbid(unsafe_code)]

pub mod sim;
pub mod fakedisk;
