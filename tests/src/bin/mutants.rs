//! Plants every fault of `tailwater_wire::mutant`, one after another, and runs the test that must find it.
//!
//! `tests/run mutants`, or `cargo run -p tailwater-tests --bin mutants -- [NAME...]`. Builds the tests once, with the feature
//! `mutants`; without a fault each of them has to pass, with its own it has to fail. The last line counts them.
#![allow(clippy::print_stdout)] // the table is what it is run for

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tailwater_wire::mutant::Mutant;

/// A test binary, and the part of it that finds a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Test {
    package: &'static str,
    /// Arguments that name one binary of the package.
    binary: &'static [&'static str],
    /// What the names of the tests contain.
    filter: &'static str,
}

const LOG: &[&str] = &["--test", "partition_log"];
const CRASHES: &[&str] = &["--test", "crash_points"];
const LIB: &[&str] = &["--lib"];

/// Which test finds a fault.
fn finder(mutant: Mutant) -> Test {
    let storage = |binary, filter| Test {
        package: "tailwater-storage",
        binary,
        filter,
    };
    let node = |filter| Test {
        package: "tailwater-node",
        binary: LIB,
        filter,
    };
    match mutant {
        Mutant::SkipDirectorySync => storage(CRASHES, "nothing_acknowledged_is_lost"),
        Mutant::RetryFailedFlush => storage(LOG, "a_failed_flush_latches"),
        Mutant::AcknowledgeBeforeFlush => storage(LOG, "a_failed_flush_latches"),
        Mutant::BelieveFlushBesideFailed => storage(LOG, "a_flush_that_fails_beside"),
        Mutant::PaddingNotZeroed => storage(LOG, "append::"),
        Mutant::RawCommitTime => storage(LOG, "commit_times_never_go_back"),
        Mutant::IgnoreDedup => storage(LIB, "dedup"),
        Mutant::AcknowledgeDuplicateEarly => storage(LOG, "a_duplicate_fails_with_its_original"),
        Mutant::CutAfterDamage => storage(LOG, "recovery::"),
        Mutant::RecoveryWithoutFlush => storage(CRASHES, "nothing_acknowledged_is_lost"),
        Mutant::StaleAfterCut => storage(CRASHES, "nothing_acknowledged_is_lost"),
        Mutant::AnchorAtTail | Mutant::SkipLeaderConfirmation | Mutant::ResumeOtherEpoch => {
            node("fanout::anchor")
        }
        Mutant::AdvanceBeforeLastAcknowledgement => storage(LIB, "proof"),
        Mutant::ResendAcknowledged => node("fanout::cursor"),
        Mutant::ReleaseEarly => node("fanout::delay_gate"),
        Mutant::ForgetDropped => Test {
            package: "tailwater-tests",
            binary: &["--test", "sim"],
            filter: "no_seed_of_200",
        },
    }
}

/// How a run of a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Passed(u64),
    Failed,
    /// It could not be built, or ran nothing: that finds no fault.
    Nothing,
}

fn run(test: Test, mutant: Option<Mutant>) -> std::io::Result<(Ended, Duration)> {
    let began = Instant::now();
    let mut cargo = Command::new("cargo");
    cargo
        .args([
            "test",
            "--quiet",
            "--locked",
            "--features",
            "tailwater-wire/mutants",
        ])
        .args(["--package", test.package])
        .args(test.binary)
        .args(["--", test.filter])
        .env_remove("TAILWATER_MUTANT")
        .stderr(Stdio::piped());
    if let Some(mutant) = mutant {
        cargo.env("TAILWATER_MUTANT", mutant.name());
    }
    let output = cargo.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let results = || text.lines().filter_map(|line| line.strip_prefix("test result: "));
    let passed = |result: &str| {
        result
            .strip_prefix("ok. ")?
            .split(' ')
            .next()?
            .parse::<u64>()
            .ok()
    };
    let count: u64 = results().filter_map(passed).sum();
    let ended = match (
        output.status.success(),
        results().any(|r| r.starts_with("FAILED")),
    ) {
        (true, _) if count > 0 => Ended::Passed(count),
        (false, true) => Ended::Failed,
        _ => {
            eprint!("{text}{}", String::from_utf8_lossy(&output.stderr));
            Ended::Nothing
        }
    };
    Ok((ended, began.elapsed()))
}

fn main() -> std::io::Result<ExitCode> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |m: &&Mutant| wanted.is_empty() || wanted.iter().any(|name| name == m.name());
    let mutants: Vec<Mutant> = Mutant::ALL.iter().filter(is_wanted).copied().collect();
    if mutants.len() < wanted.len() || mutants.is_empty() {
        let names: Vec<_> = Mutant::ALL.iter().map(|m| m.name()).collect();
        eprintln!("no such fault; there are: {}", names.join(", "));
        return Ok(ExitCode::from(2));
    }
    let (mut sound, mut caught) = (Vec::new(), 0);
    println!("{:<36} {:<10} by", "fault", "");
    for mutant in &mutants {
        let test = finder(*mutant);
        if !sound.contains(&test) {
            let (ended, _) = run(test, None)?;
            if !matches!(ended, Ended::Passed(_)) {
                println!("{:<36} {:<10} {}: {ended:?}", "none", "BROKEN", shown(test));
                return Ok(ExitCode::FAILURE);
            }
            sound.push(test);
        }
        let (ended, took) = run(test, Some(*mutant))?;
        let is_caught = ended == Ended::Failed;
        caught += usize::from(is_caught);
        let verdict = if is_caught { "caught" } else { "MISSED" };
        println!(
            "{:<36} {verdict:<10} {} in {:.1} s",
            mutant.name(),
            shown(test),
            took.as_secs_f64()
        );
    }
    println!("{caught} of {} faults caught", mutants.len());
    Ok(if caught == mutants.len() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn shown(test: Test) -> String {
    format!("{} {} {}", test.package, test.binary.join(" "), test.filter)
}
