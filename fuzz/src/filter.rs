//! Filter expressions: an accepted one passes what it says and nothing else, and is the same filter when it is compiled
//! again; a refusal names a place in the text.
//!
//! An input is the expression; behind a line end, if there is one, the key and the header value of one more record.

use bytes::Bytes;
use tailwater_node::fanout::filter::Filter;
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::Writer;
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

use crate::memory;
use crate::target::Seed;

const BYTES_FOR_EACH: usize = 256;
const BYTES_BESIDE: usize = 16 << 10;

/// See the module.
pub fn check(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else {
        return;
    };
    let (text, other) = input.split_once('\n').unwrap_or((input, ""));
    let most = BYTES_BESIDE + BYTES_FOR_EACH * text.len();
    let filter = match memory::within(most, || Filter::parse(text)) {
        Ok(filter) => filter,
        Err(error) => {
            assert!(text.is_char_boundary(error.at), "byte {} of {text:?}", error.at);
            assert!(text.starts_with(&error.text));
            let refusal = Refusal::from(error);
            assert_eq!(refusal.code, ErrorCode::InvalidFilter);
            return;
        }
    };
    assert_eq!(Filter::parse(text).as_ref(), Ok(&filter));
    // What each form says, said once more in other words.
    let name_len = text
        .bytes()
        .take_while(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
        .count();
    let (name, rest) = text.split_at(name_len);
    if let Some(prefix) = rest.strip_prefix("^=") {
        let longer = [prefix, other].concat();
        assert!(name == "key" && passes(&filter, Some(prefix), &[]) && passes(&filter, Some(&longer), &[]));
        assert_eq!(passes(&filter, Some(other), &[]), other.starts_with(prefix));
        assert!(!passes(&filter, None, &[(name, prefix)]));
    } else if name == "key" {
        let keys: Vec<&str> = match rest.strip_prefix(" in ") {
            Some(keys) => keys.split(',').map(str::trim).collect(),
            None => rest[1..].split('|').collect(),
        };
        assert!(
            keys.iter()
                .all(|key| !key.is_empty() && passes(&filter, Some(key), &[]))
        );
        assert_eq!(passes(&filter, Some(other), &[]), keys.contains(&other));
        assert!(!passes(&filter, None, &[]));
    } else {
        let value = rest.strip_prefix('=').expect("a header's value");
        assert!(passes(&filter, None, &[(name, other), (name, value)]));
        assert_eq!(passes(&filter, Some(value), &[(name, other)]), other == value);
        let another = format!("{name}x");
        assert!(!passes(&filter, None, &[(&another, value)]));
    }
}

fn passes(filter: &Filter, key: Option<&str>, headers: &[(&str, &str)]) -> bool {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let headers = headers
        .iter()
        .map(|&(name, value)| (name.to_owned(), bytes(value)));
    let record = Record {
        key: key.map(bytes),
        headers: headers.collect(),
        ..Record::default()
    };
    let mut builder = BatchBuilder::new(Partitioner::Crc32c, 1 << 20);
    builder.push(&record).expect("a small record");
    let batch = builder.finish(Writer::Anonymous, 0).expect("one record");
    let view = BatchView::parse(&batch).expect("sound");
    filter.passes(&view.record(0).expect("one record"))
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    [
        ("header", "kind=trade\nquote"),
        ("header-empty-value", "kind="),
        ("key-prefix", "key^=AA\nAAPL"),
        ("keys-bar", "key=AAPL|MSFT\nIBM"),
        ("keys-in", "key in AAPL, MSFT\nMSFT"),
        ("wrong-no-key", "key in a,,b"),
        ("wrong-not-ascii", "k\u{e9}y=1"),
    ]
    .map(|(name, text)| (name, text.into()))
    .into()
}
