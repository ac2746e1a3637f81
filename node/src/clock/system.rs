//! The only file of the node that reads a clock: the owner's clock, for commit times and delay gates, and the time that
//! something takes.
//!
//! The owner's clock is one for the process. What it says is decided by [`OwnerClock`], at
//! the hands of the [`keeper`](super::keeper); shards read the course that was decided, which costs them one reading of
//! CLOCK_BOOTTIME and no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tailwater_wire::ids::CommitTime;

use crate::clock::order::ClockOrder;
use crate::clock::owner_clock::{OwnerClock, Reading};
use crate::clock::published::Published;
use crate::clock::source::{ClockSource, SimulatedClock};

/// The owner's clock of this process. A clone reads the same time.
#[derive(Debug, Clone)]
pub struct SystemClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    source: ClockSource,
    published: Published,
    held: AtomicBool,
    keeper: flume::Sender<ClockOrder>,
}

impl SystemClock {
    /// A clock that shows what a decider has decided. `keeper` is where orders go.
    #[must_use]
    pub fn showing(
        clock: &OwnerClock,
        source: ClockSource,
        keeper: flume::Sender<ClockOrder>,
    ) -> SystemClock {
        SystemClock(Arc::new(Shared {
            source,
            published: Published::new(clock.course()),
            held: AtomicBool::new(clock.is_held()),
            keeper,
        }))
    }

    /// Shows what was decided since. Called by the keeper alone.
    pub fn show(&self, clock: &OwnerClock) {
        self.0.published.set(clock.course());
        self.0.held.store(clock.is_held(), Ordering::Release);
    }

    /// Nanoseconds since the epoch. Never falls while the process lives.
    #[must_use]
    pub fn now(&self) -> CommitTime {
        // The boottime first: of a course that is decided meanwhile, what is past is as it was.
        let boot = self.0.source.boottime_ns();
        CommitTime(self.0.published.course().at(boot))
    }

    /// Whether delay gates and retention by time stand still (SPEC.md G6).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.held.load(Ordering::Relaxed)
    }

    /// How far the wall clock is ahead of the owner's clock, in nanoseconds; below zero when it is behind.
    #[must_use]
    pub fn wall_offset(&self) -> i128 {
        let reading = self.reading();
        i128::from(reading.wall) - i128::from(self.0.published.course().at(reading.boot))
    }

    /// Both clocks that it is made of, read together.
    #[must_use]
    pub fn reading(&self) -> Reading {
        self.0.source.reading()
    }

    /// How long a duration of the owner's clock takes on the machine's timers: the same, but in a test whose time is
    /// compressed.
    #[must_use]
    pub fn real(&self, duration: Duration) -> Duration {
        match &self.0.source {
            ClockSource::System => duration,
            ClockSource::Simulated(clock) => duration / clock.rate(),
        }
    }

    /// Where orders to the keeper go.
    #[must_use]
    pub fn keeper(&self) -> &flume::Sender<ClockOrder> {
        &self.0.keeper
    }
}

impl ClockSource {
    /// Simulated clocks that agree with the machine's now and run `rate` times as fast.
    #[must_use]
    pub fn simulated(rate: u32) -> (ClockSource, Arc<SimulatedClock>) {
        let clock = Arc::new(SimulatedClock::new(rate, machine_reading()));
        (ClockSource::Simulated(Arc::clone(&clock)), clock)
    }

    /// Wall clock and boottime, read together.
    #[must_use]
    pub fn reading(&self) -> Reading {
        match self {
            ClockSource::System => machine_reading(),
            ClockSource::Simulated(clock) => clock.reading(machine_reading()),
        }
    }

    fn boottime_ns(&self) -> u64 {
        match self {
            ClockSource::System => boottime_ns(),
            ClockSource::Simulated(clock) => clock.boottime(boottime_ns()),
        }
    }
}

/// Time since boot, for measuring how long something took.
#[must_use]
pub fn elapsed_since_boot() -> Duration {
    Duration::from_nanos(boottime_ns())
}

/// Of a few tries the one that was interrupted least: the two clocks cannot be read in one call.
fn machine_reading() -> Reading {
    let tries = std::array::from_fn::<_, 3, _>(|_| {
        let (before, wall, after) = (boottime_ns(), wall_ns(), boottime_ns());
        let took = after.saturating_sub(before);
        let boot = before + took / 2;
        (took, Reading { wall, boot })
    });
    let [first, others @ ..] = tries;
    others
        .into_iter()
        .fold(first, |best, next| if next.0 < best.0 { next } else { best })
        .1
}

/// By the C library, where a test can put another wall clock in its place.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the node reads the wall clock"
)]
fn wall_ns() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// By the kernel alone.
fn boottime_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::reading::Last;

    fn clock(source: ClockSource) -> SystemClock {
        let (decider, _) = OwnerClock::start(source.reading(), String::new(), &Last::None);
        SystemClock::showing(&decider, source, flume::bounded(1).0)
    }

    #[test]
    fn it_runs_forward_from_the_wall_clock() {
        let clock = clock(ClockSource::System);
        let first = clock.now();
        assert!(first.as_millis() > 1_600_000_000_000, "after 2020");
        assert!(clock.now() >= first);
        assert!(clock.wall_offset().abs() < 1_000_000_000);
        assert_eq!(clock.real(Duration::from_secs(1)), Duration::from_secs(1));
    }

    #[test]
    fn compressed_time_runs_as_fast_as_it_says() {
        let (source, simulated) = ClockSource::simulated(60);
        let clock = clock(source);
        let (machine, before) = (boottime_ns(), clock.now());
        std::thread::sleep(Duration::from_millis(20));
        let (machine, passed) = (boottime_ns() - machine, clock.now().0 - before.0);
        assert!(
            passed >= 60 * 20_000_000 && passed <= 60 * (machine + 1_000_000),
            "{passed} in {machine}"
        );
        assert_eq!(clock.real(Duration::from_secs(60)), Duration::from_secs(1));
        simulated.step_wall(-3_600_000_000_000);
        assert!(
            clock.wall_offset() < -3_599_000_000_000,
            "the wall clock alone is stepped"
        );
        assert!(clock.now() >= before);
    }
}
