//! Durations, sizes and times as people write them, in commands and configuration.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest first, so that formatting takes the largest that fits.
const DURATION_UNITS: [(&str, u64); 8] = [
    ("y", 365 * 24 * 3_600_000_000_000),
    ("d", 24 * 3_600_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Why a text is no duration, size or time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// Nothing, or only spaces.
    #[error("{0} is missing: the text is empty")]
    Empty(&'static str),
    /// Not a whole number followed by a unit.
    #[error("`{text}` is no {what}: {why}")]
    Malformed {
        /// What was looked for.
        what: &'static str,
        /// The text.
        text: String,
        /// What does not fit.
        why: String,
    },
    /// Larger than this program can count.
    #[error("`{text}` is too large for a {what}")]
    TooLarge {
        /// What was looked for.
        what: &'static str,
        /// The text.
        text: String,
    },
}

fn malformed(what: &'static str, text: &str, why: impl Into<String>) -> TimeError {
    TimeError::Malformed {
        what,
        text: text.to_owned(),
        why: why.into(),
    }
}

/// Reads a duration: whole numbers with a unit, one or several (`2s`, `250ms`, `1h30m`). A year is 365 days.
///
/// # Errors
/// [`TimeError`]; also for a number without a unit, other than `0`.
pub fn parse_duration(text: &str) -> Result<Duration, TimeError> {
    const WHAT: &str = "duration";
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = trimmed;
    if rest.is_empty() {
        return Err(TimeError::Empty(WHAT));
    }
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split_number(rest, WHAT, text)?;
        let unit_len = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let Some(&(_, scale)) = DURATION_UNITS.iter().find(|(name, _)| *name == unit) else {
            let why = match unit {
                "" => "a unit must follow the number (ns, us, ms, s, m, h, d or y)".to_owned(),
                other => format!("`{other}` is none of the units ns, us, ms, s, m, h, d and y"),
            };
            return Err(malformed(WHAT, text, why));
        };
        let too_large = || TimeError::TooLarge {
            what: WHAT,
            text: text.to_owned(),
        };
        let part = number.checked_mul(scale).ok_or_else(too_large)?;
        nanos = nanos.checked_add(part).ok_or_else(too_large)?;
        rest = after;
    }
    Ok(Duration::from_nanos(nanos))
}

/// Writes a duration so that [`parse_duration`] reads the same: `1h30m`, `250ms`. Beyond 584 years it saturates.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut out = String::new();
    for (unit, scale) in DURATION_UNITS {
        if rest >= scale {
            out.push_str(&format!("{}{unit}", rest / scale));
            rest %= scale;
        }
    }
    out
}

/// Reads a size in bytes: a whole number, alone or with `B`, `KiB`, `MiB`, `GiB`, `TiB` (1,024) or `KB`, `MB`, `GB`,
/// `TB` (1,000); capitals do not matter.
///
/// # Errors
/// [`TimeError`].
pub fn parse_size(text: &str) -> Result<u64, TimeError> {
    const WHAT: &str = "size";
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(TimeError::Empty(WHAT));
    }
    let (number, unit) = split_number(trimmed, WHAT, text)?;
    let unit = unit.trim_start();
    let known = SIZE_UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let scale = match (unit, known) {
        ("", _) => 1,
        (_, Some(&(_, scale))) => scale,
        (other, None) => {
            let why = format!("`{other}` is none of the units B, KiB, MiB, GiB, TiB, KB, MB, GB and TB");
            return Err(malformed(WHAT, text, why));
        }
    };
    number.checked_mul(scale).ok_or_else(|| TimeError::TooLarge {
        what: WHAT,
        text: text.to_owned(),
    })
}

/// Writes a size in the largest unit that divides it, so that [`parse_size`] reads the same: `64KiB`, `1MB`, `100B`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let unit = SIZE_UNITS
        .iter()
        .find(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale));
    match unit {
        Some((name, scale)) => format!("{}{name}", bytes / scale),
        None => format!("{bytes}B"),
    }
}

/// Reads an RFC 3339 time (`2026-11-30T09:30:00.5Z`, or with an offset as `+01:00`): nanoseconds since
/// 1970-01-01T00:00:00Z.
///
/// # Errors
/// [`TimeError`]; also for a time before 1970, or without `Z` or an offset.
pub fn parse_time(text: &str) -> Result<u64, TimeError> {
    const WHAT: &str = "time";
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(TimeError::Empty(WHAT));
    }
    let no_time = |why: String| malformed(WHAT, text, why);
    let (utc, offset_seconds) = split_offset(trimmed)
        .ok_or_else(|| no_time("it must end in Z or in an offset as +01:00 (RFC 3339)".to_owned()))?;
    let year = utc.get(..4).and_then(|year| year.parse::<u16>().ok());
    if year.is_some_and(|year| year < 1970) {
        return Err(no_time("it lies before 1970".to_owned()));
    }
    let time = humantime::parse_rfc3339(&format!("{utc}Z"))
        .map_err(|error| no_time(format!("{error} (RFC 3339: 2026-11-30T09:30:00Z)")))?;
    let nanos = time
        .duration_since(UNIX_EPOCH)
        .map_err(|_| no_time("it lies before 1970".to_owned()))?
        .as_nanos() as i128
        - i128::from(offset_seconds) * 1_000_000_000;
    if nanos < 0 {
        return Err(no_time("it lies before 1970".to_owned()));
    }
    u64::try_from(nanos).map_err(|_| TimeError::TooLarge {
        what: WHAT,
        text: text.to_owned(),
    })
}

/// Writes nanoseconds since the epoch as RFC 3339, in UTC, with as many digits as [`parse_time`] needs to read the
/// same.
#[must_use]
pub fn format_time(nanos: u64) -> String {
    let time: SystemTime = UNIX_EPOCH + Duration::from_nanos(nanos);
    humantime::format_rfc3339(time).to_string()
}

fn split_number<'a>(rest: &'a str, what: &'static str, text: &str) -> Result<(u64, &'a str), TimeError> {
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    if digits == 0 {
        let why = match rest.starts_with('-') {
            true => "it must not be negative",
            false => "a whole number must come first",
        };
        return Err(malformed(what, text, why));
    }
    let (number, after) = rest.split_at(digits);
    let number = number.parse().map_err(|_| TimeError::TooLarge {
        what,
        text: text.to_owned(),
    })?;
    Ok((number, after))
}

/// The time without its zone, and the zone's offset from UTC in seconds.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    if let Some(utc) = text.strip_suffix(['Z', 'z']) {
        return Some((utc, 0));
    }
    let at = text.len().checked_sub(6)?;
    let (time, zone) = (text.get(..at)?, text.get(at..)?);
    let sign = match zone.as_bytes()[0] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone[1..].split_once(':')?;
    let two_digits = |part: &str, below: i64| {
        let valid = part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
        part.parse().ok().filter(|&n: &i64| valid && n < below)
    };
    Some((
        time,
        sign * (two_digits(hours, 24)? * 3_600 + two_digits(minutes, 60)? * 60),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, millis) in [
            ("2s", 2_000),
            ("15m", 900_000),
            ("1h", 3_600_000),
            ("7d", 604_800_000),
            ("1y", 31_536_000_000),
            ("250ms", 250),
            ("1h30m", 5_400_000),
        ] {
            let duration = parse_duration(text).expect(text);
            assert_eq!(duration, Duration::from_millis(millis), "{text}");
            assert_eq!(format_duration(duration), text);
        }
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration(" 500us "), Ok(Duration::from_micros(500)));
        assert_eq!(parse_duration("48h"), Ok(Duration::from_secs(172_800)));
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }

    #[test]
    fn what_is_no_duration_is_said_to_be_none() {
        for (text, word) in [
            ("", "empty"),
            ("  ", "empty"),
            ("10", "unit must follow"),
            ("-5s", "negative"),
            ("s", "whole number"),
            ("1.5h", "`.` is none"),
            ("5 parsecs", "parsecs"),
            ("1h-3m", "`h-` is none"),
            ("585y", "too large"),
            ("99999999999999999999s", "too large"),
            ("584y365d", "too large"),
            ("1µs", "none of the units"),
        ] {
            let error = parse_duration(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("64KiB", 65_536),
            ("1GiB", 1 << 30),
            ("1MB", 1_000_000),
            ("100B", 100),
            ("0B", 0),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(parse_size("100"), Ok(100));
        assert_eq!(parse_size("2 mib"), Ok(2 << 20));
        for (text, word) in [
            ("", "empty"),
            ("-1", "negative"),
            ("KiB", "whole number"),
            ("1XB", "`XB`"),
            ("20000000TiB", "too large"),
        ] {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn times_are_read_and_written() {
        let half_past = 1_795_945_800_000_000_000;
        assert_eq!(parse_time("2026-11-29T09:50:00Z"), Ok(half_past));
        assert_eq!(parse_time("2026-11-29T10:50:00+01:00"), Ok(half_past));
        assert_eq!(parse_time("2026-11-29T04:20:00-05:30"), Ok(half_past));
        assert_eq!(parse_time("1970-01-01T00:00:00.000000001Z"), Ok(1));
        assert_eq!(format_time(half_past), "2026-11-29T09:50:00Z");
        assert_eq!(parse_time(&format_time(half_past + 7)), Ok(half_past + 7));
        for (text, word) in [
            ("", "empty"),
            ("yesterday", "must end in Z"),
            ("2026-11-29T09:50:00", "must end in Z"),
            ("2026-13-29T09:50:00Z", "RFC 3339"),
            ("1969-12-31T23:59:59Z", "1970"),
            ("1970-01-01T00:00:00+01:00", "1970"),
            ("2026-11-29T09:50:00+1:000", "must end in Z"),
            ("2026-11-29T09:50:00é00:00", "must end in Z"),
        ] {
            let error = parse_time(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
