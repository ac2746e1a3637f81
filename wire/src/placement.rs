//! Which shard of a node owns a partition: a pure function, so that a client goes straight to the owner and a node with
//! another number of shards finds every partition again. Nothing of it is stored.

use crate::ids::{Incarnation, PartitionId};

/// The owner among `shards`: the partitions of a topic lie side by side on neighbouring shards, and topics begin on
/// different ones.
///
/// # Panics
/// Without shards.
#[must_use]
pub fn shard_of(incarnation: Incarnation, partition: PartitionId, shards: u32) -> u32 {
    assert!(shards > 0, "a node has shards");
    let first = incarnation.as_u64() % u64::from(shards);
    ((first + u64::from(partition.0)) % u64::from(shards)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partitions_of_a_topic_are_spread_evenly() {
        for (seed, shards) in [(7, 1), (1, 2), (u64::MAX, 3), (12_345, 64)] {
            let incarnation = Incarnation::from_u64(seed);
            let mut owned = vec![0; shards as usize];
            for partition in 0..4 * shards {
                owned[shard_of(incarnation, PartitionId(partition), shards) as usize] += 1;
            }
            assert_eq!(owned, vec![4; shards as usize]);
        }
    }
}
