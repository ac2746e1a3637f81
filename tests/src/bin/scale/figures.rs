//! Figures of a node: its metrics, its processor time, how long a lone record takes, and what something does to that.

use std::fmt;
use std::time::{Duration, Instant};

use tailwater_tests::cluster::load::record;
use tailwater_tests::cluster::node::TestNode;
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::{PartitionId, TopicName};

/// How long a gauge may take to become what it must be.
const BECOMES_WITHIN: Duration = Duration::from_secs(120);

/// The share of a core that the node uses while nothing is asked of it.
pub async fn idle_share(node: &TestNode, over: Duration) -> f64 {
    let (began, before) = (Instant::now(), node.processor_time());
    tokio::time::sleep(over).await;
    (node.processor_time() - before).as_secs_f64() / began.elapsed().as_secs_f64()
}

/// All metrics.
pub async fn scrape(node: &TestNode) -> String {
    let (status, text) = node.get("/metrics").await;
    assert_eq!(status, 200);
    text
}

/// The sum of a metric's series whose labels contain a text. None must be missing: what is not there is not 0.
pub fn metric(text: &str, name: &str, labels: &str) -> f64 {
    let of_name = |line: &&str| {
        let rest = line
            .strip_prefix("tailwater_")
            .and_then(|line| line.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
    };
    let values = text.lines().filter(of_name);
    let values: Vec<f64> = values
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    assert!(!values.is_empty(), "no metric {name} with `{labels}` in\n{text}");
    values.iter().sum()
}

/// Waits until a gauge is this; returns how long that took.
pub async fn becomes(node: &TestNode, gauge: &str, wanted: usize) -> Duration {
    let began = Instant::now();
    loop {
        let value = metric(&scrape(node).await, gauge, "");
        if value == wanted as f64 {
            return began.elapsed();
        }
        assert!(
            began.elapsed() < BECOMES_WITHIN,
            "{gauge} is {value}, not {wanted}, after {BECOMES_WITHIN:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The smallest value that is not below such a share of all.
pub fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// How long a step takes, median of 40.
pub async fn median_of<F: Future>(mut step: impl FnMut() -> F) -> Duration {
    let mut took = Vec::new();
    for _ in 0..40 {
        let began = Instant::now();
        step().await;
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    took.sort_unstable();
    quantile(&took, 0.5)
}

/// How long lone records took.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    p50: Duration,
    p99: Duration,
}

impl fmt::Display for Latency {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "p50 {:?} p99 {:?}", self.p50, self.p99)
    }
}

impl Latency {
    /// What lies in the middle of two.
    pub fn between(one: Latency, other: Latency) -> Latency {
        Latency {
            p50: (one.p50 + other.p50) / 2,
            p99: (one.p99 + other.p99) / 2,
        }
    }
}

/// Lone records to one partition, each sent when the one before was acknowledged and a pause is over.
pub async fn lone_records(client: &Client, to: &TopicName, count: u64, pause: Duration) -> Latency {
    let options = ProducerOptions {
        partition: Some(PartitionId(0)),
        ..ProducerOptions::default()
    };
    let producer = client.producer(to, options).await.expect("a producer");
    let mut took = Vec::new();
    for number in 0..count {
        let began = Instant::now();
        let delivery = producer.send(record(number, 100)).await.expect("taken");
        delivery.await.expect("acknowledged");
        took.push(began.elapsed());
        tokio::time::sleep(pause).await;
    }
    took.sort_unstable();
    Latency {
        p50: quantile(&took, 0.5),
        p99: quantile(&took, 0.99),
    }
}

/// Rounds of lone records without and with something. One comparison says little: what else the machine does moves a p99 by
/// more than what is looked for.
#[derive(Debug)]
pub struct Rounds {
    what: String,
    rounds: Vec<(Latency, Latency)>,
}

impl Rounds {
    /// None yet, of what is there in one half of each.
    pub fn of(what: impl Into<String>) -> Rounds {
        Rounds {
            what: what.into(),
            rounds: Vec::new(),
        }
    }

    /// Adds a round, and returns its line.
    pub fn add(&mut self, without: Latency, with: Latency) -> String {
        self.rounds.push((without, with));
        format!(
            "round {}: lone record without {} {without}; with {with}: {}",
            self.rounds.len(),
            self.what,
            Ratios::of(without, with)
        )
    }

    /// The line of the medians.
    pub fn medians(&self) -> String {
        let middle = |pick: fn(&(Latency, Latency)) -> Latency| Latency {
            p50: median(self.rounds.iter().map(|round| pick(round).p50)),
            p99: median(self.rounds.iter().map(|round| pick(round).p99)),
        };
        let ratio = |pick: fn(Ratios) -> f64| median(self.ratios().map(pick));
        format!(
            "medians of {} rounds: lone record without {} {}; with {}: {}",
            self.rounds.len(),
            self.what,
            middle(|round| round.0),
            middle(|round| round.1),
            Ratios {
                p50: ratio(|of| of.p50),
                p99: ratio(|of| of.p99),
            }
        )
    }

    /// By how much p99 grows: the median over the rounds.
    pub fn p99_ratio(&self) -> f64 {
        median(self.ratios().map(|of| of.p99))
    }

    fn ratios(&self) -> impl Iterator<Item = Ratios> {
        self.rounds
            .iter()
            .map(|&(without, with)| Ratios::of(without, with))
    }
}

/// By how much latencies grow.
#[derive(Debug, Clone, Copy)]
struct Ratios {
    p50: f64,
    p99: f64,
}

impl Ratios {
    fn of(without: Latency, with: Latency) -> Ratios {
        Ratios {
            p50: with.p50.as_secs_f64() / without.p50.as_secs_f64(),
            p99: with.p99.as_secs_f64() / without.p99.as_secs_f64(),
        }
    }
}

impl fmt::Display for Ratios {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:.2} x at p50, {:.2} x at p99", self.p50, self.p99)
    }
}

/// The middle of an odd number of values.
fn median<T: PartialOrd + Copy>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_by(|one, other| one.partial_cmp(other).expect("no ratio is NaN"));
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(ms: u64) -> Latency {
        Latency {
            p50: Duration::from_millis(ms),
            p99: Duration::from_millis(ms),
        }
    }

    #[test]
    fn one_noisy_round_does_not_decide() {
        let mut rounds = Rounds::of("readers");
        for (without, with) in [(10, 11), (10, 40), (10, 12)] {
            rounds.add(latency(without), latency(with));
        }
        assert!((rounds.p99_ratio() - 1.2).abs() < 1e-9, "{}", rounds.medians());
    }

    #[test]
    fn a_metric_is_summed_over_its_series_alone() {
        let text = "tailwater_a{shard=\"0\"} 1\ntailwater_a{shard=\"1\"} 2\ntailwater_a_total 9\n";
        assert_eq!(metric(text, "a", ""), 3.0);
        assert_eq!(metric(text, "a", "shard=\"1\""), 2.0);
    }

    #[test]
    #[should_panic(expected = "no metric b")]
    fn a_metric_that_is_not_there_is_not_0() {
        metric("tailwater_a 1\n", "b", "");
    }
}
