//! Rows of a recorded feed: CSV, plain or gzipped, from a file or standard input, one line in memory at a time.
//!
//! A line longer than [`LINE_BYTES_MAX`] is refused, so that a file without line ends is not read into memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csv::ByteRecord;
use flate2::bufread::MultiGzDecoder;

use crate::output;

/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// How many names of columns a message has, and how many characters of each, or of a field.
const NAMES_SHOWN: usize = 20;
const CHARS_SHOWN: usize = 60;

/// Why a recorded feed cannot be read.
#[derive(Debug)]
pub enum FeedError {
    /// The file cannot be opened.
    Open(io::Error),
    /// There is not even a first line, where columns were looked for.
    Empty,
    /// The file cannot be read on, or unpacked.
    Read {
        /// The line, from 1.
        line: u64,
        /// What happened.
        source: io::Error,
    },
    /// There is no such column.
    MissingColumn {
        /// What was looked for.
        column: String,
        /// What there is, or what is needed.
        hint: String,
    },
    /// A line that is no CSV.
    Line {
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// A field that cannot be understood.
    Field {
        /// The line, from 1.
        line: u64,
        /// The column's name.
        column: String,
        /// The field.
        found: String,
        /// What would be right.
        wanted: &'static str,
    },
}

impl std::fmt::Display for FeedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FeedError::Open(source) => write!(f, "{source}"),
            FeedError::Empty => f.write_str("the file is empty"),
            FeedError::Read { line, source } => write!(f, "line {line}: {source}"),
            FeedError::MissingColumn { column, hint } => {
                write!(f, "line 1: there is no column `{column}`; {hint}")
            }
            FeedError::Line { line, why } => write!(f, "line {line}: {why}"),
            FeedError::Field {
                line,
                column,
                found,
                wanted,
            } => {
                write!(f, "line {line}, column {column}: {found:?} is not {wanted}")
            }
        }
    }
}

impl std::error::Error for FeedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FeedError::Open(source) | FeedError::Read { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The rows of a feed, read as they are asked for. Ends after the first error.
pub struct Rows {
    reader: csv::Reader<Box<dyn Read + Send>>,
    /// The columns' names; their numbers, from 1, when the first line is a row.
    head: Vec<String>,
    record: ByteRecord,
    failed: bool,
}

/// How far a file has been read, in its own bytes, and how many it has.
#[derive(Debug, Clone)]
pub struct Progress {
    read: Arc<AtomicU64>,
    /// None for what has no length.
    pub bytes: Option<u64>,
}

impl Progress {
    /// Bytes read so far.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

/// Opens a file, or standard input when it is called `-`, and reads its first line.
///
/// # Errors
/// [`FeedError`] when it cannot be read.
pub fn open(path: &Path, has_head: bool) -> Result<(Rows, Progress), FeedError> {
    let (source, bytes): (Box<dyn Read + Send>, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(path).map_err(FeedError::Open)?;
        let facts = file.metadata().map_err(FeedError::Open)?;
        (Box::new(file), facts.is_file().then_some(facts.len()))
    };
    let progress = Progress {
        read: Arc::default(),
        bytes,
    };
    let counted = Counted {
        source,
        read: Arc::clone(&progress.read),
    };
    let mut source = BufReader::with_capacity(64 << 10, counted);
    // The first bytes tell, and nothing is taken back: a pipe would not give it again.
    let is_gzip = source
        .fill_buf()
        .map_err(FeedError::Open)?
        .starts_with(&GZIP_MAGIC);
    let source: Box<dyn Read + Send> = if is_gzip {
        Box::new(MultiGzDecoder::new(source))
    } else {
        Box::new(source)
    };
    Ok((Rows::new(source, has_head)?, progress))
}

impl Rows {
    fn new(source: Box<dyn Read + Send>, has_head: bool) -> Result<Rows, FeedError> {
        let source: Box<dyn Read + Send> = Box::new(LineCap {
            source,
            line_bytes: 0,
        });
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(has_head)
            .from_reader(source);
        let first = reader.byte_headers().map_err(|error| error_of(error, 1))?.clone();
        let name = |(at, field): (usize, &[u8])| match has_head {
            true => String::from_utf8_lossy(field).trim().to_owned(),
            false => (at + 1).to_string(),
        };
        Ok(Rows {
            head: first.iter().enumerate().map(name).collect(),
            reader,
            record: ByteRecord::new(),
            failed: false,
        })
    }

    /// The columns' names, in order.
    #[must_use]
    pub fn head(&self) -> &[String] {
        &self.head
    }

    /// Where a column stands: by its name, or by its number from 1.
    ///
    /// # Errors
    /// That there is none, with those that there are.
    pub fn column(&self, wanted: &str) -> Result<usize, FeedError> {
        if let Some(at) = self.head.iter().position(|name| name == wanted) {
            return Ok(at);
        }
        match wanted.parse::<usize>() {
            Ok(number) if (1..=self.head.len()).contains(&number) => Ok(number - 1),
            _ => Err(self.missing(wanted, format!("there are {}", self.names()))),
        }
    }

    /// The error that a column is not there; `hint` says what there is, or what is needed.
    #[must_use]
    pub fn missing(&self, column: &str, hint: String) -> FeedError {
        if self.head.is_empty() {
            return FeedError::Empty;
        }
        FeedError::MissingColumn {
            column: column.to_owned(),
            hint,
        }
    }

    /// The columns' names for a message: so many, and so much of each, as a person reads.
    #[must_use]
    pub fn names(&self) -> String {
        let shown = self.head.iter().take(NAMES_SHOWN).map(|name| shortened(name));
        let mut names = shown.collect::<Vec<_>>().join(", ");
        if self.head.len() > NAMES_SHOWN {
            names += &format!(" and {} more", self.head.len() - NAMES_SHOWN);
        }
        names
    }

    /// The next row; none at the end.
    ///
    /// # Errors
    /// [`FeedError`], once; then the rows end.
    pub fn advance(&mut self) -> Result<Option<Row<'_>>, FeedError> {
        if self.failed {
            return Ok(None);
        }
        match self.reader.read_byte_record(&mut self.record) {
            Ok(false) => Ok(None),
            Ok(true) => Ok(Some(Row {
                line: self.record.position().map_or(0, csv::Position::line),
                fields: &self.record,
                head: &self.head,
            })),
            Err(error) => {
                self.failed = true;
                Err(error_of(error, self.reader.position().line()))
            }
        }
    }
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Its line, from 1; the first of several.
    pub line: u64,
    /// Its fields.
    pub fields: &'a ByteRecord,
    head: &'a [String],
}

impl<'a> Row<'a> {
    /// A field's bytes, as they are.
    #[must_use]
    pub fn bytes(&self, column: usize) -> &'a [u8] {
        self.fields.get(column).unwrap_or_default()
    }

    /// A field as text without spaces around it.
    ///
    /// # Errors
    /// That it is not UTF-8.
    pub fn text(&self, column: usize) -> Result<&'a str, FeedError> {
        std::str::from_utf8(self.bytes(column))
            .map(str::trim)
            .map_err(|_| self.bad(column, "UTF-8"))
    }

    /// The error that a field is not what is wanted.
    #[must_use]
    pub fn bad(&self, column: usize, wanted: &'static str) -> FeedError {
        let found = String::from_utf8_lossy(self.bytes(column));
        FeedError::Field {
            line: self.line,
            column: self
                .head
                .get(column)
                .map(|name| shortened(name))
                .unwrap_or_default(),
            found: shortened(found.trim()),
            wanted,
        }
    }

    /// The row as one CSV line without its end, with quotes only where they are needed.
    #[must_use]
    pub fn to_line(self) -> Vec<u8> {
        let mut line = Vec::with_capacity(self.fields.as_slice().len() + self.fields.len());
        for (at, field) in self.fields.iter().enumerate() {
            if at > 0 {
                line.push(b',');
            }
            if field.iter().any(|byte| b",\"\r\n".contains(byte)) {
                line.push(b'"');
                for &byte in field {
                    if byte == b'"' {
                        line.push(b'"');
                    }
                    line.push(byte);
                }
                line.push(b'"');
            } else {
                line.extend_from_slice(field);
            }
        }
        line
    }
}

/// What a message quotes of a text from a file.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(CHARS_SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn error_of(error: csv::Error, reached: u64) -> FeedError {
    let line = error.position().map_or(reached, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(source) => FeedError::Read { line, source },
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => FeedError::Line {
            line,
            why: format!(
                "{} where the first line has {expected_len}",
                output::counted(len, "field")
            ),
        },
        other => FeedError::Line {
            line,
            why: format!("not CSV: {other:?}"),
        },
    }
}

/// Counts what is read.
struct Counted<R> {
    source: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(buffer)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Fails at a line that is too long.
struct LineCap<R> {
    source: R,
    line_bytes: usize,
}

impl<R: Read> Read for LineCap<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read(buffer)?;
        for part in buffer[..n].split_inclusive(|&byte| byte == b'\n') {
            self.line_bytes += part.len();
            if self.line_bytes > LINE_BYTES_MAX {
                let why = format!("a line is longer than {LINE_BYTES_MAX} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            if part.ends_with(b"\n") {
                self.line_bytes = 0;
            }
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(text).expect("written");
        file
    }

    fn lines(text: &[u8], has_head: bool) -> Result<Vec<String>, String> {
        let (mut rows, _) = open(file(text).path(), has_head).map_err(|error| error.to_string())?;
        let mut lines = Vec::new();
        while let Some(row) = rows.advance().map_err(|error| error.to_string())? {
            lines.push(String::from_utf8(row.to_line()).expect("UTF-8"));
        }
        Ok(lines)
    }

    #[test]
    fn a_row_is_written_as_it_was_read() {
        let text = b"a,b\n1,x\n2,\"p,q\"\n3,\"say \"\"so\"\"\"\n4,\"\"\n";
        let want = ["1,x", "2,\"p,q\"", "3,\"say \"\"so\"\"\"", "4,"];
        assert_eq!(lines(text, true).expect("read"), want);
        assert_eq!(lines(b"1,x\n2,y\n", false).expect("read"), ["1,x", "2,y"]);
    }

    #[test]
    fn columns_have_names_and_numbers() {
        let (rows, _) = open(file(b"t, key ,3\n1,a,b\n").path(), true).expect("opened");
        let at = |name: &str| rows.column(name).ok();
        assert_eq!((at("key"), at("2"), at("3")), (Some(1), Some(1), Some(2)));
        let missing = rows.column("4").expect_err("there are three").to_string();
        assert!(missing.contains("`4`; there are t, key, 3"), "{missing}");
        let (rows, _) = open(file(b"1,a\n").path(), false).expect("opened");
        assert_eq!(rows.head(), ["1", "2"]);
    }

    /// Seen once: "there is no column `symbol`; there are", and then nothing.
    #[test]
    fn a_file_without_a_first_line_is_empty() {
        for text in [&b""[..], b"\n", b"\n\r\n"] {
            for has_head in [true, false] {
                let (mut rows, _) = open(file(text).path(), has_head).expect("opened");
                let missing = rows.column("symbol").expect_err("nothing there").to_string();
                assert_eq!(missing, "the file is empty", "{text:?}");
                assert!(rows.advance().expect("readable").is_none(), "{text:?}");
            }
        }
    }

    #[test]
    fn a_message_has_as_many_names_as_a_person_reads() {
        let mut head = "x".repeat(100);
        (0..30).for_each(|n| head += &format!(",c{n}"));
        let (rows, _) = open(file(head.as_bytes()).path(), true).expect("opened");
        let names = rows.names();
        let first = format!("{}..., c0, c1", "x".repeat(60));
        assert!(
            names.starts_with(&first) && names.ends_with("c18 and 11 more"),
            "{names}"
        );
    }

    #[test]
    fn a_file_without_line_ends_is_refused_early() {
        let long = vec![b'x'; LINE_BYTES_MAX * 4];
        assert!(lines(&long, true).expect_err("too long").contains("longer than"));
        let mut late = b"a\n1\n".to_vec();
        late.extend(long);
        let error = lines(&late, true).expect_err("too long");
        assert!(error.contains("line 3: a line is longer than"), "{error}");
    }

    #[test]
    fn a_cut_gzip_file_is_an_error_at_its_line() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let text: String = (0..20_000)
            .map(|n| format!("{n},{}\n", n * 7_919 % 10_007))
            .collect();
        gzip.write_all(text.as_bytes()).expect("compressed");
        let mut packed = gzip.finish().expect("compressed");
        let (mut rows, progress) = open(file(&packed).path(), false).expect("opened");
        while rows.advance().expect("whole").is_some() {}
        assert_eq!(Some(progress.read()), progress.bytes, "all of the file was read");
        packed.truncate(packed.len() / 2);
        let error = lines(&packed, false).expect_err("cut");
        assert!(
            error.starts_with("line ") && !error.starts_with("line 1:"),
            "{error}"
        );
        let mut broken = vec![0x1f, 0x8b, 8, 0];
        broken.extend_from_slice(&[0; 20]);
        assert!(lines(&broken, true).is_err());
    }
}
