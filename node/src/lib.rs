//! A Tailwater node.
#![deny(unsafe_code)]

pub mod clock;
pub mod config;
pub mod metastore;
pub mod telemetry;
