//! The systems that can be measured.

pub mod outcome;
pub mod lab;
pub mod process;
pub mod fio;
pub mod tailwater;
