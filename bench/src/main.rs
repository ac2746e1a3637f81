//! The bench harness: one workload on Tailwater and on its peers, with latencies free of coordinated omission.

#![forbid(unsafe_code)]

mod scenario;
mod cells;
mod machine;
mod histogram;
mod payload;
mod tally;
mod load;
mod store;
mod measure;
mod peer;
mod report;
mod run;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use tailwater_wire::time::parse_duration;
use tokio::signal::unix::{SignalKind, signal};

use crate::peer::lab::Peer;
use crate::run::Plan;
use crate::scenario::{Options, Scenario};

/// Exit code of a run that failed.
const FAILED: u8 = 1;
/// Exit code of a run that was interrupted.
const INTERRUPTED: u8 = 130;

/// Measures Tailwater and its peers under one workload.
#[derive(Debug, Parser)]
#[command(name = "tailwater-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run scenarios and print the medians of their rounds.
    Run(Run),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// What to measure, one after another.
    #[arg(value_name = "SCENARIO", required_unless_present = "all")]
    scenarios: Vec<Scenario>,
    /// Every scenario.
    #[arg(long, conflicts_with = "scenarios")]
    all: bool,
    /// Which systems.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SYSTEMS",
        default_value = "tailwater,fio"
    )]
    against: Vec<Peer>,
    /// Go on without a system that is not installed, and say so, instead of refusing to run.
    #[arg(long)]
    skip_missing: bool,
    /// How to print the result.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
    /// Write result.json and report.md into this directory.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// How often each cell is run.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// How long each cell is measured, in seconds or as `500ms`.
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// How long closed loops of whole batches are measured, which fill segments [default: as --seconds].
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    steady: Option<Duration>,
    /// How long each cell runs before it is measured.
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = seconds)]
    warmup: Duration,
    /// Records a second of the rate-driven cells.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: u64,
    /// Records that are there before they are copied or read.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    records: u64,
    /// Only cells whose description contains this, as `x1000` or `to 4`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Shards of the node; with more than one it is not kept on one core.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    shards: u32,
    /// A smoke test: a few cells of each scenario, each for a second at most, once. The figures mean nothing.
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "steady", "warmup", "rate", "records"])]
    quick: bool,
    /// Where data lies during the run, on a disk [default: the target directory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Do not keep the system and the load on cores of their own.
    #[arg(long)]
    no_pin: bool,
    /// Measure this binary [default: the workspace's, built in release mode].
    #[arg(long, value_name = "FILE")]
    tailwater: Option<PathBuf>,
    /// Measure this nats-server [default: target/nats/bin/nats-server, or the one on the path].
    #[arg(long, value_name = "FILE")]
    nats: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns for people.
    Table,
    /// One JSON object.
    Json,
}

fn main() -> ExitCode {
    let Command::Run(arguments) = Cli::parse().command;
    match execute(arguments) {
        Ok(code) => code,
        Err(error) => {
            let _unread = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn execute(arguments: Run) -> anyhow::Result<ExitCode> {
    let Run {
        output,
        report: report_dir,
        dir,
        ..
    } = &arguments;
    let quick = arguments.quick;
    let plan = Plan {
        scenarios: if arguments.all {
            Scenario::ALL.to_vec()
        } else {
            distinct(&arguments.scenarios)
        },
        against: distinct(&arguments.against),
        options: if quick {
            quick_options()
        } else {
            options(&arguments)
        },
        rounds: if quick { 1 } else { usize::from(arguments.rounds) },
        only: arguments.only.clone(),
        dir: dir.clone().map_or_else(target_dir, Ok)?,
        pin: !arguments.no_pin,
        skip_missing: arguments.skip_missing,
        tailwater: arguments.tailwater.clone(),
        nats: arguments.nats.clone(),
        report: report_dir.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = async {
        tokio::select! {
            report = run::run(&plan) => report.map(Some),
            interrupted = interrupted() => interrupted.map(|()| None).context("cannot wait for signals"),
        }
    };
    let Some(report) = tokio::task::LocalSet::new().block_on(&runtime, run)? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let text = match output {
        Format::Table => report.table(),
        Format::Json => serde_json::to_string(&report)? + "\n",
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for a request to end, so that processes and data of the run go with it.
async fn interrupted() -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminated.recv() => Ok(()),
    }
}

fn options(arguments: &Run) -> Options {
    Options {
        seconds: arguments.seconds,
        steady: arguments.steady.unwrap_or(arguments.seconds),
        warmup: arguments.warmup,
        rate_per_s: arguments.rate,
        stored_records: arguments.records,
        shards: arguments.shards,
        quick: false,
    }
}

fn quick_options() -> Options {
    Options {
        seconds: Duration::from_millis(500),
        steady: Duration::from_millis(500),
        warmup: Duration::from_millis(100),
        rate_per_s: 500,
        stored_records: 5_000,
        shards: 1,
        quick: true,
    }
}

/// Each one once, in the order given.
fn distinct<T: Copy + PartialEq>(all: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    for &one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

/// Above the folder of this program: the one directory that a build surely has on a disk.
fn target_dir() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where this program lies is unknown")?;
    let target = own
        .ancestors()
        .nth(2)
        .context("this program does not lie in a target folder; give --dir")?;
    Ok(target.to_owned())
}

/// A number of seconds, or a duration with its unit.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?,
        Err(_) => parse_duration(text).map_err(|error| error.to_string())?,
    };
    if time > Duration::from_secs(3_600) {
        Err("an hour at most".to_owned())
    } else {
        Ok(time)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_system_that_does_not_exist_yet_is_a_usage_error_that_names_those_that_do() {
        let error = Cli::try_parse_from([
            "tailwater-bench",
            "run",
            "produce",
            "--against",
            "tailwater,kafka",
        ]);
        let error = error.expect_err("there is no such system");
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(
            text.contains("kafka") && text.contains("tailwater, redis, nats"),
            "{text}"
        );
        assert!(Cli::try_parse_from(["tailwater-bench", "run", "broadcast"]).is_err());
        Cli::command().debug_assert();
    }

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        assert_eq!(seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("500ms"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err() && seconds("2h").is_err() && seconds("soon").is_err());
    }

    #[test]
    fn each_system_runs_once() {
        assert_eq!(
            distinct(&[Peer::Fio, Peer::Tailwater, Peer::Fio]),
            [Peer::Fio, Peer::Tailwater]
        );
    }
}
