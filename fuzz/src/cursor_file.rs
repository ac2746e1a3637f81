//! Cursor files: what is accepted is written again to the byte, and says the same.

use tailwater_storage::cursor_file::{CursorFile, decode, encode};
use tailwater_wire::ids::{Epoch, Offset};

use crate::memory;
use crate::target::Seed;

/// A file has at most 64 bytes.
const BYTES_MAX: usize = 4 << 10;

/// See the module.
pub fn check(input: &[u8]) {
    if let CursorFile::Present { epoch, next_offset } = memory::within(BYTES_MAX, || decode(input)) {
        assert_eq!(encode(epoch, next_offset).as_bytes(), input);
    }
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let epoch: Epoch = "67953471cc57a32a".parse().expect("hex");
    let whole = encode(epoch, Offset(98_332));
    vec![
        ("usual", whole.clone().into()),
        ("greatest-offset", encode(epoch, Offset(u64::MAX)).into()),
        ("cut-off", whole.as_bytes()[..40].to_vec()),
        ("zeros", vec![0; 48]),
        (
            "other-order",
            br#"{"next_offset":98332,"epoch":"67953471cc57a32a"}"#.to_vec(),
        ),
    ]
}
