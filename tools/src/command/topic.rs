//! `topic create|list|describe|alter|delete`.

use serde::Serialize;
use tailwater_wire::ids::{PartitionId, TopicName};
use tailwater_wire::message::{AlterTopic, Place};
use tailwater_wire::meta::{Retention, Topic, TopicSpec};

use crate::cli;
use crate::cli::values::Limit;
use crate::command::context::Context;
use crate::error::Failure;
use crate::output::{self, Format};

/// A topic as it is printed.
#[derive(Debug, Serialize)]
struct TopicRow {
    name: String,
    partitions: u32,
    partitioner: tailwater_wire::partitioner::Partitioner,
    durability: &'static str,
    retention_ms: Option<u64>,
    retention_bytes: Option<u64>,
    incarnation: String,
}

/// A partition as it is printed.
#[derive(Debug, Serialize)]
struct PartitionRow {
    partition: u32,
    log_start: u64,
    high_water_mark: u64,
    records: u64,
    lineage: String,
    owner_epoch: u64,
}

/// A topic with its partitions.
#[derive(Debug, Serialize)]
struct Description {
    #[serde(flatten)]
    topic: TopicRow,
    records: u64,
    partition_list: Vec<PartitionRow>,
}

impl TopicRow {
    fn of(topic: &Topic) -> TopicRow {
        let spec = &topic.spec;
        TopicRow {
            name: spec.name.to_string(),
            partitions: spec.partitions,
            partitioner: spec.partitioner,
            durability: spec.durability.label(),
            retention_ms: spec.retention.millis,
            retention_bytes: spec.retention.bytes,
            incarnation: topic.incarnation.to_string(),
        }
    }

    fn retention(&self) -> String {
        let age = self.retention_ms.map(output::millis_text);
        let bytes = self.retention_bytes.map(|bytes| format!("{bytes} B"));
        match (age, bytes) {
            (None, None) => "for ever".to_owned(),
            (age, bytes) => [age, bytes].into_iter().flatten().collect::<Vec<_>>().join(", "),
        }
    }
}

/// Runs a topic command.
///
/// # Errors
/// The node's refusals, or that it cannot be reached.
pub async fn run(context: &mut Context, command: cli::Topic) -> Result<(), Failure> {
    match command {
        cli::Topic::Create(args) => create(context, args).await,
        cli::Topic::List => list(context).await,
        cli::Topic::Describe { name } => describe(context, &name).await,
        cli::Topic::Alter(args) => alter(context, args).await,
        cli::Topic::Delete { name } => delete(context, &name).await,
    }
}

async fn create(context: &mut Context, args: cli::TopicCreate) -> Result<(), Failure> {
    let spec = TopicSpec {
        name: args.name,
        partitions: args.partitions,
        partitioner: args.partitioner,
        retention: Retention {
            millis: args.retention,
            bytes: args.retention_bytes,
        },
        durability: args.durability,
    };
    let topic = context.client.create_topic(spec).await?;
    let format = context.document();
    context.out.one(format, &TopicRow::of(&topic), |row| {
        topic_table(std::slice::from_ref(row))
    })
}

async fn alter(context: &mut Context, args: cli::TopicAlter) -> Result<(), Failure> {
    let mut retention = None;
    if args.retention.is_some() || args.retention_bytes.is_some() {
        // Both limits are replaced together, so the one that was not named is read right before. Two who change one
        // topic at the same moment may so undo each other's change; each sees in its answer what came of it.
        let described = context
            .client
            .describe_topics(Some(vec![args.name.clone()]))
            .await?;
        let now = described
            .first()
            .map_or(Retention::default(), |topic| topic.spec.retention);
        retention = Some(Retention {
            millis: args.retention.map_or(now.millis, Limit::value),
            bytes: args.retention_bytes.map_or(now.bytes, Limit::value),
        });
    }
    let change = AlterTopic {
        topic: args.name,
        partitions: args.partitions,
        retention,
    };
    let topic = context.client.alter_topic(change).await?;
    let format = context.document();
    context.out.one(format, &TopicRow::of(&topic), |row| {
        topic_table(std::slice::from_ref(row))
    })
}

async fn list(context: &mut Context) -> Result<(), Failure> {
    let topics = context.client.describe_topics(None).await?;
    let rows: Vec<TopicRow> = topics.iter().map(TopicRow::of).collect();
    let format = context.document();
    context.out.rows(format, &rows, topic_table)
}

fn topic_table(rows: &[TopicRow]) -> comfy_table::Table {
    let columns = [
        "topic",
        "partitions",
        "partitioner",
        "durability",
        "retention",
        "incarnation",
    ];
    let mut table = output::table(&columns, &["partitions"]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            row.partitions.to_string(),
            partitioner_name(row),
            row.durability.to_owned(),
            row.retention(),
            row.incarnation.clone(),
        ]);
    }
    table
}

fn partitioner_name(row: &TopicRow) -> String {
    format!("{:?}", row.partitioner).to_lowercase()
}

async fn describe(context: &mut Context, name: &TopicName) -> Result<(), Failure> {
    let topic = context.client.topic(name).await?;
    let mut partition_list = Vec::new();
    for partition in 0..topic.spec.partitions {
        let found = context
            .client
            .find_offset(name, PartitionId(partition), Place::Tail)
            .await?;
        let owner_epoch = topic.owner_epochs.get(partition as usize);
        partition_list.push(PartitionRow {
            partition,
            log_start: found.log_start.0,
            high_water_mark: found.high_water_mark.0,
            records: found.high_water_mark.since(found.log_start),
            lineage: found.lineage.to_string(),
            owner_epoch: owner_epoch.map_or(0, |epoch| epoch.0),
        });
    }
    let description = Description {
        topic: TopicRow::of(&topic),
        records: partition_list.iter().map(|row| row.records).sum(),
        partition_list,
    };
    let format = context.document();
    if format == Format::Table {
        let facts = output::facts(vec![
            ("topic", description.topic.name.clone()),
            ("partitions", description.topic.partitions.to_string()),
            ("partitioner", partitioner_name(&description.topic)),
            ("durability", description.topic.durability.to_owned()),
            ("retention", description.topic.retention()),
            ("incarnation", description.topic.incarnation.clone()),
            ("records", description.records.to_string()),
        ]);
        context.out.line(&output::render(&facts))?;
        context.out.line("")?;
    }
    context.out.one(format, &description, |description| {
        let columns = [
            "partition",
            "log start",
            "high-water mark",
            "records",
            "lineage",
            "owner epoch",
        ];
        let numbers = [
            "partition",
            "log start",
            "high-water mark",
            "records",
            "owner epoch",
        ];
        let mut table = output::table(&columns, &numbers);
        for row in &description.partition_list {
            table.add_row([
                row.partition.to_string(),
                row.log_start.to_string(),
                row.high_water_mark.to_string(),
                row.records.to_string(),
                row.lineage.clone(),
                row.owner_epoch.to_string(),
            ]);
        }
        table
    })
}

async fn delete(context: &mut Context, name: &TopicName) -> Result<(), Failure> {
    context.client.delete_topic(name).await?;
    match context.document() {
        Format::Table => {
            output::note(&format!("deleted topic {name}"));
            Ok(())
        }
        Format::Json | Format::Ndjson => context.out.json(&serde_json::json!({ "deleted": name })),
    }
}
