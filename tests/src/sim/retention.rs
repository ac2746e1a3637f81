//! A parent's retention, as the node's driver has it: what is about to go is counted for the link that the node knows,
//! the ledger is stored, and then it goes. A crash may come in between; the children stall and lag meanwhile.

use tailwater_node::fanout::cursor::message::Event;
use tailwater_node::fanout::desired::{CursorKey, CursorSpec, of_partition};
use tailwater_node::fanout::diff::{Sweep, sweep};
use tailwater_node::fanout::filter::Filter;
use tailwater_node::fanout::gaps::{Count, Doomed, first_ledger, note};
use tailwater_node::fanout::rekey::Rekey;
use tailwater_storage::cursor_file::CursorFile;
use tailwater_storage::gap_file::GapFile;
use tailwater_wire::ids::{Offset, PartitionId};

use super::options::Bug;
use super::world::{Happening, World};

/// So often a removal waits for a cursor that should run.
const PATIENCE: u32 = 2;

/// A removal that is being accounted for.
#[derive(Debug)]
pub(super) struct Removal {
    to: Offset,
    link: Option<(CursorKey, CursorSpec)>,
    /// The cursor that was asked where it stands, and what it said.
    runner: Option<usize>,
    doomed: Option<Doomed>,
}

impl World {
    /// Retention leaves so many batches, if what goes can be accounted for.
    pub fn expire(&mut self, partition: usize, keep: usize) {
        let expired = self.parents[partition].expired(keep);
        let Some(to) = expired.filter(|_| self.node.up && self.removals[partition].is_none()) else {
            return;
        };
        let link = self.known_link(partition);
        let mut removal = Removal {
            to,
            runner: None,
            doomed: None,
            link,
        };
        if let Some((key, spec)) = &removal.link {
            let running = self.node.running.get(key);
            let running =
                running.filter(|(_, running)| !running.stopping && running.identity == spec.identity);
            let index = running.map(|&(index, _)| index);
            let asked = index.and_then(|index| Some((index, self.runners[index].cursor.doom(to)?)));
            match asked {
                Some((index, doomed)) => {
                    removal.runner = Some(index);
                    removal.doomed = Some(doomed);
                }
                None if self.waited[partition] < PATIENCE => {
                    self.waited[partition] += 1;
                    return;
                }
                None => {
                    let position = match self.node.read(key) {
                        CursorFile::Present { epoch, next_offset } if epoch == spec.identity.epoch => {
                            next_offset
                        }
                        _ => spec.attach_offset,
                    };
                    removal.doomed = Some(Doomed::unheard(to, position, spec.child_partitions));
                }
            }
        }
        self.waited[partition] = 0;
        if self.scenario.bug == Some(Bug::CountAfterRemoval) {
            self.parents[partition].log_start = to;
        }
        self.removals[partition] = Some(removal);
        let takes = self.rng.range(10, 60_000);
        let life = self.node.life;
        self.schedule
            .after_micros(takes, Happening::Counted(partition, life));
    }

    fn known_link(&self, partition: usize) -> Option<(CursorKey, CursorSpec)> {
        let snapshot = &self.meta.snapshots[self.node.view as usize];
        let id = PartitionId(partition as u32);
        of_partition(snapshot, &self.meta.parent, id).pop_first()
    }

    /// Everything that goes was read: the ledger is stored, and the cursor hears of it.
    pub fn counted(&mut self, partition: usize, life: u64) {
        let Some(removal) = self.removals[partition].take().filter(|_| self.node.life == life) else {
            return;
        };
        let goes = self.known_link(partition) == removal.link && self.account(partition, &removal);
        self.trace.note(&[17, removal.to.0, u64::from(goes)]);
        if goes {
            self.removals[partition] = Some(removal);
            let takes = self.rng.range(10, 30_000);
            self.schedule
                .after_micros(takes, Happening::Remove(partition, life));
        }
    }

    /// Whether what the link loses is stored, if there is one.
    fn account(&mut self, partition: usize, removal: &Removal) -> bool {
        let (Some((key, spec)), Some(doomed)) = (&removal.link, &removal.doomed) else {
            return true;
        };
        let parent = &self.parents[partition];
        let epoch = spec.identity.epoch;
        let seen = self.node.gap_file(key);
        let own = seen.of(epoch).cloned();
        let is_new = own.is_none();
        let mut gaps = own.unwrap_or_else(|| first_ledger(spec.attach_offset, parent.log_start));
        let mut filtered = 0;
        if !doomed.is_passed() {
            let rekey = Rekey {
                partitioner: spec.child_partitioner,
                partitions: spec.child_partitions,
                parent: key.partition,
            };
            let mut doomed = doomed.clone();
            if self.scenario.bug == Some(Bug::ForgetInFlight) {
                for standing in &mut doomed.buckets {
                    standing.ends = Some(Vec::new());
                }
            }
            let filter = spec.options.filter.as_deref();
            let filter = filter.map(|text| Filter::parse(text).expect("the scenario's filters are sound"));
            let mut count = Count::new(rekey, doomed.clone(), gaps.through.max(parent.log_start));
            for batch in parent.batches_of(count.next(), removal.to) {
                let end = batch.header.end_offset();
                let read = count.slab(std::slice::from_ref(&batch.bytes), end, filter.as_ref());
                read.expect("the parent's batches are sound");
            }
            let counted = count.finish();
            filtered = counted.filtered;
            note(&mut gaps, &doomed, counted.gaps, parent.log_start);
        }
        let needed = is_new || !doomed.is_passed();
        let word = self.meta.reachable.then(|| self.meta.confirm());
        let stored = !needed || self.node.put_gaps(key, epoch, &gaps, &seen, word.as_ref());
        if stored && is_new && gaps.since > Offset::ZERO {
            self.node.uncounted.insert((epoch, key.partition), gaps.since);
        }
        // Whichever cursor runs by now hears of it.
        let running = self.node.running.get(key);
        let running = running.filter(|(_, running)| !running.stopping && running.identity == spec.identity);
        if let Some(&(index, _)) = running {
            let event = if stored && !doomed.is_passed() {
                let filtered = if removal.runner == Some(index) {
                    filtered
                } else {
                    0
                };
                Event::Accounted { gaps, filtered }
            } else {
                Event::Spared
            };
            self.step(index, event);
        }
        stored
    }

    /// The segments go.
    pub fn remove(&mut self, partition: usize, life: u64) {
        let Some(removal) = self.removals[partition].take().filter(|_| self.node.life == life) else {
            return;
        };
        let parent = &mut self.parents[partition];
        parent.log_start = parent.log_start.max(removal.to);
    }

    /// Removes the ledger of a link that is gone.
    pub fn sweep_ledger(&mut self, key: &CursorKey) {
        let seen = self.node.gap_file(key);
        let file = match &seen {
            GapFile::Absent => CursorFile::Absent,
            GapFile::Damaged(why) => CursorFile::Damaged(why),
            GapFile::Present { epoch, gaps } => CursorFile::Present {
                epoch: *epoch,
                next_offset: gaps.through,
            },
        };
        let desired = self.node.reconciler.desired().contains_key(key);
        let in_use = desired || self.node.running.contains_key(key);
        if sweep(key, &file, in_use, None) != Sweep::Ask || !self.meta.reachable {
            return;
        }
        let word = self.meta.confirm();
        if let Sweep::Remove(proof) = sweep(key, &file, in_use, Some(&word)) {
            self.node.remove_gaps(key, &seen, proof);
        }
    }
}
