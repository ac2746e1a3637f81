//! What a session is told, what it asks for, and how requests end.

use std::time::Duration;

use bytes::Bytes;

use crate::code::Refusal;
use crate::decoder::Frame;
use crate::message::{Hello, Reply, Request, Welcome};

/// The caller's name for one request.
pub type Ticket = u64;

/// How a session is set up.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// What to say first on every connection.
    pub hello: Hello,
    /// How long connecting and the handshake may take together.
    pub connect_timeout: Duration,
    /// Spreads the reconnects of many clients.
    pub seed: u64,
    /// For a connection to one more shard of a node that is known already: who must answer there. Its requests can go
    /// over the first connection too, so they are handed back as soon as the shard cannot be reached: as
    /// [`Failure::Unreachable`] what was never sent, as [`Failure::OutcomeUnknown`] what may have been done.
    pub beside: Option<NodeName>,
}

/// Which node is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// Its number.
    pub node: u64,
    /// Its cluster's id, in hex.
    pub cluster: String,
}

/// One request to be made.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The caller's name for it; returned with the outcome.
    pub ticket: Ticket,
    /// What to ask.
    pub request: Request,
    /// The raw bytes that go with it.
    pub payload: Bytes,
    /// After how long to give up, reconnects included.
    pub timeout: Duration,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The caller wants an answer. Check [`crate::session::machine::Session::accepts`] first: the queue is bounded.
    Submit(Submission),
    /// The connection that was asked for is there.
    Connected,
    /// It cannot be had.
    ConnectFailed(String),
    /// A frame arrived.
    Frame(Frame),
    /// The connection is gone.
    Broken(String),
    /// What arrived is not the protocol.
    Garbage(String),
    /// [`crate::session::machine::Session::wake_at`] has come.
    Tick,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a connection.
    Connect,
    /// Write these bytes, in the order given.
    Send {
        /// The frame's header and meta.
        head: Bytes,
        /// The frame's payload.
        payload: Bytes,
    },
    /// Drop the connection, or the attempt at one, with all that was not yet written.
    Close,
    /// The handshake is done.
    Up(Welcome),
    /// An attempt to connect failed.
    Down(Failure),
    /// A request has ended.
    Complete {
        /// Which.
        ticket: Ticket,
        /// How.
        outcome: Outcome,
    },
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The answer, or why there is none.
    pub result: Result<(Reply, Bytes), Failure>,
    /// Whether it was sent more than once.
    pub resent: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The node refused.
    #[error("{0}")]
    Refused(Refusal),
    /// The request never left this machine, so nothing was done.
    #[error("{0}")]
    Unreachable(String),
    /// It was sent, and no answer came in time.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
    /// It was sent, the connection broke, and sending it again could do it twice.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// The answer cannot be read.
    #[error("{0}")]
    Protocol(String),
}
