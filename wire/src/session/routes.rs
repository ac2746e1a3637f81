//! Which way a request for a partition goes: straight to the shard that owns it, or over the first connection, whose
//! shard forwards it.
//!
//! The node forwards whatever comes in at another shard, so a way that cannot be had costs a hop and nothing else.
//! Pure: it opens nothing and knows no time but what it is told.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{Incarnation, PartitionId};
use crate::message::Welcome;
use crate::placement::shard_of;

/// The first pause after a shard's port could not be reached; each failure in a row doubles it.
const REST_MIN: Duration = Duration::from_secs(1);
/// The longest pause before such a port is tried again.
const REST_MAX: Duration = Duration::from_secs(30);
/// How long a partition goes over the first connection after the shard that should own it said that it does not.
const STRAY_FOR: Duration = Duration::from_secs(5);
/// Such partitions at most; one more makes the others be tried again.
const STRAYS_MAX: usize = 1_024;

/// A way to a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Over the connection that the client began with.
    First,
    /// Over the connection to the shard with this port.
    Straight(u16),
}

/// What [`Routes::route`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The way to take now.
    pub route: Route,
    /// A port to connect to, for later requests; report back with [`Routes::up`] or [`Routes::down`].
    pub open: Option<u16>,
}

/// The shards of one node as the client knows them. It begins with none, so that everything takes the first connection.
#[derive(Debug, Default)]
pub struct Routes {
    node: u64,
    cluster: String,
    /// By shard.
    ports: Vec<u16>,
    /// The port of the shard that the first connection reaches.
    home: Option<u16>,
    /// Only of ports in `ports`; never of `home`.
    ways: BTreeMap<u16, Way>,
    /// Until when a partition is not looked for where it should be.
    strays: BTreeMap<(Incarnation, PartitionId), Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    state: State,
    /// In a row.
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Open,
    Resting { until: Duration },
}

impl Routes {
    /// The first connection was welcomed, for the first time or anew: what the node says replaces all that was known,
    /// and ports that could not be reached are worth another attempt. Returns the ports whose connections are to go.
    pub fn greeted(&mut self, welcome: &Welcome) -> Vec<u16> {
        let another = self.node != welcome.node || self.cluster != welcome.cluster;
        self.home = welcome.shard_ports.get(welcome.shard as usize).copied();
        self.ways
            .retain(|_, way| !matches!(way.state, State::Resting { .. }));
        let mut gone = Vec::new();
        if another {
            gone.extend(std::mem::take(&mut self.ways).into_keys());
            self.node = welcome.node;
            self.cluster.clone_from(&welcome.cluster);
        }
        gone.extend(self.learn(welcome));
        gone
    }

    /// The node said again which ports its shards have. Returns the ports whose connections are to go.
    pub fn learn(&mut self, welcome: &Welcome) -> Vec<u16> {
        if self.ports != welcome.shard_ports {
            self.ports.clone_from(&welcome.shard_ports);
            self.strays.clear();
        }
        let (ports, home) = (&self.ports, self.home);
        let gone: Vec<u16> = self.ways.keys().copied().collect();
        let gone: Vec<u16> = gone
            .into_iter()
            .filter(|port| !ports.contains(port) || home == Some(*port))
            .collect();
        for port in &gone {
            self.ways.remove(port);
        }
        gone
    }

    /// The way to a partition, and whether a better one is to be opened for later.
    pub fn route(&mut self, incarnation: Incarnation, partition: PartitionId, now: Duration) -> Choice {
        let first = Choice {
            route: Route::First,
            open: None,
        };
        if self
            .strays
            .get(&(incarnation, partition))
            .is_some_and(|until| now < *until)
        {
            return first;
        }
        self.strays.remove(&(incarnation, partition));
        let Some(port) = self.owner(incarnation, partition) else {
            return first;
        };
        let failures = match self.ways.get(&port) {
            Some(Way {
                state: State::Open, ..
            }) => {
                return Choice {
                    route: Route::Straight(port),
                    open: None,
                };
            }
            Some(Way {
                state: State::Opening,
                ..
            }) => return first,
            Some(Way {
                state: State::Resting { until },
                ..
            }) if now < *until => return first,
            Some(way) => way.failures,
            None => 0,
        };
        let state = State::Opening;
        self.ways.insert(port, Way { state, failures });
        Choice {
            route: Route::First,
            open: Some(port),
        }
    }

    /// The port of the owner; none when the first connection reaches it, or the node named no ports.
    fn owner(&self, incarnation: Incarnation, partition: PartitionId) -> Option<u16> {
        let shards = u32::try_from(self.ports.len())
            .ok()
            .filter(|&shards| shards > 0)?;
        let port = self.ports[shard_of(incarnation, partition, shards) as usize];
        (self.home != Some(port)).then_some(port)
    }

    /// A connection to a port is there.
    pub fn up(&mut self, port: u16) {
        if let Some(way) = self.ways.get_mut(&port) {
            *way = Way {
                state: State::Open,
                failures: 0,
            };
        }
    }

    /// A port cannot be reached: everything takes the first connection, until it is tried again after a pause.
    pub fn down(&mut self, port: u16, now: Duration) {
        if let Some(way) = self.ways.get_mut(&port) {
            let rest = REST_MIN.saturating_mul(1 << way.failures.min(16)).min(REST_MAX);
            *way = Way {
                state: State::Resting {
                    until: now.saturating_add(rest),
                },
                failures: way.failures.saturating_add(1),
            };
        }
    }

    /// The shard that should own a partition says that it does not.
    pub fn strayed(&mut self, incarnation: Incarnation, partition: PartitionId, now: Duration) {
        if self.strays.len() >= STRAYS_MAX {
            self.strays.clear();
        }
        self.strays
            .insert((incarnation, partition), now.saturating_add(STRAY_FOR));
    }

    /// The node and its cluster, as the first connection was told.
    #[must_use]
    pub fn node(&self) -> (u64, &str) {
        (self.node, &self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Incarnation = Incarnation([0; 8]);

    fn welcome(cluster: &str, shard: u32, ports: &[u16]) -> Welcome {
        Welcome {
            node: 1,
            cluster: cluster.to_owned(),
            shard,
            shard_ports: ports.to_vec(),
            version: String::new(),
        }
    }

    fn routes(ports: &[u16]) -> Routes {
        let mut routes = Routes::default();
        assert!(routes.greeted(&welcome("c", 0, ports)).is_empty());
        routes
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[track_caller]
    fn check(routes: &mut Routes, partition: u32, seconds: u64, route: Route, open: Option<u16>) {
        let choice = routes.route(LIFE, PartitionId(partition), at(seconds));
        assert_eq!(choice, Choice { route, open });
    }

    #[test]
    fn the_owner_s_connection_is_opened_once_and_taken_when_it_is_there() {
        let mut routes = routes(&[70, 71]);
        check(&mut routes, 0, 0, Route::First, None);
        check(&mut routes, 1, 0, Route::First, Some(71));
        check(&mut routes, 3, 0, Route::First, None);
        routes.up(71);
        check(&mut routes, 1, 0, Route::Straight(71), None);
        check(&mut routes, 2, 0, Route::First, None);
    }

    #[test]
    fn before_the_welcome_and_without_ports_everything_takes_the_first() {
        check(&mut Routes::default(), 1, 0, Route::First, None);
        check(&mut routes(&[]), 1, 0, Route::First, None);
    }

    #[test]
    fn a_port_that_cannot_be_reached_rests_longer_every_time_and_not_for_ever() {
        let mut routes = routes(&[70, 71]);
        let mut now = 0;
        for rest in [1, 2, 4, 8, 16, 30, 30] {
            check(&mut routes, 1, now, Route::First, Some(71));
            routes.down(71, at(now));
            check(&mut routes, 1, now + rest - 1, Route::First, None);
            now += rest;
        }
        check(&mut routes, 1, now, Route::First, Some(71));
        routes.up(71);
        routes.down(71, at(now));
        check(&mut routes, 1, now + 1, Route::First, Some(71));
    }

    #[test]
    fn a_restart_with_other_shards_replaces_the_table() {
        let mut routes = routes(&[70, 71, 72]);
        for (partition, port) in [(1, 71), (2, 72)] {
            check(&mut routes, partition, 0, Route::First, Some(port));
        }
        routes.up(71);
        routes.down(72, at(0));
        check(&mut routes, 2, 0, Route::First, None);
        // Three again: the port that rested is worth another attempt.
        assert!(routes.greeted(&welcome("c", 0, &[70, 71, 72])).is_empty());
        check(&mut routes, 2, 0, Route::First, Some(72));
        check(&mut routes, 1, 0, Route::Straight(71), None);
        // Two: partition 2 is the first shard's now, and the third port's connection goes.
        assert_eq!(routes.greeted(&welcome("c", 0, &[70, 71])), [72]);
        check(&mut routes, 2, 0, Route::First, None);
        check(&mut routes, 3, 0, Route::Straight(71), None);
        routes.up(72);
        check(&mut routes, 3, 0, Route::Straight(71), None);
        // Another node at the same address: nothing of the old one is trusted.
        assert_eq!(routes.greeted(&welcome("d", 0, &[70, 71])), [71]);
        check(&mut routes, 1, 0, Route::First, Some(71));
    }

    #[test]
    fn a_client_that_began_at_another_shard_needs_no_second_connection_to_it() {
        let mut routes = Routes::default();
        routes.greeted(&welcome("c", 1, &[70, 71]));
        check(&mut routes, 1, 0, Route::First, None);
        check(&mut routes, 0, 0, Route::First, Some(70));
    }

    #[test]
    fn a_partition_that_is_not_where_it_should_be_takes_the_first_for_a_while() {
        let mut routes = routes(&[70, 71]);
        check(&mut routes, 1, 0, Route::First, Some(71));
        routes.up(71);
        routes.strayed(LIFE, PartitionId(1), at(0));
        check(&mut routes, 1, 4, Route::First, None);
        check(&mut routes, 3, 4, Route::Straight(71), None);
        check(&mut routes, 1, 5, Route::Straight(71), None);
        routes.strayed(LIFE, PartitionId(1), at(6));
        routes.learn(&welcome("c", 0, &[70, 71, 72]));
        check(&mut routes, 1, 6, Route::Straight(71), None);
        for partition in 0..10 * STRAYS_MAX as u32 {
            routes.strayed(LIFE, PartitionId(partition), at(6));
        }
        assert!(routes.strays.len() <= STRAYS_MAX);
    }
}
