//! What Tailwater is tested with: the fake disk, the simulator, and real nodes for the end-to-end tests.
#![forbid(unsafe_code)]

pub mod fakedisk;
pub mod sim;
pub mod cluster;
