//! The bench harness: one workload on Tailwater and on its peers, with latencies free of coordinated omission.

#![forbid(unsafe_code)]

mod scenario;
mod machine;
mod histogram;
mod payload;
mod tally;
mod load;
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
    /// Run a scenario and print the medians of its rounds.
    Run(Run),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// What to measure.
    #[arg(value_name = "SCENARIO")]
    scenario: Scenario,
    /// Which systems.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SYSTEMS",
        default_value = "tailwater,fio"
    )]
    against: Vec<Peer>,
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
    /// How long each cell runs before it is measured.
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = seconds)]
    warmup: Duration,
    /// Records a second of the rate-driven cells.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: u64,
    /// Records of a parent that is backfilled from.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    records: u64,
    /// Only cells whose description contains this, as `x1000` or `to 4`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Where data lies during the run, on a disk [default: the target directory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Do not keep the system and the load on cores of their own.
    #[arg(long)]
    no_pin: bool,
    /// Measure this binary [default: the workspace's, built in release mode].
    #[arg(long, value_name = "FILE")]
    tailwater: Option<PathBuf>,
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
    let plan = Plan {
        scenario: arguments.scenario,
        against: distinct(&arguments.against),
        options: Options {
            seconds: arguments.seconds,
            warmup: arguments.warmup,
            rate_per_s: arguments.rate,
            backfill_records: arguments.records,
        },
        rounds: usize::from(arguments.rounds),
        only: arguments.only.clone(),
        dir: dir.clone().map_or_else(target_dir, Ok)?,
        pin: !arguments.no_pin,
        tailwater: arguments.tailwater.clone(),
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
    if let Some(dir) = report_dir {
        run::write_report(&report, dir)?;
    }
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

/// Each system once, in the order given.
fn distinct(peers: &[Peer]) -> Vec<Peer> {
    let mut once = Vec::new();
    for &peer in peers {
        if !once.contains(&peer) {
            once.push(peer);
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
        let error = Cli::try_parse_from(["tailwater-bench", "run", "produce", "--against", "tailwater,nats"]);
        let error = error.expect_err("there is no such system");
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains("nats") && text.contains("tailwater, fio"), "{text}");
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
