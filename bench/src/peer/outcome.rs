//! What one round of one cell comes to, and the CPU time that it took.

use std::time::Duration;

use crate::histogram::Quantiles;
use crate::tally::{Tally, Timeline};

/// What one round of one cell came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What was on disk when it was acknowledged.
    pub durability: &'static str,
    /// The rate asked for; none in a closed loop.
    pub offered_per_s: Option<f64>,
    /// The rate had.
    pub achieved_per_s: f64,
    /// From the intended send.
    pub response: Option<Quantiles>,
    /// From the actual send, the median.
    pub service_p50_us: Option<f64>,
    /// Bytes of payload behind each of what `achieved_per_s` counts.
    pub bytes_per_op: u64,
    /// CPU time of the system for each.
    pub cpu_us_per_op: Option<f64>,
    /// The share of its core that a closed load used: close to 1 it may be the load that was measured.
    pub load_busy: Option<f64>,
    /// Payload that a steady load wrote in all, its warm-up included; none where that is not the point.
    pub written_bytes: Option<u64>,
}

/// CPU time that the system and the load had used at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTimes {
    /// The system under test, all threads.
    pub system: Duration,
    /// This process.
    pub load: Duration,
}

impl Outcome {
    /// Nothing measured yet.
    #[must_use]
    pub fn of_nothing(durability: &'static str) -> Outcome {
        Outcome {
            durability,
            offered_per_s: None,
            achieved_per_s: 0.0,
            response: None,
            service_p50_us: None,
            bytes_per_op: 0,
            cpu_us_per_op: None,
            load_busy: None,
            written_bytes: None,
        }
    }

    /// Of a load that counted acknowledgements within a window, with the CPU times at both ends of it.
    #[must_use]
    pub fn of_tally(
        tally: &Tally,
        timeline: &Timeline,
        cpu: (CpuTimes, CpuTimes, Duration),
        bytes: u64,
    ) -> Outcome {
        let seconds = timeline.window().as_secs_f64();
        let achieved_per_s = tally.records as f64 / seconds;
        let (before, after, between) = cpu;
        Outcome {
            achieved_per_s,
            response: tally.latencies.response(),
            service_p50_us: tally.latencies.service().map(|service| service.p50_us),
            bytes_per_op: bytes,
            cpu_us_per_op: per_op(
                after.system.saturating_sub(before.system),
                achieved_per_s * between.as_secs_f64(),
            ),
            load_busy: Some(after.load.saturating_sub(before.load).as_secs_f64() / between.as_secs_f64()),
            ..Outcome::of_nothing(tally.durability.unwrap_or("none"))
        }
    }
}

/// Microseconds of CPU for each of `ops`; none of none.
#[must_use]
pub fn per_op(cpu: Duration, ops: f64) -> Option<f64> {
    (ops > 0.0).then(|| cpu.as_secs_f64() * 1_000_000.0 / ops)
}
