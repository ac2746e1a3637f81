//! The only file of the node that reads a clock: the owner's clock, for commit times and delay gates.
//!
//! It starts from the wall clock and runs on CLOCK_BOOTTIME, so a step of the wall clock never moves it, and time
//! spent suspended counts (SPEC.md G6).

use std::time::Duration;

use tailwater_wire::ids::CommitTime;

/// The owner's clock of this process. A copy reads the same time.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    wall_ns_at_start: u64,
    boot_ns_at_start: u64,
}

impl SystemClock {
    /// A clock that agrees with the wall clock now.
    #[must_use]
    pub fn start() -> SystemClock {
        SystemClock {
            wall_ns_at_start: read_ns(rustix::time::ClockId::Realtime),
            boot_ns_at_start: boottime_ns(),
        }
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub fn now(&self) -> CommitTime {
        CommitTime(self.wall_ns_at_start + boottime_ns().saturating_sub(self.boot_ns_at_start))
    }
}

/// Time since boot, for measuring how long something took.
#[must_use]
pub fn elapsed_since_boot() -> Duration {
    Duration::from_nanos(boottime_ns())
}

fn boottime_ns() -> u64 {
    read_ns(rustix::time::ClockId::Boottime)
}

fn read_ns(id: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(id);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_forward() {
        let clock = SystemClock::start();
        let first = clock.now();
        assert!(first.as_millis() > 1_600_000_000_000, "after 2020");
        assert!(clock.now() >= first);
    }
}
