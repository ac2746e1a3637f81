//! What is measured: the cells of each scenario, with every parameter that tells one from another.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

/// Record sizes of `produce`, in bytes.
const RECORD_BYTES: [usize; 2] = [100, 1_024];
/// Records of a full batch.
const BATCH_RECORDS: usize = 1_000;
/// Producers of `produce`, each with a partition and a connection of its own.
const PRODUCERS: [u32; 2] = [1, 8];
/// Batches of one producer that are unacknowledged at a time.
const BATCHES_IN_FLIGHT: [usize; 2] = [1, 4];
/// Children of `fanout`.
const CHILDREN: [u32; 2] = [1, 4];
/// Partitions of the parent and of each child of `fanout`.
const FANOUT_PARTITIONS: u32 = 4;
/// The record size of `fanout`, in bytes, its key included.
const FANOUT_RECORD_BYTES: usize = 100;
/// Write sizes of the disk's floor, in bytes.
const FLOOR_BLOCK_BYTES: [u64; 4] = [4 << 10, 64 << 10, 256 << 10, 1 << 20];

/// A scenario by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// Fsynced produce: lone records one at a time, batches of 1,000, and a fixed rate.
    Produce,
    /// Copies to 1 and 4 children: of what is there already, of what arrives at full speed, and at a fixed rate.
    Fanout,
}

impl Scenario {
    /// As it is typed and reported.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Produce => "produce",
            Scenario::Fanout => "fanout",
        }
    }
}

/// What may be chosen about a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long each cell is measured.
    pub seconds: Duration,
    /// How long each cell runs before it is measured.
    pub warmup: Duration,
    /// Records a second of the rate-driven cells.
    pub rate_per_s: u64,
    /// Records of the parent before its children are attached.
    pub backfill_records: u64,
}

/// One thing to measure on one system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// See [`Produce`].
    Produce(Produce),
    /// See [`Fanout`].
    Fanout(Fanout),
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
    /// Partitions, one for each producer.
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
                format!("{} B {how}, {}p", cell.record_bytes, cell.producers)
            }
            Cell::Fanout(cell) => {
                let how = match cell.source {
                    Source::Backfill { records } => format!("backfill of {records}"),
                    Source::FullSpeed { .. } => "at full speed".to_owned(),
                    Source::Rate { rate_per_s } => format!("at {rate_per_s}/s"),
                };
                format!("{} B {how}, to {}", cell.record_bytes, cell.children)
            }
            Cell::Floor(cell) => format!("write+fdatasync {} KiB", cell.block_bytes >> 10),
        }
    }
}

/// The cells of a scenario for a system that stores records.
#[must_use]
pub fn cells(scenario: Scenario, options: &Options) -> Vec<Cell> {
    match scenario {
        Scenario::Produce => RECORD_BYTES
            .into_iter()
            .flat_map(|bytes| produce_cells(bytes, options))
            .collect(),
        Scenario::Fanout => CHILDREN
            .into_iter()
            .flat_map(|children| fanout_cells(children, options))
            .collect(),
    }
}

/// The cells of the disk alone, whatever the scenario.
#[must_use]
pub fn floor_cells() -> Vec<Cell> {
    FLOOR_BLOCK_BYTES
        .into_iter()
        .map(|block_bytes| Cell::Floor(Floor { block_bytes }))
        .collect()
}

fn produce_cells(record_bytes: usize, options: &Options) -> Vec<Cell> {
    let cell = |batch_records, producers, in_flight, rate_per_s| {
        let partitions = producers;
        Cell::Produce(Produce {
            record_bytes,
            batch_records,
            producers,
            partitions,
            in_flight,
            rate_per_s,
        })
    };
    let mut cells = vec![cell(1, 1, Some(1), None)];
    for producers in PRODUCERS {
        cells
            .extend(BATCHES_IN_FLIGHT.map(|in_flight| cell(BATCH_RECORDS, producers, Some(in_flight), None)));
    }
    cells.push(cell(1, 1, None, Some(options.rate_per_s)));
    cells
}

fn fanout_cells(children: u32, options: &Options) -> Vec<Cell> {
    let sources = [
        Source::Backfill {
            records: options.backfill_records,
        },
        Source::FullSpeed {
            batch_records: BATCH_RECORDS,
            in_flight: BATCHES_IN_FLIGHT[1],
        },
        Source::Rate {
            rate_per_s: options.rate_per_s,
        },
    ];
    let cell = |source| {
        Cell::Fanout(Fanout {
            record_bytes: FANOUT_RECORD_BYTES,
            children,
            partitions: FANOUT_PARTITIONS,
            child_partitions: FANOUT_PARTITIONS,
            source,
        })
    };
    sources.map(cell).into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn options() -> Options {
        Options {
            seconds: Duration::from_secs(5),
            warmup: Duration::from_secs(1),
            rate_per_s: 10_000,
            backfill_records: 1_000_000,
        }
    }

    #[test]
    fn no_two_cells_share_their_label_or_their_parameters() {
        for scenario in [Scenario::Produce, Scenario::Fanout] {
            let cells = [cells(scenario, &options()), floor_cells()].concat();
            let labels: BTreeSet<String> = cells.iter().map(Cell::label).collect();
            let params: BTreeSet<String> = cells
                .iter()
                .map(|cell| Value::from(cell.params()).to_string())
                .collect();
            assert_eq!(
                (labels.len(), params.len()),
                (cells.len(), cells.len()),
                "{labels:?}"
            );
        }
    }

    #[test]
    fn parameters_are_flat_and_hold_nothing_that_does_not_apply() {
        let all = [
            cells(Scenario::Produce, &options()),
            cells(Scenario::Fanout, &options()),
        ]
        .concat();
        for cell in all {
            let params = cell.params();
            assert!(
                params
                    .values()
                    .all(|value| value.is_number() || value.is_string()),
                "{params:?}"
            );
        }
        let fanout = cells(Scenario::Fanout, &options())[0].params();
        assert_eq!(fanout["source"], "backfill");
        assert_eq!(fanout["records"], 1_000_000);
    }
}
