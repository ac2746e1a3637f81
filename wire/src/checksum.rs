//! CRC-32C (Castagnoli), the one checksum of all formats here.

/// The CRC-32C of some bytes.
#[must_use]
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
