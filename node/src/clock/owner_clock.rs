//! Decides what the owner's clock says, and whether it is held (SPEC.md G6). Pure: readings come in, a course comes out.
//!
//! The rule behind all of it is *never early*. A clock that is behind makes delays longer and keeps records for longer; one
//! that is ahead releases and removes what it must not, and its stamps can never be taken back (D4). So what is dangerous
//! is a wall clock that stands more than an hour ahead of what can be vouched for: then the clock goes on from there on
//! CLOCK_BOOTTIME, so that a false future never enters a log, and is *held*: delay gates and retention by time stand
//! still, and the node alarms, until an operator vouches for the wall clock.
//!
//! What can be vouched for at a start is the last reading that was stored, and, if the machine has not been booted since,
//! the boottime that has passed: a long stop alone holds nothing then. After a boot nobody can tell a long stop from a false
//! future, and an operator has to.
//!
//! A wall clock that is behind is followed: at once by a start, because only so can a clock that stands in a false future
//! be brought back at all (the logs keep their commit times from falling, and `partition reset-clock` recovers those
//! that were stamped there); slowly by a running clock, which never goes back.

use crate::clock::course::{Course, Piece};
use crate::clock::reading::{Last, Stored};

/// How far ahead the wall clock may be without a word of an operator, in nanoseconds: 1 h.
pub const AHEAD_NANOS_MAX: u64 = 3_600_000_000_000;
/// How often the clock's reading is stored, in nanoseconds of boottime.
pub const STORE_EVERY_NANOS: u64 = 10_000_000_000;
/// A change of the course is announced so long before it is in force, in nanoseconds.
const LEAD_NANOS: u64 = 100_000_000;

/// The machine's two clocks, read together, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock, since the epoch.
    pub wall: u64,
    /// CLOCK_BOOTTIME.
    pub boot: u64,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A moment passed.
    Tick,
    /// An operator vouches for the wall clock.
    Accept,
    /// The node stops.
    Stop,
}

/// Something that an operator should read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The clock is held: the wall clock is so far ahead, in nanoseconds.
    Ahead(u64),
    /// The clock is held, because it was when the node stopped.
    HeldBefore,
    /// The clock is held, because the stored reading is damaged: nothing vouches for the wall clock.
    Damaged,
    /// It starts so far behind the last reading, in nanoseconds.
    Behind(u64),
    /// An operator has vouched for the wall clock, which was so far ahead, in nanoseconds.
    Accepted(u64),
}

/// What is to be done after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The course has changed.
    pub changed: bool,
    /// A reading is to be stored.
    pub store: bool,
    /// What is to be logged.
    pub told: Option<Told>,
}

/// See the module. One for each process.
#[derive(Debug, Clone)]
pub struct OwnerClock {
    course: Course,
    held: bool,
    /// The boottime of the last reading that was asked to be stored.
    stored_at: Option<u64>,
    boot_id: String,
}

impl OwnerClock {
    /// The clock of a process that starts.
    #[must_use]
    pub fn start(reading: Reading, boot_id: String, last: &Last) -> (OwnerClock, Option<Told>) {
        let (owner, told) = match last {
            Last::None => (reading.wall, None),
            Last::Damaged(_) => (reading.wall, Some(Told::Damaged)),
            Last::Known(stored) => {
                let vouched = vouched(stored, reading, &boot_id);
                let ahead = reading.wall.saturating_sub(vouched);
                match ahead {
                    _ if ahead > AHEAD_NANOS_MAX => (vouched, Some(Told::Ahead(ahead))),
                    _ if stored.held => (reading.wall, Some(Told::HeldBefore)),
                    _ if reading.wall < stored.owner => {
                        (reading.wall, Some(Told::Behind(stored.owner - reading.wall)))
                    }
                    _ => (reading.wall, None),
                }
            }
        };
        let held = matches!(told, Some(Told::Ahead(_) | Told::HeldBefore | Told::Damaged));
        let piece = Piece {
            boot: reading.boot,
            owner,
            slew: 0,
        };
        let clock = OwnerClock {
            course: Course::straight(piece),
            held,
            stored_at: None,
            boot_id,
        };
        (clock, told)
    }

    /// Takes an event, with a fresh reading.
    pub fn step(&mut self, event: Event, reading: Reading) -> Outcome {
        let mut outcome = match event {
            Event::Tick => self.tick(reading),
            Event::Accept => self.accept(reading),
            Event::Stop => Outcome {
                store: true,
                ..Outcome::default()
            },
        };
        outcome.store |= self
            .stored_at
            .is_none_or(|at| reading.boot.saturating_sub(at) >= STORE_EVERY_NANOS);
        if outcome.store {
            self.stored_at = Some(reading.boot);
        }
        outcome
    }

    fn tick(&mut self, reading: Reading) -> Outcome {
        if self.held || reading.boot < self.course.after.boot {
            return Outcome::default();
        }
        let ahead = reading.wall.saturating_sub(self.course.at(reading.boot));
        self.held = ahead > AHEAD_NANOS_MAX;
        let begins = reading.boot.saturating_add(LEAD_NANOS);
        let owner = self.course.at(begins);
        // Held, it goes on as it is: the wall clock is what is in doubt.
        let slew = if self.held {
            0
        } else {
            difference(reading.wall.saturating_add(LEAD_NANOS), owner)
        };
        self.course = Course {
            before: self.course.after,
            after: Piece {
                boot: begins,
                owner,
                slew,
            },
        };
        Outcome {
            changed: true,
            store: self.held,
            told: self.held.then_some(Told::Ahead(ahead)),
        }
    }

    /// Forward at once; backward only by slewing.
    fn accept(&mut self, reading: Reading) -> Outcome {
        let owner = self.course.at(reading.boot);
        let piece = Piece {
            boot: reading.boot,
            owner: owner.max(reading.wall),
            slew: difference(reading.wall, owner).min(0),
        };
        self.course = Course::straight(piece);
        self.held = false;
        Outcome {
            changed: true,
            store: true,
            told: Some(Told::Accepted(reading.wall.saturating_sub(owner))),
        }
    }

    /// The owner's clock as a function of boottime.
    #[must_use]
    pub fn course(&self) -> Course {
        self.course
    }

    /// Whether delay gates and retention by time stand still.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// What is to be stored of it at a boottime.
    #[must_use]
    pub fn stored(&self, boot: u64) -> Stored {
        Stored {
            owner: self.course.at(boot),
            boot,
            boot_id: self.boot_id.clone(),
            held: self.held,
        }
    }
}

/// Where the clock would be if it had gone on since the stored reading, as far as boottime proves it.
fn vouched(stored: &Stored, reading: Reading, boot_id: &str) -> u64 {
    let same_boot = stored.boot_id == boot_id && !boot_id.is_empty();
    let passed = if same_boot {
        reading.boot.saturating_sub(stored.boot)
    } else {
        0
    };
    stored.owner.saturating_add(passed)
}

/// `a - b`, saturating.
fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

#[cfg(test)]
mod tests;
