//! Where a replay's events come from, looked through once before anything is sent: how many there are, how long they
//! take, and that all of them can be read.

use std::path::{Path, PathBuf};

use crate::error::{Failure, exit};
use crate::feed::event::{Event, Kind};
use crate::feed::rows::FeedError;
use crate::feed::{builtin, csv};

/// A feed that can be read from its start.
#[derive(Debug)]
pub struct Source {
    /// The recorded feed; the built-in one without.
    file: Option<PathBuf>,
    count: u64,
    trades: u64,
    first_ms: Option<u64>,
    last_ms: u64,
}

/// Events in order.
pub type Events = Box<dyn Iterator<Item = Result<Event, FeedError>> + Send>;

impl Source {
    /// Looks through the built-in feed, or a recorded one.
    ///
    /// # Errors
    /// When the file cannot be read or understood, or holds no event.
    pub fn survey(file: Option<&Path>) -> Result<Source, Failure> {
        let mut source = Source {
            file: file.map(Path::to_owned),
            count: 0,
            trades: 0,
            first_ms: None,
            last_ms: 0,
        };
        for event in source.events()? {
            let event = event.map_err(|error| failure(file, &error))?;
            source.count += 1;
            source.trades += u64::from(event.kind == Kind::Trade);
            source.first_ms.get_or_insert(event.time_ms);
            source.last_ms = source.last_ms.max(event.time_ms);
        }
        match file {
            Some(file) if source.count == 0 => {
                Err(Failure::usage(file.display(), "there are no events in it"))
            }
            _ => Ok(source),
        }
    }

    /// The events, from the first on.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn events(&self) -> Result<Events, Failure> {
        match &self.file {
            None => Ok(Box::new(builtin::events(builtin::SEED).into_iter().map(Ok))),
            Some(file) => match csv::open(file) {
                Ok(feed) => Ok(Box::new(feed)),
                Err(error) => Err(failure(Some(file), &error)),
            },
        }
    }

    /// How many events there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many of them are trades.
    #[must_use]
    pub fn trades(&self) -> u64 {
        self.trades
    }

    /// From the first event to the last.
    #[must_use]
    pub fn span_ms(&self) -> u64 {
        self.last_ms.saturating_sub(self.first_ms.unwrap_or(0))
    }
}

/// What a command ends with that cannot read its feed.
#[must_use]
pub fn failure(file: Option<&Path>, error: &FeedError) -> Failure {
    let what = match file {
        None => "the built-in feed".to_owned(),
        Some(file) if file == Path::new("-") => "standard input".to_owned(),
        Some(file) => file.display().to_string(),
    };
    match error {
        FeedError::Open(source) if source.kind() == std::io::ErrorKind::NotFound => {
            Failure::file(what, source)
        }
        FeedError::Open(source) => Failure::local(what, source, "FEED"),
        FeedError::Read { .. } => Failure::local(what, error, "FEED"),
        // The input is wrong as a whole: a question of what was asked for.
        other => Failure::local(what, other, "FEED").with_exit(exit::USAGE),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_built_in_feed_is_surveyed() {
        let source = Source::survey(None).expect("readable");
        assert_eq!((source.count(), source.trades()), (50_000, 23_160));
        assert!((600_000..660_000).contains(&source.span_ms()));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_known_before_the_replay() {
        let missing = Source::survey(Some(Path::new("/nowhere/feed.csv"))).expect_err("missing");
        assert_eq!(missing.exit_code(), 3);
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(b"time_ms,symbol,kind,price_1e4,size\n")
            .expect("written");
        let empty = Source::survey(Some(file.path())).expect_err("empty");
        assert_eq!(empty.exit_code(), 2);
        file.write_all(b"1,A,trade,1,1\n2,A,trade,x,1\n")
            .expect("written");
        let wrong = Source::survey(Some(file.path())).expect_err("wrong");
        assert!(wrong.to_string().contains("line 3, column price_1e4"), "{wrong}");
        assert_eq!(wrong.exit_code(), 2);
    }
}
