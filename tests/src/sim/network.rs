//! The way of a message: lost, doubled, late, overtaken; or, once healed, short and sure.

use super::options::Scenario;
use super::rng::Rng;

/// See the module.
#[derive(Debug)]
pub(super) struct Network {
    loss: u64,
    duplication: u64,
    way_micros_max: u64,
}

/// The arrivals of one message, as microseconds from now: none when it is lost, two when it is doubled.
pub(super) type Arrivals = [Option<u64>; 2];

impl Network {
    pub fn new(scenario: &Scenario) -> Network {
        Network {
            loss: scenario.loss,
            duplication: scenario.duplication,
            way_micros_max: scenario.way_millis_max * 1_000,
        }
    }

    pub fn heal(&mut self) {
        *self = Network {
            loss: 0,
            duplication: 0,
            way_micros_max: 500,
        };
    }

    /// `slow` multiplies the way: a zombie's messages may come very late.
    pub fn send(&self, slow: u64, rng: &mut Rng) -> Arrivals {
        let first = rng.range(30, self.way_micros_max) * slow;
        let second = rng.range(30, self.way_micros_max) * slow;
        let arrives = !rng.chance(self.loss);
        let doubled = rng.chance(self.duplication);
        [arrives.then_some(first), doubled.then_some(second)]
    }
}
