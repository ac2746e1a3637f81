//! Which systems there are, what each of them does in a scenario, and what their measurements share.

use std::path::PathBuf;

use crate::cells::{cells, floor_cells};
use crate::machine::Cores;
use crate::scenario::{Cell, Options, Scenario};

/// A system by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// `tailwater serve`, as a process of its own.
    Tailwater,
    /// `redis-server` streams, every append flushed before its reply.
    Redis,
    /// `nats-server` JetStream on files, every message flushed before its acknowledgement.
    Nats,
    /// The same as it ships: flushed every two minutes, so that an acknowledgement promises nothing of the disk.
    NatsUnsynced,
    /// The disk alone: overwrite and fdatasync, by fio.
    Fio,
}

impl Peer {
    /// As it is typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Peer::Tailwater => "tailwater",
            Peer::Redis => "redis",
            Peer::Nats => "nats",
            Peer::NatsUnsynced => "nats-unsynced",
            Peer::Fio => "fio",
        }
    }

    /// What it does in a scenario.
    #[must_use]
    pub fn cells(self, scenario: Scenario, options: &Options) -> Vec<Cell> {
        match self {
            // Redis copies nothing from stream to stream by itself.
            Peer::Redis if scenario == Scenario::Fanout => Vec::new(),
            Peer::Tailwater | Peer::Redis | Peer::Nats | Peer::NatsUnsynced => cells(scenario, options),
            Peer::Fio if scenario == Scenario::Produce => floor_cells(),
            Peer::Fio => Vec::new(),
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
