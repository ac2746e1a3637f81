//! `partition list`: which shard owns a partition, its ends, and why it cannot be served; `partition reset-clock`.

use serde::Serialize;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{PartitionId, TopicName};
use tailwater_wire::message::PartitionStatus;

use crate::cli;
use crate::command::clock::{self, ClockRow};
use crate::command::context::Context;
use crate::error::Failure;
use crate::output::{self, Format};

/// A partition as it is printed.
#[derive(Debug, Serialize)]
struct PartitionRow {
    topic: String,
    partition: u32,
    shard: u32,
    log_start: u64,
    high_water_mark: u64,
    records: u64,
    /// None while it cannot be served.
    lineage: Option<String>,
    /// Why it cannot be served or written, if so.
    trouble: Option<String>,
}

impl PartitionRow {
    fn of(status: PartitionStatus) -> PartitionRow {
        PartitionRow {
            topic: status.topic.to_string(),
            partition: status.partition.0,
            shard: status.shard,
            log_start: status.log_start.0,
            high_water_mark: status.high_water_mark.0,
            records: status.high_water_mark.since(status.log_start),
            lineage: status.lineage.map(|lineage| lineage.to_string()),
            trouble: status.trouble,
        }
    }
}

/// Runs a partition command.
///
/// # Errors
/// The node's refusals, or that it cannot be reached.
pub async fn run(context: &mut Context, command: cli::Partition) -> Result<(), Failure> {
    match command {
        cli::Partition::List { topic } => list(context, topic.as_ref()).await,
        cli::Partition::ResetClock { topic, partition } => reset_clock(context, topic, partition).await,
    }
}

async fn list(context: &mut Context, topic: Option<&TopicName>) -> Result<(), Failure> {
    let listed = context.client.list_partitions(topic).await.map_err(|error| {
        let is_older = error.code() == ErrorCode::InvalidRequest;
        let failure = Failure::from(error).about("partition list");
        if is_older {
            failure
                .hint("this node does not list partitions; `tailwater topic describe NAME` shows their ends")
        } else {
            failure
        }
    });
    let rows: Vec<PartitionRow> = listed?.into_iter().map(PartitionRow::of).collect();
    let format = context.document();
    context.out.rows(format, &rows, table)
}

async fn reset_clock(context: &mut Context, topic: TopicName, partition: PartitionId) -> Result<(), Failure> {
    let status = context.client.reset_clock(&topic, partition).await?;
    let format = context.document();
    context.out.one(format, &ClockRow::of(&status), |row| {
        clock::table(std::slice::from_ref(row))
    })?;
    if format == Format::Table {
        output::note(&format!(
            "partition {partition} of {topic} goes on with the present time"
        ));
    }
    Ok(())
}

fn table(rows: &[PartitionRow]) -> comfy_table::Table {
    let columns = [
        "topic",
        "partition",
        "shard",
        "log start",
        "high-water mark",
        "records",
        "lineage",
        "trouble",
    ];
    let mut table = output::table(&columns, &columns[1..6]);
    for row in rows {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([
            row.topic.clone(),
            row.partition.to_string(),
            row.shard.to_string(),
            row.log_start.to_string(),
            row.high_water_mark.to_string(),
            row.records.to_string(),
            text(&row.lineage),
            text(&row.trouble),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use tailwater_wire::ids::{Lineage, Offset};

    use super::*;

    #[test]
    fn a_partition_in_trouble_says_why() {
        let status = |partition, lineage, trouble: Option<&str>| PartitionStatus {
            topic: "orders".parse().expect("a name"),
            partition: PartitionId(partition),
            shard: 2,
            log_start: Offset(5),
            high_water_mark: Offset(9),
            lineage,
            trouble: trouble.map(str::to_owned),
        };
        let rows = [
            PartitionRow::of(status(0, Some(Lineage([1; 8])), None)),
            PartitionRow::of(status(1, None, Some("a write failed"))),
        ];
        assert_eq!((rows[0].records, rows[0].shard), (4, 2));
        let text = output::render(&table(&rows));
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("0101010101010101") && lines[1].ends_with('-'),
            "{text}"
        );
        assert!(lines[2].ends_with("a write failed"), "{text}");
    }
}
