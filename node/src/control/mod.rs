//! The control thread: changes of metadata, the leader's word, the admin HTTP server. A tokio runtime of its own.

pub mod request;
pub mod service;
mod alter;
pub mod space;
pub mod admin_http;
pub mod admin_socket;
