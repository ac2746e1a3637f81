//! Redis streams as a system under test: `redis-server` with every append flushed, spoken to in RESP.

mod resp;
mod client;
mod instance;
pub mod system;
