//! The values that a destructive move asks for: what the metadata leader confirmed, and what children
//! acknowledged.
//!
//! All have private fields and are consumed by reference: none can be made by accident. `by_leader` is for the
//! metastore's handle alone, which calls it with what a linearizable read on the leader returned; a local
//! replica, a cached snapshot or a timeout is no such verdict (SPEC.md F7).

use std::collections::BTreeMap;

use tailwater_wire::ids::{Epoch, Incarnation, Offset, TopicName};
use tailwater_wire::mutant::{Mutant, planted};

/// The metadata leader's word on one pair of topics: which epoch links them, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderConfirmed {
    parent: TopicName,
    child: TopicName,
    current: Option<Epoch>,
    index: u64,
}

impl LeaderConfirmed {
    /// What a linearizable read on the leader returned for this pair, at this metadata index. Only for the
    /// metastore's handle.
    #[must_use]
    pub fn by_leader(
        parent: TopicName,
        child: TopicName,
        current: Option<Epoch>,
        index: u64,
    ) -> LeaderConfirmed {
        LeaderConfirmed {
            parent,
            child,
            current,
            index,
        }
    }

    /// Whether this is about that pair.
    #[must_use]
    pub fn is_about(&self, parent: &TopicName, child: &TopicName) -> bool {
        self.parent == *parent && self.child == *child
    }

    /// The epoch that links the pair; `None` when nothing does.
    #[must_use]
    pub fn current(&self) -> Option<Epoch> {
        self.current
    }

    /// The metadata index that it was true at.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }
}

/// The metadata leader's word that no live link of the cluster has an epoch. Epochs are drawn once and never
/// come back, so this stays true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochGone {
    epoch: Epoch,
    index: u64,
}

impl EpochGone {
    /// What a linearizable read on the leader returned, at this metadata index. Only for the metastore's
    /// handle.
    #[must_use]
    pub fn by_leader(epoch: Epoch, index: u64) -> EpochGone {
        EpochGone { epoch, index }
    }

    /// The epoch that is gone.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The metadata index that it was true at.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }
}

/// The metadata leader's word that a topic's incarnation was deleted. Incarnations never come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicGone {
    topic: TopicName,
    incarnation: Incarnation,
    index: u64,
}

impl TopicGone {
    /// What a linearizable read on the leader returned, at this metadata index. Only for the metastore's
    /// handle.
    #[must_use]
    pub fn by_leader(topic: TopicName, incarnation: Incarnation, index: u64) -> TopicGone {
        TopicGone {
            topic,
            incarnation,
            index,
        }
    }

    /// The topic's name; another topic may bear it by now.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The life that ended.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The metadata index that it was true at.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }
}

/// For every live link of a parent partition it is durable what its child partitions lose of the records below an
/// offset: the segments that end there may go (SPEC.md F9). Only for the accounting of the core that owns the
/// partition, which makes it when the last ledger is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounted {
    through: Offset,
}

impl Accounted {
    /// What the accounting found stored for every live link, if there are any.
    #[must_use]
    pub fn by_ledgers(through: Offset) -> Accounted {
        Accounted { through }
    }

    /// Everything below is accounted for.
    #[must_use]
    pub fn through(&self) -> Offset {
        self.through
    }
}

/// A position that every child partition has acknowledged: what a cursor file may be moved to. Made by
/// [`Acknowledged`] alone, so that nothing is persisted that was only sent (SPEC.md F2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Persist {
    epoch: Epoch,
    next_offset: Offset,
}

impl Persist {
    /// The attachment that was acknowledged under.
    #[must_use]
    pub fn epoch(self) -> Epoch {
        self.epoch
    }

    /// Everything below this parent offset is durable in every child partition, filtered or counted as dropped.
    #[must_use]
    pub fn next_offset(self) -> Offset {
        self.next_offset
    }
}

/// How far each child partition has acknowledged one cursor, and the lowest of these. Lives with its cursor, on
/// the core that owns the parent's partition.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    epoch: Epoch,
    /// By child partition. Never falls.
    positions: Vec<Offset>,
    /// How many child partitions stand at each position: its first key is the lowest. The counts add up to
    /// `positions.len()`.
    standing: BTreeMap<Offset, usize>,
    /// What the last [`Persist`] said, or the start.
    persisted: Offset,
}

impl Acknowledged {
    /// A cursor that starts at an offset for all of its child's partitions.
    ///
    /// # Panics
    /// When there are no child partitions.
    #[must_use]
    pub fn start(epoch: Epoch, start: Offset, child_partitions: usize) -> Acknowledged {
        assert!(child_partitions > 0, "a topic has at least one partition");
        Acknowledged {
            epoch,
            positions: vec![start; child_partitions],
            standing: BTreeMap::from([(start, child_partitions)]),
            persisted: start,
        }
    }

    /// A child partition acknowledged, as flushed, everything below `through` (its answer to a commit, or the
    /// flushed watermark that it named when it was opened). An older answer than one already heard changes
    /// nothing.
    ///
    /// Returns the new lowest position when it has risen.
    ///
    /// # Panics
    /// When the child has no such partition.
    pub fn acknowledge(&mut self, child_partition: usize, through: Offset) -> Option<Persist> {
        let position = &mut self.positions[child_partition];
        if through <= *position {
            return None;
        }
        let before = std::mem::replace(position, through);
        if let Some(count) = self.standing.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.standing.remove(&before);
            }
        }
        *self.standing.entry(through).or_insert(0) += 1;
        let lowest = if planted(Mutant::AdvanceBeforeLastAcknowledgement) {
            self.persisted.max(through)
        } else {
            self.lowest()
        };
        if lowest == self.persisted {
            return None;
        }
        assert!(lowest > self.persisted, "positions never fall");
        self.persisted = lowest;
        Some(Persist {
            epoch: self.epoch,
            next_offset: lowest,
        })
    }

    /// How far one child partition has acknowledged.
    ///
    /// # Panics
    /// When the child has no such partition.
    #[must_use]
    pub fn position(&self, child_partition: usize) -> Offset {
        self.positions[child_partition]
    }

    /// The lowest position of all child partitions.
    #[must_use]
    pub fn lowest(&self) -> Offset {
        self.standing
            .first_key_value()
            .map_or(self.persisted, |(&offset, _)| offset)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EPOCH: Epoch = Epoch([7; 8]);

    #[test]
    fn the_slowest_child_partition_holds_the_position() {
        let mut acknowledged = Acknowledged::start(EPOCH, Offset(10), 2);
        assert_eq!(acknowledged.acknowledge(0, Offset(90)), None);
        let persist = acknowledged.acknowledge(1, Offset(40)).expect("both moved");
        assert_eq!((persist.epoch(), persist.next_offset()), (EPOCH, Offset(40)));
        assert_eq!(acknowledged.acknowledge(1, Offset(30)), None, "a late answer");
        let persist = acknowledged.acknowledge(1, Offset(95)).expect("moved");
        assert_eq!(persist.next_offset(), Offset(90));
    }

    proptest! {
        #[test]
        fn the_lowest_is_the_minimum(acks in prop::collection::vec((0usize..4, 0u64..50), 0..100)) {
            let mut acknowledged = Acknowledged::start(EPOCH, Offset(5), 4);
            let mut naive = [5u64; 4];
            for (partition, through) in acks {
                let before = naive.iter().min().copied();
                naive[partition] = naive[partition].max(through);
                let after = naive.iter().min().copied();
                let persist = acknowledged.acknowledge(partition, Offset(through));
                prop_assert_eq!(persist.map(|p| p.next_offset().0), if before == after { None } else { after });
                prop_assert_eq!(Some(acknowledged.lowest().0), after);
            }
        }
    }
}
