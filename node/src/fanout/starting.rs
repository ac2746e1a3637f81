//! Starts cursors, many at once: each where its file says, or where the metadata leader confirms that it attached.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tailwater_storage::cursor_file::{self, CursorFile};
use tailwater_storage::layout::CursorPath;
use tailwater_storage::proof::LeaderConfirmed;
use tailwater_wire::ids::{Offset, OriginId, TopicName};
use tailwater_wire::limits::BATCH_BYTES_MAX;

use crate::config::FanoutConfig;
use crate::fanout::anchor::{Anchor, Confirmation, Facts, anchor};
use crate::fanout::batch::Cutter;
use crate::fanout::cursor::state::CursorConfig;
use crate::fanout::desired::{CursorKey, CursorSpec};
use crate::fanout::filter::Filter;
use crate::fanout::ledger;
use crate::fanout::rekey::Rekey;
use crate::fanout::runner::{Positions, Runner, RunnerSetup};
use crate::fanout::shared::Shared;
use crate::partition::owner::Partition;
use crate::signal::Signal;

/// Cursors that are anchored at the same time: their files are read and written side by side, and those of one directory
/// share its flush.
const START_AT_ONCE: usize = 64;

/// Starts cursors on one shard.
pub struct Starter {
    /// What all cursors share.
    pub shared: Rc<Shared>,
    /// Bounds of slabs.
    pub config: FanoutConfig,
    /// Where cursors say that their files lag.
    pub positions: Rc<Positions>,
}

impl Starter {
    /// Anchors and starts these, and hands each to `started` as soon as it runs; returns when all are decided. What cannot
    /// be decided yet is left out, and tried again by a later pass. `wanted` is asked before each and again when it is ready:
    /// the link may have gone meanwhile.
    pub async fn start_all(
        self: Rc<Starter>,
        starts: Vec<(CursorKey, CursorSpec)>,
        wanted: impl Fn(&CursorKey, &CursorSpec) -> bool + 'static,
        started: impl Fn(CursorKey, &CursorSpec, Rc<Runner>) + 'static,
    ) {
        let workers = starts.len().min(START_AT_ONCE);
        let starts = Rc::new(RefCell::new(VecDeque::from(starts)));
        let told = Rc::new((wanted, started));
        let words = Rc::new(Words::default());
        let work = |_| {
            let (this, starts) = (Rc::clone(&self), Rc::clone(&starts));
            let (words, told) = (Rc::clone(&words), Rc::clone(&told));
            glommio::spawn_local(async move {
                let (wanted, started) = &*told;
                loop {
                    let next = starts.borrow_mut().pop_front();
                    let Some((key, spec)) = next else { return };
                    if !wanted(&key, &spec) {
                        continue;
                    }
                    let setup = this.prepare(&key, &spec, &words).await;
                    if let Some(setup) = setup.filter(|_| wanted(&key, &spec)) {
                        let runner = Runner::start(Rc::clone(&this.shared), setup);
                        started(key, &spec, runner);
                    }
                    glommio::yield_if_needed().await;
                }
            })
        };
        let workers: Vec<_> = (0..workers).map(work).collect();
        for worker in workers {
            worker.await;
        }
    }

    /// Everything that a cursor needs to run; `None` when it cannot start yet.
    async fn prepare(&self, key: &CursorKey, spec: &CursorSpec, words: &Words) -> Option<RunnerSetup> {
        let partitions = &self.shared.partitions;
        let incarnation = Some(spec.identity.parent_incarnation);
        let parent = partitions.find(&key.parent, incarnation, key.partition).ok()?;
        let filter = match spec.options.filter.as_deref().map(Filter::parse).transpose() {
            Ok(filter) => filter,
            Err(error) => {
                tracing::error!(parent = %key.parent, child = %key.child, %error, "a link's filter cannot be read");
                return None;
            }
        };
        let at = CursorPath::new(partitions.data(), &key.parent, key.partition, &key.child);
        let start = self.anchor(key, spec, &parent, &at, words).await?;
        let (epoch, log_start) = (spec.identity.epoch, parent.log.log_start());
        let gaps = match ledger::ledger(&self.shared, &at, epoch, start, log_start).await {
            Ok(gaps) => gaps,
            Err(error) => {
                tracing::warn!(%error, parent = %key.parent, child = %key.child, "a cursor's gap ledger cannot be used; trying again");
                return None;
            }
        };
        let origin = OriginId {
            epoch: spec.identity.epoch,
            partition: key.partition,
        };
        let config = CursorConfig {
            delay: spec.options.delay,
            linger_millis: spec.options.linger_millis,
            slab_records_max: self.config.max_batch_records,
            slab_bytes_max: self.config.max_batch_bytes,
            gaps,
            ..CursorConfig::new(origin, parent.log.lineage(), spec.child_partitions, start)
        };
        let rekey = Rekey {
            partitioner: spec.child_partitioner,
            partitions: spec.child_partitions,
            parent: key.partition,
        };
        Some(RunnerSetup {
            parent,
            child: key.child.clone(),
            index: spec.index,
            file: at,
            filter,
            cutter: Cutter::new(rekey, BATCH_BYTES_MAX),
            config,
            positions: Rc::clone(&self.positions),
        })
    }

    /// Where a cursor starts, which is what its file then holds; `None` when that cannot be said yet.
    async fn anchor(
        &self,
        key: &CursorKey,
        spec: &CursorSpec,
        parent: &Partition,
        at: &CursorPath,
        words: &Words,
    ) -> Option<Offset> {
        let counters = self.shared.partitions.counters();
        let disk = self.shared.partitions.disk();
        let file = match cursor_file::read(disk, at).await {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(%error, "a cursor file cannot be read; trying again");
                return None;
            }
        };
        if let CursorFile::Damaged(why) = &file {
            tracing::warn!(parent = %key.parent, partition = key.partition.0, child = %key.child, why, "a cursor file is damaged");
        }
        let (epoch, attach_offset) = (spec.identity.epoch, spec.attach_offset);
        let facts = Facts {
            parent: &key.parent,
            child: &key.child,
            epoch,
            attach_offset,
            high_water_mark: parent.log.high_water_mark(),
            file: &file,
        };
        let word;
        let mut decided = anchor(&facts, Confirmation::NotAsked);
        if decided == Anchor::Ask {
            word = words.of(&self.shared, &key.parent, &key.child).await;
            let said = word
                .as_ref()
                .map_or(Confirmation::Unavailable, Confirmation::Leader);
            decided = anchor(&facts, said);
        }
        match decided {
            Anchor::Resume(offset) => {
                counters.anchor_resumed.add(1);
                Some(offset)
            }
            Anchor::StartAt { offset, proof } => {
                let unique = self.shared.unique();
                match cursor_file::start(disk, at, unique, epoch, offset, &file, proof).await {
                    Ok(()) => {
                        counters.anchor_started.add(1);
                        Some(offset)
                    }
                    Err(error) => {
                        tracing::warn!(%error, parent = %key.parent, child = %key.child, "a cursor file cannot be written; trying again");
                        None
                    }
                }
            }
            Anchor::PositionAhead(offset) => {
                // The cursor runs, stands still, and says why: `link list` shows it.
                counters.anchor_stale.add(1);
                Some(offset)
            }
            Anchor::StaleEpoch => {
                counters.anchor_stale.add(1);
                None
            }
            Anchor::Ask | Anchor::Defer => {
                counters.anchor_deferred.add(1);
                None
            }
        }
    }
}

/// The leader's word on each pair, asked at most once in a pass, however many cursors of it start.
#[derive(Default)]
struct Words(RefCell<BTreeMap<(TopicName, TopicName), Rc<Word>>>);

#[derive(Default)]
struct Word {
    /// Nothing while it is being asked for; then the word, or that there is none.
    said: RefCell<Option<Option<LeaderConfirmed>>>,
    heard: Signal,
}

impl Words {
    async fn of(&self, shared: &Shared, parent: &TopicName, child: &TopicName) -> Option<LeaderConfirmed> {
        self.ask(parent, child, || async {
            shared.confirm_link(parent, child).await.ok()
        })
        .await
    }

    async fn ask<F: Future<Output = Option<LeaderConfirmed>>>(
        &self,
        parent: &TopicName,
        child: &TopicName,
        leader: impl FnOnce() -> F,
    ) -> Option<LeaderConfirmed> {
        let pair = (parent.clone(), child.clone());
        let known = self.0.borrow().get(&pair).cloned();
        let word = match known {
            Some(word) => {
                word.heard.until(|| word.said.borrow().is_some()).await;
                word
            }
            None => {
                let word = Rc::new(Word::default());
                self.0.borrow_mut().insert(pair, Rc::clone(&word));
                let said = leader().await;
                word.said.replace(Some(said));
                word.heard.notify();
                word
            }
        };
        let said = word.said.borrow().clone();
        said.flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once, yield_now};
    use tailwater_wire::ids::Epoch;

    use super::*;

    #[test]
    fn the_leader_is_asked_once_for_each_pair_however_many_wait() {
        let name = |text: &str| text.parse::<TopicName>().expect("a name");
        let (ticks, copy, other) = (name("ticks"), name("copy"), name("other"));
        let (words, asked) = (Words::default(), Cell::new(0));
        let ask = |child: &TopicName, current| {
            asked.set(asked.get() + 1);
            let word = LeaderConfirmed::by_leader(ticks.clone(), child.clone(), current, 5);
            async move {
                yield_now().await;
                Some(word)
            }
        };
        let epoch = Some(Epoch::from_u64(1));
        let mut first = pin!(words.ask(&ticks, &copy, || ask(&copy, epoch)));
        let mut second = pin!(words.ask(&ticks, &copy, || ask(&copy, None)));
        assert!(block_on(poll_once(first.as_mut())).is_none());
        assert!(block_on(poll_once(second.as_mut())).is_none());
        let (first, second) = (block_on(first), block_on(second));
        assert_eq!(first.and_then(|word| word.current()), epoch);
        assert_eq!(second.and_then(|word| word.current()), epoch, "the same word");
        assert_eq!(asked.get(), 1);
        let none = block_on(words.ask(&ticks, &other, || async { None }));
        assert!(none.is_none());
        let again = block_on(words.ask(&ticks, &other, || ask(&other, epoch)));
        assert!(again.is_none(), "no word is not asked for again in this pass");
    }
}
