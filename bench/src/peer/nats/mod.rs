//! NATS JetStream as a system under test: `nats-server` with file storage, spoken to in its text protocol.

mod protocol;
mod client;
pub mod instance;
mod fanout;
pub mod system;
