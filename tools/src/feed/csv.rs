//! Recorded ticks: CSV files, plain or gzipped, with the columns `time_ms`, `symbol`, `kind`, `price_1e4` and `size`.
//!
//! Columns may stand in any order, and others are passed over.

use std::path::Path;
use std::str::FromStr;

use crate::feed::event::{Event, Kind};
use crate::feed::rows::{self, FeedError, Row, Rows};

const COLUMNS: [&str; 5] = ["time_ms", "symbol", "kind", "price_1e4", "size"];

/// The events of a file, read as they are asked for. Ends after the first error.
pub struct CsvFeed {
    rows: Rows,
    /// Where each of [`COLUMNS`] stands.
    columns: [usize; 5],
    failed: bool,
}

/// Opens a file, plain or gzipped, and reads its head.
///
/// # Errors
/// [`FeedError`] when it cannot be read or lacks a column.
pub fn open(path: &Path) -> Result<CsvFeed, FeedError> {
    let (rows, _) = rows::open(path, true)?;
    let mut columns = [0; 5];
    for (at, column) in columns.iter_mut().zip(COLUMNS) {
        let found = rows.head().iter().position(|name| name == column);
        *at = found.ok_or_else(|| rows.missing(column, format!("needed are {}", COLUMNS.join(", "))))?;
    }
    Ok(CsvFeed {
        rows,
        columns,
        failed: false,
    })
}

fn event(row: Row<'_>, columns: &[usize; 5]) -> Result<Event, FeedError> {
    fn number<T: FromStr>(row: Row<'_>, column: usize, wanted: &'static str) -> Result<T, FeedError> {
        row.text(column)?.parse().map_err(|_| row.bad(column, wanted))
    }
    let [time, symbol, kind, price, size] = *columns;
    if row.text(symbol)?.is_empty() {
        return Err(row.bad(symbol, "a symbol"));
    }
    Ok(Event {
        time_ms: number(row, time, "a number of milliseconds")?,
        symbol: row.text(symbol)?.to_owned(),
        kind: Kind::from_name(row.text(kind)?).ok_or_else(|| row.bad(kind, "trade, bid or ask"))?,
        price_1e4: number(row, price, "a whole number (price x 10,000)")?,
        size: number(row, size, "a number of shares")?,
    })
}

impl Iterator for CsvFeed {
    type Item = Result<Event, FeedError>;

    fn next(&mut self) -> Option<Result<Event, FeedError>> {
        if self.failed {
            return None;
        }
        let event = match self.rows.advance() {
            Ok(None) => return None,
            Ok(Some(row)) => event(row, &self.columns),
            Err(error) => Err(error),
        };
        self.failed = event.is_err();
        Some(event)
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
        assert_eq!(read(b"").expect_err("empty"), "the file is empty");
    }
}
