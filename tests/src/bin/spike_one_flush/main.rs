//! Spike 1: does one fdatasync make the direct writes to all files of a filesystem durable?
//!
//! Several files on ext4 or XFS are written with O_DIRECT and flushed through one of them. Then the power is cut on a fake
//! disk, the image goes through the filesystem's recovery, and every byte written before the flush returned must be
//! there. Control cases break one precondition each and must lose something, or the test proves nothing.
//! Run as root: `unshare --mount cargo run -p tailwater-tests --bin spike_one_flush`.
#![forbid(unsafe_code)]

mod cases;
mod disks;
mod failures;
mod rounds;
mod segments;
mod writers;

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use tailwater_tests::fakedisk::mount;

use crate::cases::Expected;

#[derive(Parser)]
struct Arguments {
    /// Power cuts for each case that must lose nothing
    #[arg(long, default_value_t = 120)]
    cuts: u64,
    /// Power cuts for each control case, which must lose something
    #[arg(long, default_value_t = 30)]
    control_cuts: u64,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the cases whose name contains this
    #[arg(long, default_value = "")]
    case: String,
    /// Instead of cutting the power, show who learns of a failed flush
    #[arg(long)]
    failures: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Err(missing) = mount::available() {
        anyhow::bail!(missing);
    }
    if arguments.failures {
        failures::show()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = stdout();
    writeln!(
        out,
        "{:<44} {:>5} {:>9} {:>8} {:>12} {:>9} {:>8} {:>8}  verdict",
        "case", "cuts", "with loss", "repaired", "bytes lost", "commits", "flushes", "kept %"
    )?;
    let mut wrong = 0;
    for case in cases::all()
        .iter()
        .filter(|case| case.name().contains(&arguments.case))
    {
        let control = case.expected == Expected::Lost;
        let cuts = if control {
            arguments.control_cuts
        } else {
            arguments.cuts
        };
        let outcome = rounds::run(case, cuts, arguments.seed)?;
        let lost = outcome.cuts_with_loss > 0;
        let (right, verdict) = match (lost, case.expected) {
            (false, Expected::Kept) => (true, "nothing lost"),
            (true, Expected::Lost) => (true, "lost, as a control must"),
            (true, Expected::Kept) => (false, "WRONG: lost"),
            (false, Expected::Lost) => (false, "WRONG: a control lost nothing"),
            (false, Expected::Unknown) => (true, "nothing lost this time"),
            (true, Expected::Unknown) => (true, "lost"),
        };
        wrong += u32::from(!right);
        writeln!(
            out,
            "{:<44} {:>5} {:>9} {:>8} {:>12} {:>9} {:>8} {:>8.0}  {verdict}",
            case.name(),
            outcome.cuts,
            outcome.cuts_with_loss,
            outcome.repairs,
            outcome.lost_bytes,
            outcome.commits,
            outcome.commit_flushes,
            outcome.kept_percent(),
        )?;
        out.flush()?;
        if let Some(example) = outcome.example.filter(|_| lost && !control) {
            writeln!(out, "    {example}")?;
        }
    }
    writeln!(out, "seed={} wrong={wrong}", arguments.seed)?;
    Ok(if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
