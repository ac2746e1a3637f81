//! Recorded ticks as CSV files: what `replay` reads.
//!
//! A file reads the same plain and gzipped; an event's record carries it whole, as a line that reads back as the same
//! event; and no file takes more memory than its longest row may.
//!
//! Mode: bits 0 to 1, gzipped in so many members; the others, how often the text behind the first line is repeated.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Seek, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

use crate::feed::csv;
use crate::feed::event::Event;
use crate::feed::rows::LINE_BYTES_MAX;
use crate::input::{join, split};
use crate::memory;
use crate::target::Seed;

const HEAD: &str = "time_ms,symbol,kind,price_1e4,size\n";
/// A row, what is read ahead, and what unpacking takes.
const BYTES_MAX: usize = 6 * LINE_BYTES_MAX + (512 << 10);
/// The longest text that an input is repeated to.
const TEXT_BYTES_MAX: usize = 2 << 20;

thread_local! {
    static FILE: RefCell<NamedTempFile> = RefCell::new(NamedTempFile::new().expect("a temporary file"));
}

/// See the module.
pub fn check(input: &[u8]) {
    let (mode, text) = split(input);
    let head = text
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(text.len(), |at| at + 1);
    let (head, rows) = text.split_at(head);
    let times = 1usize << (mode >> 4);
    let times = times.min(TEXT_BYTES_MAX / rows.len().max(1)).max(1);
    let text = [head, &rows.repeat(times)].concat();
    let plain = read(&text);
    let members = usize::from(mode & 3);
    if members > 0 && !text.is_empty() && !text.starts_with(&[0x1f, 0x8b]) {
        let pieces = text.chunks(text.len().div_ceil(members));
        let packed: Vec<u8> = pieces.flat_map(gzip).collect();
        assert_eq!(read(&packed), plain);
    }
    let events: Vec<Event> = plain.0.into_iter().take(64).collect();
    let mut lines = HEAD.as_bytes().to_vec();
    for event in &events {
        let record = event.to_record();
        assert_eq!(record.key.as_deref(), Some(event.symbol.as_bytes()));
        lines.extend_from_slice(&record.value);
        lines.push(b'\n');
    }
    assert_eq!(read(&lines), (events, None), "each value is its event's line");
}

/// The events of a file, and the error that they end with.
fn read(text: &[u8]) -> (Vec<Event>, Option<String>) {
    FILE.with_borrow_mut(|file| {
        write(file.as_file_mut(), text).expect("written");
        let mut events = Vec::new();
        let feed = memory::within(BYTES_MAX, || csv::open(file.path()));
        let mut feed = match feed {
            Ok(feed) => feed,
            Err(error) => return (events, Some(error.to_string())),
        };
        while let Some(event) = memory::within(BYTES_MAX, || feed.next()) {
            match event {
                Ok(event) => events.push(event),
                Err(error) => {
                    assert!(feed.next().is_none(), "it ends after an error");
                    return (events, Some(error.to_string()));
                }
            }
        }
        (events, None)
    })
}

fn write(file: &mut File, text: &[u8]) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text)
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text).expect("into memory");
    packed.finish().expect("into memory")
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let rows = "34140200,IBM,bid,1792100,100\n34142623,BAC,trade,137200,800\r\n";
    let two = format!("{HEAD}{rows}");
    vec![
        ("two-events", join(0, two.as_bytes())),
        ("gzipped-in-three", join(3, two.as_bytes())),
        ("repeated", join(0x40, two.as_bytes())),
        (
            "other-order",
            join(
                0,
                b"size,extra,kind,symbol,time_ms,price_1e4\n5,x,ask,SPY,7,-11\n",
            ),
        ),
        (
            "quoted",
            join(0, format!("{HEAD}1,\"BRK.B\",ask,\"5\",1\n").as_bytes()),
        ),
        ("wrong-field", join(0, format!("{HEAD}1,A,sale,5,1\n").as_bytes())),
        (
            "packed-file",
            gzip(two.as_bytes()).iter().fold(vec![0], |mut all, &byte| {
                all.push(byte);
                all
            }),
        ),
    ]
}
