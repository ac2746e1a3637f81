//! Building a batch: records in, one contiguous buffer out, ready for the wire and the disk.

use bytes::Bytes;
use rkyv::util::AlignedVec;

use crate::batch::body::{Body, HAS_KEY, Headers, Origin};
use crate::batch::header::{BatchHeader, BatchKind, HEADER_BYTES};
use crate::batch::view::RecordView;
use crate::ids::{Offset, Writer};
use crate::limits::{BATCH_ALIGN, BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RECORD_BYTES_MAX};
use crate::partitioner::Partitioner;
use crate::record::{Record, encode_headers};

/// Bytes that an archive adds once, beyond columns and payload: an upper bound.
const ARCHIVE_FIXED_BYTES: usize = 256;
/// Column bytes of one record, with the origin's: an upper bound.
const COLUMN_BYTES: usize = 28;

/// Why a record was not taken into the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The batch would pass its byte or record limit: finish it, and push the record into the next.
    #[error("the batch is full")]
    Full,
    /// The record alone is over the limit.
    #[error("the record has {0} bytes; at most {RECORD_BYTES_MAX} are allowed")]
    RecordTooLarge(usize),
    /// A header's name is longer than 65,535 bytes.
    #[error("a header's name is longer than 65,535 bytes")]
    HeaderName,
}

/// Where the records of a child batch come from, but for their own offsets; see [`Origin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OriginStamp {
    /// The parent offset after the last record accounted for.
    pub end: Offset,
    /// When the delay gate let them pass, nanoseconds since the epoch.
    pub released_at: u64,
    /// The parent partition's lineage.
    pub lineage: u64,
    /// Body crc of the last parent batch.
    pub parent_crc: u32,
    /// Commit time of the last parent batch.
    pub parent_commit_time: u64,
}

/// Gathers records into one batch. Reusable: [`BatchBuilder::finish`] leaves it empty.
#[derive(Debug)]
pub struct BatchBuilder {
    partitioner: Partitioner,
    timestamps: Vec<i64>,
    body: Body,
    headers: Headers,
    origins: Vec<u64>,
    bytes_max: usize,
}

impl BatchBuilder {
    /// An empty batch whose key hashes are by `partitioner`, of at most `bytes_max` bytes (and always at least one
    /// record).
    #[must_use]
    pub fn new(partitioner: Partitioner, bytes_max: usize) -> BatchBuilder {
        BatchBuilder {
            partitioner,
            timestamps: Vec::new(),
            body: Body::default(),
            headers: Headers::default(),
            origins: Vec::new(),
            bytes_max: bytes_max.min(BATCH_BYTES_MAX),
        }
    }

    /// Records so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.timestamps.len()
    }

    /// Whether there is none yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timestamps.is_empty()
    }

    /// An upper bound of the finished batch's bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        HEADER_BYTES
            + ARCHIVE_FIXED_BYTES
            + BATCH_ALIGN
            + self.len() * COLUMN_BYTES
            + self.body.payload.len()
            + self.headers.data.len()
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`PushError`]; the batch is unchanged then.
    pub fn push(&mut self, record: &Record) -> Result<(), PushError> {
        let size = record.size();
        self.admit(size)?;
        let headers_len = self.headers.data.len();
        if !encode_headers(&record.headers, &mut self.headers.data) {
            self.headers.data.truncate(headers_len);
            return Err(PushError::HeaderName);
        }
        let hash = record.key.as_deref().map_or(0, |key| self.partitioner.hash(key));
        self.columns(record.key.as_deref(), &record.value, record.timestamp, hash);
        Ok(())
    }

    /// Adds a copy of a record of another log, with its parent offset; `key_hash` is by this batch's partitioner.
    /// Within one batch either all records have a parent offset or none has, and they rise.
    ///
    /// # Errors
    /// [`PushError`]; the batch is unchanged then.
    pub fn push_copy(&mut self, record: &RecordView<'_>, key_hash: u32) -> Result<(), PushError> {
        let headers = record.headers.encoded();
        self.admit(record.key.map_or(0, <[u8]>::len) + record.value.len() + headers.len())?;
        self.headers.data.extend_from_slice(headers);
        debug_assert!(self.origins.last().is_none_or(|&last| last < record.offset.0));
        self.origins.push(record.offset.0);
        self.columns(record.key, record.value, record.timestamp, key_hash);
        Ok(())
    }

    fn admit(&self, size: usize) -> Result<(), PushError> {
        if size > RECORD_BYTES_MAX {
            return Err(PushError::RecordTooLarge(size));
        }
        let full = self.len() >= BATCH_RECORDS_MAX || self.size() + COLUMN_BYTES + size > self.bytes_max;
        if full && !self.is_empty() {
            Err(PushError::Full)
        } else {
            Ok(())
        }
    }

    fn columns(&mut self, key: Option<&[u8]>, value: &[u8], timestamp: i64, key_hash: u32) {
        let payload = &mut self.body.payload;
        payload.extend_from_slice(key.unwrap_or_default());
        let has_key = if key.is_some() { HAS_KEY } else { 0 };
        self.body.key_ends.push(payload.len() as u32 | has_key);
        payload.extend_from_slice(value);
        self.body.value_ends.push(payload.len() as u32);
        self.body
            .key_hashes
            .push(if key.is_some() { key_hash } else { 0 });
        self.headers.ends.push(self.headers.data.len() as u32);
        self.timestamps.push(timestamp);
    }

    /// Ends a batch of a producer: `previous` is the producer's last sequence. Returns the whole batch, padded; the
    /// owner's fields are empty. `None` when there are no records.
    pub fn finish(&mut self, writer: Writer, previous: u64) -> Option<Bytes> {
        let sequence = if writer == Writer::Anonymous {
            0
        } else {
            previous + self.len() as u64
        };
        let previous = if writer == Writer::Anonymous { 0 } else { previous };
        self.seal(BatchKind::Data, writer, previous, sequence)
    }

    /// Ends a child batch: it follows the child's watermark `previous` and leaves `origin.end` as the new one.
    pub fn finish_copy(&mut self, writer: Writer, previous: Offset, origin: OriginStamp) -> Option<Bytes> {
        let first = *self.origins.first()?;
        debug_assert!(self.origins.len() == self.len() && origin.end.0 > previous.0);
        self.body.origin = Some(Origin {
            first,
            end: origin.end.0,
            deltas: self
                .origins
                .iter()
                .map(|&offset| (offset - first) as u32)
                .collect(),
            released_at: origin.released_at,
            lineage: origin.lineage,
            parent_crc: origin.parent_crc,
            parent_commit_time: origin.parent_commit_time,
        });
        self.seal(BatchKind::Data, writer, previous.0, origin.end.0)
    }

    /// Ends a control batch that has its place in the chain of an origin's batches: it accounts for the parent offsets
    /// from `first` to `origin.end`, of which it holds none.
    pub(crate) fn finish_notice(
        &mut self,
        writer: Writer,
        previous: Offset,
        first: Offset,
        origin: OriginStamp,
    ) -> Option<Bytes> {
        debug_assert!(self.len() == 1 && self.origins.is_empty());
        self.body.origin = Some(Origin {
            first: first.0,
            end: origin.end.0,
            deltas: vec![0],
            released_at: origin.released_at,
            lineage: origin.lineage,
            parent_crc: origin.parent_crc,
            parent_commit_time: origin.parent_commit_time,
        });
        self.seal(BatchKind::Control, writer, previous.0, origin.end.0)
    }

    /// Ends a control batch of the system's own.
    pub fn finish_control(&mut self) -> Option<Bytes> {
        self.seal(BatchKind::Control, Writer::Anonymous, 0, 0)
    }

    fn seal(&mut self, kind: BatchKind, writer: Writer, previous: u64, sequence: u64) -> Option<Bytes> {
        if self.is_empty() {
            return None;
        }
        let count = self.len() as u32;
        self.set_timestamps();
        if self.headers.data.is_empty() {
            self.headers.ends.clear();
        } else {
            self.body.headers = Some(std::mem::take(&mut self.headers));
        }
        let mut out = AlignedVec::<16>::with_capacity(self.size());
        out.resize(HEADER_BYTES, 0);
        let mut out = rkyv::api::high::to_bytes_in::<_, rkyv::rancor::Failure>(&self.body, out)
            .expect("archiving vectors into memory cannot fail");
        let header = BatchHeader {
            writer,
            sequence,
            previous,
            ..BatchHeader::unstamped(kind, self.partitioner, count, &out[HEADER_BYTES..])
        };
        out.resize(header.batch_len(), 0);
        header.encode(&mut out);
        self.clear();
        Some(Bytes::from_owner(out))
    }

    fn set_timestamps(&mut self) {
        let base = self.timestamps.iter().copied().min().unwrap_or(0);
        self.body.base_timestamp = base;
        let narrow = self
            .timestamps
            .iter()
            .map(|&t| t.checked_sub(base).and_then(|d| u32::try_from(d).ok()));
        match narrow.collect::<Option<Vec<u32>>>() {
            Some(deltas) => self.body.timestamp_deltas = deltas,
            None => self.body.wide_timestamps = Some(self.timestamps.clone()),
        }
    }

    /// Forgets what was gathered; keeps the memory.
    pub fn clear(&mut self) {
        self.timestamps.clear();
        self.origins.clear();
        self.headers.ends.clear();
        self.headers.data.clear();
        let body = &mut self.body;
        body.timestamp_deltas.clear();
        body.wide_timestamps = None;
        body.key_hashes.clear();
        body.key_ends.clear();
        body.value_ends.clear();
        body.headers = None;
        body.payload.clear();
        body.origin = None;
    }
}

/// A frontier batch: no records, only the owner's statement that everything below `durable_through` is durable. The
/// owner stamps the rest.
#[must_use]
pub fn frontier_batch() -> Bytes {
    let mut out = vec![0; HEADER_BYTES];
    BatchHeader::unstamped(BatchKind::Frontier, Partitioner::Murmur2, 0, &[]).encode(&mut out);
    Bytes::from(out)
}
