//! Where a parent record goes among the child's partitions: a pure function of the record and its place.

use tailwater_wire::batch::view::RecordView;
use tailwater_wire::ids::PartitionId;
use tailwater_wire::partitioner::{Partitioner, keyless};

/// The child's side of a link: how its keys are hashed, and over how many partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rekey {
    /// The child's partitioner.
    pub partitioner: Partitioner,
    /// The child's partitions.
    pub partitions: u32,
    /// The parent partition that is read.
    pub parent: PartitionId,
}

/// A record's place in the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The key's hash by the child's partitioner; 0 without a key.
    pub key_hash: u32,
    /// The child partition.
    pub partition: PartitionId,
}

impl Rekey {
    /// Places a record of a parent batch whose key hashes are by `stored`. When the partitioners agree the stored
    /// hash is used and the key is not looked at.
    #[must_use]
    pub fn place(&self, record: &RecordView<'_>, stored: Partitioner) -> Placement {
        let Some(key) = record.key else {
            return Placement {
                key_hash: 0,
                partition: keyless(self.parent, record.offset, self.partitions),
            };
        };
        let key_hash = if stored == self.partitioner {
            record.key_hash
        } else {
            self.partitioner.hash(key)
        };
        Placement {
            key_hash,
            partition: self.partitioner.partition(key_hash, self.partitions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_wire::ids::Offset;
    use tailwater_wire::record::HeaderIter;

    fn record(key: Option<&'static [u8]>, offset: u64, key_hash: u32) -> RecordView<'static> {
        RecordView {
            offset: Offset(offset),
            key,
            value: b"v",
            timestamp: 0,
            key_hash,
            headers: HeaderIter::new(&[]),
            origin: None,
        }
    }

    fn rekey(partitioner: Partitioner) -> Rekey {
        Rekey {
            partitioner,
            partitions: 5,
            parent: PartitionId(3),
        }
    }

    #[test]
    fn a_stored_hash_is_used_when_the_partitioners_agree() {
        let placed = rekey(Partitioner::Crc32c).place(&record(Some(b"key"), 9, 12), Partitioner::Crc32c);
        assert_eq!((placed.key_hash, placed.partition), (12, PartitionId(2)));
    }

    #[test]
    fn another_partitioner_hashes_the_key_again() {
        let placed = rekey(Partitioner::Identity).place(&record(Some(b"13"), 9, 12), Partitioner::Crc32c);
        assert_eq!((placed.key_hash, placed.partition), (13, PartitionId(3)));
    }

    #[test]
    fn without_a_key_the_place_in_the_parent_decides() {
        let place =
            |offset| rekey(Partitioner::Murmur2).place(&record(None, offset, 0), Partitioner::Murmur2);
        assert_eq!(place(10).partition, keyless(PartitionId(3), Offset(10), 5));
        assert_ne!(place(10).partition, place(11).partition);
        assert_eq!(place(10).key_hash, 0);
    }
}
