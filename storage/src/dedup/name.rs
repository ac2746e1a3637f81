//! Names of producers as 16-byte ids: FNV-1a, 128 bits.
//!
//! Source: G. Fowler, L. C. Noll, K.-P. Vo, D. Eastlake, "The FNV Non-Cryptographic Hash Algorithm", RFC 9923.
//! It is not collision-proof against someone who looks for collisions; that is why the table keeps the name and
//! compares it.

const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// The id of a named producer: the hash in big-endian order, as it is usually printed.
#[must_use]
pub fn name_hash(name: &str) -> [u8; 16] {
    let step = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    name.bytes().fold(OFFSET_BASIS, step).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        for (name, hash) in [
            ("", 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128),
            ("a", 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964),
            ("ab", 0x0880_9544_bbab_1be9_5aa0_7330_55b6_9a62),
            ("abc", 0xa68d_622c_ec8b_5822_836d_bc79_77af_7f3b),
        ] {
            assert_eq!(name_hash(name), hash.to_be_bytes(), "{name}");
        }
    }
}
