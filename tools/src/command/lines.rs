//! Lines of standard input as keys and values, read by a thread of their own, in bounded chunks.

use std::io::{self, BufRead, BufReader, Read};

use bytes::Bytes;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::limits::RECORD_BYTES_MAX;
use tokio::sync::mpsc;

use crate::error::Failure;

/// One line, split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// From 1.
    pub number: u64,
    /// What stands before the separator; none without one.
    pub key: Option<Bytes>,
    /// The rest.
    pub value: Bytes,
}

/// Chunks that wait to be taken.
const CHUNKS_MAX: usize = 8;
/// Lines of a chunk.
const CHUNK_LINES_MAX: usize = 1_024;
/// Bytes of a chunk, but for its last line.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Begins to read standard input. Lines that have come are handed over before the thread waits for more.
#[must_use]
pub fn read_stdin(separator: Option<String>) -> mpsc::Receiver<Result<Vec<Line>, Failure>> {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    std::thread::spawn(move || {
        let input = BufReader::with_capacity(256 << 10, io::stdin());
        let mut lines = Lines::new(input, separator);
        loop {
            let chunk = lines.chunk();
            let more = matches!(&chunk, Ok(lines) if !lines.is_empty());
            if matches!(&chunk, Ok(lines) if lines.is_empty())
                || sender.blocking_send(chunk).is_err()
                || !more
            {
                return;
            }
        }
    });
    receiver
}

struct Lines<R> {
    input: BufReader<R>,
    separator: Option<String>,
    number: u64,
    failure: Option<Failure>,
}

impl<R: Read> Lines<R> {
    fn new(input: BufReader<R>, separator: Option<String>) -> Lines<R> {
        Lines {
            input,
            separator,
            number: 0,
            failure: None,
        }
    }

    /// At least one line, and what else can be had without waiting; empty at the end. A failure is told after the
    /// lines before it.
    fn chunk(&mut self) -> Result<Vec<Line>, Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let mut lines = Vec::new();
        let mut bytes = 0;
        loop {
            match self.line() {
                Ok(Some(line)) => {
                    bytes += line.value.len();
                    lines.push(line);
                }
                Ok(None) => return Ok(lines),
                Err(failure) if lines.is_empty() => return Err(failure),
                Err(failure) => {
                    self.failure = Some(failure);
                    return Ok(lines);
                }
            }
            let at_hand = self.input.buffer().contains(&b'\n');
            if !at_hand || lines.len() >= CHUNK_LINES_MAX || bytes >= CHUNK_BYTES_MAX {
                return Ok(lines);
            }
        }
    }

    fn line(&mut self) -> Result<Option<Line>, Failure> {
        let separator_len = self.separator.as_ref().map_or(0, String::len);
        let bytes_max = (RECORD_BYTES_MAX + separator_len) as u64;
        let mut text = Vec::new();
        let read = (&mut self.input).take(bytes_max + 1).read_until(b'\n', &mut text);
        self.number += 1;
        let number = self.number;
        let read = read.map_err(|error| Failure::local("standard input", error, "IO").at_line(number))?;
        if read == 0 {
            return Ok(None);
        }
        if text.last() == Some(&b'\n') {
            text.pop();
        } else if read as u64 > bytes_max {
            return Err(too_large(number));
        }
        let text = Bytes::from(text);
        let at = self
            .separator
            .as_deref()
            .and_then(|separator| find(&text, separator.as_bytes()));
        let line = match at {
            Some(at) => Line {
                number,
                key: Some(text.slice(..at)),
                value: text.slice(at + separator_len..),
            },
            None => Line {
                number,
                key: None,
                value: text,
            },
        };
        if line.key.as_ref().map_or(0, Bytes::len) + line.value.len() > RECORD_BYTES_MAX {
            return Err(too_large(number));
        }
        Ok(Some(line))
    }
}

fn too_large(number: u64) -> Failure {
    let why = format!("a record has at most {} MiB", RECORD_BYTES_MAX >> 20);
    Failure::coded(format!("line {number}"), why, ErrorCode::RecordTooLarge)
}

fn find(text: &[u8], separator: &[u8]) -> Option<usize> {
    match separator {
        [one] => text.iter().position(|byte| byte == one),
        _ => text
            .windows(separator.len())
            .position(|window| window == separator),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &[u8], separator: Option<&str>) -> Result<Vec<Line>, Failure> {
        let mut lines = Lines::new(BufReader::new(input), separator.map(str::to_owned));
        let mut all = Vec::new();
        loop {
            let chunk = lines.chunk()?;
            if chunk.is_empty() {
                return Ok(all);
            }
            all.extend(chunk);
        }
    }

    fn pairs(input: &[u8], separator: Option<&str>) -> Vec<(Option<String>, String)> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let lines = read(input, separator).expect("readable");
        lines
            .iter()
            .map(|line| (line.key.as_ref().map(text), text(&line.value)))
            .collect()
    }

    fn pair(key: Option<&str>, value: &str) -> (Option<String>, String) {
        (key.map(str::to_owned), value.to_owned())
    }

    #[test]
    fn a_line_is_a_value() {
        assert_eq!(
            pairs(b"a\n\nb:c", None),
            [pair(None, "a"), pair(None, ""), pair(None, "b:c")]
        );
        assert_eq!(pairs(b"", None), []);
    }

    #[test]
    fn a_separator_splits_at_its_first_place() {
        let want = [
            pair(Some("k"), "v:w"),
            pair(None, "none"),
            pair(Some(""), "v"),
            pair(Some("k"), ""),
        ];
        assert_eq!(pairs(b"k:v:w\nnone\n:v\nk:\n", Some(":")), want);
        assert_eq!(
            pairs(b"k::v\nk:v\n", Some("::")),
            [pair(Some("k"), "v"), pair(None, "k:v")]
        );
    }

    #[test]
    fn a_line_over_the_limit_is_refused_with_its_number() {
        let mut input = b"ok\n".to_vec();
        input.extend(std::iter::repeat_n(b'x', RECORD_BYTES_MAX));
        assert_eq!(read(&input, None).expect("as long as allowed").len(), 2);
        input.push(b'x');
        let failure = read(&input, None).expect_err("one byte over");
        assert!(
            failure
                .to_string()
                .starts_with("error: line 2: a record has at most 8 MiB (RECORD_TOO_LARGE)")
        );
        assert_eq!(failure.exit_code(), 1);
    }

    #[test]
    fn the_lines_before_a_failure_come_first() {
        let mut input = b"one\n".to_vec();
        input.extend(std::iter::repeat_n(b'x', RECORD_BYTES_MAX + 1));
        let mut lines = Lines::new(BufReader::with_capacity(RECORD_BYTES_MAX * 2, &input[..]), None);
        // The first line may come alone or with the failure behind it; never after it.
        assert_eq!(lines.chunk().expect("the first line").len(), 1);
        assert!(lines.chunk().is_err());
    }
}
