//! Which clocks the owner's clock is made of: the machine's, or simulated ones for nodes inside a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::clock::owner_clock::Reading;

/// The clocks of a node. No configuration file can name another than the machine's.
#[derive(Debug, Clone, Default)]
pub enum ClockSource {
    /// The machine's.
    #[default]
    System,
    /// Made from the machine's; see there.
    Simulated(Arc<SimulatedClock>),
}

impl PartialEq for ClockSource {
    fn eq(&self, other: &ClockSource) -> bool {
        match (self, other) {
            (ClockSource::System, ClockSource::System) => true,
            (ClockSource::Simulated(a), ClockSource::Simulated(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for ClockSource {}

/// Clocks that run a number of times as fast as the machine's from when they were made, with a wall clock that a test can
/// step and a machine that it can boot again.
#[derive(Debug)]
pub struct SimulatedClock {
    rate: u32,
    made: Reading,
    wall_steps: AtomicI64,
    boots: AtomicU64,
}

impl SimulatedClock {
    /// Clocks that agree with `machine` now and run `rate` times as fast.
    ///
    /// # Panics
    /// At a rate of 0.
    #[must_use]
    pub fn new(rate: u32, machine: Reading) -> SimulatedClock {
        assert!(rate > 0, "time goes on");
        SimulatedClock {
            rate,
            made: machine,
            wall_steps: AtomicI64::new(0),
            boots: AtomicU64::new(0),
        }
    }

    /// How many times as fast.
    #[must_use]
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Sets the wall clock ahead, or back, by so many nanoseconds.
    pub fn step_wall(&self, nanos: i64) {
        self.wall_steps.fetch_add(nanos, Ordering::Relaxed);
    }

    /// From now on it is another boot of the machine. Its boottime goes on: what begins anew in it proves nothing anyway.
    pub fn boot(&self) {
        self.boots.fetch_add(1, Ordering::Relaxed);
    }

    /// The boot, by name.
    #[must_use]
    pub fn boot_id(&self) -> String {
        format!("simulated-{}", self.boots.load(Ordering::Relaxed))
    }

    /// The simulated boottime at one of the machine, in nanoseconds.
    #[must_use]
    pub fn boottime(&self, machine: u64) -> u64 {
        let passed = machine.saturating_sub(self.made.boot);
        self.made.boot + passed * u64::from(self.rate)
    }

    /// The simulated clocks at a reading of the machine's.
    #[must_use]
    pub fn reading(&self, machine: Reading) -> Reading {
        let boot = self.boottime(machine.boot);
        let wall = self.made.wall + (boot - self.made.boot);
        Reading {
            wall: wall.saturating_add_signed(self.wall_steps.load(Ordering::Relaxed)),
            boot,
        }
    }
}
