//! Which columns of a recorded feed become the key, the time and the headers of its records.

use bytes::Bytes;
use tailwater_wire::record::Record;

use crate::feed::player::Item;
use crate::feed::rows::{FeedError, Row, Rows};
use crate::feed::times::{self, Unit};

/// What was asked for; columns by name or number.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The key's column.
    pub key: Option<String>,
    /// The time's column.
    pub time: Option<String>,
    /// What the times are.
    pub unit: Option<Unit>,
    /// Columns that become headers.
    pub headers: Vec<String>,
    /// Whether nothing can be done without times.
    pub is_paced: bool,
}

/// Makes records of rows.
#[derive(Debug)]
pub struct Columns {
    key: Option<usize>,
    time: Option<usize>,
    /// Decided by the first time, if nothing else did.
    unit: Option<Unit>,
    headers: Vec<(String, usize)>,
}

impl Columns {
    /// Looks the columns up.
    ///
    /// # Errors
    /// That one is not there, or that none holds times and the pace needs them.
    pub fn find(rows: &Rows, wanted: &Wanted) -> Result<Columns, FeedError> {
        let find = |name: &String| rows.column(name);
        let time = match &wanted.time {
            Some(name) => Some(find(name)?),
            None => times::column_of(rows.head()),
        };
        if time.is_none() && wanted.is_paced {
            let hint = format!(
                "--time names another one of {}, and --speed max needs none",
                rows.names()
            );
            return Err(rows.missing("time", hint));
        }
        let unit = time.and_then(|at| Unit::of_name(&rows.head()[at]));
        let header = |name: &String| find(name).map(|at| (rows.head()[at].clone(), at));
        Ok(Columns {
            key: wanted.key.as_ref().map(find).transpose()?,
            time,
            unit: wanted.unit.or(unit),
            headers: wanted.headers.iter().map(header).collect::<Result<_, _>>()?,
        })
    }

    /// The record of a row: the line as its value, and the line's time, or else `now`, as its timestamp.
    ///
    /// # Errors
    /// A field that is no time.
    pub fn item(&mut self, row: Row<'_>, now: impl FnOnce() -> u64) -> Result<Item, FeedError> {
        let time = self.time.map(|at| self.nanos(row, at)).transpose()?;
        let header = |(name, at): &(String, usize)| (name.clone(), Bytes::copy_from_slice(row.bytes(*at)));
        Ok(Item {
            time_ns: time.unwrap_or(0),
            line: row.line,
            record: Record {
                key: self.key.map(|at| Bytes::copy_from_slice(row.bytes(at))),
                value: row.to_line().into(),
                headers: self.headers.iter().map(header).collect(),
                timestamp: i64::try_from(time.unwrap_or_else(now)).unwrap_or(i64::MAX),
            },
        })
    }

    fn nanos(&mut self, row: Row<'_>, at: usize) -> Result<u64, FeedError> {
        let text = row.text(at)?;
        let unit = *self.unit.get_or_insert_with(|| Unit::guess(text));
        unit.nanos(text).ok_or_else(|| row.bad(at, unit.wanted()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::feed::rows;

    fn read(text: &str, has_head: bool, wanted: &Wanted) -> Result<Vec<Item>, String> {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(text.as_bytes()).expect("written");
        let (mut rows, _) = rows::open(file.path(), has_head).map_err(|error| error.to_string())?;
        let mut columns = Columns::find(&rows, wanted).map_err(|error| error.to_string())?;
        let mut items = Vec::new();
        while let Some(row) = rows.advance().map_err(|error| error.to_string())? {
            items.push(columns.item(row, || 5).map_err(|error| error.to_string())?);
        }
        Ok(items)
    }

    #[test]
    fn a_line_becomes_a_record() {
        let wanted = Wanted {
            key: Some("symbol".to_owned()),
            headers: vec!["kind".to_owned()],
            is_paced: true,
            ..Wanted::default()
        };
        let text = "time_ms,symbol,kind\n34140200,IBM,bid\n34140201,\"A,B\",ask\n";
        let items = read(text, true, &wanted).expect("read");
        assert_eq!(items[0].time_ns, 34_140_200_000_000, "the name tells the unit");
        let record = &items[1].record;
        assert_eq!(record.key.as_deref(), Some(&b"A,B"[..]));
        assert_eq!(&record.value[..], b"34140201,\"A,B\",ask");
        assert_eq!(record.headers, [("kind".to_owned(), Bytes::from_static(b"ask"))]);
        assert_eq!((record.timestamp, items[1].line), (34_140_201_000_000, 3));
    }

    #[test]
    fn columns_without_names_have_numbers() {
        let wanted = Wanted {
            key: Some("2".to_owned()),
            time: Some("1".to_owned()),
            is_paced: true,
            ..Wanted::default()
        };
        let items = read("1795945800,IBM\n1795945801.5,BAC\n", false, &wanted).expect("read");
        assert_eq!(items[1].time_ns - items[0].time_ns, 1_500_000_000);
        assert_eq!(items[0].record.key.as_deref(), Some(&b"IBM"[..]));
    }

    #[test]
    fn without_times_only_the_greatest_speed_is_left() {
        let wanted = |is_paced| Wanted {
            is_paced,
            ..Wanted::default()
        };
        let error = read("a,b\n1,2\n", true, &wanted(true)).expect_err("no times");
        assert!(error.contains("--time") && error.contains("a, b"), "{error}");
        let items = read("a,b\n1,2\n", true, &wanted(false)).expect("no times needed");
        assert_eq!((items[0].record.timestamp, &items[0].record.key), (5, &None));
    }

    #[test]
    fn the_first_time_decides_what_the_rest_are() {
        let wanted = Wanted::default();
        let text = "ts,x\n1795945800250,a\n2026-11-29T09:50:00Z,b\n";
        let error = read(text, true, &wanted).expect_err("another kind of time");
        assert_eq!(
            error,
            "line 3, column ts: \"2026-11-29T09:50:00Z\" is not a number of milliseconds since the epoch"
        );
        let error = read("ts,x\nsoon,b\n", true, &wanted).expect_err("no time");
        assert!(
            error.starts_with("line 2, column ts: \"soon\" is not a time as"),
            "{error}"
        );
        let seconds = Wanted {
            unit: Some(Unit::S),
            ..Wanted::default()
        };
        assert_eq!(
            read("ts,x\n34140,a\n", true, &seconds).expect("read")[0].time_ns,
            34_140_000_000_000
        );
    }
}
