//! Long runs by hand, each with a short form among the end-to-end tests.

#![allow(clippy::print_stdout)] // what was done is what it is run for

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tailwater_tests::cluster::by_hand::{self, Bounds};
use tailwater_tests::cluster::mutual::Mutual;
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::rounds;
use tailwater_tests::cluster::setup::{MANY_SHARDS, NodeOptions};
use tailwater_tests::cluster::storm;

/// Runs a node under load for long, with changes, kills and stops, and reads everything that it must have kept.
///
/// What was done goes to stdout. The exit code is 0 when everything was as it must be, and 1 with a line that says what
/// was not. The node is target/release/tailwater, or what TAILWATER_BIN names.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Soak {
    #[command(subcommand)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Run {
    /// Attach, detach and attach again under load: each link begins at exactly its offset (5 min).
    Rounds(RoundsArgs),
    /// The same with parent and child made anew in between (5 min).
    RoundsAnew(RoundsArgs),
    /// Two shards that commit to each other at full load, before and after a stop of the process (2 min).
    TwoShards {
        /// Seconds that the process is stopped.
        #[arg(long, default_value_t = 30)]
        seconds: u64,
    },
    /// Detach, attach, kill -9, stop and start with another number of shards, at random (1 h).
    Storm(StormArgs),
}

#[derive(Debug, Args)]
struct RoundsArgs {
    /// How many rounds.
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Records a second.
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Shards of the node.
    #[arg(long, default_value_t = MANY_SHARDS)]
    shards: usize,
    /// What is drawn: the same changes again, not the same moments. At random without.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Debug, Args)]
struct StormArgs {
    /// How long.
    #[arg(long, default_value_t = 3_600)]
    seconds: u64,
    /// Records a second.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Shards of the node at most; from 1 on, another number after each start.
    #[arg(long, default_value_t = MANY_SHARDS)]
    shards: usize,
    /// What is drawn: the same kills and changes again, not the same moments. At random without.
    #[arg(long)]
    seed: Option<u64>,
}

impl fmt::Display for Run {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Run::Rounds(_) => "rounds",
            Run::RoundsAnew(_) => "rounds-anew",
            Run::TwoShards { .. } => "two-shards",
            Run::Storm(_) => "storm",
        })
    }
}

fn main() -> ExitCode {
    by_hand::run([Soak::parse().run], async |run, bounds| match run {
        Run::Rounds(args) => attach_rounds(args, false, bounds).await,
        Run::RoundsAnew(args) => attach_rounds(args, true, bounds).await,
        Run::TwoShards { seconds } => two_shards(Duration::from_secs(*seconds)).await,
        Run::Storm(args) => blow(args).await,
    })
}

/// The seed, drawn if none is given, and said.
fn seed_of(given: Option<u64>) -> u64 {
    let seed = given.unwrap_or_else(rand::random);
    println!("--seed {seed}");
    seed
}

/// Rounds on one node. Each round verifies everything that the child has of the link's parent, so that its time grows with
/// the number of rounds before it.
const STRETCH: u32 = 20;

async fn attach_rounds(args: &RoundsArgs, recreate: bool, bounds: &mut Bounds) {
    let seed = seed_of(args.seed);
    let (mut acknowledged, mut took) = (0, Duration::ZERO);
    for (stretch, first) in (0..args.rounds).step_by(STRETCH as usize).enumerate() {
        let seen = rounds::run(rounds::Plan {
            rounds: STRETCH.min(args.rounds - first),
            rate: args.rate,
            shards: args.shards,
            seed: seed.wrapping_add(stretch as u64),
            verify_every: 1,
            recreate,
        })
        .await;
        println!("rounds from {first} on: {seen:?}");
        acknowledged += seen.acknowledged;
        took += seen.took;
    }
    let rate = acknowledged as f64 / took.as_secs_f64();
    println!(
        "{} rounds, {acknowledged} records: {rate:.0} a second",
        args.rounds
    );
    // A producer whose topic is deleted under it cannot keep its rate.
    if !recreate {
        bounds.hold(
            rate > args.rate as f64 * 0.9,
            format!("more than 90% of {} records a second", args.rate),
            format!("{rate:.0}"),
        );
    }
}

async fn two_shards(stopped: Duration) {
    const SHARDS: usize = 2;
    let options = NodeOptions::default().shards(SHARDS).mesh_credits(1);
    let node = TestNode::start_with(&options.config()).await;
    let mutual = Mutual::start(&node, SHARDS as u32).await;
    mutual.moves(Duration::from_secs(20)).await;
    node.freeze(stopped).await;
    mutual.moves(Duration::from_secs(10)).await;
    let records = mutual.is_clean(&node).await;
    println!("{records} records, each copied once");
}

async fn blow(args: &StormArgs) {
    let done = storm::run(storm::Plan {
        duration: Duration::from_secs(args.seconds),
        seed: seed_of(args.seed),
        partitions: 12,
        children: 16,
        rate: args.rate,
        shards: (1..=args.shards).collect(),
    })
    .await;
    println!("clean: {done:?}");
}
