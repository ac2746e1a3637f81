//! `link attach|detach|list|verify`.

use std::time::Duration;

use serde::Serialize;
use tailwater_wire::ids::{Delay, TopicName};
use tailwater_wire::message::{CursorStatus, LinkStatus};
use tailwater_wire::meta::{AttachFrom, LinkOptions};

use crate::cli;
use crate::command::context::{Context, counter};
use crate::error::Failure;
use crate::output::{self, Format};
use crate::verify::driver::{self, PATIENCE};
use crate::verify::row::Row;

/// How often a draining link is looked at.
const DRAIN_POLL: Duration = Duration::from_millis(100);

/// Runs a link command.
///
/// # Errors
/// The node's refusals, that it cannot be reached, or exit 5 when a verification found something.
pub async fn run(context: &mut Context, command: cli::Link) -> Result<(), Failure> {
    match command {
        cli::Link::Attach(args) => attach(context, args).await,
        cli::Link::Detach { pair, drain } => detach(context, &pair, drain).await,
        cli::Link::List { parent } => list(context, parent.as_ref()).await,
        cli::Link::Verify(pair) => verify(context, &pair).await,
    }
}

/// A new link as it is printed.
#[derive(Debug, Serialize)]
struct Attached {
    parent: String,
    child: String,
    epoch: String,
    delay_ms: u64,
    filter: Option<String>,
    /// By parent partition.
    attach_offsets: Vec<u64>,
}

async fn attach(context: &mut Context, args: cli::LinkAttach) -> Result<(), Failure> {
    let options = LinkOptions {
        delay: Delay { millis: args.delay },
        from: args.from,
        filter: args.filter,
        linger_millis: args.linger,
        allow_drop: args.allow_drop,
    };
    let link = context
        .client
        .attach(&args.pair.parent, &args.pair.child, options)
        .await?;
    let row = Attached {
        parent: link.parent.to_string(),
        child: link.child.to_string(),
        epoch: link.epoch.to_string(),
        delay_ms: link.options.delay.millis,
        filter: link.options.filter.clone(),
        attach_offsets: link.attach_offsets.iter().map(|offset| offset.0).collect(),
    };
    let format = context.document();
    context.out.one(format, &row, |row| {
        let starts: Vec<String> = row.attach_offsets.iter().map(u64::to_string).collect();
        let mut facts = vec![
            ("link", format!("{} -> {}", row.parent, row.child)),
            ("epoch", row.epoch.clone()),
            ("delay", output::millis_text(row.delay_ms)),
            ("starts at", starts.join(" ")),
        ];
        if let Some(filter) = &row.filter {
            facts.push(("filter", filter.clone()));
        }
        output::facts(facts)
    })
}

async fn detach(context: &mut Context, pair: &cli::Pair, drain: bool) -> Result<(), Failure> {
    if drain {
        drained(context, pair).await?;
    }
    context.client.detach(&pair.parent, &pair.child).await?;
    match context.document() {
        Format::Table => {
            output::note(&format!("detached {} from {}", pair.child, pair.parent));
            Ok(())
        }
        Format::Json | Format::Ndjson => {
            let detached =
                serde_json::json!({ "parent": pair.parent, "child": pair.child, "detached": true });
            context.out.json(&detached)
        }
    }
}

/// Waits until the child has what is in the parent now, however long its delay is.
async fn drained(context: &Context, pair: &cli::Pair) -> Result<(), Failure> {
    let find = async || driver::find_link(&context.client, &pair.parent, &pair.child).await;
    let start = find().await?;
    let epoch = start.link.epoch;
    loop {
        let now = find().await?;
        let reached = |goal: &CursorStatus| {
            let cursor = now
                .cursors
                .iter()
                .find(|cursor| cursor.partition == goal.partition);
            cursor.is_some_and(|cursor| cursor.position >= goal.parent_high_water_mark)
        };
        if now.link.epoch != epoch || start.cursors.iter().all(reached) {
            return Ok(());
        }
        tokio::time::sleep(DRAIN_POLL).await;
    }
}

/// A link with its progress as it is printed: summed over the parent's partitions.
#[derive(Debug, Serialize)]
struct LinkRow {
    parent: String,
    child: String,
    epoch: String,
    delay_ms: u64,
    filter: Option<String>,
    from: String,
    /// The sum of the cursors' positions.
    cursor: u64,
    /// Records of the parent that were not copied yet.
    lag: u64,
    due_lag_ms: u64,
    /// Nanoseconds since the epoch.
    next_due: Option<u64>,
    /// Records that a delay holds back.
    pending: u64,
    committed: u64,
    dropped: u64,
    filtered: u64,
    duplicates_refused: u64,
    /// `current`, `behind`, `waiting` for what is not due, `stalled`, or `starting`.
    state: &'static str,
    /// Why it is stalled.
    stalled: Option<String>,
    cursors: Vec<CursorStatus>,
}

impl LinkRow {
    fn of(status: LinkStatus) -> LinkRow {
        let LinkStatus { link, cursors } = status;
        let sum = |of: fn(&CursorStatus) -> u64| cursors.iter().map(of).sum::<u64>();
        let lag = sum(|cursor| cursor.parent_high_water_mark.since(cursor.position));
        let due_lag_ms = cursors
            .iter()
            .map(|cursor| cursor.due_lag_millis)
            .max()
            .unwrap_or(0);
        let delayed = !link.options.delay.is_none();
        let stalled = cursors.iter().find_map(|cursor| {
            let why = cursor.stalled.as_ref()?;
            Some(format!("partition {}: {why}", cursor.partition))
        });
        let state = if stalled.is_some() {
            "stalled"
        } else if cursors.is_empty() {
            "starting"
        } else if lag == 0 {
            "current"
        } else if delayed && due_lag_ms == 0 {
            "waiting"
        } else {
            "behind"
        };
        LinkRow {
            parent: link.parent.to_string(),
            child: link.child.to_string(),
            epoch: link.epoch.to_string(),
            delay_ms: link.options.delay.millis,
            filter: link.options.filter.clone(),
            from: from_text(link.options.from),
            cursor: sum(|cursor| cursor.position.0),
            lag,
            due_lag_ms,
            next_due: cursors.iter().filter_map(|cursor| cursor.next_due).min(),
            pending: if delayed { lag } else { 0 },
            committed: sum(|cursor| cursor.committed),
            dropped: sum(|cursor| cursor.dropped),
            filtered: sum(|cursor| cursor.filtered),
            duplicates_refused: sum(|cursor| cursor.duplicates),
            state,
            stalled,
            cursors,
        }
    }
}

fn from_text(from: AttachFrom) -> String {
    match from {
        AttachFrom::Tail => "tail".to_owned(),
        AttachFrom::Earliest => "earliest".to_owned(),
        AttachFrom::Offset(offset) => format!("offset:{offset}"),
        AttachFrom::Time(nanos) => format!("time:{}", output::time_text(nanos)),
    }
}

async fn list(context: &mut Context, parent: Option<&TopicName>) -> Result<(), Failure> {
    let links = context.client.list_links(parent).await?;
    let rows: Vec<LinkRow> = links.into_iter().map(LinkRow::of).collect();
    let format = context.document();
    context.out.rows(format, &rows, link_table)
}

fn link_table(rows: &[LinkRow]) -> comfy_table::Table {
    let columns = [
        "parent", "child", "epoch", "delay", "cursor", "lag", "due lag", "next due", "pending", "dropped",
        "filtered", "state",
    ];
    let numbers = ["cursor", "lag", "due lag", "pending", "dropped", "filtered"];
    let mut table = output::table(&columns, &numbers);
    for row in rows {
        let state = match &row.stalled {
            Some(why) => format!("stalled: {why}"),
            None => row.state.to_owned(),
        };
        table.add_row([
            row.parent.clone(),
            row.child.clone(),
            row.epoch.clone(),
            output::millis_text(row.delay_ms),
            row.cursor.to_string(),
            row.lag.to_string(),
            output::millis_text(row.due_lag_ms),
            row.next_due.map_or_else(|| "-".to_owned(), output::time_text),
            row.pending.to_string(),
            row.dropped.to_string(),
            row.filtered.to_string(),
            state,
        ]);
    }
    table
}

async fn verify(context: &mut Context, pair: &cli::Pair) -> Result<(), Failure> {
    let progress = counter("records compared");
    let verified = driver::verify(&context.client, &pair.parent, &pair.child, PATIENCE, |records| {
        progress.set_position(records);
    });
    let row = verified.await;
    progress.finish_and_clear();
    let row = row?;
    let format = context.document();
    context
        .out
        .one(format, &row, |row| verify_table(std::slice::from_ref(row)))?;
    say_ranges(&row);
    if row.ok { Ok(()) } else { Err(Failure::found()) }
}

/// The table of verified links, for people.
#[must_use]
pub fn verify_table(rows: &[Row]) -> comfy_table::Table {
    let mut columns = vec![
        "parent",
        "child",
        "epoch",
        "delay",
        "records",
        "expected",
        "missing",
        "duplicate",
        "early",
        "unexpected",
        "differing",
        "dropped",
        "filtered",
        "pending",
        "max late",
        "ok",
    ];
    // Only when there is something to say.
    let is_stalled = rows.iter().any(|row| row.stalled.is_some());
    if is_stalled {
        columns.push("stalled");
    }
    let mut table = output::table(&columns, &columns[4..15]);
    for row in rows {
        let number = |n: u64| n.to_string();
        let mut cells = vec![
            row.parent.clone(),
            row.child.clone(),
            row.epoch.clone(),
            output::millis_text(row.delay_ms),
            number(row.records),
            number(row.expected),
            number(row.missing),
            number(row.duplicate),
            number(row.early),
            number(row.unexpected),
            number(row.differing),
            number(row.dropped),
            number(row.filtered),
            number(row.pending),
            output::millis_text(row.max_late_ms),
            if row.ok { "yes" } else { "NO" }.to_owned(),
        ];
        if is_stalled {
            cells.push(row.stalled.clone().unwrap_or_else(|| "-".to_owned()));
        }
        table.add_row(cells);
    }
    table
}

/// Says on standard error where unexpected records stand, and which ranges a verification could not look at.
pub fn say_ranges(row: &Row) {
    const SHOWN: usize = 20;
    for range in &row.unexpected_ranges {
        output::note(&format!(
            "unexpected: {} -> {}: child partition {} has records of partition {} that should not be there, offsets {} to {}",
            row.parent, row.child, range.child_partition, range.partition, range.from, range.to
        ));
    }
    for range in row.unverifiable.iter().take(SHOWN) {
        let child = range
            .child_partition
            .map_or(String::new(), |number| format!(", child partition {number}"));
        output::note(&format!(
            "unverifiable: {} -> {}: partition {}{child}, offsets {} to {}: {}",
            row.parent, row.child, range.partition, range.from, range.to, range.why
        ));
    }
    if row.unverifiable.len() > SHOWN {
        output::note(&format!(
            "and {} ranges more; -o json has them all",
            row.unverifiable.len() - SHOWN
        ));
    }
}
