//! The identifiers and quantities that everything else is said in: each a type of its own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits;

/// The position of a record in a partition's log. Offsets start at 0 and have no gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(pub u64);

impl Offset {
    /// The first offset of every log.
    pub const ZERO: Offset = Offset(0);

    /// This offset moved `n` records on.
    #[must_use]
    pub fn plus(self, n: u64) -> Offset {
        Offset(self.0 + n)
    }

    /// How many records lie in `[earlier, self)`; 0 when `earlier` is not below.
    #[must_use]
    pub fn since(self, earlier: Offset) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// When a partition's owner committed a record: nanoseconds since 1970-01-01T00:00:00Z on the owner's clock,
/// non-decreasing by offset (SPEC.md D4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommitTime(pub u64);

impl CommitTime {
    /// From milliseconds since the epoch.
    #[must_use]
    pub fn from_millis(ms: u64) -> CommitTime {
        CommitTime(ms.saturating_mul(1_000_000))
    }

    /// Milliseconds since the epoch, rounded down.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// This time plus a delay, saturating.
    #[must_use]
    pub fn plus(self, delay: Delay) -> CommitTime {
        CommitTime(self.0.saturating_add(delay.as_nanos()))
    }

    /// This time less a delay, saturating at the epoch.
    #[must_use]
    pub fn minus(self, delay: Delay) -> CommitTime {
        CommitTime(self.0.saturating_sub(delay.as_nanos()))
    }
}

/// How long a link holds a record back, in milliseconds; 0 is no delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Delay {
    /// Milliseconds.
    pub millis: u64,
}

impl Delay {
    /// No delay.
    pub const NONE: Delay = Delay { millis: 0 };

    /// In nanoseconds, saturating.
    #[must_use]
    pub fn as_nanos(self) -> u64 {
        self.millis.saturating_mul(1_000_000)
    }

    /// Whether the link has no delay.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.millis == 0
    }
}

/// The number of a partition within its topic, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartitionId(pub u32);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; 8]);

        impl $name {
            /// From eight random bytes read as a little-endian number.
            #[must_use]
            pub fn from_u64(bits: u64) -> $name {
                $name(bits.to_le_bytes())
            }

            /// The eight bytes as a little-endian number.
            #[must_use]
            pub fn as_u64(self) -> u64 {
                u64::from_le_bytes(self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = HexError;

            fn from_str(text: &str) -> Result<$name, HexError> {
                parse_hex8(text).map($name)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                if s.is_human_readable() { s.collect_str(self) } else { self.0.serialize(s) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<$name, D::Error> {
                if d.is_human_readable() {
                    let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
                    text.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; 8]>::deserialize(d).map($name)
                }
            }
        }
    };
}

random_id! {
    /// One attachment of a child to a parent: 8 random bytes, written as 16 hex digits (SPEC.md F6).
    Epoch
}
random_id! {
    /// One life of a topic name: a re-created topic has another (SPEC.md D1).
    Incarnation
}
random_id! {
    /// One history of a partition's offsets: replaced when offsets that were handed out may be used again (D12).
    Lineage
}

/// Not 16 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not 16 hex digits")]
pub struct HexError(String);

fn parse_hex8(text: &str) -> Result<[u8; 8], HexError> {
    let digits = text.as_bytes();
    let valid = digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit);
    let number = if valid {
        u64::from_str_radix(text, 16).ok()
    } else {
        None
    };
    number
        .map(u64::to_be_bytes)
        .ok_or_else(|| HexError(text.to_owned()))
}

/// Who owns a partition at the moment, counted up with each change of owner; stale owners are fenced by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnerEpoch(pub u64);

/// A topic's name: `[a-z0-9][a-z0-9._-]{0,127}` without `..` (SPEC.md D1). A value of this type is always valid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TopicName(String);

impl TopicName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a text is no topic name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No characters at all.
    #[error("a name must not be empty")]
    Empty,
    /// Longer than [`limits::NAME_BYTES_MAX`].
    #[error("a name has at most {max} characters, this one has {0}", max = limits::NAME_BYTES_MAX)]
    TooLong(usize),
    /// A character outside `[a-z0-9._-]`, or a first one outside `[a-z0-9]`.
    #[error("a name is [a-z0-9][a-z0-9._-]*, and this one has {0:?}")]
    BadCharacter(char),
    /// `..`, which would read as a parent directory.
    #[error("a name must not contain `..`")]
    DotDot,
}

impl FromStr for TopicName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<TopicName, NameError> {
        let first = text.chars().next().ok_or(NameError::Empty)?;
        if text.len() > limits::NAME_BYTES_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if !plain(first) {
            return Err(NameError::BadCharacter(first));
        }
        if let Some(bad) = text
            .chars()
            .find(|&c| !(plain(c) || matches!(c, '.' | '_' | '-')))
        {
            return Err(NameError::BadCharacter(bad));
        }
        if text.contains("..") {
            return Err(NameError::DotDot);
        }
        Ok(TopicName(text.to_owned()))
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for TopicName {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<TopicName, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Who wrote a batch, as the dedup table knows it: 16 bytes whose meaning is given by the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Writer {
    /// Nobody in particular: the batch is not deduplicated.
    Anonymous,
    /// A producer with an id of 16 random bytes.
    Random([u8; 16]),
    /// A producer with a name; these are the first 16 bytes of no secret, just a hash: the name itself is kept in
    /// the dedup table and compared there.
    Named([u8; 16]),
    /// A fan-out cursor: the link's epoch and the parent partition. Never accepted from a client (SPEC.md F4).
    Origin(OriginId),
}

/// The source of a child batch: one attachment and one partition of its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OriginId {
    /// The link's epoch.
    pub epoch: Epoch,
    /// The parent's partition.
    pub partition: PartitionId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let long = "a".repeat(128);
        for good in ["a", "0", "ticks", "a.b", "a-b_c.9", long.as_str()] {
            assert_eq!(good.parse::<TopicName>().expect(good).as_str(), good);
        }
        assert_eq!("".parse::<TopicName>(), Err(NameError::Empty));
        assert_eq!("a".repeat(129).parse::<TopicName>(), Err(NameError::TooLong(129)));
        assert_eq!("a..b".parse::<TopicName>(), Err(NameError::DotDot));
        for (text, bad) in [
            ("..", '.'),
            ("-a", '-'),
            ("A", 'A'),
            ("a/b", '/'),
            ("a\0", '\0'),
            ("aé", 'é'),
        ] {
            assert_eq!(text.parse::<TopicName>(), Err(NameError::BadCharacter(bad)));
        }
    }

    #[test]
    fn epochs_read_back_what_they_print() {
        let epoch: Epoch = "67953471cc57a32a".parse().expect("hex");
        assert_eq!(epoch.to_string(), "67953471cc57a32a");
        for bad in [
            "",
            "67953471cc57a32",
            "67953471cc57a32ag",
            "+7953471cc57a32a",
            "67953471cc57a32aa",
        ] {
            assert!(bad.parse::<Epoch>().is_err(), "{bad}");
        }
    }
}
