//! How one value stands in the metastore's file, and a whole snapshot on its way to another node: JSON behind a
//! checked header.
//!
//! ```text
//! offset  size  what
//!      0     2  "TM"
//!      2     1  format version, 1
//!      3     1  kind of value
//!      4     4  CRC-32C of bytes 0..4 and of the body, little-endian
//!      8     -  body: JSON, without a trailing newline
//! ```
//!
//! JSON, because these values are few and small, are read by people in bad times, and get new fields over the years.
//! Within a format version, variants and fields are only added, and a new field must be one that a reader may leave
//! out and an older reader may ignore. Everything else is a new format version.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tailwater_wire::checksum;

/// The newest format that is read, and the one that is written.
pub const FORMAT: u8 = 1;

const MAGIC: [u8; 2] = *b"TM";
const HEADER_BYTES: usize = 8;

/// What a value is; one that stands in the place of another kind is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Who the node is.
    Identity = 1,
    /// A log entry.
    Entry = 2,
    /// A vote.
    Vote = 3,
    /// A log id.
    LogId = 4,
    /// What was applied last, and the membership.
    Applied = 5,
    /// A topic.
    Topic = 6,
    /// A link.
    Link = 7,
    /// The result of a request.
    RequestResult = 8,
    /// All of the metadata.
    Snapshot = 9,
}

/// Why bytes are not the value that was expected.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// Not written by a metastore at all.
    #[error("{0} bytes that do not begin as a metadata value")]
    Foreign(usize),
    /// Written by a later version of the program.
    #[error("format version {0}, and this version reads up to {FORMAT}")]
    Newer(u8),
    /// Another kind of value.
    #[error("kind {found} where kind {expected:?} belongs")]
    OtherKind {
        /// What belongs here.
        expected: Kind,
        /// What is here.
        found: u8,
    },
    /// Damaged.
    #[error("checksum {found:08x} where {expected:08x} was written")]
    Checksum {
        /// As it was written.
        expected: u32,
        /// Of what is there.
        found: u32,
    },
    /// Whole, and yet not such a value.
    #[error("cannot read the value")]
    Body(#[source] serde_json::Error),
}

/// The bytes of a value.
#[must_use]
pub fn encode<T: Serialize>(kind: Kind, value: &T) -> Vec<u8> {
    let mut bytes = vec![MAGIC[0], MAGIC[1], FORMAT, kind as u8, 0, 0, 0, 0];
    serde_json::to_writer(&mut bytes, value).expect("these values have no map keys that JSON lacks");
    let sum = sum(&bytes);
    bytes[4..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The value of some bytes.
///
/// # Errors
/// Why they are not such a value. Bytes from outside never panic here.
pub fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, RowError> {
    let Some((&[m0, m1, format, found_kind, c0, c1, c2, c3], body)) =
        bytes.split_first_chunk::<HEADER_BYTES>()
    else {
        return Err(RowError::Foreign(bytes.len()));
    };
    if [m0, m1] != MAGIC || format == 0 {
        return Err(RowError::Foreign(bytes.len()));
    }
    if format > FORMAT {
        return Err(RowError::Newer(format));
    }
    let (expected, found) = (u32::from_le_bytes([c0, c1, c2, c3]), sum(bytes));
    if expected != found {
        return Err(RowError::Checksum { expected, found });
    }
    if found_kind != kind as u8 {
        return Err(RowError::OtherKind {
            expected: kind,
            found: found_kind,
        });
    }
    serde_json::from_slice(body).map_err(RowError::Body)
}

/// Over everything but the sum itself. Two sums instead of a copy without those four bytes.
fn sum(bytes: &[u8]) -> u32 {
    let head = checksum::crc(&bytes[..4]);
    checksum::crc(&bytes[HEADER_BYTES..]) ^ head.rotate_left(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = encode(Kind::LogId, &vec![1u64, 22, 333]);
        assert_eq!(
            decode::<Vec<u64>>(Kind::LogId, &bytes).expect("whole"),
            [1, 22, 333]
        );
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode::<Vec<u64>>(Kind::LogId, &bad).is_err(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(
                decode::<Vec<u64>>(Kind::LogId, &bytes[..end]).is_err(),
                "cut at {end}"
            );
        }
    }

    #[test]
    fn another_kind_and_a_newer_format_have_names() {
        let mut bytes = encode(Kind::Vote, &7u64);
        let other = decode::<u64>(Kind::Topic, &bytes);
        assert!(
            matches!(other, Err(RowError::OtherKind { found: 3, .. })),
            "{other:?}"
        );
        bytes[2] = FORMAT + 1;
        let newer = decode::<u64>(Kind::Vote, &bytes);
        assert!(matches!(newer, Err(RowError::Newer(2))), "{newer:?}");
    }
}
