//! Inputs: a first byte that says how the others are meant, and checksums made right so that what lies behind them is
//! reached. A fuzzer does not guess a checksum.

use tailwater_wire::batch::header::{HEADER_BYTES, MAGIC};
use tailwater_wire::checksum::crc;
use tailwater_wire::limits::BATCH_ALIGN;

/// An input's mode, and its other bytes.
#[must_use]
pub fn split(input: &[u8]) -> (u8, &[u8]) {
    input
        .split_first()
        .map_or((0, input), |(&mode, rest)| (mode, rest))
}

/// An input of a mode and bytes.
#[must_use]
pub fn join(mode: u8, bytes: &[u8]) -> Vec<u8> {
    [&[mode], bytes].concat()
}

/// The four bytes at a place, as a number.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

/// Makes both checksums of every batch right that begins at a multiple of 64 bytes, and its segment's nonce, if one is
/// given. Nothing inside a batch is taken for another one.
pub fn mend_batches(bytes: &mut [u8], nonce: Option<u64>) {
    let mut at = 0;
    while at + HEADER_BYTES <= bytes.len() {
        if u32_at(bytes, at) != MAGIC {
            at += BATCH_ALIGN;
            continue;
        }
        let body_at = at + HEADER_BYTES;
        let body_end = body_at.saturating_add(u32_at(bytes, at + 8) as usize);
        if let Some(body) = bytes.get(body_at..body_end) {
            let sum = crc(body);
            bytes[at + 120..at + 124].copy_from_slice(&sum.to_le_bytes());
        }
        if let Some(nonce) = nonce {
            bytes[at + 40..at + 48].copy_from_slice(&nonce.to_le_bytes());
        }
        let sum = crc(&bytes[at..at + 124]);
        bytes[at + 124..at + 128].copy_from_slice(&sum.to_le_bytes());
        at = body_end.next_multiple_of(BATCH_ALIGN);
    }
}
