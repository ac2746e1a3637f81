//! Error codes: what a refusal is called, whether to try again, and which exit code the CLI ends with.

use serde::{Deserialize, Serialize};

/// What a client may do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retry {
    /// The request is wrong or refused for good; the same request fails again.
    Never,
    /// Nothing was done; the same request may succeed later.
    Later,
    /// It is not known whether it was done: repeat only under the same producer id and sequence, pinned to the partition.
    OutcomeUnknown,
    /// The client's view is stale: refresh metadata, then try again.
    Refresh,
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal, $retry:ident, $exit:literal;)+) => {
        /// The name of an error, stable on the wire and in the CLI's `(CODE)`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum ErrorCode { $($(#[doc = $doc])+ $name = $number,)+ }

        impl ErrorCode {
            /// All codes, in order.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)+];

            /// The number on the wire.
            #[must_use]
            pub fn number(self) -> u16 { self as u16 }

            /// The code of a number; unknown ones (of a newer node) read as `Internal`.
            #[must_use]
            pub fn from_number(number: u16) -> ErrorCode {
                match number { $($number => ErrorCode::$name,)+ _ => ErrorCode::Internal }
            }

            /// The name that users see: `UNKNOWN_TOPIC`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(ErrorCode::$name => $text,)+ }
            }

            /// What a client may do about it.
            #[must_use]
            pub fn retry(self) -> Retry {
                match self { $(ErrorCode::$name => Retry::$retry,)+ }
            }

            /// The CLI's exit code: 1 failed, 2 usage, 3 not found, 4 unreachable or timed out.
            #[must_use]
            pub fn exit_code(self) -> u8 {
                match self { $(ErrorCode::$name => $exit,)+ }
            }
        }
    };
}

codes! {
    /// A defect of the node; its log says more.
    Internal = 1, "INTERNAL", Never, 1;
    /// The frame or message cannot be read.
    BadFrame = 2, "BAD_FRAME", Never, 1;
    /// The peer speaks a protocol version that this side does not know.
    UnsupportedVersion = 3, "UNSUPPORTED_VERSION", Never, 1;
    /// A request that is well-formed and asks for something impossible.
    InvalidRequest = 4, "INVALID_REQUEST", Never, 2;
    /// Not a topic name.
    InvalidName = 5, "INVALID_NAME", Never, 2;
    /// A batch whose checksum or structure is wrong.
    CorruptBatch = 6, "CORRUPT_BATCH", Never, 1;
    /// A record over the limit.
    RecordTooLarge = 7, "RECORD_TOO_LARGE", Never, 1;
    /// A batch over the limit.
    BatchTooLarge = 8, "BATCH_TOO_LARGE", Never, 1;
    /// No such topic.
    UnknownTopic = 10, "UNKNOWN_TOPIC", Refresh, 3;
    /// The topic has fewer partitions.
    UnknownPartition = 11, "UNKNOWN_PARTITION", Refresh, 3;
    /// No such link.
    UnknownLink = 12, "UNKNOWN_LINK", Never, 3;
    /// The topic is there already, with other settings or as asked.
    TopicExists = 13, "TOPIC_EXISTS", Never, 1;
    /// The pair is attached already.
    LinkExists = 14, "LINK_EXISTS", Never, 1;
    /// The topic is part of a live link, and the change is not allowed while it is.
    TopicInUse = 15, "TOPIC_IN_USE", Never, 1;
    /// Partition count of 0 or over the limit.
    InvalidPartitions = 16, "INVALID_PARTITIONS", Never, 2;
    /// The link would close a circle.
    LinkCycle = 17, "LINK_CYCLE", Never, 1;
    /// The parent has as many children as it may have.
    TooManyChildren = 18, "TOO_MANY_CHILDREN", Never, 1;
    /// A delay over one year.
    DelayTooLong = 19, "DELAY_TOO_LONG", Never, 2;
    /// The parent keeps records for less than the delay and an hour.
    RetentionBelowFloor = 20, "RETENTION_BELOW_FLOOR", Never, 1;
    /// A filter expression that cannot be read.
    InvalidFilter = 21, "INVALID_FILTER", Never, 2;
    /// The topic was deleted and made anew since the client learned of it.
    StaleIncarnation = 30, "STALE_INCARNATION", Refresh, 1;
    /// The partition's history was replaced since the position was handed out.
    StaleLineage = 31, "STALE_LINEAGE", Refresh, 1;
    /// The link's epoch is not the current one.
    StaleEpoch = 32, "STALE_EPOCH", Refresh, 1;
    /// Another node or core owns the partition; the text says which.
    NotOwner = 33, "NOT_OWNER", Refresh, 4;
    /// The position lies above the committed end.
    PositionAhead = 34, "POSITION_AHEAD", Never, 1;
    /// Retention has removed the position; the text says where the log starts.
    PositionBehind = 35, "POSITION_BEHIND", Never, 3;
    /// A batch of a producer that the partition does not know (any more).
    UnknownProducer = 40, "UNKNOWN_PRODUCER", Never, 1;
    /// A batch that does not follow the producer's last one.
    OutOfOrderSequence = 41, "OUT_OF_ORDER_SEQUENCE", Never, 1;
    /// Two producer names share a hash; choose another name.
    ProducerNameTaken = 42, "PRODUCER_NAME_TAKEN", Never, 1;
    /// The flush that would have covered the record failed: it may or may not survive.
    OutcomeUnknown = 50, "OUTCOME_UNKNOWN", OutcomeUnknown, 1;
    /// A write or flush of the partition failed: it is read-only until it is recovered.
    PartitionLatched = 51, "PARTITION_LATCHED", Never, 1;
    /// The disk is full.
    DiskFull = 52, "DISK_FULL", Later, 1;
    /// A bounded queue is full; nothing was done.
    Busy = 53, "BUSY", Later, 4;
    /// More unanswered requests on one connection than allowed.
    TooManyInFlight = 54, "TOO_MANY_IN_FLIGHT", Later, 1;
    /// The node is shutting down.
    Draining = 55, "DRAINING", Later, 4;
    /// Accepted, and not finished within the request's time.
    Pending = 56, "PENDING", Later, 4;
    /// The metadata leader could not be asked in time.
    NoLeader = 57, "NO_LEADER", Later, 4;
    /// The log's bytes at this place are damaged; the text says which range.
    Quarantined = 58, "QUARANTINED", Never, 1;
    /// The owner's clock is held until an operator vouches for the wall clock (`clock accept`).
    ClockHeld = 59, "CLOCK_HELD", Later, 1;
    /// Cannot reach the server (said by the client itself).
    Unreachable = 60, "UNREACHABLE", Later, 4;
    /// No answer in time (said by the client itself).
    TimedOut = 61, "TIMED_OUT", OutcomeUnknown, 4;
}

impl Serialize for ErrorCode {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            s.serialize_str(self.name())
        } else {
            self.number().serialize(s)
        }
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<ErrorCode, D::Error> {
        if d.is_human_readable() {
            let text = String::deserialize(d)?;
            let known = ErrorCode::ALL.iter().find(|code| code.name() == text);
            known
                .copied()
                .ok_or_else(|| serde::de::Error::custom(format!("unknown error code {text}")))
        } else {
            u16::deserialize(d).map(ErrorCode::from_number)
        }
    }
}

/// A refusal as it travels: the code, and one sentence that says what and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what} ({})", code.name())]
pub struct Refusal {
    /// The stable name.
    pub code: ErrorCode,
    /// What was refused and why, for people.
    pub what: String,
}

impl Refusal {
    /// A refusal with its sentence.
    pub fn new(code: ErrorCode, what: impl Into<String>) -> Refusal {
        Refusal {
            code,
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique_and_read_back() {
        let mut names = std::collections::BTreeSet::new();
        for &code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_number(code.number()), code);
            assert!(names.insert(code.name()), "{} twice", code.name());
        }
        assert_eq!(ErrorCode::from_number(9_999), ErrorCode::Internal);
    }
}
