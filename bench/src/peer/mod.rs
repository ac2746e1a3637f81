//! The systems that can be measured.

pub mod outcome;
pub mod lab;
pub mod process;
pub mod fio;
pub mod pipe;
pub mod redis;
pub mod nats;
pub mod tailwater;
