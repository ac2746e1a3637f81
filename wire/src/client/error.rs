//! What a client's call can end with, whether to try again, and the exit code that the CLI makes of it.

use std::time::Duration;

use crate::code::{ErrorCode, Refusal, Retry};
use crate::ids::PartitionId;
use crate::meta::Topic;
use crate::session::action::Failure;

/// Why a call failed. Prints as one line that ends in the code: `WHAT: WHY (CODE)`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The node, or the client for it, refused.
    #[error("{0}")]
    Refused(Refusal),
    /// The request never reached the node: nothing was done.
    #[error("{server}: {why} (UNREACHABLE)")]
    Unreachable {
        /// The address that was tried.
        server: String,
        /// What happened.
        why: String,
    },
    /// The node did not answer in time: it may have done what was asked, or do it yet.
    #[error("{what}: no answer within {} (TIMED_OUT)", humantime::format_duration(*.after))]
    TimedOut {
        /// What was asked.
        what: String,
        /// The time that it had.
        after: Duration,
    },
    /// The connection broke or the flush failed: it may or may not have been done, and was not repeated.
    #[error("{what}: {why} (OUTCOME_UNKNOWN)")]
    OutcomeUnknown {
        /// What was asked.
        what: String,
        /// What happened.
        why: String,
    },
    /// The other side does not speak the protocol as this side knows it.
    #[error("{server}: {why} (BAD_FRAME)")]
    Protocol {
        /// The address.
        server: String,
        /// What was wrong with the answer.
        why: String,
    },
    /// A batch that was read is damaged.
    #[error("{place}: {why} (CORRUPT_BATCH)")]
    Corrupt {
        /// Topic, partition and offset.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// The producer was closed, or the client's runtime is gone.
    #[error("{what}: it is closed (INTERNAL)")]
    Closed {
        /// What is.
        what: &'static str,
    },
}

impl ClientError {
    /// A call that cannot be meant.
    pub(crate) fn invalid(what: impl Into<String>) -> ClientError {
        ClientError::Refused(Refusal::new(ErrorCode::InvalidRequest, what))
    }

    /// A partition that the topic, as the client knows it, does not have.
    pub(crate) fn no_partition(topic: &Topic, partition: PartitionId) -> ClientError {
        let (name, count) = (&topic.spec.name, topic.spec.partitions);
        let partitions = if count == 1 { "partition" } else { "partitions" };
        let what = format!("topic {name}: it has {count} {partitions}, and no {partition}");
        ClientError::Refused(Refusal::new(ErrorCode::UnknownPartition, what))
    }

    /// Why a request failed, with what it was and who was asked.
    pub(crate) fn of(failure: Failure, server: &str, what: &str) -> ClientError {
        let (server, what) = (server.to_owned(), what.to_owned());
        match failure {
            Failure::Refused(refusal) => ClientError::Refused(refusal),
            Failure::Unreachable(why) => ClientError::Unreachable { server, why },
            Failure::TimedOut(after) => ClientError::TimedOut { what, after },
            Failure::OutcomeUnknown(why) => ClientError::OutcomeUnknown { what, why },
            Failure::Protocol(why) => ClientError::Protocol { server, why },
        }
    }

    /// Its stable name.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            ClientError::Refused(refusal) => refusal.code,
            ClientError::Unreachable { .. } => ErrorCode::Unreachable,
            ClientError::TimedOut { .. } => ErrorCode::TimedOut,
            ClientError::OutcomeUnknown { .. } => ErrorCode::OutcomeUnknown,
            ClientError::Protocol { .. } => ErrorCode::BadFrame,
            ClientError::Corrupt { .. } => ErrorCode::CorruptBatch,
            ClientError::Closed { .. } => ErrorCode::Internal,
        }
    }

    /// What may be done about it.
    #[must_use]
    pub fn retry(&self) -> Retry {
        self.code().retry()
    }

    /// The exit code of a command that ends with it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.code().exit_code()
    }
}
