//! Recorded feeds: CSV files, plain or gzipped, with the columns `time_ms`, `symbol`, `kind`, `price_1e4` and `size`.
//!
//! Columns may stand in any order, and others are passed over. One line is in memory at a time; a line longer than
//! [`LINE_BYTES_MAX`] is refused.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;
use std::str::FromStr;

use csv::StringRecord;
use flate2::read::MultiGzDecoder;

use crate::feed::event::{Event, Kind};

/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

const COLUMNS: [&str; 5] = ["time_ms", "symbol", "kind", "price_1e4", "size"];
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Why a recorded feed cannot be read.
#[derive(Debug)]
pub enum FeedError {
    /// The file cannot be opened or read.
    Read(io::Error),
    /// The first line does not name a column.
    MissingColumn(&'static str),
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
        column: &'static str,
        /// The field.
        found: String,
        /// What would be right.
        wanted: &'static str,
    },
}

impl std::fmt::Display for FeedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FeedError::Read(source) => write!(f, "{source}"),
            FeedError::MissingColumn(column) => {
                write!(
                    f,
                    "line 1: there is no column `{column}`; needed are {}",
                    COLUMNS.join(", ")
                )
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
            FeedError::Read(source) => Some(source),
            _ => None,
        }
    }
}

/// The events of a file, read as they are asked for. Ends after the first error.
pub struct CsvFeed {
    reader: csv::Reader<Box<dyn Read + Send>>,
    /// Where each of [`COLUMNS`] stands.
    columns: [usize; 5],
    record: StringRecord,
    failed: bool,
}

/// Opens a file, plain or gzipped (its first bytes tell), and reads its head.
///
/// # Errors
/// [`FeedError`] when it cannot be read or lacks a column.
pub fn open(path: &Path) -> Result<CsvFeed, FeedError> {
    let mut file = File::open(path).map_err(FeedError::Read)?;
    let mut magic = Vec::with_capacity(2);
    file.by_ref()
        .take(2)
        .read_to_end(&mut magic)
        .map_err(FeedError::Read)?;
    file.rewind().map_err(FeedError::Read)?;
    let file = BufReader::with_capacity(64 << 10, file);
    if magic == GZIP_MAGIC {
        CsvFeed::new(Box::new(MultiGzDecoder::new(file)))
    } else {
        CsvFeed::new(Box::new(file))
    }
}

impl CsvFeed {
    fn new(source: Box<dyn Read + Send>) -> Result<CsvFeed, FeedError> {
        let source: Box<dyn Read + Send> = Box::new(LineCap {
            source,
            line_bytes: 0,
        });
        let mut reader = csv::ReaderBuilder::new().from_reader(source);
        let head = reader.headers().map_err(line_error)?;
        let mut columns = [0; 5];
        for (at, column) in columns.iter_mut().zip(COLUMNS) {
            let found = head.iter().position(|name| name.trim() == column);
            *at = found.ok_or(FeedError::MissingColumn(column))?;
        }
        Ok(CsvFeed {
            reader,
            columns,
            record: StringRecord::new(),
            failed: false,
        })
    }

    fn event(&self) -> Result<Event, FeedError> {
        let line = self.record.position().map_or(0, csv::Position::line);
        let text = |column: usize| self.record.get(self.columns[column]).unwrap_or("").trim();
        let bad = |column: usize, wanted| FeedError::Field {
            line,
            column: COLUMNS[column],
            found: text(column).chars().take(60).collect(),
            wanted,
        };
        fn number<T: FromStr>(text: &str) -> Option<T> {
            text.parse().ok()
        }
        let symbol = text(1);
        if symbol.is_empty() {
            return Err(bad(1, "a symbol"));
        }
        Ok(Event {
            time_ms: number(text(0)).ok_or_else(|| bad(0, "a number of milliseconds"))?,
            symbol: symbol.to_owned(),
            kind: Kind::from_name(text(2)).ok_or_else(|| bad(2, "trade, bid or ask"))?,
            price_1e4: number(text(3)).ok_or_else(|| bad(3, "a whole number (price x 10,000)"))?,
            size: number(text(4)).ok_or_else(|| bad(4, "a number of shares"))?,
        })
    }
}

impl Iterator for CsvFeed {
    type Item = Result<Event, FeedError>;

    fn next(&mut self) -> Option<Result<Event, FeedError>> {
        if self.failed {
            return None;
        }
        let event = match self.reader.read_record(&mut self.record) {
            Ok(false) => return None,
            Ok(true) => self.event(),
            Err(error) => Err(line_error(error)),
        };
        self.failed = event.is_err();
        Some(event)
    }
}

fn line_error(error: csv::Error) -> FeedError {
    let line = error.position().map_or(1, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(source) => FeedError::Read(source),
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => FeedError::Line {
            line,
            why: format!("{len} fields where the first line has {expected_len}"),
        },
        csv::ErrorKind::Utf8 { .. } => FeedError::Line {
            line,
            why: "not UTF-8".to_owned(),
        },
        other => FeedError::Line {
            line,
            why: format!("not CSV: {other:?}"),
        },
    }
}

/// Fails at a line that is too long, so that a file without line ends is not read into memory.
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

    fn read(text: &[u8]) -> Result<Vec<Event>, String> {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(text).expect("written");
        let feed = open(file.path()).map_err(|error| error.to_string())?;
        feed.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    const HEAD: &str = "time_ms,symbol,kind,price_1e4,size\n";

    #[test]
    fn plain_and_gzipped_files_read_the_same() {
        let text = format!("{HEAD}34140200,IBM,bid,1792100,100\n34142623,BAC,trade,137200,800\r\n");
        let plain = read(text.as_bytes()).expect("plain");
        assert_eq!(plain.len(), 2);
        assert_eq!(
            (plain[1].kind, plain[1].price_1e4, plain[1].size),
            (Kind::Trade, 137_200, 800)
        );
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).expect("compressed");
        assert_eq!(read(&gzip.finish().expect("compressed")).expect("gzipped"), plain);
    }

    #[test]
    fn columns_are_found_by_name() {
        let events = read(b"size,extra,kind,symbol,time_ms,price_1e4\n5,x,ask,SPY,7,11\n").expect("read");
        assert_eq!(
            (events[0].time_ms, events[0].size, events[0].price_1e4),
            (7, 5, 11)
        );
    }

    #[test]
    fn errors_name_line_and_column() {
        for (text, want) in [
            (
                "1,A,trade,5,x\n",
                "line 2, column size: \"x\" is not a number of shares",
            ),
            (
                "1,A,trade,5,1\n1,A,sale,5,1\n",
                "line 3, column kind: \"sale\" is not trade, bid or ask",
            ),
            (
                "-1,A,trade,5,1\n",
                "line 2, column time_ms: \"-1\" is not a number of milliseconds",
            ),
            ("1,,trade,5,1\n", "line 2, column symbol: \"\" is not a symbol"),
            ("1,A,trade,5\n", "line 2: 4 fields where the first line has 5"),
        ] {
            assert_eq!(read(format!("{HEAD}{text}").as_bytes()).expect_err(text), want);
        }
        let missing = read(b"time_ms,symbol,kind,size\n").expect_err("no price");
        assert!(missing.contains("no column `price_1e4`"), "{missing}");
        assert!(read(b"").expect_err("empty").contains("no column `time_ms`"));
    }

    #[test]
    fn a_file_without_line_ends_is_refused_early() {
        let long = vec![b'x'; LINE_BYTES_MAX * 4];
        assert!(read(&long).expect_err("too long").contains("longer than"));
        let mut cut = vec![0x1f, 0x8b, 8, 0];
        cut.extend_from_slice(&[0; 20]);
        assert!(read(&cut).is_err(), "a broken gzip file is an error");
    }
}
