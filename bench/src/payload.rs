//! The records that are sent: the same ones in every run, to every system.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

/// Distinct values that are sent in turn.
const VALUES: usize = 256;
/// Distinct keys, when there are keys.
const KEYS: usize = 1_000;
/// Bytes of a key.
const KEY_BYTES: usize = 8;
/// Bytes of a value that hold its times in a paced load that is timed at the far end.
const STAMP_BYTES: usize = 16;

/// One record to be sent.
#[derive(Debug, Clone)]
pub struct Payload {
    /// Decides the partition where the system has such.
    pub key: Option<Bytes>,
    /// The rest.
    pub value: Bytes,
}

/// Makes records: the same ones in every run.
#[derive(Debug, Clone)]
pub struct Payloads {
    keys: Rc<[Bytes]>,
    values: Rc<[Bytes]>,
    next: usize,
}

impl Payloads {
    /// Records of `bytes` bytes, their keys included if they are `keyed`.
    ///
    /// # Panics
    /// When a record could not hold its key.
    #[must_use]
    pub fn new(bytes: usize, keyed: bool) -> Payloads {
        let key_bytes = if keyed { KEY_BYTES } else { 0 };
        assert!(bytes > key_bytes, "a record holds its key");
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut byte = || {
            // xorshift64 (Marsaglia, 2003): bytes that no disk or link could compress.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as u8
        };
        let mut value = || (0..bytes - key_bytes).map(|_| byte()).collect::<Vec<u8>>().into();
        let key = |n| Bytes::from(format!("{n:0KEY_BYTES$}"));
        Payloads {
            keys: (0..if keyed { KEYS } else { 0 }).map(key).collect(),
            values: (0..VALUES).map(|_| value()).collect(),
            next: 0,
        }
    }

    /// The next record.
    pub fn take(&mut self) -> Payload {
        let n = self.next;
        self.next += 1;
        let key = (!self.keys.is_empty()).then(|| self.keys[n % self.keys.len()].clone());
        Payload {
            key,
            value: self.values[n % VALUES].clone(),
        }
    }

    /// The next record, with its times at the start of its value.
    pub fn take_stamped(&mut self, intended: Duration, sent: Duration) -> Payload {
        let plain = self.take();
        let mut value = Vec::with_capacity(plain.value.len().max(STAMP_BYTES));
        value.extend_from_slice(&(intended.as_nanos() as u64).to_le_bytes());
        value.extend_from_slice(&(sent.as_nanos() as u64).to_le_bytes());
        value.extend_from_slice(plain.value.get(STAMP_BYTES..).unwrap_or_default());
        Payload {
            key: plain.key,
            value: value.into(),
        }
    }
}

/// When a stamped record was to be sent, and was; `None` if the value is too short to say.
#[must_use]
pub fn stamps(value: &[u8]) -> Option<(Duration, Duration)> {
    let (intended, rest) = value.split_first_chunk::<8>()?;
    let (sent, _) = rest.split_first_chunk::<8>()?;
    let time = |bytes: &[u8; 8]| Duration::from_nanos(u64::from_le_bytes(*bytes));
    Some((time(intended), time(sent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_their_size_whatever_is_in_them() {
        let size = |payload: &Payload| payload.value.len() + payload.key.as_ref().map_or(0, Bytes::len);
        for (bytes, keyed) in [(100, false), (100, true), (1_024, true)] {
            let mut payloads = Payloads::new(bytes, keyed);
            let (plain, next) = (payloads.take(), payloads.take());
            let stamped = payloads.take_stamped(Duration::ZERO, Duration::ZERO);
            assert_eq!((size(&plain), size(&next), size(&stamped)), (bytes, bytes, bytes));
            assert_eq!(plain.key.is_some(), keyed);
            assert_ne!(plain.value, next.value);
        }
    }

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        let (intended, sent) = (Duration::from_nanos(7), Duration::from_secs(70));
        let payload = Payloads::new(100, true).take_stamped(intended, sent);
        assert_eq!(stamps(&payload.value), Some((intended, sent)));
        assert_eq!(stamps(b"too short"), None);
    }
}
