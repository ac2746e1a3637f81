//! What can be measured: the scenarios, and the parameters that tell one cell of them from another.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

/// A scenario by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Acknowledged records: alone, in batches of 100 and 1,000, from 1 and 8 producers, and at a fixed rate.
    Produce,
    /// One total rate over 1, 16, 256 and 1,000 active partitions.
    Partitions,
    /// Copies to 1, 4 and 16 children: of what is there already, of what arrives at full speed, and at a fixed rate.
    Fanout,
    /// Reading all that a topic holds from its beginning.
    Catchup,
    /// From the intended send of a record until readers at the end of the log have it.
    Tail,
}

impl Scenario {
    /// All of them, in the order of a whole sitting.
    pub const ALL: [Scenario; 5] = [
        Scenario::Produce,
        Scenario::Partitions,
        Scenario::Fanout,
        Scenario::Catchup,
        Scenario::Tail,
    ];

    /// As it is typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Produce => "produce",
            Scenario::Partitions => "partitions",
            Scenario::Fanout => "fanout",
            Scenario::Catchup => "catchup",
            Scenario::Tail => "tail",
        }
    }
}

/// What may be chosen about a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long each cell is measured.
    pub seconds: Duration,
    /// How long closed loops of whole batches are measured: these fill segments, and are to fill many.
    pub steady: Duration,
    /// How long each cell runs before it is measured.
    pub warmup: Duration,
    /// Records a second of the rate-driven cells.
    pub rate_per_s: u64,
    /// Records that are there before they are copied or read.
    pub stored_records: u64,
    /// Shards of a node; with one it has a core of its own.
    pub shards: u32,
    /// A few cells of each scenario, to see that all of it works; the figures mean nothing.
    pub quick: bool,
}

/// One thing to measure on one system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// See [`Produce`].
    Produce(Produce),
    /// See [`Fanout`].
    Fanout(Fanout),
    /// See [`Catchup`].
    Catchup(Catchup),
    /// See [`Tail`].
    Tail(Tail),
    /// See [`Floor`].
    Floor(Floor),
}

/// Producers that send records and wait for acknowledgements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Produce {
    /// Bytes of a record's value; it has no key.
    pub record_bytes: usize,
    /// Records that are sent as one batch; 1 in a rate-driven cell, where the client gathers what is due.
    pub batch_records: usize,
    /// Producers, each on its own connection.
    pub producers: u32,
    /// Partitions that receive records; producers take turns over theirs, batch by batch.
    pub partitions: u32,
    /// Batches of a producer that are unacknowledged at a time; none in a rate-driven cell, which does not wait.
    pub in_flight: Option<usize>,
    /// Records a second over all producers; as fast as acknowledgements allow without it.
    pub rate_per_s: Option<u64>,
}

/// A parent that is copied to children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fanout {
    /// Bytes of a record's key and value.
    pub record_bytes: usize,
    /// Children, each of which receives every record.
    pub children: u32,
    /// Partitions of the parent.
    pub partitions: u32,
    /// Partitions of each child.
    pub child_partitions: u32,
    /// Where the records come from.
    #[serde(flatten)]
    pub source: Source,
}

/// Where the records of a fan-out come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "source", rename_all = "snake_case")]
pub enum Source {
    /// They are in the parent before the children are attached from its beginning.
    Backfill {
        /// How many.
        records: u64,
    },
    /// They are produced as fast as acknowledgements allow, in batches, while the children are attached.
    FullSpeed {
        /// Records of a batch.
        batch_records: usize,
        /// Batches unacknowledged in each partition.
        in_flight: usize,
    },
    /// They are produced at a rate; each copy is timed from its record's intended send to its arrival at a consumer.
    Rate {
        /// Records a second into the parent.
        rate_per_s: u64,
    },
}

/// A topic that is filled first, and then read from its beginning by one consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Catchup {
    /// Bytes of a record.
    pub record_bytes: usize,
    /// Partitions, all of which the consumer reads.
    pub partitions: u32,
    /// Records that are there.
    pub records: u64,
}

/// Readers that wait at the end of the log, each on its own connection and for all records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tail {
    /// Bytes of a record.
    pub record_bytes: usize,
    /// Partitions.
    pub partitions: u32,
    /// Readers.
    pub readers: u32,
    /// Records a second.
    pub rate_per_s: u64,
}

/// What the disk can do: overwrites of a filled file past the page cache, each followed by fdatasync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Floor {
    /// Bytes of one write.
    pub block_bytes: u64,
}

impl Cell {
    /// The parameters, for a row.
    #[must_use]
    pub fn params(&self) -> Map<String, Value> {
        let value = match self {
            Cell::Produce(cell) => serde_json::to_value(cell),
            Cell::Fanout(cell) => serde_json::to_value(cell),
            Cell::Catchup(cell) => serde_json::to_value(cell),
            Cell::Tail(cell) => serde_json::to_value(cell),
            Cell::Floor(cell) => serde_json::to_value(cell),
        };
        match value {
            Ok(Value::Object(map)) => map.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            _ => Map::new(),
        }
    }

    /// The parameters in a few words, for people and for `--only`.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Cell::Produce(cell) => {
                let how = match (cell.rate_per_s, cell.in_flight) {
                    (Some(rate), _) => format!("at {rate}/s"),
                    (None, in_flight) => {
                        format!("x{} in flight {}", cell.batch_records, in_flight.unwrap_or(1))
                    }
                };
                format!(
                    "{} B {how}, {} to {}p",
                    cell.record_bytes, cell.producers, cell.partitions
                )
            }
            Cell::Fanout(cell) => {
                let how = match cell.source {
                    Source::Backfill { records } => format!("backfill of {records}"),
                    Source::FullSpeed { .. } => "at full speed".to_owned(),
                    Source::Rate { rate_per_s } => format!("at {rate_per_s}/s"),
                };
                format!("{} B {how}, to {}", cell.record_bytes, cell.children)
            }
            Cell::Catchup(cell) => format!(
                "{} B, {} stored, {}p",
                cell.record_bytes, cell.records, cell.partitions
            ),
            Cell::Tail(cell) => format!(
                "{} B at {}/s, {}p, {} readers",
                cell.record_bytes, cell.rate_per_s, cell.partitions, cell.readers
            ),
            Cell::Floor(cell) => format!("write+fdatasync {} KiB", cell.block_bytes >> 10),
        }
    }
}
