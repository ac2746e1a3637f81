//! How consumed records are printed: as values, in a format of the caller's, or as JSON.
//!
//! JSON of a record: `{partition, offset, commit_time, timestamp, key, value, headers}`; times in nanoseconds since
//! the epoch; a key or value that is not UTF-8 is `{"base64": "..."}` instead of a string; headers are a list of
//! `{name, value}`, as names may repeat. `-o ndjson` is an object a line, `-o json` one array of them, which is closed
//! however the command ends.

use serde::Serialize;
use tailwater_wire::batch::view::RecordView;
use tailwater_wire::client::consumer::ConsumedBatch;
use tailwater_wire::ids::TopicName;

use crate::cli::template::{Part, Template};
use crate::error::Failure;
use crate::output::{Format, Out};

/// How records are printed.
#[derive(Debug)]
pub enum Form {
    /// As one of the forms of every command.
    Format(Format),
    /// In a format of the caller's.
    Template(Template),
}

/// Prints records to an output, at most so many.
#[derive(Debug)]
pub struct Printer {
    topic: TopicName,
    form: Form,
    printed: u64,
    limit: u64,
}

/// A record as JSON.
#[derive(Debug, Serialize)]
struct RecordRow<'a> {
    partition: u32,
    offset: u64,
    commit_time: u64,
    timestamp: i64,
    key: Option<Text<'a>>,
    value: Text<'a>,
    headers: Vec<HeaderRow<'a>>,
}

#[derive(Debug, Serialize)]
struct HeaderRow<'a> {
    name: &'a str,
    value: Text<'a>,
}

/// Bytes as a string where they are one.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Utf8(&'a str),
    Bytes { base64: String },
}

impl<'a> Text<'a> {
    fn of(bytes: &'a [u8]) -> Text<'a> {
        std::str::from_utf8(bytes).map_or_else(
            |_| Text::Bytes {
                base64: base64(bytes),
            },
            Text::Utf8,
        )
    }
}

impl Printer {
    /// For records of a topic, at most `limit`.
    #[must_use]
    pub fn new(topic: TopicName, form: Form, limit: u64) -> Printer {
        Printer {
            topic,
            form,
            printed: 0,
            limit,
        }
    }

    /// Whether everything that was asked for is printed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.printed >= self.limit
    }

    /// What stands before the first record.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn begin(&self, out: &mut Out) -> Result<(), Failure> {
        match self.form {
            Form::Format(Format::Json) => out.bytes(b"["),
            _ => Ok(()),
        }
    }

    /// What stands after the last one, also when the command fails: an array is closed.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn end(&self, out: &mut Out) -> Result<(), Failure> {
        match self.form {
            Form::Format(Format::Json) => out.bytes(b"]\n"),
            _ => Ok(()),
        }
    }

    /// The records of a batch, up to the limit.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn batch(&mut self, out: &mut Out, batch: &ConsumedBatch) -> Result<(), Failure> {
        for record in batch.records() {
            if self.printed == self.limit {
                break;
            }
            self.record(out, batch, &record)?;
            self.printed += 1;
        }
        Ok(())
    }

    fn record(&self, out: &mut Out, batch: &ConsumedBatch, record: &RecordView<'_>) -> Result<(), Failure> {
        match &self.form {
            Form::Template(template) => self.template(out, template, batch, record),
            Form::Format(Format::Table) => {
                out.bytes(record.value)?;
                out.bytes(b"\n")
            }
            Form::Format(Format::Ndjson) => out.json(&row(batch, record)),
            Form::Format(Format::Json) => {
                if self.printed > 0 {
                    out.bytes(b",")?;
                }
                out.json(&row(batch, record))
            }
        }
    }

    fn template(
        &self,
        out: &mut Out,
        template: &Template,
        batch: &ConsumedBatch,
        record: &RecordView<'_>,
    ) -> Result<(), Failure> {
        for part in &template.parts {
            match part {
                Part::Text(text) => out.bytes(text.as_bytes())?,
                Part::Topic => out.bytes(self.topic.as_str().as_bytes())?,
                Part::Partition => out.bytes(batch.partition.to_string().as_bytes())?,
                Part::Offset => out.bytes(record.offset.to_string().as_bytes())?,
                Part::Key => out.bytes(record.key.unwrap_or_default())?,
                Part::Value => out.bytes(record.value)?,
                Part::Timestamp => {
                    out.bytes(record.timestamp.div_euclid(1_000_000).to_string().as_bytes())?
                }
                Part::Headers => headers(out, record)?,
            }
        }
        Ok(())
    }
}

/// `NAME=VALUE`, with commas between.
fn headers(out: &mut Out, record: &RecordView<'_>) -> Result<(), Failure> {
    for (at, (name, value)) in record.headers.clone().enumerate() {
        let comma: &[u8] = if at > 0 { b"," } else { b"" };
        for part in [comma, name.as_bytes(), b"=", value] {
            out.bytes(part)?;
        }
    }
    Ok(())
}

fn row<'a>(batch: &ConsumedBatch, record: &RecordView<'a>) -> RecordRow<'a> {
    let headers = record.headers.clone();
    RecordRow {
        partition: batch.partition.0,
        offset: record.offset.0,
        commit_time: batch.header.commit_time.0,
        timestamp: record.timestamp,
        key: record.key.map(Text::of),
        value: Text::of(record.value),
        headers: headers
            .map(|(name, value)| HeaderRow {
                name,
                value: Text::of(value),
            })
            .collect(),
    }
}

/// RFC 4648, section 4, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            if digit <= three.len() {
                text.push(char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (&[0xff, 0xfe], "//4="),
        ] {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn bytes_are_strings_where_they_can_be() {
        let json = |bytes| serde_json::to_string(&Text::of(bytes)).expect("serializable");
        assert_eq!(json(b"a\"b"), r#""a\"b""#);
        assert_eq!(json(&[0xff]), r#"{"base64":"/w=="}"#);
    }
}
