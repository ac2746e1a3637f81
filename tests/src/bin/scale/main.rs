//! The engine at its full size, with figures: each check prints what it measured and holds it against its bounds. They judge
//! by time and want the machine for themselves, so they are run by hand.

#![allow(clippy::print_stdout)] // the figures are what it is run for

use std::fmt;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tailwater_tests::cluster::by_hand;

mod figures;
mod idle;
mod delays;
mod readers;

/// Measures the engine at its full size and holds every figure against its bound.
///
/// Figures go to stdout. The exit code is 0 when every bound holds, and 1 with one line for each that does not. The node
/// is target/release/tailwater, or what TAILWATER_BIN names.
#[derive(Debug, Parser)]
#[command(name = "scale")]
struct Args {
    /// Which checks; all without a name.
    #[arg(value_enum, value_name = "NAME")]
    names: Vec<Name>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// 6,912 idle cursors: processor, reconcile passes, scrapes, and what they do to producers (6 min).
    IdleChildren,
    /// 20,000 records/s under a delay of 2 s: none early, few late (1 min).
    DelayedCopy,
    /// A million records that wait for an hour: memory and processor (3 min).
    PendingRecords,
    /// What ten tail readers do to a producer (2 min).
    TailReaders,
    /// What a thousand idle connections cost (2 min).
    IdleConnections,
}

impl fmt::Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no name is hidden");
        to.write_str(value.get_name())
    }
}

fn main() -> ExitCode {
    let mut names = Args::parse().names;
    if names.is_empty() {
        names = Name::value_variants().to_vec();
    }
    by_hand::run(names, async |name, bounds| match name {
        Name::IdleChildren => idle::children(bounds).await,
        Name::DelayedCopy => delays::delayed_copy(bounds).await,
        Name::PendingRecords => delays::pending_records(bounds).await,
        Name::TailReaders => readers::tail_readers(bounds).await,
        Name::IdleConnections => idle::connections(bounds).await,
    })
}
