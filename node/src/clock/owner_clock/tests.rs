//! Wall clocks that step by an hour and a year, both ways, while the clock runs and across restarts.

use proptest::prelude::*;

use super::*;
use crate::clock::course::SLEW_ONE_IN;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3_600 * SECOND;
const YEAR: u64 = 365 * 24 * HOUR;
/// Some day in 2026.
const TODAY: u64 = 1_790_000_000 * SECOND;

/// A machine with a right time, a wall clock that is off by something, and a node that may be stopped.
struct Machine {
    boot: u64,
    boots: u32,
    wall: i128,
    clock: OwnerClock,
    told: Vec<Told>,
    stored: Last,
}

impl Machine {
    fn new() -> Machine {
        let reading = Reading {
            wall: TODAY,
            boot: 77,
        };
        let (clock, told) = OwnerClock::start(reading, "boot-0".to_owned(), &Last::None);
        assert_eq!(told, None);
        let mut machine = Machine {
            boot: 77,
            boots: 0,
            wall: i128::from(TODAY),
            clock,
            told: Vec::new(),
            stored: Last::None,
        };
        machine.event(Event::Tick);
        machine
    }

    fn reading(&self) -> Reading {
        Reading {
            wall: u64::try_from(self.wall).expect("after 1970"),
            boot: self.boot,
        }
    }

    fn now(&self) -> u64 {
        self.clock.course().at(self.boot)
    }

    fn event(&mut self, event: Event) {
        let before = self.now();
        let outcome = self.clock.step(event, self.reading());
        assert!(self.now() >= before, "never back");
        if outcome.store {
            self.stored = Last::Known(self.clock.stored(self.boot));
        }
        self.told.extend(outcome.told);
    }

    fn pass(&mut self, nanos: u64) {
        self.boot += nanos;
        self.wall += i128::from(nanos);
    }

    /// Runs for a while, with four ticks a second.
    fn run(&mut self, nanos: u64) {
        let mut left = nanos;
        while left > 0 {
            let step = left.min(SECOND / 4);
            let before = self.now();
            self.pass(step);
            let advance = self.now() - before;
            assert!(
                advance.abs_diff(step) <= step / SLEW_ONE_IN + 2,
                "{advance} in {step}"
            );
            self.event(Event::Tick);
            left -= step;
        }
    }

    fn step_wall(&mut self, ahead: bool, nanos: u64) {
        self.wall += if ahead {
            i128::from(nanos)
        } else {
            -i128::from(nanos)
        };
    }

    fn stop(&mut self) {
        self.event(Event::Stop);
    }

    fn boot_again(&mut self) {
        self.boots += 1;
        self.boot = 5;
    }

    fn start(&mut self) {
        let id = format!("boot-{}", self.boots);
        let (clock, told) = OwnerClock::start(self.reading(), id, &self.stored);
        self.clock = clock;
        self.told.extend(told);
        self.event(Event::Tick);
    }

    #[track_caller]
    fn check(&mut self, held: bool, told: &[Told]) {
        assert_eq!(self.clock.is_held(), held);
        assert_eq!(std::mem::take(&mut self.told), told);
    }
}

#[test]
fn it_follows_the_wall_clock_by_one_percent() {
    for ahead in [true, false] {
        let mut machine = Machine::new();
        machine.step_wall(ahead, SECOND);
        machine.run(50 * SECOND);
        let off = machine.now().abs_diff(machine.reading().wall);
        assert!((SECOND / 3..SECOND).contains(&off), "{off}");
        machine.run(60 * SECOND);
        assert_eq!(machine.now(), machine.reading().wall);
        machine.check(false, &[]);
    }
}

#[test]
fn an_hour_ahead_is_slewed_to_and_a_moment_more_is_held() {
    let mut machine = Machine::new();
    machine.step_wall(true, HOUR);
    machine.run(10 * SECOND);
    machine.check(false, &[]);
    for more in [HOUR + 1, YEAR] {
        let mut machine = Machine::new();
        machine.step_wall(true, more);
        let before = machine.now();
        machine.run(20 * SECOND);
        machine.check(true, &[Told::Ahead(more)]);
        assert_eq!(machine.now(), before + 20 * SECOND, "it goes on on boottime");
        // Also when the wall clock comes back: an operator decides.
        machine.step_wall(false, more);
        machine.run(SECOND);
        machine.check(true, &[]);
        machine.step_wall(true, more);
        machine.event(Event::Accept);
        machine.check(false, &[Told::Accepted(more)]);
        assert_eq!(machine.now(), machine.reading().wall);
        machine.run(SECOND);
        machine.check(false, &[]);
    }
}

#[test]
fn a_wall_clock_set_back_slows_the_clock_and_holds_nothing() {
    for back in [HOUR, YEAR] {
        let mut machine = Machine::new();
        machine.step_wall(false, back);
        let before = machine.now();
        machine.run(100 * SECOND);
        machine.check(false, &[]);
        let passed = machine.now() - before;
        assert!((98 * SECOND..=100 * SECOND).contains(&passed), "{passed}");
        // Accepting it makes nothing go back either.
        machine.event(Event::Accept);
        machine.check(false, &[Told::Accepted(0)]);
    }
}

#[test]
fn a_start_ahead_of_the_last_reading_is_held_until_accepted() {
    for (stopped_for, stepped, held) in [
        (HOUR, 0, false),
        (HOUR + SECOND, 0, true),
        (48 * HOUR, 0, true),
        (0, HOUR + SECOND, true),
        (0, YEAR, true),
        (SECOND, HOUR / 2, false),
    ] {
        let mut machine = Machine::new();
        machine.stop();
        let last = machine.now();
        machine.pass(stopped_for);
        machine.step_wall(true, stepped);
        machine.boot_again();
        machine.start();
        if !held {
            machine.check(false, &[]);
            assert_eq!(
                machine.now(),
                machine.reading().wall,
                "it starts from the wall clock"
            );
            continue;
        }
        machine.check(true, &[Told::Ahead(stopped_for + stepped)]);
        assert_eq!(machine.now(), last, "no false future enters");
        machine.run(SECOND);
        // A restart is no operator.
        machine.stop();
        machine.start();
        machine.check(true, &[Told::Ahead(stopped_for + stepped)]);
        assert_eq!(machine.now(), last + SECOND);
        machine.event(Event::Accept);
        machine.check(false, &[Told::Accepted(stopped_for + stepped)]);
        machine.boot_again();
        machine.start();
        machine.check(false, &[]);
        assert_eq!(machine.now(), machine.reading().wall);
    }
}

#[test]
fn on_the_same_boot_a_long_stop_proves_itself() {
    let mut machine = Machine::new();
    machine.stop();
    machine.pass(48 * HOUR);
    machine.start();
    machine.check(false, &[]);
    assert_eq!(machine.now(), machine.reading().wall);
    // It proves what has passed, and no more.
    machine.stop();
    machine.pass(48 * HOUR);
    machine.step_wall(true, YEAR);
    let right = machine.now();
    machine.start();
    machine.check(true, &[Told::Ahead(YEAR)]);
    assert_eq!(machine.now(), right);
}

#[test]
fn a_held_clock_whose_wall_clock_is_right_again_waits_for_an_operator_all_the_same() {
    let mut machine = Machine::new();
    machine.step_wall(true, YEAR);
    machine.run(SECOND);
    machine.check(true, &[Told::Ahead(YEAR)]);
    machine.stop();
    machine.step_wall(false, YEAR);
    machine.start();
    machine.check(true, &[Told::HeldBefore]);
    machine.event(Event::Accept);
    machine.check(false, &[Told::Accepted(0)]);
}

#[test]
fn a_start_behind_the_last_reading_takes_the_wall_clock() {
    for back in [HOUR, YEAR] {
        let mut machine = Machine::new();
        machine.stop();
        machine.step_wall(false, back);
        machine.boot_again();
        machine.start();
        machine.check(false, &[Told::Behind(back)]);
        assert_eq!(machine.now(), machine.reading().wall);
    }
}

#[test]
fn a_damaged_reading_vouches_for_nothing() {
    let mut machine = Machine::new();
    machine.stored = Last::Damaged("cut short");
    machine.start();
    machine.check(true, &[Told::Damaged]);
    machine.event(Event::Accept);
    machine.check(false, &[Told::Accepted(0)]);
}

#[test]
fn a_reading_is_stored_every_ten_seconds_and_at_every_turn() {
    let mut machine = Machine::new();
    let mut stores = 0;
    for _ in 0..4 * 60 {
        machine.pass(SECOND / 4);
        let outcome = machine.clock.step(Event::Tick, machine.reading());
        stores += u32::from(outcome.store);
    }
    assert_eq!(stores, 6);
    for (event, wall) in [(Event::Tick, YEAR), (Event::Accept, 0), (Event::Stop, 0)] {
        machine.pass(SECOND / 4);
        machine.step_wall(true, wall);
        assert!(machine.clock.step(event, machine.reading()).store, "{event:?}");
    }
}

proptest! {
    /// Whatever the wall clock does, no reading is more than what has passed, plus 1%, plus an hour for each start, until an
    /// operator accepts; and none is less than the one before it in the same process.
    #[test]
    fn nothing_but_an_operator_brings_it_far_ahead(
        script in prop::collection::vec((0u8..5, any::<bool>(), 0u64..2 * YEAR, 1u64..200), 1..25),
    ) {
        let mut machine = Machine::new();
        let (mut passed, mut starts, mut back) = (0, 0, 0);
        let first = machine.now();
        for (what, ahead, nanos, quarters) in script {
            match what {
                0 => {
                    // The wall clock stays after 1970.
                    let nanos = if ahead { nanos } else { nanos.min(machine.reading().wall / 4) };
                    machine.step_wall(ahead, nanos);
                }
                1 | 2 => {
                    machine.stop();
                    if what == 2 {
                        machine.boot_again();
                    }
                    let before = machine.now();
                    machine.start();
                    starts += 1;
                    back += before.saturating_sub(machine.now());
                }
                _ => {
                    machine.run(quarters * SECOND / 4);
                    passed += quarters * SECOND / 4;
                }
            }
            let most = first + passed + passed / SLEW_ONE_IN + starts * HOUR;
            prop_assert!(machine.now() <= most, "{} of {} after {} starts, {} back", machine.now(), most, starts, back);
        }
    }
}
