//! `produce`: a record for each line of standard input.
//!
//! With `-o ndjson` each acknowledged record is a line `{partition, offset, commit_time, durability}`, printed when it
//! was acknowledged and not before; with `-o json` one object at the end. Otherwise standard output stays empty. A
//! summary goes to standard error, also when a signal ended it.

use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal};
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::delivery::Delivered;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::producer::Producer;
use tailwater_wire::record::Record;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep_until;

use crate::cli;
use crate::clock;
use crate::command::context::{Context, counter};
use crate::command::lines::{self, Line};
use crate::command::patience;
use crate::command::signals::Signals;
use crate::error::Failure;
use crate::feed::replay::after;
use crate::output::{self, Format, Out};

/// An acknowledged record as it is printed.
#[derive(Debug, Serialize)]
struct Ack {
    partition: u32,
    offset: Option<u64>,
    commit_time: Option<u64>,
    durability: &'static str,
}

/// The whole as it is printed.
#[derive(Debug, Serialize)]
struct Summary {
    produced: u64,
    failed: u64,
    elapsed_ms: u64,
    records_per_s: u64,
}

type Outcome = Result<Delivered, ClientError>;

/// What feeding and printing tell each other.
#[derive(Default)]
struct Shared {
    sent: Cell<u64>,
    acknowledged: Cell<u64>,
    failed: Cell<u64>,
    first_failure: RefCell<Option<Failure>>,
    /// What a person sees meanwhile.
    progress: Option<ProgressBar>,
    stopped: Cell<bool>,
    stop: Notify,
}

impl Shared {
    fn fail(&self, failure: Failure) {
        self.first_failure.borrow_mut().get_or_insert(failure);
        self.stop();
    }

    /// Sends nothing more; what was sent is still waited for.
    fn stop(&self) {
        self.stopped.set(true);
        self.stop.notify_one();
    }

    /// What was sent, and what of it is neither acknowledged nor failed.
    fn waiting(&self) -> (u64, u64) {
        let sent = self.sent.get();
        (sent, sent - self.acknowledged.get() - self.failed.get())
    }
}

/// Runs it.
///
/// # Errors
/// The first record's failure, or that a signal ended it; what was acknowledged is printed all the same.
pub async fn run(context: &mut Context, signals: &mut Signals, args: cli::Produce) -> Result<(), Failure> {
    let mut options = ProducerOptions {
        partition: args.partition,
        ..ProducerOptions::default()
    };
    if let Some(records) = args.batch {
        options.batch_records = records as usize;
    }
    let give_up = options.delivery_timeout;
    let opening = context.client.producer(&args.topic, options);
    let producer = signals.unless(opening).await??;
    let started = Instant::now();
    let shared = Shared {
        progress: progress(context.output),
        ..Shared::default()
    };
    let (acks, outcomes) = mpsc::unbounded_channel();
    let work = async {
        let work = async {
            tokio::join!(
                feed(&producer, &args, &shared, acks),
                print(&mut context.out, context.output, &shared, outcomes)
            )
        };
        tokio::select! {
            done = work => done,
            never = patience::watch(&producer, give_up, || shared.waiting()) => match never {},
        }
    };
    let ((fed, printed), ended) = signals.finish(work, || shared.stop()).await?;
    if let Some(progress) = &shared.progress {
        progress.finish_and_clear();
    }
    printed?;
    let elapsed = started.elapsed();
    let produced = shared.acknowledged.get();
    let summary = Summary {
        produced,
        failed: shared.failed.get(),
        elapsed_ms: elapsed.as_millis() as u64,
        records_per_s: (produced as f64 / elapsed.as_secs_f64().max(1e-9)) as u64,
    };
    if context.output == Some(Format::Json) {
        context.out.json(&summary)?;
        context.out.flush()?;
    }
    output::note(&format!(
        "{} acknowledged in {:.3} s, {}/s; {} failed",
        output::counted(summary.produced, "record"),
        elapsed.as_secs_f64(),
        summary.records_per_s,
        summary.failed
    ));
    fed?;
    shared.first_failure.into_inner().or(ended).map_or(Ok(()), Err)
}

/// A count for those who wait; not for those who type the lines, or see the acknowledgements.
fn progress(format: Option<Format>) -> Option<ProgressBar> {
    let typed = io::stdin().is_terminal();
    let seen = format == Some(Format::Ndjson) && io::stdout().is_terminal();
    (!typed && !seen).then(|| counter("records acknowledged"))
}

/// Sends lines until they end, something fails, or it is stopped.
async fn feed(
    producer: &Producer,
    args: &cli::Produce,
    shared: &Shared,
    acks: mpsc::UnboundedSender<Outcome>,
) -> Result<(), Failure> {
    let mut lines = lines::read_stdin(args.key_separator.clone());
    let started = tokio::time::Instant::now();
    let mut sent = 0u64;
    while !shared.stopped.get() {
        let chunk = tokio::select! {
            chunk = lines.recv() => chunk,
            () = shared.stop.notified() => None,
        };
        let Some(chunk) = chunk else { break };
        for line in chunk? {
            if let Some(rate) = args.rate {
                let due = started + after(sent as f64 / rate);
                tokio::select! {
                    () = sleep_until(due) => {}
                    () = shared.stop.notified() => {}
                }
            }
            if shared.stopped.get() {
                return Ok(());
            }
            let number = line.number;
            let delivery = tokio::select! {
                delivery = producer.send(record(line)) => delivery,
                () = shared.stop.notified() => return Ok(()),
            };
            let delivery = delivery.map_err(|error| Failure::from(error).at_line(number))?;
            sent += 1;
            shared.sent.set(sent);
            let acks = acks.clone();
            tokio::spawn(async move {
                // Nobody listening means that standard output is gone.
                let _ = acks.send(delivery.await);
            });
        }
    }
    Ok(())
}

fn record(line: Line) -> Record {
    Record {
        key: line.key,
        value: line.value,
        headers: Vec::new(),
        timestamp: i64::try_from(clock::now_nanos()).unwrap_or(i64::MAX),
    }
}

/// Prints acknowledgements as they come, until all have come.
async fn print(
    out: &mut Out,
    format: Option<Format>,
    shared: &Shared,
    mut outcomes: mpsc::UnboundedReceiver<Outcome>,
) -> Result<(), Failure> {
    let result = async {
        while let Some(first) = outcomes.recv().await {
            let mut next = Some(first);
            while let Some(outcome) = next {
                settle(out, format, shared, outcome)?;
                next = outcomes.try_recv().ok();
            }
            out.flush()?;
            if let Some(progress) = &shared.progress {
                progress.set_position(shared.acknowledged.get());
            }
        }
        Ok(())
    };
    let result: Result<(), Failure> = result.await;
    if let Err(failure) = &result {
        shared.fail(failure.clone());
    }
    result
}

fn settle(out: &mut Out, format: Option<Format>, shared: &Shared, outcome: Outcome) -> Result<(), Failure> {
    match outcome {
        Ok(delivered) => {
            shared.acknowledged.set(shared.acknowledged.get() + 1);
            if format == Some(Format::Ndjson) {
                out.json(&Ack {
                    partition: delivered.partition.0,
                    offset: delivered.offset.map(|offset| offset.0),
                    commit_time: delivered.commit_time.map(|time| time.0),
                    durability: delivered.durability.label(),
                })?;
            }
        }
        Err(error) => {
            shared.failed.set(shared.failed.get() + 1);
            shared.fail(Failure::from(error));
        }
    }
    Ok(())
}
