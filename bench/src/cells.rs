//! Which cells a scenario has: the matrix of sizes, batches, producers, partitions, children and readers.

use crate::scenario::{Catchup, Cell, Fanout, Floor, Options, Produce, Scenario, Source, Tail};

/// Record sizes, in bytes.
const RECORD_BYTES: [usize; 2] = [100, 1_024];
/// Records of one batch.
const BATCH_RECORDS: [usize; 3] = [1, 100, 1_000];
/// Records of a full batch.
const FULL_BATCH: usize = 1_000;
/// Producers of `produce`, each with a connection of its own.
const PRODUCERS: [u32; 2] = [1, 8];
/// Partitions of all cells that do not vary them.
const PARTITIONS: u32 = 8;
/// Batches of a producer that are unacknowledged at a time where the wait for each is not what is measured.
const PIPELINED: usize = 4;
/// Partitions that share one rate.
const ACTIVE_PARTITIONS: [u32; 4] = [1, 16, 256, 1_000];
/// Children of `fanout`.
const CHILDREN: [u32; 3] = [1, 4, 16];
/// Partitions of the parent and of each child of `fanout`.
const FANOUT_PARTITIONS: u32 = 4;
/// Readers of `tail`.
const READERS: [u32; 2] = [1, 10];
/// Write sizes of the disk's floor, in bytes.
const FLOOR_BLOCK_BYTES: [u64; 4] = [4 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Of the quick cells of each scenario.
const QUICK_CELLS: usize = 2;

/// The cells of a scenario for a system that stores records; one that copies nothing by itself has none of `fanout`.
#[must_use]
pub fn cells(scenario: Scenario, options: &Options) -> Vec<Cell> {
    let mut cells: Vec<Cell> = match scenario {
        Scenario::Produce => RECORD_BYTES
            .into_iter()
            .flat_map(|bytes| produce_cells(bytes, options))
            .collect(),
        Scenario::Partitions => ACTIVE_PARTITIONS
            .map(|partitions| paced(RECORD_BYTES[0], partitions, options))
            .into(),
        Scenario::Fanout => CHILDREN
            .into_iter()
            .flat_map(|children| fanout_cells(children, options))
            .collect(),
        Scenario::Catchup => RECORD_BYTES.map(|bytes| catchup_cell(bytes, options)).into(),
        Scenario::Tail => READERS.map(|readers| tail_cell(readers, options)).into(),
    };
    if options.quick {
        cells.truncate(if scenario == Scenario::Fanout {
            3
        } else {
            QUICK_CELLS
        });
    }
    cells
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
    let closed = |batch_records, producers, in_flight| {
        Cell::Produce(Produce {
            record_bytes,
            batch_records,
            producers,
            partitions: PARTITIONS,
            in_flight: Some(in_flight),
            rate_per_s: None,
        })
    };
    let mut cells = Vec::new();
    for batch_records in BATCH_RECORDS {
        for producers in PRODUCERS {
            cells.push(closed(batch_records, producers, 1));
        }
    }
    cells.extend(PRODUCERS.map(|producers| closed(FULL_BATCH, producers, PIPELINED)));
    cells.push(paced(record_bytes, PARTITIONS, options));
    cells
}

/// One producer that does not wait.
fn paced(record_bytes: usize, partitions: u32, options: &Options) -> Cell {
    Cell::Produce(Produce {
        record_bytes,
        batch_records: 1,
        producers: 1,
        partitions,
        in_flight: None,
        rate_per_s: Some(options.rate_per_s),
    })
}

fn fanout_cells(children: u32, options: &Options) -> Vec<Cell> {
    let sources = [
        Source::Backfill {
            records: options.stored_records,
        },
        Source::FullSpeed {
            batch_records: FULL_BATCH,
            in_flight: PIPELINED,
        },
        Source::Rate {
            rate_per_s: options.rate_per_s,
        },
    ];
    let cell = |source| {
        Cell::Fanout(Fanout {
            record_bytes: RECORD_BYTES[0],
            children,
            partitions: FANOUT_PARTITIONS,
            child_partitions: FANOUT_PARTITIONS,
            source,
        })
    };
    sources.map(cell).into()
}

fn catchup_cell(record_bytes: usize, options: &Options) -> Cell {
    // About the same number of bytes, whatever the size.
    let records = (options.stored_records * RECORD_BYTES[0] as u64 * 4 / record_bytes as u64)
        .clamp(1, options.stored_records);
    Cell::Catchup(Catchup {
        record_bytes,
        partitions: PARTITIONS,
        records,
    })
}

fn tail_cell(readers: u32, options: &Options) -> Cell {
    Cell::Tail(Tail {
        record_bytes: RECORD_BYTES[0],
        partitions: PARTITIONS,
        readers,
        rate_per_s: options.rate_per_s,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    fn options() -> Options {
        Options {
            seconds: Duration::from_secs(5),
            steady: Duration::from_secs(5),
            warmup: Duration::from_secs(1),
            rate_per_s: 10_000,
            stored_records: 1_000_000,
            shards: 1,
            quick: false,
        }
    }

    #[test]
    fn no_two_cells_share_their_label_or_their_parameters() {
        for scenario in Scenario::ALL {
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
        for cell in Scenario::ALL.map(|scenario| cells(scenario, &options())).concat() {
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

    #[test]
    fn a_quick_run_has_cells_of_every_scenario() {
        let quick = Options {
            quick: true,
            ..options()
        };
        for scenario in Scenario::ALL {
            let (all, few) = (cells(scenario, &options()), cells(scenario, &quick));
            assert!(!few.is_empty() && few.len() <= all.len().min(3), "{few:?}");
        }
    }
}
