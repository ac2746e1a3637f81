//! Which records a link copies: one condition, as text, compiled once.
//!
//! ```text
//! expression = NAME "=" VALUE            a header NAME is there with exactly this value
//!            | "key" "^=" PREFIX         the key begins with PREFIX
//!            | "key" "=" KEY *("|" KEY)  the key is one of these
//!            | "key" "in" KEY *("," KEY) the same; spaces around keys are dropped
//! NAME       = 1*(letter | digit | "." | "_" | "-"), not "key"
//! ```
//!
//! Values, prefixes and keys are taken as they stand, as UTF-8 bytes; the first `=` or `^=` splits. An empty key is
//! not the same as no key, and no key matches nothing.

use std::collections::HashSet;

use tailwater_wire::batch::view::RecordView;
use tailwater_wire::code::{ErrorCode, Refusal};

/// The longest expression, in bytes.
pub const FILTER_BYTES_MAX: usize = 64 << 10;

/// A compiled filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    condition: Condition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    HeaderEquals { name: String, value: Vec<u8> },
    KeyPrefix(Vec<u8>),
    KeyIn(HashSet<Vec<u8>>),
}

/// Why a text is no filter, and at which byte.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why} at byte {at} of the filter `{text}`")]
pub struct FilterError {
    /// The byte that is wrong.
    pub at: usize,
    /// What is wrong there.
    pub why: &'static str,
    /// The whole text.
    pub text: String,
}

impl From<FilterError> for Refusal {
    fn from(error: FilterError) -> Refusal {
        Refusal::new(ErrorCode::InvalidFilter, error.to_string())
    }
}

impl Filter {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`FilterError`] with the position.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        compile(text)
            .map(|condition| Filter { condition })
            .map_err(|(at, why)| FilterError {
                at,
                why,
                text: text.chars().take(200).collect(),
            })
    }

    /// Whether a record is copied.
    #[must_use]
    pub fn passes(&self, record: &RecordView<'_>) -> bool {
        match &self.condition {
            Condition::HeaderEquals { name, value } => record
                .headers
                .clone()
                .any(|(n, v)| n == name.as_str() && v == value.as_slice()),
            Condition::KeyPrefix(prefix) => record.key.is_some_and(|key| key.starts_with(prefix)),
            Condition::KeyIn(keys) => record.key.is_some_and(|key| keys.contains(key)),
        }
    }
}

fn compile(text: &str) -> Result<Condition, (usize, &'static str)> {
    if text.len() > FILTER_BYTES_MAX {
        return Err((FILTER_BYTES_MAX, "the expression is longer than 64 KiB"));
    }
    let name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name_len = text.find(|c| !name_char(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(name_len);
    if name.is_empty() {
        return Err((0, "a header name or `key` is expected"));
    }
    if let Some(keys) = rest.strip_prefix(" in ") {
        if name != "key" {
            return Err((name_len, "`in` is for `key` only"));
        }
        let start = name_len + " in ".len();
        return keys_of(keys, ',', start).map(Condition::KeyIn);
    }
    if let Some(prefix) = rest.strip_prefix("^=") {
        return match (name, prefix) {
            ("key", "") => Err((name_len + 2, "a prefix is expected")),
            ("key", _) => Ok(Condition::KeyPrefix(prefix.as_bytes().to_vec())),
            _ => Err((name_len, "`^=` is for `key` only")),
        };
    }
    let Some(value) = rest.strip_prefix('=') else {
        return Err((name_len, "`=`, `^=` or ` in ` is expected"));
    };
    if name == "key" {
        return keys_of(value, '|', name_len + 1).map(Condition::KeyIn);
    }
    Ok(Condition::HeaderEquals {
        name: name.to_owned(),
        value: value.as_bytes().to_vec(),
    })
}

fn keys_of(text: &str, separator: char, start: usize) -> Result<HashSet<Vec<u8>>, (usize, &'static str)> {
    let mut keys = HashSet::new();
    let mut at = start;
    for part in text.split(separator) {
        let key = if separator == ',' { part.trim() } else { part };
        if key.is_empty() {
            return Err((at, "a key is expected"));
        }
        keys.insert(key.as_bytes().to_vec());
        at += part.len() + 1;
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tailwater_wire::batch::builder::BatchBuilder;
    use tailwater_wire::batch::view::BatchView;
    use tailwater_wire::ids::Writer;
    use tailwater_wire::partitioner::Partitioner;
    use tailwater_wire::record::Record;

    fn check(expression: &str, key: Option<&'static str>, headers: &[(&str, &'static str)], expected: bool) {
        let record = Record {
            key: key.map(|key| Bytes::from_static(key.as_bytes())),
            headers: headers
                .iter()
                .map(|&(name, value)| (name.to_owned(), Bytes::from_static(value.as_bytes())))
                .collect(),
            ..Record::default()
        };
        let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
        builder.push(&record).expect("fits");
        let bytes = builder.finish(Writer::Anonymous, 0).expect("one record");
        let view = BatchView::parse(&bytes).expect("sound");
        let filter = Filter::parse(expression).expect(expression);
        let passes = filter.passes(&view.record(0).expect("one record"));
        assert_eq!(passes, expected, "{expression} on {key:?} {headers:?}");
    }

    #[test]
    fn each_form_passes_what_it_says() {
        check("kind=trade", None, &[("kind", "trade")], true);
        check("kind=trade", None, &[("kind", "quote"), ("kind", "trade")], true);
        check("kind=trade", Some("trade"), &[("Kind", "trade")], false);
        check("kind=trade", None, &[("kind", "trades")], false);
        check("kind=", None, &[("kind", "")], true);
        check("kind=a=b", None, &[("kind", "a=b")], true);
        check("key^=AA", Some("AAPL"), &[], true);
        check("key^=AA", Some("A"), &[], false);
        check("key^=AA", None, &[], false);
        check("key=AAPL|MSFT", Some("MSFT"), &[], true);
        check("key=AAPL|MSFT", Some("MSF"), &[], false);
        check("key in AAPL, MSFT", Some("MSFT"), &[], true);
        check("key in AAPL, MSFT", None, &[], false);
        check("key=a,b", Some("a,b"), &[], true);
    }

    #[test]
    fn errors_name_their_place() {
        for (text, at) in [
            ("", 0),
            ("=x", 0),
            ("kind", 4),
            ("kind trade", 4),
            ("kind^=x", 4),
            ("kind in a", 4),
            ("key^=", 5),
            ("key=", 4),
            ("key=a||b", 6),
            ("key in a,,b", 9),
        ] {
            let error = Filter::parse(text).expect_err(text);
            assert_eq!(error.at, at, "{error}");
            assert_eq!(Refusal::from(error).code, ErrorCode::InvalidFilter);
        }
        assert!(Filter::parse(&"x".repeat(FILTER_BYTES_MAX + 1)).is_err());
    }
}
