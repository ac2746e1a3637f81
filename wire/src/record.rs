//! A record as applications see it, and the encoding of its headers.

use bytes::Bytes;

/// One record to produce or as it was consumed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Decides the partition; an empty key is a key, `None` is none.
    pub key: Option<Bytes>,
    /// The payload.
    pub value: Bytes,
    /// Names and values, in the order given; names may repeat.
    pub headers: Vec<(String, Bytes)>,
    /// The producer's own time, nanoseconds since the epoch.
    pub timestamp: i64,
}

impl Record {
    /// The bytes that count against [`crate::limits::RECORD_BYTES_MAX`]: key, value and encoded headers.
    #[must_use]
    pub fn size(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| 6 + name.len() + value.len())
            .sum();
        self.key.as_ref().map_or(0, Bytes::len) + self.value.len() + headers
    }
}

/// Appends headers to `out`: for each, name length (u16), name, value length (u32), value, all little-endian.
/// Returns false, with nothing appended, when a name is longer than 65,535 bytes.
pub(crate) fn encode_headers(headers: &[(String, Bytes)], out: &mut Vec<u8>) -> bool {
    if headers.iter().any(|(name, _)| name.len() > usize::from(u16::MAX)) {
        return false;
    }
    for (name, value) in headers {
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(value);
    }
    true
}

/// The headers of one record, read lazily; ends early at bytes that cannot be read (they were checked on receipt).
#[derive(Debug, Clone)]
pub struct HeaderIter<'a> {
    rest: &'a [u8],
}

impl<'a> HeaderIter<'a> {
    /// Over the encoded headers of one record.
    #[must_use]
    pub fn new(encoded: &'a [u8]) -> HeaderIter<'a> {
        HeaderIter { rest: encoded }
    }

    /// The bytes that are still to be read.
    #[must_use]
    pub fn encoded(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether the encoding reads to its very end.
    #[must_use]
    pub fn is_well_formed(encoded: &'a [u8]) -> bool {
        let mut iter = HeaderIter::new(encoded);
        while iter.next().is_some() {}
        iter.rest.is_empty()
    }
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<(&'a str, &'a [u8])> {
        let (len, rest) = self.rest.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let name = std::str::from_utf8(name).ok()?;
        self.rest = rest;
        Some((name, value))
    }
}
