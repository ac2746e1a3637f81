//! The values of flags and arguments, read once: inside, wrong ones do not exist.

use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Offset, PartitionId, TopicName};
use tailwater_wire::limits::{DELAY_MILLIS_MAX, PARTITIONS_MAX};
use tailwater_wire::meta::{AttachFrom, Durability};
use tailwater_wire::time;

use crate::clock;

/// A limit that can be taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// None any more.
    Off,
    /// Milliseconds or bytes.
    At(u64),
}

impl Limit {
    /// As the metadata has it.
    #[must_use]
    pub fn value(self) -> Option<u64> {
        match self {
            Limit::Off => None,
            Limit::At(value) => Some(value),
        }
    }
}

/// A duration, or `off`.
///
/// # Errors
/// A sentence that says what would be right.
pub fn millis_or_off(text: &str) -> Result<Limit, String> {
    match text {
        "off" => Ok(Limit::Off),
        _ => millis(text)
            .map(Limit::At)
            .map_err(|why| format!("{why}, and not `off`")),
    }
}

/// A size, or `off`.
///
/// # Errors
/// A sentence that says what would be right.
pub fn bytes_or_off(text: &str) -> Result<Limit, String> {
    match text {
        "off" => Ok(Limit::Off),
        _ => bytes(text)
            .map(Limit::At)
            .map_err(|why| format!("{why}, and not `off`")),
    }
}

/// A node's address.
///
/// # Errors
/// A sentence that says what would be right.
pub fn server(text: &str) -> Result<String, String> {
    let wrong = || "a server is HOST:PORT".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok(text.to_owned())
}

/// A topic's name.
///
/// # Errors
/// A sentence that says what would be right.
pub fn topic_name(text: &str) -> Result<TopicName, String> {
    text.parse()
        .map_err(|error| format!("{error} ({})", ErrorCode::InvalidName.name()))
}

/// A number of partitions.
///
/// # Errors
/// A sentence that says what would be right.
pub fn partitions(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(count) if (1..=PARTITIONS_MAX).contains(&count) => Ok(count),
        _ => Err(format!(
            "a topic has 1 to {PARTITIONS_MAX} partitions ({})",
            ErrorCode::InvalidPartitions.name()
        )),
    }
}

/// A partition's number.
///
/// # Errors
/// A sentence that says what would be right.
pub fn partition(text: &str) -> Result<PartitionId, String> {
    match text.parse::<u32>() {
        Ok(number) if number < PARTITIONS_MAX => Ok(PartitionId(number)),
        _ => Err(format!("partitions are numbered 0 to {}", PARTITIONS_MAX - 1)),
    }
}

/// A number of records.
///
/// # Errors
/// A sentence that says what would be right.
pub fn count(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| "a count is a whole number from 0".to_owned())
}

/// Records a second.
///
/// # Errors
/// A sentence that says what would be right.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("a rate is a number of records a second, above 0".to_owned()),
    }
}

/// Milliseconds of a duration, rounded up: what is asked for is never less than what is done.
///
/// # Errors
/// A sentence that says what would be right.
pub fn millis(text: &str) -> Result<u64, String> {
    let duration = time::parse_duration(text).map_err(|error| error.to_string())?;
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).map_err(|_| "a duration too long".to_owned())
}

/// A time: RFC 3339, or a duration before now. In nanoseconds since the epoch.
///
/// # Errors
/// A sentence that says what would be right.
pub fn instant(text: &str) -> Result<u64, String> {
    let Ok(ago) = time::parse_duration(text) else {
        return time::parse_time(text).map_err(|error| error.to_string());
    };
    let ago = u64::try_from(ago.as_nanos()).ok();
    let nanos = ago.and_then(|ago| clock::now_nanos().checked_sub(ago));
    nanos.ok_or_else(|| "a time before 1970".to_owned())
}

/// A size in bytes.
///
/// # Errors
/// A sentence that says what would be right.
pub fn bytes(text: &str) -> Result<u64, String> {
    time::parse_size(text).map_err(|error| error.to_string())
}

/// A link's delay in milliseconds.
///
/// # Errors
/// A sentence that says what would be right.
pub fn delay(text: &str) -> Result<u64, String> {
    let delay_ms = millis(text)?;
    if delay_ms > DELAY_MILLIS_MAX {
        return Err(format!(
            "a delay is at most 1y ({})",
            ErrorCode::DelayTooLong.name()
        ));
    }
    Ok(delay_ms)
}

/// When a produce is acknowledged.
///
/// # Errors
/// A sentence that says what would be right.
pub fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "fsync" => Ok(Durability::Fsync),
        "written" => Ok(Durability::Written),
        _ => Err("durability is fsync or written".to_owned()),
    }
}

/// A place in a topic.
///
/// # Errors
/// A sentence that says what would be right.
pub fn attach_from(text: &str) -> Result<AttachFrom, String> {
    match text.split_once(':') {
        None if text == "tail" => Ok(AttachFrom::Tail),
        None if text == "earliest" => Ok(AttachFrom::Earliest),
        Some(("offset", number)) => number
            .parse()
            .map(|offset| AttachFrom::Offset(Offset(offset)))
            .map_err(|_| "an offset is a number from 0".to_owned()),
        Some(("time", when)) => instant(when).map(AttachFrom::Time),
        _ => Err("a place is tail, earliest, offset:N or time:T".to_owned()),
    }
}
