//! Tailwater as a system under test: the release binary, through the client library.

mod node;
mod fanout;
pub mod system;
