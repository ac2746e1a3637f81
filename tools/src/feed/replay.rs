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
            _ => Err("a speed is a finite number above 0, or `max`".to_owned()),
        }
    }
}

/// The longest time that anything waits: longer than any run, and short enough that every clock can add it.
pub const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A number of seconds as a time to wait: what is longer than [`WAIT_MAX`], or no number, becomes that.
#[must_use]
pub fn after(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).map_or(WAIT_MAX, |after| after.min(WAIT_MAX))
}

/// A time to wait as a person reads it: to the second, and from two days on in days alone.
#[must_use]
pub fn wait_text(wait: Duration) -> String {
    match wait.as_secs() {
        // The schedule stands at its end, less what has passed since its start.
        seconds if seconds + 86_400 * 365 > WAIT_MAX.as_secs() => "more than 99 years".to_owned(),
        seconds if seconds >= 2 * 86_400 => format!("{}d", seconds / 86_400),
        seconds => humantime::format_duration(Duration::from_secs(seconds)).to_string(),
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
    /// once; at [`Speed::Max`] nothing is due at any time: `None`.
    pub fn due(&mut self, time_ns: u64) -> Option<Duration> {
        let first = *self.first_ns.get_or_insert(time_ns);
        match self.speed {
            Speed::Max => None,
            Speed::Times(times) => {
                let seconds = time_ns.saturating_sub(first) as f64 / 1e9 / times;
                Some(after(seconds))
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
        assert_eq!(slow.due(u64::MAX), Some(WAIT_MAX));
    }

    /// Seen once: a time that no clock could hold was taken for none, and everything was sent at once.
    #[test]
    fn however_slow_the_pace_is_it_is_kept() {
        for times in [1e-300, f64::MIN_POSITIVE, 5e-324, 1e-9] {
            let mut pace = Pace::new(Speed::Times(times));
            assert_eq!(pace.due(7), Some(Duration::ZERO), "{times}");
            assert_eq!(pace.due(7), Some(Duration::ZERO), "{times}");
            let due = pace.due(20_740 * 86_400_000_000_000).expect("it is paced");
            assert_eq!(due, WAIT_MAX, "{times}");
            assert!(tokio::time::Instant::now().checked_add(due).is_some());
        }
        assert_eq!([f64::INFINITY, f64::NAN, -1.0].map(after), [WAIT_MAX; 3]);
    }

    #[test]
    fn waits_are_told_in_one_unit_or_two() {
        for (seconds, text) in [
            (11, "11s"),
            (3_725, "1h 2m 5s"),
            (90_000, "1day 1h"),
            (20_740 * 86_400 + 5, "20740d"),
            (WAIT_MAX.as_secs() - 60, "more than 99 years"),
        ] {
            assert_eq!(wait_text(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn speeds_are_read() {
        assert_eq!("2".parse(), Ok(Speed::Times(2.0)));
        assert_eq!("0.5x".parse(), Ok(Speed::Times(0.5)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for bad in [
            "0", "-0", "-1", "nan", "inf", "-inf", "1e400", "1e-400", "fast", "",
        ] {
            assert!(bad.parse::<Speed>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_long_feed_is_made_to_fit() {
        assert_eq!(speed_to_fit(660_000, Duration::from_secs(11)), Speed::Times(60.0));
        assert_eq!(speed_to_fit(500, Duration::from_secs(11)), Speed::Times(1.0));
    }
}
