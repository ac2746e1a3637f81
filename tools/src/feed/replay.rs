//! The pace of a replay: when each event is due after the start.

use std::time::Duration;

/// How fast a feed is replayed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// A multiple of the recorded pace.
    Times(f64),
    /// Without waiting.
    Max,
}

impl std::str::FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Speed, String> {
        if text == "max" {
            return Ok(Speed::Max);
        }
        match text.trim_end_matches('x').parse::<f64>() {
            Ok(times) if times.is_finite() && times > 0.0 => Ok(Speed::Times(times)),
            _ => Err("a speed is a number above 0, or `max`".to_owned()),
        }
    }
}

/// Maps recorded times to times since the start.
#[derive(Debug, Clone)]
pub struct Pace {
    speed: Speed,
    first_ns: Option<u64>,
}

impl Pace {
    /// At a speed; the first event is due at once.
    #[must_use]
    pub fn new(speed: Speed) -> Pace {
        Pace {
            speed,
            first_ns: None,
        }
    }

    /// How long after the start an event is due, whose time is in nanoseconds. One that lies before the first is due at
    /// once, and so is everything at [`Speed::Max`]: `None`.
    pub fn due(&mut self, time_ns: u64) -> Option<Duration> {
        let first = *self.first_ns.get_or_insert(time_ns);
        match self.speed {
            Speed::Max => None,
            Speed::Times(times) => {
                let seconds = time_ns.saturating_sub(first) as f64 / 1e9 / times;
                Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
            }
        }
    }
}

/// The speed at which a feed of `span_ms` takes about `wanted`, and never slower than it was recorded.
#[must_use]
pub fn speed_to_fit(span_ms: u64, wanted: Duration) -> Speed {
    let times = span_ms as f64 / wanted.as_millis().max(1) as f64;
    Speed::Times(times.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_due_at_their_own_pace_or_a_multiple() {
        let mut pace = Pace::new(Speed::Times(10.0));
        let due = [5_000, 5_000, 15_000, 4_000].map(|ms| pace.due(ms * 1_000_000));
        assert_eq!(due, [0, 0, 1_000, 0].map(|ms| Some(Duration::from_millis(ms))));
        assert_eq!(Pace::new(Speed::Max).due(u64::MAX), None);
        let mut slow = Pace::new(Speed::Times(f64::MIN_POSITIVE));
        slow.due(0);
        assert_eq!(slow.due(u64::MAX), Some(Duration::MAX));
    }

    #[test]
    fn speeds_are_read() {
        assert_eq!("2".parse(), Ok(Speed::Times(2.0)));
        assert_eq!("0.5x".parse(), Ok(Speed::Times(0.5)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for bad in ["0", "-1", "nan", "inf", "fast", ""] {
            assert!(bad.parse::<Speed>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_long_feed_is_made_to_fit() {
        assert_eq!(speed_to_fit(660_000, Duration::from_secs(11)), Speed::Times(60.0));
        assert_eq!(speed_to_fit(500, Duration::from_secs(11)), Speed::Times(1.0));
    }
}
