//! Latencies of one run, free of coordinated omission: each is taken from when the record should have been sent, and
//! from when it was.
//!
//! A load that waits for a slow answer sends less while the system is slow, and so measures the slowness too seldom.
//! A rate-driven load here keeps a [`Schedule`] that no answer can move; what falls behind it counts as waiting.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest latency told apart, in nanoseconds; longer ones count as this one.
const LONGEST_NS: u64 = 300_000_000_000;
/// Digits that a latency keeps.
const DIGITS: u8 = 3;

/// When the records of a rate-driven load are to be sent, by number: fixed before the first one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    per_s: u64,
}

impl Schedule {
    /// So many a second, evenly spaced; at least one.
    #[must_use]
    pub fn per_second(per_s: u64) -> Schedule {
        Schedule { per_s: per_s.max(1) }
    }

    /// When record `n` is to be sent, after the start of the load.
    #[must_use]
    pub fn intended(self, n: u64) -> Duration {
        let whole = n / self.per_s;
        let nanos = (n % self.per_s) * 1_000_000_000 / self.per_s;
        Duration::from_secs(whole) + Duration::from_nanos(nanos)
    }
}

/// Three quantiles of a histogram, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantiles {
    /// Half are faster.
    pub p50_us: f64,
    /// All but one of a hundred are faster.
    pub p99_us: f64,
    /// All but one of a thousand are faster.
    pub p999_us: f64,
}

/// Two histograms over the same records.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// From the intended send.
    response: Histogram<u64>,
    /// From the actual send.
    service: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            response: empty(),
            service: empty(),
        }
    }
}

impl Latencies {
    /// Adds `records` that shared one send and one answer. Times count from the start of the load.
    pub fn add(&mut self, intended: Duration, sent: Duration, answered: Duration, records: u64) {
        self.response
            .saturating_record_n(nanos(answered.saturating_sub(intended)), records);
        self.service
            .saturating_record_n(nanos(answered.saturating_sub(sent)), records);
    }

    /// Adds everything that another part of the same load saw.
    pub fn merge(&mut self, other: &Latencies) {
        // Both have the same bounds, so nothing can be out of range.
        let _same_bounds = self.response.add(&other.response);
        let _same_bounds = self.service.add(&other.service);
    }

    /// From the intended send; none of nothing.
    #[must_use]
    pub fn response(&self) -> Option<Quantiles> {
        quantiles(&self.response)
    }

    /// From the actual send; none of nothing.
    #[must_use]
    pub fn service(&self) -> Option<Quantiles> {
        quantiles(&self.service)
    }
}

fn empty() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS);
    histogram.expect("the bounds are constants that make a histogram")
}

fn nanos(latency: Duration) -> u64 {
    u64::try_from(latency.as_nanos()).unwrap_or(LONGEST_NS).max(1)
}

fn quantiles(histogram: &Histogram<u64>) -> Option<Quantiles> {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1_000.0;
    (!histogram.is_empty()).then(|| Quantiles {
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A server that answers after 1 ms, but stands still for 500 ms in the first second, behind one connection.
    fn one_stall(schedule: Schedule, records: u64) -> Latencies {
        let (mut latencies, mut free) = (Latencies::default(), Duration::ZERO);
        for n in 0..records {
            let intended = schedule.intended(n);
            let sent = intended.max(free);
            let stall = if n == 10 { 500 * MS } else { Duration::ZERO };
            let answered = sent + MS + stall;
            free = answered;
            latencies.add(intended, sent, answered, 1);
        }
        latencies
    }

    #[test]
    fn a_stall_counts_for_every_record_that_had_to_wait_for_it() {
        let latencies = one_stall(Schedule::per_second(500), 1_000);
        let (response, service) = (
            latencies.response().expect("some"),
            latencies.service().expect("some"),
        );
        assert!(
            (999.0..1_002.0).contains(&service.p99_us),
            "one slow answer hides: {service:?}"
        );
        assert!(
            response.p99_us > 400_000.0,
            "those behind it waited: {response:?}"
        );
        assert!(response.p50_us < 300_000.0, "it was caught up with: {response:?}");
    }

    #[test]
    fn the_schedule_does_not_drift() {
        let schedule = Schedule::per_second(3);
        assert_eq!(schedule.intended(0), Duration::ZERO);
        assert_eq!(schedule.intended(1), Duration::from_nanos(333_333_333));
        assert_eq!(
            schedule.intended(3_000_000_001),
            Duration::from_nanos(1_000_000_000_333_333_333)
        );
    }

    #[test]
    fn quantiles_are_microseconds_of_all_parts_together() {
        assert_eq!(Latencies::default().response(), None);
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        one.add(Duration::ZERO, MS, 2 * MS, 989);
        other.add(Duration::ZERO, MS, 5 * MS, 11);
        one.merge(&other);
        let (response, service) = (one.response().expect("some"), one.service().expect("some"));
        assert!(
            (response.p50_us - 2_000.0).abs() < 2.1 && (response.p99_us - 5_000.0).abs() < 5.1,
            "{response:?}"
        );
        assert!(
            (service.p50_us - 1_000.0).abs() < 1.1 && (service.p999_us - 4_000.0).abs() < 4.1,
            "{service:?}"
        );
    }

    #[test]
    fn what_is_longer_than_the_longest_still_counts() {
        let mut latencies = Latencies::default();
        latencies.add(Duration::ZERO, Duration::ZERO, Duration::from_secs(10_000), 1);
        assert!(latencies.response().expect("one").p50_us >= 299_000_000.0);
    }
}
