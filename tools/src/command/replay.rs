//! `replay`: a recorded feed into a topic, at its recorded pace, a multiple of it, or as fast as it goes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tailwater_wire::client::config::ProducerOptions;

use crate::cli::{self, Global};
use crate::clock;
use crate::command::context::{Context, percent, with_signals};
use crate::command::patience;
use crate::command::signals::Signals;
use crate::error::Failure;
use crate::feed::columns::{Columns, Wanted};
use crate::feed::player::{CHUNK_RECORDS, Feed, Item, Played, Player, read_ahead};
use crate::feed::replay::{Pace, Speed};
use crate::feed::rows::{self, Progress, Rows};
use crate::feed::source;
use crate::output::{self, Format};

/// How long a producer's batch tops up while another is in flight; a paced feed rather waits less.
const LINGER_PACED: Duration = Duration::from_millis(1);
/// Bytes that may be unacknowledged: enough for any pace, and it bounds how many small records are waited for at once.
const BUFFER_BYTES: usize = 8 << 20;
/// Records of a batch of a feed that is sent as fast as possible.
const BATCH_RECORDS_FAST: usize = 16_384;

/// The whole as it is printed.
#[derive(Debug, Serialize)]
struct Summary {
    /// Handed to the client.
    sent: u64,
    /// Acknowledged.
    produced: u64,
    failed: u64,
    elapsed_ms: u64,
    records_per_s: u64,
    late_p50_ms: f64,
    late_p99_ms: f64,
    late_max_ms: f64,
    response_p50_us: u64,
    response_p99_us: u64,
    /// Ended early by a signal.
    interrupted: bool,
}

/// Runs it.
///
/// # Errors
/// What is wrong with the feed, the node's refusals, or that a signal ended it; what was acknowledged is summed up all
/// the same.
pub fn run(global: &Global, args: &cli::Replay) -> Result<(), Failure> {
    let unreadable = |error| source::failure(Some(&args.file), &error);
    let (rows, progress) = rows::open(&args.file, !args.no_header).map_err(unreadable)?;
    let wanted = Wanted {
        key: args.key.clone(),
        time: args.time.clone(),
        unit: args.time_unit,
        headers: args.record_header.clone(),
        is_paced: args.speed != Speed::Max,
    };
    let columns = Columns::find(&rows, &wanted).map_err(unreadable)?;
    let feed = feed(args.file.clone(), rows, columns);
    with_signals(global, async |context, signals| {
        let replay = Replay { args, progress };
        replay.run(context, feed, signals).await
    })
}

fn feed(file: PathBuf, mut rows: Rows, mut columns: Columns) -> Feed {
    // What comes through a pipe may be long in coming, and is sent when it is there.
    let chunk_records = if file == Path::new("-") { 1 } else { CHUNK_RECORDS };
    let items = std::iter::from_fn(move || {
        let row = match rows.advance() {
            Ok(row) => row?,
            Err(error) => return Some(Err(source::failure(Some(&file), &error))),
        };
        let item: Result<Item, _> = columns.item(row, clock::now_nanos);
        Some(item.map_err(|error| source::failure(Some(&file), &error)))
    });
    read_ahead(items, chunk_records)
}

struct Replay<'a> {
    args: &'a cli::Replay,
    progress: Progress,
}

impl Replay<'_> {
    async fn run(self, context: &mut Context, feed: Feed, signals: &mut Signals) -> Result<(), Failure> {
        let mut options = ProducerOptions {
            buffer_bytes: BUFFER_BYTES,
            ..ProducerOptions::default()
        };
        match self.args.speed {
            Speed::Max => options.batch_records = BATCH_RECORDS_FAST,
            Speed::Times(_) => options.linger = LINGER_PACED,
        }
        let give_up = options.delivery_timeout;
        let opening = context.client.producer(&self.args.topic, options);
        let producer = signals.unless(opening).await??;
        let player = Player::new();
        let bar = percent(self.progress.bytes);
        let moved = |produced: u64| {
            bar.set_position(self.progress.read());
            bar.set_message(format!("{produced} acknowledged"));
        };
        let pace = Pace::new(self.args.speed);
        let playing = async {
            tokio::select! {
                played = player.play(&producer, feed, pace, moved) => played,
                never = patience::watch(&producer, give_up, || player.waiting()) => match never {},
            }
        };
        let (played, ended) = signals.finish(playing, || player.stop()).await?;
        let played = played?;
        bar.finish_and_clear();
        print(context, &played, ended.is_some())?;
        match (played.failure, ended) {
            (Some(failure), _) | (None, Some(failure)) => Err(failure),
            (None, None) => Ok(()),
        }
    }
}

fn print(context: &mut Context, played: &Played, interrupted: bool) -> Result<(), Failure> {
    let late_ms = |quantile| played.late.value_at_quantile(quantile) as f64 / 1e3;
    let response = |quantile| played.response.value_at_quantile(quantile);
    let summary = Summary {
        sent: played.sent,
        produced: played.produced,
        failed: played.failed,
        elapsed_ms: played.elapsed.as_millis() as u64,
        records_per_s: (played.produced as f64 / played.elapsed.as_secs_f64().max(1e-9)) as u64,
        late_p50_ms: late_ms(0.5),
        late_p99_ms: late_ms(0.99),
        late_max_ms: played.late.max() as f64 / 1e3,
        response_p50_us: response(0.5),
        response_p99_us: response(0.99),
        interrupted,
    };
    if matches!(context.output, Some(Format::Json | Format::Ndjson)) {
        context.out.json(&summary)?;
        context.out.flush()?;
    }
    output::note(&format!(
        "{} acknowledged in {:.3} s, {}/s; {} failed; sent late by {} ms (p99), {} ms (most); acknowledged \
         within {} us (p50), {} us (p99) of when they were due",
        output::counted(summary.produced, "record"),
        played.elapsed.as_secs_f64(),
        summary.records_per_s,
        summary.failed,
        summary.late_p99_ms,
        summary.late_max_ms,
        summary.response_p50_us,
        summary.response_p99_us
    ));
    Ok(())
}
