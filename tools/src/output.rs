//! What goes to standard output, in which form; everything else goes to standard error through [`note`].
//!
//! Forms: `table` for people, `json` for one value (a stream becomes one array), `ndjson` for one value a line.
//! Unless `-o` says otherwise documents are printed as tables, and `consume` prints ndjson when its output is no
//! terminal.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::error::Failure;

/// A form of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Columns for people.
    Table,
    /// One JSON value, on one line.
    Json,
    /// One JSON value a row, a line each.
    Ndjson,
}

impl Format {
    /// What to use for a stream of rows when none was asked for.
    #[must_use]
    pub fn for_stream(asked: Option<Format>) -> Format {
        asked.unwrap_or(if io::stdout().is_terminal() {
            Format::Table
        } else {
            Format::Ndjson
        })
    }

    /// What to use for a document when none was asked for.
    #[must_use]
    pub fn for_document(asked: Option<Format>) -> Format {
        asked.unwrap_or(Format::Table)
    }
}

/// Buffered standard output. A reader that went away (`| head`) is no error: it yields [`Failure::quiet`].
pub struct Out {
    sink: BufWriter<Stdout>,
}

impl Out {
    /// Over the process's standard output.
    #[must_use]
    pub fn new() -> Out {
        Out {
            sink: BufWriter::with_capacity(64 << 10, io::stdout()),
        }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.sink.write_all(bytes).map_err(Failure::stdout)
    }

    /// Writes a line.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a value as one line of JSON.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.sink, value).map_err(|error| Failure::stdout(error.into()))?;
        self.bytes(b"\n")
    }

    /// Hands everything written so far to the reader.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.sink.flush().map_err(Failure::stdout)
    }

    /// Prints rows in a form: a table, one array, or a line each.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn rows<T: Serialize>(
        &mut self,
        format: Format,
        rows: &[T],
        table: impl FnOnce(&[T]) -> Table,
    ) -> Result<(), Failure> {
        match format {
            Format::Table => self.line(&render(&table(rows)))?,
            Format::Json => self.json(&rows)?,
            Format::Ndjson => rows.iter().try_for_each(|row| self.json(row))?,
        }
        self.flush()
    }

    /// Prints one value in a form.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn one<T: Serialize>(
        &mut self,
        format: Format,
        value: &T,
        table: impl FnOnce(&T) -> Table,
    ) -> Result<(), Failure> {
        match format {
            Format::Table => self.line(&render(&table(value)))?,
            Format::Json | Format::Ndjson => self.json(value)?,
        }
        self.flush()
    }
}

/// An empty table with these columns; those named in `numbers` are aligned to the right.
#[must_use]
pub fn table(columns: &[&str], numbers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    // Never cut to the terminal's width: a row that runs over can be read, cells of three letters a line cannot.
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(
        columns
            .iter()
            .map(|column| column.to_uppercase())
            .collect::<Vec<_>>(),
    );
    for (at, name) in columns.iter().enumerate() {
        let Some(column) = table.column_mut(at) else {
            continue;
        };
        column.set_padding((0, 2));
        if numbers.contains(name) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table of two columns: names and values of one thing.
#[must_use]
pub fn facts(facts: Vec<(&str, String)>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in facts {
        table.add_row([name.to_owned(), value]);
    }
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table
}

/// A time in nanoseconds since the epoch as people read it: RFC 3339, UTC, to the millisecond.
#[must_use]
pub fn time_text(nanos: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos);
    humantime::format_rfc3339_millis(time).to_string()
}

/// A time span as people read it: `0s`, `340ms`, `15m`.
#[must_use]
pub fn millis_text(millis: u64) -> String {
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

/// A number of things: `1 record`, `7 records`.
#[must_use]
pub fn counted(count: u64, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

/// The table's lines without the spaces at their ends.
#[must_use]
pub fn render(table: &Table) -> String {
    table.trim_fmt()
}

/// Says something to the person at the terminal, on standard error. A closed standard error is passed over.
pub fn note(text: &str) {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    let _ = writeln!(io::stderr().lock(), "{}", lines.join("\n"));
}

/// A text that may quote a file or another process, with what a terminal would act on as escapes: control characters,
/// and those that turn the direction of writing.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_plain_columns() {
        let mut table = table(&["name", "count"], &["count"]);
        table.add_row(["a", "5"]);
        table.add_row(["bcd", "12345"]);
        let lines: Vec<String> = render(&table).lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0].contains("NAME") && lines[0].ends_with("COUNT"),
            "{lines:?}"
        );
        assert!(lines[1].ends_with("    5"), "{lines:?}");
    }

    #[test]
    fn one_is_no_plural() {
        let texts = [0, 1, 2].map(|count| counted(count, "record"));
        assert_eq!(texts, ["0 records", "1 record", "2 records"]);
    }

    #[test]
    fn a_time_span_has_a_unit() {
        let texts = [0, 340, 900_000].map(millis_text);
        assert_eq!(texts, ["0s", "340ms", "15m"]);
    }
}
