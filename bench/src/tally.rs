//! Which part of a load is measured, and what was seen in it.

use std::future::Future;
use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use crate::histogram::Latencies;

/// When a load starts, and which part of it is measured.
#[derive(Debug, Clone, Copy)]
pub struct Timeline {
    start: Instant,
    from: Duration,
    to: Duration,
}

impl Timeline {
    /// From now: a warm-up that does not count, then the window that does.
    #[must_use]
    pub fn starting_now(warmup: Duration, seconds: Duration) -> Timeline {
        Timeline {
            start: Instant::now(),
            from: warmup,
            to: warmup + seconds,
        }
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether a moment lies in the window.
    #[must_use]
    pub fn counts(&self, at: Duration) -> bool {
        (self.from..self.to).contains(&at)
    }

    /// When the window ends.
    #[must_use]
    pub fn end(&self) -> Duration {
        self.to
    }

    /// Whether the window is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.elapsed() >= self.to
    }

    /// How long the window is.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.to - self.from
    }

    /// Samples something at both ends of the window; returns both, with the time that lay between them.
    ///
    /// # Errors
    /// When a sample fails.
    pub async fn at_both_ends<T, F>(&self, mut sample: impl FnMut() -> F) -> anyhow::Result<(T, T, Duration)>
    where
        F: Future<Output = anyhow::Result<T>>,
    {
        tokio::time::sleep_until(self.start + self.from).await;
        let (first, at_first) = (sample().await?, self.elapsed());
        tokio::time::sleep_until(self.start + self.to).await;
        let (last, at_last) = (sample().await?, self.elapsed());
        Ok((first, last, at_last.saturating_sub(at_first)))
    }
}

/// What one part of a load saw.
#[derive(Debug, Default)]
pub struct Tally {
    /// Records answered within the window.
    pub records: u64,
    /// Of the records that were to be sent within the window.
    pub latencies: Latencies,
    /// What the answers said of the disk; they must all say the same.
    pub durability: Option<&'static str>,
}

impl Tally {
    /// Adds `records` that shared a send and an answer.
    pub fn add(&mut self, timeline: &Timeline, intended: Duration, sent: Duration, records: u64) {
        let answered = timeline.elapsed();
        if timeline.counts(answered) {
            self.records += records;
        }
        if timeline.counts(intended) {
            self.latencies.add(intended, sent, answered, records);
        }
    }

    /// Takes note of what an answer said of the disk.
    ///
    /// # Errors
    /// When another answer said otherwise.
    pub fn label(&mut self, durability: &'static str) -> anyhow::Result<()> {
        let known = *self.durability.get_or_insert(durability);
        ensure!(
            known == durability,
            "acknowledged as `{known}` and as `{durability}` in one run"
        );
        Ok(())
    }

    /// Adds what another part saw.
    ///
    /// # Errors
    /// When they disagree about the disk.
    pub fn merge(&mut self, other: &Tally) -> anyhow::Result<()> {
        self.records += other.records;
        self.latencies.merge(&other.latencies);
        other
            .durability
            .map_or(Ok(()), |durability| self.label(durability))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_when_it_comes_and_a_latency_where_it_should_have_begun() {
        let timeline = Timeline::starting_now(Duration::from_millis(50), Duration::from_secs(60));
        let mut tally = Tally::default();
        let warm = Duration::from_millis(10);
        tally.add(&timeline, warm, warm, 1);
        assert_eq!(
            (tally.records, tally.latencies.response()),
            (0, None),
            "the warm-up counts for nothing"
        );
        std::thread::sleep(Duration::from_millis(60));
        tally.add(&timeline, warm, warm, 1);
        assert_eq!(
            (tally.records, tally.latencies.response()),
            (1, None),
            "it was to be sent in the warm-up"
        );
        let intended = Duration::from_millis(55);
        tally.add(&timeline, intended, intended, 3);
        assert_eq!(tally.records, 4);
        assert!(
            tally
                .latencies
                .response()
                .is_some_and(|response| response.p50_us >= 4_900.0)
        );
    }

    #[test]
    fn two_labels_in_one_run_are_an_error() {
        let mut tally = Tally::default();
        tally.label("fsync").expect("the first");
        assert!(tally.label("written").is_err());
    }
}
