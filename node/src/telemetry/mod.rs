//! What the node tells about itself: counters, and the Prometheus text made from them.

pub mod counters;
pub mod meter;
pub mod links;
pub mod exporter;
