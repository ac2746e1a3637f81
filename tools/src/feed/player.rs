//! Sends a feed's records when they are due, and measures what became of them.
//!
//! The schedule is open-loop: when a record is due depends on the feed alone, so one that was sent late moves nothing
//! behind it, and its acknowledgement is timed from when it was due.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use hdrhistogram::Histogram;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::producer::Producer;
use tailwater_wire::record::Record;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use crate::error::Failure;
use crate::feed::replay::{Pace, wait_text};
use crate::output;

/// Chunks of a feed that wait to be sent.
const CHUNKS_MAX: usize = 4;
/// Records of a chunk of a file.
pub const CHUNK_RECORDS: usize = 512;
/// A wait that is longer than this is said, once: nobody looks at a silent terminal for decades.
const LONG: Duration = Duration::from_secs(10);
/// The longest time that is told apart, in microseconds: a day.
const MICROS_MAX: u64 = 86_400_000_000;

/// One record of a feed.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its recorded time, on any clock, in nanoseconds.
    pub time_ns: u64,
    /// Where it was read, for errors; 0 for what has no lines.
    pub line: u64,
    /// What is sent.
    pub record: Record,
}

/// Records in order; an error ends the feed, and comes after the records before it.
pub type Feed = mpsc::Receiver<Result<Vec<Item>, Failure>>;

/// Reads a feed on a thread of its own, a few chunks ahead: reading may block, and sending must not. A chunk is handed
/// over when it has `chunk_records`: 1 for a feed whose records may be long in coming.
#[must_use]
pub fn read_ahead(
    mut items: impl Iterator<Item = Result<Item, Failure>> + Send + 'static,
    chunk_records: usize,
) -> Feed {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    std::thread::spawn(move || {
        loop {
            let mut chunk = Vec::with_capacity(chunk_records);
            let mut failure = None;
            while chunk.len() < chunk_records && failure.is_none() {
                match items.next() {
                    Some(Ok(item)) => chunk.push(item),
                    Some(Err(error)) => failure = Some(error),
                    None => break,
                }
            }
            let is_last = chunk.len() < chunk_records;
            // Nobody takes chunks any more when the replay has ended early.
            let gone = !chunk.is_empty() && sender.blocking_send(Ok(chunk)).is_err();
            if let Some(failure) = failure {
                let _gone = sender.blocking_send(Err(failure));
            }
            if is_last || gone {
                return;
            }
        }
    });
    receiver
}

/// Sends one feed.
#[derive(Debug)]
pub struct Player {
    /// Records handed to the producer.
    sent: Cell<u64>,
    /// Records acknowledged.
    acknowledged: Cell<u64>,
    failed: Cell<u64>,
    failure: RefCell<Option<Failure>>,
    stopped: Cell<bool>,
    stop: Notify,
}

/// What became of a feed.
#[derive(Debug)]
pub struct Played {
    /// Records handed to the producer.
    pub sent: u64,
    /// Records acknowledged.
    pub produced: u64,
    /// Records that were sent and failed, or may have.
    pub failed: u64,
    /// From the first record to the last acknowledgement.
    pub elapsed: Duration,
    /// By how much records were sent later than due, in microseconds.
    pub late: Histogram<u64>,
    /// From when a record was due, or else sent, to its acknowledgement, in microseconds.
    pub response: Histogram<u64>,
    /// What ended it early: the feed, or a record.
    pub failure: Option<Failure>,
}

impl Player {
    /// For one feed.
    #[must_use]
    pub fn new() -> Player {
        Player {
            sent: Cell::new(0),
            acknowledged: Cell::new(0),
            failed: Cell::new(0),
            failure: RefCell::new(None),
            stopped: Cell::new(false),
            stop: Notify::new(),
        }
    }

    /// Sends nothing more; what was sent is still waited for.
    pub fn stop(&self) {
        self.stopped.set(true);
        self.stop.notify_one();
    }

    /// Records sent, and those of them that have neither been acknowledged nor failed.
    #[must_use]
    pub fn waiting(&self) -> (u64, u64) {
        let sent = self.sent.get();
        (sent, sent - self.acknowledged.get() - self.failed.get())
    }

    /// Sends the feed, and returns when everything that was sent has been acknowledged or has failed. The first failure
    /// stops it. `acknowledged` is told the number of acknowledged records, now and then.
    ///
    /// # Errors
    /// Only when it could not begin.
    pub async fn play(
        &self,
        producer: &Producer,
        feed: Feed,
        pace: Pace,
        acknowledged: impl Fn(u64),
    ) -> Result<Played, Failure> {
        let times = || Histogram::new_with_bounds(1, MICROS_MAX, 3);
        let no_memory = |error| Failure::local("histogram", error, "INTERNAL");
        let mut late = times().map_err(no_memory)?;
        let mut response = times().map_err(no_memory)?;
        // As many as the producer's buffer holds.
        let (outcomes, settled) = mpsc::unbounded_channel();
        let started = Instant::now();
        let sending = async {
            if let Err(failure) = self.send(producer, feed, pace, &mut late, outcomes).await {
                self.fail(failure);
            }
        };
        tokio::join!(sending, self.count(settled, &mut response, acknowledged));
        Ok(Played {
            sent: self.sent.get(),
            produced: self.acknowledged.get(),
            failed: self.failed.get(),
            elapsed: started.elapsed(),
            late,
            response,
            failure: self.failure.take(),
        })
    }

    fn fail(&self, failure: Failure) {
        self.failure.borrow_mut().get_or_insert(failure);
        self.stop();
    }

    async fn send(
        &self,
        producer: &Producer,
        mut feed: Feed,
        mut pace: Pace,
        late: &mut Histogram<u64>,
        outcomes: mpsc::UnboundedSender<Result<Duration, ClientError>>,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        let mut said = false;
        while !self.stopped.get() {
            let chunk = tokio::select! {
                chunk = feed.recv() => chunk,
                () = self.stop.notified() => None,
            };
            let Some(chunk) = chunk else { return Ok(()) };
            for item in chunk? {
                let due = pace.due(item.time_ns).map(|after| started + after);
                let wait = due.map_or(Duration::ZERO, |due| {
                    due.saturating_duration_since(Instant::now())
                });
                if wait > LONG && !said {
                    said = true;
                    output::note(&format!(
                        "next line is due in {}; --speed max sends without waiting",
                        wait_text(wait)
                    ));
                }
                if let Some(due) = due.filter(|_| !wait.is_zero()) {
                    tokio::select! {
                        () = sleep_until(due) => {}
                        () = self.stop.notified() => {}
                    }
                }
                if self.stopped.get() {
                    return Ok(());
                }
                let from = due.unwrap_or_else(Instant::now);
                let delivery = tokio::select! {
                    delivery = producer.send(item.record) => delivery,
                    () = self.stop.notified() => return Ok(()),
                };
                let delivery = delivery.map_err(|error| {
                    let failure = Failure::from(error);
                    if item.line > 0 {
                        failure.at_line(item.line)
                    } else {
                        failure
                    }
                })?;
                self.sent.set(self.sent.get() + 1);
                if due.is_some() {
                    late.saturating_record(from.elapsed().as_micros() as u64);
                }
                let outcomes = outcomes.clone();
                tokio::spawn(async move {
                    let outcome = delivery.await.map(|_| from.elapsed());
                    // Nobody counts any more when the replay was ended at once.
                    let _ = outcomes.send(outcome);
                });
            }
        }
        Ok(())
    }

    async fn count(
        &self,
        mut settled: mpsc::UnboundedReceiver<Result<Duration, ClientError>>,
        response: &mut Histogram<u64>,
        acknowledged: impl Fn(u64),
    ) {
        while let Some(first) = settled.recv().await {
            let mut next = Some(first);
            while let Some(outcome) = next {
                match outcome {
                    Ok(time) => {
                        response.saturating_record(time.as_micros() as u64);
                        self.acknowledged.set(self.acknowledged.get() + 1);
                    }
                    Err(error) => {
                        self.failed.set(self.failed.get() + 1);
                        self.fail(Failure::from(error));
                    }
                }
                next = settled.try_recv().ok();
            }
            acknowledged(self.acknowledged.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(line: u64) -> Item {
        Item {
            time_ns: line,
            line,
            record: Record::default(),
        }
    }

    fn drain(mut feed: Feed) -> (Vec<u64>, Option<Failure>) {
        let mut lines = Vec::new();
        while let Some(chunk) = feed.blocking_recv() {
            match chunk {
                Ok(items) => lines.extend(items.iter().map(|item| item.line)),
                Err(failure) => return (lines, Some(failure)),
            }
        }
        (lines, None)
    }

    #[test]
    fn a_feed_is_read_to_its_end_in_order() {
        for (count, chunk) in [(0, 8), (1, 8), (8, 8), (31, 8), (31, 1)] {
            let (lines, failure) = drain(read_ahead((1..=count).map(|line| Ok(item(line))), chunk));
            assert_eq!(lines, (1..=count).collect::<Vec<_>>());
            assert_eq!(failure, None);
        }
    }

    #[test]
    fn an_error_comes_after_the_records_before_it() {
        let broken = (1..).map(|line| match line {
            ..700 => Ok(item(line)),
            _ => Err(Failure::usage("feed", "broken")),
        });
        let (lines, failure) = drain(read_ahead(broken, CHUNK_RECORDS));
        assert_eq!(lines.len(), 699);
        assert_eq!(failure, Some(Failure::usage("feed", "broken")));
    }
}
