//! Tailwater as a system under test: the release binary, through the client library.

mod node;
mod produce;
mod fanout;
pub mod system;
