//! The client's side of one connection as a pure state machine: handshake, pipelining, timeouts, reconnecting.
//!
//! Requests that a break finds unanswered are sent again if doing them twice is harmless or noticed: reads, produce
//! under a producer id, attach under a request id. The others may have been done, so they end as `OutcomeUnknown`
//! and are never sent twice. A request that was never sent waits for the next connection; only a session beside the
//! first one ([`action::SessionConfig::beside`]) hands back what it cannot send, because there is another way.
//!
//! Nothing here connects, reads, writes or knows the time: `now` is the time since a start of the caller's choosing.

pub mod action;
pub mod machine;
pub mod routes;
