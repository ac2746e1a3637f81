//! What goes wrong, when it stops going wrong, and when everything has arrived.

use tailwater_node::fanout::cursor::message::Event;
use tailwater_storage::cursor_file::CursorFile;
use tailwater_wire::ids::{Lineage, Offset};

use super::node::Node;
use super::world::{Happening, START, World};

/// How long draining may take beyond the delay, in milliseconds.
const DRAIN_MILLIS: u64 = 60_000;

impl World {
    pub fn schedule_misfortune(&mut self) {
        let mean = self.scenario.chaos_millis;
        if mean > 0 && !self.healed {
            let pause = self.rng.range(1, 2 * mean) * 1_000;
            self.schedule.after_micros(pause, Happening::Misfortune);
        }
    }

    pub fn misfortune(&mut self) {
        if self.healed {
            return;
        }
        let kind = self.rng.range(0, 9);
        self.trace.note(&[15, kind]);
        match kind {
            0..=2 => self.crash_child(),
            3 | 4 => self.crash_node(),
            5 | 6 => self.make_zombie(),
            7 | 8 => self.detach(),
            _ => {
                self.meta.reachable = false;
                let away = self.rng.range(100_000, 2_000_000);
                self.schedule.after_micros(away, Happening::LeaderUp);
            }
        }
        self.schedule_misfortune();
    }

    fn crash_child(&mut self) {
        let child = self.rng.range(0, self.children.len() as u64 - 1) as usize;
        self.children[child].crash();
        let life = self.children[child].life;
        let down = self.rng.range(1_000, 1_500_000);
        self.schedule
            .after_micros(down, Happening::ChildUp { child, life });
    }

    fn crash_node(&mut self) {
        for runner in &mut self.runners {
            runner.dead |= !runner.zombie;
        }
        self.node.crash(&mut self.rng);
        self.removals.iter_mut().for_each(|removal| *removal = None);
        if self.scenario.written {
            let lineage = self.rng.range(1, u64::MAX - 1);
            for parent in &mut self.parents {
                parent.lineage = Lineage::from_u64(lineage);
            }
        }
        for partition in 0..self.scenario.parent_partitions {
            let key = self.key(partition);
            Node::tamper(&mut self.node, &key, &self.meta, &mut self.rng);
        }
        let down = self.rng.range(1_000, 600_000);
        self.schedule.after_micros(down, Happening::NodeUp);
    }

    /// The node loses sight of a cursor that goes on, slowly; it will start another.
    /// Not where retention runs: what removes a partition's segments and what reads them is one process, on one core.
    fn make_zombie(&mut self) {
        if self.scenario.retention {
            return;
        }
        let alive: Vec<usize> = self.node.running.values().map(|&(index, _)| index).collect();
        if !alive.is_empty() {
            let index = self.rng.pick(&alive);
            self.runners[index].zombie = true;
            self.node.forget(index);
        }
    }

    fn detach(&mut self) {
        if self.meta.link().is_none() {
            return;
        }
        self.meta.detach();
        self.announce();
        self.attach_wanted = true;
        let pause = self.rng.range(0, 500_000);
        self.schedule.after_micros(pause, Happening::TryAttach);
    }

    /// Everybody hears of the newest metadata, each at its own time.
    fn announce(&mut self) {
        let version = self.meta.version();
        let most = if self.healed { 10_000 } else { 1_500_000 };
        let way = self.rng.range(100, most);
        self.schedule.after_micros(way, Happening::NodeSees(version));
        for child in 0..self.children.len() {
            let way = self.rng.range(100, most);
            self.schedule
                .after_micros(way, Happening::ChildSees(child, version));
        }
    }

    /// Attaches once the detach before has settled: no cursor of the pair is left on its node, and every child owner
    /// knows that the epoch is gone, so that nothing of it can still be appended.
    pub fn try_attach(&mut self) {
        if !self.attach_wanted {
            return;
        }
        let version = self.meta.version();
        let settled = self.node.up
            && self.node.view == version
            && self.node.running.is_empty()
            && self.node.starting.is_empty()
            && self.children.iter().all(|child| child.view == version);
        if !settled {
            self.schedule.after_micros(20_000, Happening::TryAttach);
            return;
        }
        let earliest = if self.meta.links.is_empty() {
            self.scenario.from_earliest
        } else {
            self.rng.chance(200)
        };
        let offsets: Vec<Offset> = self
            .parents
            .iter()
            .map(|parent| {
                if earliest {
                    parent.log_start
                } else {
                    parent.high_water_mark()
                }
            })
            .collect();
        self.meta.attach(offsets, &self.scenario, &mut self.rng);
        self.attach_wanted = false;
        self.announce();
    }

    pub fn heal(&mut self) {
        self.healed = true;
        self.network.heal();
        self.meta.reachable = true;
        for child in 0..self.children.len() {
            let life = self.children[child].life;
            self.schedule
                .after_micros(1_000, Happening::ChildUp { child, life });
        }
        self.announce();
        let zombies = self.rng.range(0, 3_000_000);
        self.schedule.after_micros(zombies, Happening::KillZombies);
        self.schedule.after_micros(3_200_000, Happening::CheckDrained);
    }

    pub fn check_drained(&mut self) {
        let alive = |partition: usize| {
            self.runners
                .iter()
                .find(|runner| !runner.dead && !runner.zombie && runner.partition as usize == partition)
        };
        let behind = (0..self.parents.len()).find_map(|partition| {
            let end = self.parents[partition].high_water_mark();
            match alive(partition) {
                None => Some(format!("partition {partition}: no cursor")),
                Some(runner) if runner.cursor.position() != end => Some(format!(
                    "partition {partition}: at {} of {end}, {}",
                    runner.cursor.position(),
                    runner
                        .cursor
                        .stalled()
                        .map_or("not stalled".to_owned(), |reason| reason.to_string()),
                )),
                Some(_) => None,
            }
        });
        let deadline = self.scenario.heal_millis + self.scenario.delay.millis + DRAIN_MILLIS;
        match behind {
            None => {
                self.audit();
                self.stop_all();
            }
            Some(what) if self.now().0 > START.0 + deadline * 1_000_000 => {
                self.fail(format!("did not drain: {what}"));
            }
            Some(_) => self.schedule.after_micros(100_000, Happening::CheckDrained),
        }
    }

    /// Ends every cursor, as a shutdown does.
    fn stop_all(&mut self) {
        self.node.up = false;
        for index in 0..self.runners.len() {
            self.step(index, Event::Stop);
        }
        self.schedule.after_micros(1_000_000, Happening::CheckStopped);
    }

    /// Each cursor has ended, and its file holds how far it came.
    pub fn check_stopped(&mut self) {
        self.drained = true;
        if let Some(index) = self.runners.iter().position(|runner| !runner.dead) {
            self.fail(format!("cursor {index} did not stop"));
        }
        let Some(epoch) = self.meta.link().map(|link| link.epoch) else {
            self.fail("drained without a link".to_owned());
            return;
        };
        for partition in 0..self.scenario.parent_partitions {
            let expected = CursorFile::Present {
                epoch,
                next_offset: self.parents[partition as usize].high_water_mark(),
            };
            let file = self.node.read(&self.key(partition));
            if file != expected {
                self.fail(format!(
                    "partition {partition}: the file says {file:?}, not {expected:?}"
                ));
            }
        }
    }
}
