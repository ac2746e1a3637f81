//! The batch body: an rkyv archive, little-endian, with records as a structure of arrays.
//!
//! 16 bytes for each record without headers (20 when producer times lie more than 4.29 s apart, +4 for the origin's
//! delta in a child batch), and the key and value bytes themselves. The archive is compiled without alignment
//! demands: a receive buffer may hold it anywhere, and it is still read in place.

use rkyv::{Archive, Deserialize, Serialize};

use crate::checksum::crc;
use crate::limits::BATCH_RECORDS_MAX;
use crate::record::HeaderIter;

/// The high bit of a key's end: the record has a key.
pub(crate) const HAS_KEY: u32 = 1 << 31;

/// The records of a batch, column by column; all per-record columns have one entry a record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Archive, Serialize, Deserialize)]
pub struct Body {
    /// The smallest producer time, nanoseconds since the epoch.
    pub base_timestamp: i64,
    /// Nanoseconds above the base; empty when `wide_timestamps` is there.
    pub timestamp_deltas: Vec<u32>,
    /// All producer times in full, when they do not fit 32 bits above the base.
    pub wide_timestamps: Option<Vec<i64>>,
    /// The hash of each key by the partitioner named in the header; 0 without a key.
    pub key_hashes: Vec<u32>,
    /// Where each key ends in the payload; the high bit says that there is a key.
    pub key_ends: Vec<u32>,
    /// Where each value ends in the payload; a value starts where its key ends, a key where the last value ended.
    pub value_ends: Vec<u32>,
    /// Headers, if any record has some.
    pub headers: Option<Headers>,
    /// Key, value, key, value, ...
    pub payload: Vec<u8>,
    /// Where child records came from.
    pub origin: Option<Origin>,
}

/// Encoded headers of all records, one after another.
#[derive(Debug, Clone, PartialEq, Eq, Default, Archive, Serialize, Deserialize)]
pub struct Headers {
    /// Where each record's headers end.
    pub ends: Vec<u32>,
    /// For each header: name length u16, name, value length u32, value.
    pub data: Vec<u8>,
}

/// Where the records of a child batch came from (SPEC.md F4). Parent epoch, partition and watermarks stand in the
/// batch header; this names each record's own offset.
#[derive(Debug, Clone, PartialEq, Eq, Default, Archive, Serialize, Deserialize)]
pub struct Origin {
    /// The parent offset of the first record.
    pub first: u64,
    /// The parent offset after the last one that this batch accounts for: the watermark that it leaves.
    pub end: u64,
    /// Each record's parent offset, above `first`.
    pub deltas: Vec<u32>,
    /// When the delay gate let the batch pass, on the parent owner's clock, nanoseconds since the epoch. Every
    /// record in it was committed at least the link's delay before.
    pub released_at: u64,
    /// The parent partition's lineage.
    pub lineage: u64,
    /// Body crc of the parent batch that holds the last record accounted for: tells a parent that is not what it was.
    pub parent_crc: u32,
    /// Commit time of that parent batch.
    pub parent_commit_time: u64,
}

/// Why a body cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The checksum is wrong.
    #[error("the body's checksum is wrong")]
    Checksum,
    /// The checksum is right and this is no archive of a body.
    #[error("the body cannot be read")]
    Archive,
    /// The columns contradict each other.
    #[error("the body is inconsistent: {0}")]
    Inconsistent(&'static str),
}

/// Checks a body's checksum and structure: afterwards every record of it can be read in bounds.
///
/// # Errors
/// [`BodyError`], never a panic, for any bytes.
pub fn check(bytes: &[u8], body_crc: u32, record_count: u32) -> Result<&ArchivedBody, BodyError> {
    if crc(bytes) != body_crc {
        return Err(BodyError::Checksum);
    }
    let body = access(bytes)?;
    check_columns(body, record_count as usize)?;
    Ok(body)
}

/// Reads a body whose checksum and columns were checked before.
pub(crate) fn access(bytes: &[u8]) -> Result<&ArchivedBody, BodyError> {
    rkyv::access::<ArchivedBody, rkyv::rancor::Failure>(bytes).map_err(|_| BodyError::Archive)
}

fn check_columns(body: &ArchivedBody, count: usize) -> Result<(), BodyError> {
    let fail = |why| Err(BodyError::Inconsistent(why));
    let timestamps = match body.wide_timestamps.as_ref() {
        Some(wide) if body.timestamp_deltas.is_empty() => wide.len(),
        Some(_) => return fail("two timestamp columns"),
        None => body.timestamp_deltas.len(),
    };
    let columns = [
        timestamps,
        body.key_hashes.len(),
        body.key_ends.len(),
        body.value_ends.len(),
    ];
    if count > BATCH_RECORDS_MAX || columns.iter().any(|&len| len != count) {
        return fail("columns of different length");
    }
    let mut at = 0;
    for (key, value) in body.key_ends.iter().zip(body.value_ends.iter()) {
        let (key, value) = (key.to_native(), value.to_native());
        let end = key & !HAS_KEY;
        if end < at || (key & HAS_KEY == 0 && end != at) || value < end {
            return fail("ends that go back");
        }
        at = value;
    }
    if at as usize != body.payload.len() {
        return fail("payload of another length");
    }
    if let Some(headers) = body.headers.as_ref() {
        if headers.ends.len() != count {
            return fail("columns of different length");
        }
        let mut at = 0;
        for end in headers.ends.iter() {
            let end = end.to_native() as usize;
            let Some(one) = headers.data.get(at..end) else {
                return fail("headers out of bounds");
            };
            if !HeaderIter::is_well_formed(one) {
                return fail("headers that cannot be read");
            }
            at = end;
        }
        if at != headers.data.len() {
            return fail("headers of another length");
        }
    }
    if let Some(origin) = body.origin.as_ref() {
        let (first, end) = (origin.first.to_native(), origin.end.to_native());
        if origin.deltas.len() != count || end <= first {
            return fail("an origin of another length");
        }
        let mut below = None;
        for delta in origin.deltas.iter() {
            let delta = delta.to_native();
            if below.is_some_and(|last| delta <= last) || u64::from(delta) >= end - first {
                return fail("origin offsets that do not rise");
            }
            below = Some(delta);
        }
    }
    Ok(())
}
