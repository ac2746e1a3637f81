//! Runs the simulator over many seeds: failures on stderr, one summary line on stdout.

#![allow(clippy::print_stdout)] // the summary is data

use clap::Parser;
use tailwater_tests::sim::options::Bug;
use tailwater_tests::sim::report::{FNV_BASIS, mix, run};

/// Runs seeds of the fan-out simulator. The last line on stdout is `seeds=N failures=F trace=HASH`, the same for the
/// same arguments.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A defect to plant, to see the oracle find it.
    #[arg(long)]
    bug: Option<Bug>,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let (mut failed, mut trace) = (0, FNV_BASIS);
    for seed in (0..args.seeds).map(|n| args.seed.wrapping_add(n)) {
        let outcome = run(seed, args.bug);
        trace = mix(trace, outcome.trace);
        if !outcome.failures.is_empty() {
            failed += 1;
            eprintln!("seed {seed} failed:");
            for failure in outcome.failures.iter().take(10) {
                eprintln!("  {failure}");
            }
            eprintln!(
                "  replay: SIM_TRACE=1 cargo run -p tailwater-tests --bin sim -- --seeds 1 --seed {seed}"
            );
        }
    }
    println!("seeds={} failures={failed} trace={trace:016x}", args.seeds);
    std::process::ExitCode::from(u8::from(failed > 0))
}
