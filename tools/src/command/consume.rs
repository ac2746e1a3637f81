//! `consume`: the records of a topic, as values, in a format of the caller's, or as JSON.
//!
//! JSON of a record: `{partition, offset, commit_time, timestamp, key, value, headers}`; times in nanoseconds since
//! the epoch; a key or value that is not UTF-8 is `{"base64": "..."}` instead of a string; headers are a list of
//! `{name, value}`, as names may repeat.

use serde::Serialize;
use tailwater_wire::batch::view::RecordView;
use tailwater_wire::client::config::{ConsumerOptions, StartAt};
use tailwater_wire::client::consumer::{Consumed, ConsumedBatch, Gap, GapReason};
use tailwater_wire::ids::TopicName;
use tailwater_wire::meta::AttachFrom;

use crate::cli::{self, Part, Template};
use crate::command::context::Context;
use crate::error::Failure;
use crate::output::{self, Format, Out};

/// Runs it.
///
/// # Errors
/// The node's refusals, or that it cannot be reached.
pub async fn run(context: &mut Context, args: cli::Consume) -> Result<(), Failure> {
    let options = ConsumerOptions {
        partitions: args.partition.map(|partition| vec![partition]),
        from: match args.from {
            AttachFrom::Tail => StartAt::Tail,
            AttachFrom::Earliest => StartAt::Earliest,
            AttachFrom::Offset(offset) => StartAt::Offset(offset),
            AttachFrom::Time(nanos) => StartAt::Time(nanos),
        },
        stop_at_end: !args.follow,
        ..ConsumerOptions::default()
    };
    let mut consumer = context.client.consumer(&args.topic, options).await?;
    let mut printer = Printer {
        topic: args.topic,
        form: match args.format {
            Some(template) => Form::Template(template),
            None => Form::Format(Format::for_stream(context.output)),
        },
        printed: 0,
        limit: args.count.unwrap_or(u64::MAX),
    };
    printer.begin(&mut context.out)?;
    while printer.printed < printer.limit {
        match consumer.next().await? {
            Some(Consumed::Batch(batch)) => printer.batch(&mut context.out, &batch)?,
            Some(Consumed::Gap(gap)) => say_gap(&gap),
            None => break,
        }
        context.out.flush()?;
    }
    printer.end(&mut context.out)
}

enum Form {
    Format(Format),
    Template(Template),
}

struct Printer {
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
    fn begin(&self, out: &mut Out) -> Result<(), Failure> {
        match self.form {
            Form::Format(Format::Json) => out.bytes(b"["),
            _ => Ok(()),
        }
    }

    fn end(&self, out: &mut Out) -> Result<(), Failure> {
        match self.form {
            Form::Format(Format::Json) => out.bytes(b"]\n"),
            _ => Ok(()),
        }
    }

    fn batch(&mut self, out: &mut Out, batch: &ConsumedBatch) -> Result<(), Failure> {
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
            }
        }
        Ok(())
    }
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

fn say_gap(gap: &Gap) {
    let why = match gap.reason {
        GapReason::Quarantined => "they are damaged on the node's disk",
        GapReason::Retention => "retention removed them",
    };
    output::note(&format!(
        "gap: partition {}, offsets {} to {}: {why}",
        gap.partition, gap.from, gap.to
    ));
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
