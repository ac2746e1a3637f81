//! The reading of the owner's clock that outlives the process: `clock.json` in the data directory, replaced whole.
//!
//! ```text
//! {"version":1,"owner_ns":1790000000000000000,"boot_ns":77000000000,"boot_id":"9f..-..","held":false}
//! ```

use serde::{Deserialize, Serialize};

/// The file's name in the data directory.
pub const FILE: &str = "clock.json";
/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// What was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The owner's clock, nanoseconds since the epoch.
    pub owner: u64,
    /// CLOCK_BOOTTIME at that moment, in nanoseconds.
    pub boot: u64,
    /// Which boot of the machine that was (`/proc/sys/kernel/random/boot_id`); empty when it is not known.
    pub boot_id: String,
    /// Whether the clock was held.
    pub held: bool,
}

/// What a start finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Last {
    /// Nothing: the first start, or the first of a version that stores readings.
    None,
    /// A reading.
    Known(Stored),
    /// Something that is no reading, and why.
    Damaged(&'static str),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    owner_ns: u64,
    boot_ns: u64,
    boot_id: String,
    held: bool,
}

/// The file's content.
#[must_use]
pub fn encode(stored: &Stored) -> Vec<u8> {
    let document = Document {
        version: VERSION,
        owner_ns: stored.owner,
        boot_ns: stored.boot,
        boot_id: stored.boot_id.clone(),
        held: stored.held,
    };
    serde_json::to_vec(&document).expect("numbers and text make JSON")
}

/// Reads the file's content; never fails, whatever the bytes are.
#[must_use]
pub fn decode(bytes: Option<&[u8]>) -> Last {
    let Some(bytes) = bytes else {
        return Last::None;
    };
    match serde_json::from_slice::<Document>(bytes) {
        Ok(document) if document.version == VERSION => Last::Known(Stored {
            owner: document.owner_ns,
            boot: document.boot_ns,
            boot_id: document.boot_id,
            held: document.held,
        }),
        Ok(_) => Last::Damaged("a reading of another version"),
        Err(_) => Last::Damaged("no reading"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_comes_back_in_this_spelling() {
        let stored = Stored {
            owner: 1_790_000_000_000_000_000,
            boot: 77,
            boot_id: "b".to_owned(),
            held: true,
        };
        let text = br#"{"version":1,"owner_ns":1790000000000000000,"boot_ns":77,"boot_id":"b","held":true}"#;
        assert_eq!(encode(&stored), text);
        assert_eq!(decode(Some(text)), Last::Known(stored));
        assert_eq!(decode(None), Last::None);
        for end in 0..text.len() {
            assert_eq!(decode(Some(&text[..end])), Last::Damaged("no reading"));
        }
        let newer = String::from_utf8_lossy(text).replace(":1,", ":2,");
        assert_eq!(
            decode(Some(newer.as_bytes())),
            Last::Damaged("a reading of another version")
        );
    }
}
