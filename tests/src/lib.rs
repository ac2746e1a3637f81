//! What Tailwater is tested with: the simulator, and what end-to-end tests share.
#![forbid(unsafe_code)]

pub mod sim;
