//! Times as feeds write them: a number of units since the epoch, or RFC 3339. The first one decides what the rest are.

use tailwater_wire::time::parse_time;

/// What the times of a feed are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Unit {
    /// Nanoseconds since the epoch.
    Ns,
    /// Microseconds since the epoch.
    Us,
    /// Milliseconds since the epoch.
    Ms,
    /// Seconds since the epoch.
    S,
    /// `2026-11-30T09:30:00.5Z`, or with an offset as `+01:00`.
    Rfc3339,
}

/// Names of columns that hold times when none was named, also followed by a unit.
const NAMES: [&str; 3] = ["time", "timestamp", "ts"];
const SUFFIXES: [(&str, Unit); 4] = [
    ("_ns", Unit::Ns),
    ("_us", Unit::Us),
    ("_ms", Unit::Ms),
    ("_s", Unit::S),
];

/// The column of times among these, if one is called like that.
#[must_use]
pub fn column_of(head: &[String]) -> Option<usize> {
    head.iter().position(|name| {
        let name = name.to_ascii_lowercase();
        let plain = SUFFIXES
            .iter()
            .find_map(|(suffix, _)| name.strip_suffix(suffix))
            .unwrap_or(&name);
        NAMES.contains(&plain)
    })
}

impl Unit {
    /// The unit that a column's name ends in.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Unit> {
        let name = name.to_ascii_lowercase();
        let found = SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix));
        found.map(|&(_, unit)| unit)
    }

    /// The unit that a time is likely to be in: whichever puts a number into the years 1973 to 5138, the finer one first.
    #[must_use]
    pub fn guess(text: &str) -> Unit {
        let whole = text.split('.').next().unwrap_or_default();
        match whole.parse::<u64>() {
            Ok(0..100_000_000_000) => Unit::S,
            Ok(100_000_000_000..100_000_000_000_000) => Unit::Ms,
            Ok(100_000_000_000_000..100_000_000_000_000_000) => Unit::Us,
            Ok(_) => Unit::Ns,
            Err(_) => Unit::Rfc3339,
        }
    }

    /// Nanoseconds since the epoch. Digits after a point count, as far as there are nanoseconds for them.
    #[must_use]
    pub fn nanos(self, text: &str) -> Option<u64> {
        let scale: u64 = match self {
            Unit::Ns => 1,
            Unit::Us => 1_000,
            Unit::Ms => 1_000_000,
            Unit::S => 1_000_000_000,
            Unit::Rfc3339 => return parse_time(text).ok(),
        };
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || !is_digits(part) || text.ends_with('.') {
            return None;
        }
        let whole: u64 = whole.parse().ok()?;
        let mut digit = scale;
        let part = part.bytes().fold(0, |sum, byte| {
            digit /= 10;
            sum + u64::from(byte - b'0') * digit
        });
        whole.checked_mul(scale)?.checked_add(part)
    }

    /// What a field should have been.
    #[must_use]
    pub fn wanted(self) -> &'static str {
        match self {
            Unit::Ns => "a number of nanoseconds since the epoch",
            Unit::Us => "a number of microseconds since the epoch",
            Unit::Ms => "a number of milliseconds since the epoch",
            Unit::S => "a number of seconds since the epoch",
            Unit::Rfc3339 => "a time as 2026-11-30T09:30:00Z, nor a number since the epoch",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_number_tells_its_unit() {
        for (text, unit) in [
            ("1795945800", Unit::S),
            ("1795945800.25", Unit::S),
            ("1795945800250", Unit::Ms),
            ("1795945800250000", Unit::Us),
            ("1795945800250000000", Unit::Ns),
            ("2026-11-29T09:50:00Z", Unit::Rfc3339),
            ("tomorrow", Unit::Rfc3339),
        ] {
            assert_eq!(Unit::guess(text), unit, "{text}");
        }
    }

    #[test]
    fn every_unit_comes_to_the_same_nanoseconds() {
        let want = Some(1_795_945_800_250_000_000);
        for text in [
            "1795945800.25",
            "1795945800250",
            "1795945800250000.0",
            "1795945800250000000",
            "2026-11-29T09:50:00.25Z",
            "2026-11-29T10:50:00.250+01:00",
        ] {
            assert_eq!(Unit::guess(text).nanos(text), want, "{text}");
        }
        assert_eq!(
            Unit::Ns.nanos("7.9"),
            Some(7),
            "there is nothing below a nanosecond"
        );
        for bad in ["", "-1", "1.", ".", "1e9", "1.2.3", "99999999999999999999", "x"] {
            assert_eq!(Unit::S.nanos(bad), None, "{bad}");
        }
    }

    #[test]
    fn columns_of_times_are_known_by_name() {
        let head = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(column_of(&head(&["symbol", "Time_MS", "ts"])), Some(1));
        assert_eq!(column_of(&head(&["a", "timestamp"])), Some(1));
        assert_eq!(column_of(&head(&["a", "times"])), None);
        assert_eq!(Unit::of_name("time_us"), Some(Unit::Us));
        assert_eq!(Unit::of_name("time"), None);
    }
}
