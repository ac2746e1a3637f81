//! The node's passes: cursors that the reconciler starts and stops, where they are anchored, and files that are swept.

use tailwater_node::fanout::anchor::{Anchor, Confirmation, Facts, anchor};
use tailwater_node::fanout::cursor::message::Event;
use tailwater_node::fanout::desired::{CursorKey, CursorSpec};
use tailwater_node::fanout::diff::{Running, Sweep, sweep};
use tailwater_storage::cursor_file::CursorFile;
use tailwater_storage::gaps::Gaps;
use tailwater_storage::proof::LeaderConfirmed;
use tailwater_wire::ids::Offset;

use super::node::Starting;
use super::options::Bug;
use super::runner::Runner;
use super::world::{Happening, World};

/// How long a start waits for the leader.
const LEADER_TIMEOUT_MICROS: u64 = 500_000;
/// Between two passes of the reconciler; production takes 1 s.
const PASS_MICROS: u64 = 200_000;

impl World {
    pub fn pass(&mut self) {
        self.reconcile();
        self.schedule.after_micros(PASS_MICROS, Happening::Pass);
    }

    pub fn reconcile(&mut self) {
        if !self.node.up {
            return;
        }
        let snapshot = &self.meta.snapshots[self.node.view as usize];
        let parent = &self.meta.parent;
        let exists = self.node.exists();
        let pass = self.node.reconciler.pass(
            snapshot,
            self.node.owned_version,
            |topic, _| topic == parent,
            &exists,
        );
        for key in pass.stop {
            if let Some((index, running)) = self.node.running.get_mut(&key) {
                running.stopping = true;
                let index = *index;
                self.step(index, Event::Stop);
            }
        }
        for (key, spec) in pass.start {
            self.start(key, spec);
        }
        if pass.sweep {
            self.sweep();
        }
    }

    fn start(&mut self, key: CursorKey, spec: CursorSpec) {
        if let Some(starting) = self.node.starting.get(&key)
            && starting.spec.identity == spec.identity
        {
            return;
        }
        let file = self.node.read(&key);
        self.askings += 1;
        let starting = Starting {
            spec,
            file,
            asking: self.askings,
        };
        self.anchor(&key, starting, Confirmation::NotAsked);
    }

    pub fn on_start_word(&mut self, key: &CursorKey, asking: u64, word: Option<&LeaderConfirmed>) {
        let current = self.node.starting.get(key);
        if current.is_none_or(|starting| starting.asking != asking) {
            return;
        }
        let Some(starting) = self.node.starting.remove(key) else {
            return;
        };
        let wanted = self.node.reconciler.desired().get(key);
        if wanted.map(|spec| spec.identity) == Some(starting.spec.identity) {
            let confirmation = word.map_or(Confirmation::Unavailable, Confirmation::Leader);
            self.anchor(key, starting, confirmation);
        }
    }

    fn anchor(&mut self, key: &CursorKey, starting: Starting, confirmation: Confirmation<'_>) {
        let partition = key.partition.0;
        let high_water_mark = self.parents[partition as usize].high_water_mark();
        let facts = Facts {
            parent: &key.parent,
            child: &key.child,
            epoch: starting.spec.identity.epoch,
            attach_offset: starting.spec.attach_offset,
            high_water_mark,
            file: &starting.file,
        };
        let mut decided = anchor(&facts, confirmation);
        match (self.scenario.bug, &starting.file) {
            (Some(Bug::ResumeOtherEpoch), CursorFile::Present { next_offset, .. }) => {
                decided = Anchor::Resume(*next_offset);
            }
            (Some(Bug::AnchorAtTail), CursorFile::Absent) => {
                if let Anchor::StartAt { offset, .. } = &mut decided {
                    *offset = high_water_mark;
                }
            }
            _ => {}
        }
        self.trace
            .note(&[12, u64::from(partition), decided.verdict().len() as u64]);
        match decided {
            Anchor::Resume(offset) => self.launch(key, &starting, offset),
            Anchor::StartAt { offset, proof } => {
                let epoch = starting.spec.identity.epoch;
                if self.node.write_start(key, epoch, offset, &starting.file, proof) {
                    self.launch(key, &starting, offset);
                }
            }
            Anchor::Ask => {
                let asking = starting.asking;
                self.node.starting.insert(key.clone(), starting);
                let way = self.rng.range(50, 30_000);
                if !self.rng.chance(self.scenario.loss) || self.healed {
                    self.schedule
                        .after_micros(way, Happening::AskStart(key.clone(), asking));
                }
                self.schedule.after_micros(
                    LEADER_TIMEOUT_MICROS,
                    Happening::StartWord(key.clone(), asking, None),
                );
            }
            Anchor::Defer | Anchor::StaleEpoch => {}
            Anchor::PositionAhead(offset) => {
                self.fail(format!(
                    "partition {partition}: position {offset} ahead at the start"
                ));
            }
        }
    }

    fn launch(&mut self, key: &CursorKey, starting: &Starting, start: Offset) {
        let partition = key.partition.0;
        let parent = &self.parents[partition as usize];
        let lineage = parent.lineage;
        let now = self.now();
        let epoch = starting.spec.identity.epoch;
        let Some(mut gaps) = self.node.ledger(key, epoch, start, parent.log_start, &self.meta) else {
            return;
        };
        if self.scenario.bug == Some(Bug::ForgetLedger) {
            gaps = Gaps::default();
        }
        let start = (start, gaps);
        let from = start.0;
        let runner = Runner::new(&self.scenario, &starting.spec, partition, lineage, start, now);
        let index = self.runners.len();
        self.trace.note(&[13, index as u64, from.0]);
        let running = Running {
            identity: starting.spec.identity,
            stopping: false,
        };
        self.runners.push(runner);
        self.node.running.insert(key.clone(), (index, running));
        self.step(index, Event::Tick);
    }

    fn sweep(&mut self) {
        for partition in 0..self.scenario.parent_partitions {
            let key = self.key(partition);
            self.sweep_ledger(&key);
            let file = self.node.read(&key);
            let desired = self.node.reconciler.desired().contains_key(&key);
            let in_use = desired || self.node.running.contains_key(&key);
            if sweep(&key, &file, in_use, None) != Sweep::Ask || !self.meta.reachable {
                continue;
            }
            let word = self.meta.confirm();
            if let Sweep::Remove(proof) = sweep(&key, &file, in_use, Some(&word)) {
                let removed = self.node.remove(&key, &file, proof);
                self.trace.note(&[14, u64::from(partition), u64::from(removed)]);
            }
        }
    }
}
