//! Sixteen bytes as 32 hex digits, as ids stand in the metastore's JSON.

use std::fmt::{self, Write};

use serde::{Deserialize, Deserializer, Serializer};

/// For `serialize_with`.
pub(crate) fn serialize<S: Serializer>(bytes: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
    let mut text = String::with_capacity(32);
    write(bytes, &mut text).map_err(serde::ser::Error::custom)?;
    serializer.serialize_str(&text)
}

/// For `deserialize_with`.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
    let text = String::deserialize(deserializer)?;
    let digits = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = digits.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
    number
        .map(u128::to_be_bytes)
        .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not 32 hex digits")))
}

/// The digits.
pub(crate) fn write(bytes: &[u8; 16], to: &mut impl Write) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    #[serde(transparent)]
    struct Id(#[serde(with = "super")] [u8; 16]);

    #[test]
    fn ids_read_back_and_nothing_else_does() {
        let id = Id(std::array::from_fn(|n| n as u8 * 17));
        let text = serde_json::to_string(&id).expect("written");
        assert_eq!(text, "\"00112233445566778899aabbccddeeff\"");
        assert_eq!(serde_json::from_str::<Id>(&text).expect("read"), id);
        for bad in ["\"\"", "\"0011\"", "\"+0112233445566778899aabbccddeeff\"", "7"] {
            assert!(serde_json::from_str::<Id>(bad).is_err(), "{bad}");
        }
    }
}
