//! Which systems there are, what each of them does in a scenario, and what their measurements share.

use std::path::PathBuf;

use crate::machine::Cores;
use crate::scenario::{Cell, Options, Scenario, cells, floor_cells};

/// A system by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// `tailwater serve`, as a process of its own.
    Tailwater,
    /// The disk alone: overwrite and fdatasync, by fio.
    Fio,
}

impl Peer {
    /// As it is typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Peer::Tailwater => "tailwater",
            Peer::Fio => "fio",
        }
    }

    /// What it does in a scenario.
    #[must_use]
    pub fn cells(self, scenario: Scenario, options: &Options) -> Vec<Cell> {
        match self {
            Peer::Tailwater => cells(scenario, options),
            Peer::Fio => floor_cells(),
        }
    }
}

/// What every measurement of a run shares.
#[derive(Debug, Clone)]
pub struct Lab {
    /// Where systems keep their data: on a disk.
    pub dir: PathBuf,
    /// Which cores to keep apart.
    pub cores: Option<Cores>,
    /// What was chosen about the run.
    pub options: Options,
}
