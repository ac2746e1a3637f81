//! Which shard of this node owns a partition, as one shard asks it.

use tailwater_wire::ids::{Incarnation, PartitionId};
use tailwater_wire::placement::shard_of;

/// A shard's place among the shards of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// This shard.
    pub shard: u32,
    /// All of them.
    pub shards: u32,
}

impl Placement {
    /// The only shard of a node.
    pub const ALONE: Placement = Placement { shard: 0, shards: 1 };

    /// The shard that owns a partition.
    #[must_use]
    pub fn owner(self, incarnation: Incarnation, partition: PartitionId) -> u32 {
        shard_of(incarnation, partition, self.shards)
    }

    /// Whether this shard does.
    #[must_use]
    pub fn is_mine(self, incarnation: Incarnation, partition: PartitionId) -> bool {
        self.owner(incarnation, partition) == self.shard
    }
}
