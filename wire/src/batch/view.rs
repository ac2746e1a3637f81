//! A batch read in place: from bytes to verdict, and from a verdict to single records without parsing the others.

use bytes::Bytes;

use crate::batch::body::{self, ArchivedBody, BodyError, HAS_KEY};
use crate::batch::header::{BatchHeader, HEADER_BYTES, HeaderError};
use crate::ids::Offset;
use crate::record::{HeaderIter, Record};

/// Why bytes are not a whole, sound batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The header cannot be used.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The header is sound; the batch is longer than the bytes.
    #[error("the bytes end inside a batch of {0} bytes")]
    Truncated(usize),
    /// The header is sound; the body is not.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The padding after the body is not zero.
    #[error("the padding is not zero")]
    Padding,
}

/// A batch whose header, checksums and structure were checked. Borrowed: no byte of it was copied.
#[derive(Clone)]
pub struct BatchView<'a> {
    header: BatchHeader,
    body: Option<&'a ArchivedBody>,
    bytes: &'a [u8],
}

/// One record of a [`BatchView`].
#[derive(Debug, Clone)]
pub struct RecordView<'a> {
    /// Its offset in the log.
    pub offset: Offset,
    /// Its key, if it has one.
    pub key: Option<&'a [u8]>,
    /// Its payload.
    pub value: &'a [u8],
    /// The producer's time, nanoseconds since the epoch.
    pub timestamp: i64,
    /// The key's hash by the header's partitioner; 0 without a key.
    pub key_hash: u32,
    /// Its encoded headers.
    pub headers: HeaderIter<'a>,
    /// Its offset in the parent, for a record that fan-out copied.
    pub origin: Option<Offset>,
}

impl<'a> BatchView<'a> {
    /// Reads the batch at the start of `bytes`, and checks everything: header, both checksums, columns, padding.
    ///
    /// # Errors
    /// [`BatchError`], never a panic, for any bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<BatchView<'a>, BatchError> {
        let header = BatchHeader::decode(bytes)?;
        let len = header.batch_len();
        let bytes = bytes.get(..len).ok_or(BatchError::Truncated(len))?;
        let end = HEADER_BYTES + header.body_len as usize;
        let body = match header.record_count {
            0 => None,
            count => Some(body::check(&bytes[HEADER_BYTES..end], header.body_crc, count)?),
        };
        if bytes[end..].iter().any(|&b| b != 0) {
            return Err(BatchError::Padding);
        }
        Ok(BatchView { header, body, bytes })
    }

    /// Reads once more a batch that [`BatchView::parse`] has passed, without its checksums and columns. For bytes
    /// that were not checked it may panic later.
    #[cfg_attr(
        not(feature = "client"),
        expect(dead_code, reason = "only consumers keep batches")
    )]
    pub(crate) fn parse_verified(bytes: &'a [u8]) -> Result<BatchView<'a>, BatchError> {
        let header = BatchHeader::decode(bytes)?;
        let len = header.batch_len();
        let bytes = bytes.get(..len).ok_or(BatchError::Truncated(len))?;
        let archive = &bytes[HEADER_BYTES..HEADER_BYTES + header.body_len as usize];
        let body = match header.record_count {
            0 => None,
            _ => Some(body::access(archive)?),
        };
        Ok(BatchView { header, body, bytes })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The whole batch, padding included.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The body; `None` for a frontier batch.
    #[must_use]
    pub fn body(&self) -> Option<&'a ArchivedBody> {
        self.body
    }

    /// The number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.record_count as usize
    }

    /// Whether it is a frontier batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.header.record_count == 0
    }

    /// Record `k`, without touching the ones before it.
    #[must_use]
    pub fn record(&self, k: usize) -> Option<RecordView<'a>> {
        let body = self.body?;
        let value_end = body.value_ends.get(k)?.to_native() as usize;
        let start = if k == 0 {
            0
        } else {
            body.value_ends[k - 1].to_native() as usize
        };
        let key_end = body.key_ends[k].to_native();
        let has_key = key_end & HAS_KEY != 0;
        let key_end = (key_end & !HAS_KEY) as usize;
        let timestamp = match body.wide_timestamps.as_ref() {
            Some(wide) => wide[k].to_native(),
            None => body
                .base_timestamp
                .to_native()
                .wrapping_add(i64::from(body.timestamp_deltas[k].to_native())),
        };
        let headers = body.headers.as_ref().map_or(&[][..], |headers| {
            let start = if k == 0 {
                0
            } else {
                headers.ends[k - 1].to_native() as usize
            };
            &headers.data[start..headers.ends[k].to_native() as usize]
        });
        Some(RecordView {
            offset: self.header.base_offset.plus(k as u64),
            key: has_key.then(|| &body.payload[start..key_end]),
            value: &body.payload[key_end..value_end],
            timestamp,
            key_hash: body.key_hashes[k].to_native(),
            headers: HeaderIter::new(headers),
            origin: body
                .origin
                .as_ref()
                .map(|origin| Offset(origin.first.to_native() + u64::from(origin.deltas[k].to_native()))),
        })
    }

    /// All records, in order.
    pub fn records(&self) -> impl Iterator<Item = RecordView<'a>> + '_ {
        (0..self.len()).filter_map(|k| self.record(k))
    }
}

impl RecordView<'_> {
    /// An owned copy.
    #[must_use]
    pub fn to_record(&self) -> Record {
        let own = |(name, value): (&str, &[u8])| (name.to_owned(), Bytes::copy_from_slice(value));
        Record {
            key: self.key.map(Bytes::copy_from_slice),
            value: Bytes::copy_from_slice(self.value),
            headers: self.headers.clone().map(own).collect(),
            timestamp: self.timestamp,
        }
    }
}

/// Walks the batches that lie one after another in `bytes`, each 64-byte aligned, as in a slab. Stops after the
/// first error.
#[derive(Debug, Clone)]
pub struct BatchIter<'a> {
    rest: &'a [u8],
}

impl<'a> BatchIter<'a> {
    /// Over a slab.
    #[must_use]
    pub fn new(slab: &'a [u8]) -> BatchIter<'a> {
        BatchIter { rest: slab }
    }
}

impl<'a> Iterator for BatchIter<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Result<BatchView<'a>, BatchError>> {
        if self.rest.is_empty() {
            return None;
        }
        let parsed = BatchView::parse(self.rest);
        self.rest = match &parsed {
            Ok(view) => &self.rest[view.bytes.len()..],
            Err(_) => &[],
        };
        Some(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::builder::BatchBuilder;
    use crate::ids::Writer;
    use crate::partitioner::Partitioner;

    #[test]
    fn records_come_back_as_they_went_in() {
        let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
        let records: Vec<Record> = (0..100u32)
            .map(|i| Record {
                key: (i % 3 != 0).then(|| Bytes::from(vec![b'k'; i as usize % 5])),
                value: Bytes::from(vec![i as u8; i as usize]),
                headers: if i % 7 == 0 {
                    vec![("h".into(), Bytes::from_static(b"v"))]
                } else {
                    vec![]
                },
                timestamp: 1_000 - i64::from(i),
            })
            .collect();
        for record in &records {
            builder.push(record).expect("fits");
        }
        let bytes = builder.finish(Writer::Random([7; 16]), 41).expect("not empty");
        assert_eq!(bytes.len() % 64, 0);
        let view = BatchView::parse(&bytes).expect("sound");
        assert_eq!(view.records().map(|r| r.to_record()).collect::<Vec<_>>(), records);
        assert_eq!((view.header().previous, view.header().sequence), (41, 141));
        let unaligned: Vec<u8> = [&[0u8][..], &bytes].concat();
        assert!(
            BatchView::parse(&unaligned[1..]).is_ok(),
            "a batch may lie anywhere in memory"
        );
        assert!(builder.is_empty());
    }
}
