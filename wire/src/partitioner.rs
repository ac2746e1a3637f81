//! Partitioners: pure functions from a key's hash, or a place in the parent, to a partition.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::{Offset, PartitionId};

/// How a key becomes a 32-bit hash; fixed for the life of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partitioner {
    /// MurmurHash2 (Austin Appleby, public domain) with the seed and sign handling of Apache Kafka's default
    /// partitioner, so that keys land where a Kafka producer would put them.
    #[default]
    Murmur2,
    /// CRC-32C (Castagnoli).
    Crc32c,
    /// The key is the number: decimal digits by value, anything else by its first four bytes, little-endian.
    Identity,
}

/// Not the name of a partitioner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no partitioner: murmur2, crc32c or identity")]
pub struct UnknownPartitioner(String);

impl FromStr for Partitioner {
    type Err = UnknownPartitioner;

    fn from_str(text: &str) -> Result<Partitioner, UnknownPartitioner> {
        match text {
            "murmur2" => Ok(Partitioner::Murmur2),
            "crc32c" => Ok(Partitioner::Crc32c),
            "identity" => Ok(Partitioner::Identity),
            other => Err(UnknownPartitioner(other.to_owned())),
        }
    }
}

impl Partitioner {
    /// The number in batch flags (two bits).
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Partitioner::Murmur2 => 0,
            Partitioner::Crc32c => 1,
            Partitioner::Identity => 2,
        }
    }

    /// The partitioner of a number in batch flags.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Partitioner> {
        match number {
            0 => Some(Partitioner::Murmur2),
            1 => Some(Partitioner::Crc32c),
            2 => Some(Partitioner::Identity),
            _ => None,
        }
    }

    /// The hash of a key.
    #[must_use]
    pub fn hash(self, key: &[u8]) -> u32 {
        match self {
            Partitioner::Murmur2 => murmur2(key),
            Partitioner::Crc32c => crc32c::crc32c(key),
            Partitioner::Identity => identity(key),
        }
    }

    /// The partition of a key's hash among `partitions`.
    #[must_use]
    pub fn partition(self, hash: u32, partitions: u32) -> PartitionId {
        debug_assert!(partitions > 0);
        match self {
            Partitioner::Murmur2 => PartitionId((hash & 0x7fff_ffff) % partitions),
            Partitioner::Crc32c | Partitioner::Identity => PartitionId(hash % partitions),
        }
    }
}

/// The child partition of a record without a key: a pure function of its place in the parent, so that a re-commit
/// goes to the same place (SPEC.md F2).
#[must_use]
pub fn keyless(parent: PartitionId, offset: Offset, partitions: u32) -> PartitionId {
    debug_assert!(partitions > 0);
    let spread = offset.0.wrapping_add(u64::from(parent.0));
    PartitionId((spread % u64::from(partitions)) as u32)
}

/// MurmurHash2, 32 bits, as Apache Kafka computes it (seed 0x9747b28c).
fn murmur2(key: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let mix = |word: u32| {
        let word = word.wrapping_mul(M);
        (word ^ (word >> 24)).wrapping_mul(M)
    };
    let mut hash = SEED ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_mul(M) ^ mix(u32::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        for (i, &byte) in rest.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

fn identity(key: &[u8]) -> u32 {
    let digits = !key.is_empty() && key.len() <= 10 && key.iter().all(u8::is_ascii_digit);
    if digits {
        return key.iter().fold(0u64, |n, &d| n * 10 + u64::from(d - b'0')) as u32;
    }
    let mut first = [0u8; 4];
    let n = key.len().min(4);
    first[..n].copy_from_slice(&key[..n]);
    u32::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Apache Kafka's own UtilsTest for murmur2.
    #[test]
    fn murmur2_agrees_with_kafka() {
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn identity_reads_digits_as_a_number() {
        assert_eq!(identity(b"7"), 7);
        assert_eq!(identity(b"4294967296"), 0);
        assert_eq!(identity(b"A"), u32::from(b'A'));
        assert_eq!(identity(b""), 0);
    }

    #[test]
    fn keyless_records_spread_and_stay() {
        let place = |offset| keyless(PartitionId(3), Offset(offset), 5);
        assert_eq!(place(12), place(12));
        let hit: std::collections::BTreeSet<_> = (0..5).map(place).collect();
        assert_eq!(hit.len(), 5);
        assert!(keyless(PartitionId(1), Offset(u64::MAX), 3).0 < 3);
    }
}
