//! `link list`: how far links are, what they have held back or lost, and why they do not move.

use serde::Serialize;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::message::{BucketStatus, CursorStatus, LinkDetail, LinkStatus};
use tailwater_wire::meta::AttachFrom;

use crate::cli;
use crate::command::context::Context;
use crate::error::Failure;
use crate::output::{self, Format};
use crate::verify::driver;

/// Runs it.
///
/// # Errors
/// The node's refusals, that it cannot be reached, or that it cannot tell the details of links.
pub async fn run(context: &mut Context, args: cli::LinkList) -> Result<(), Failure> {
    let client = &context.client;
    let wants_details = args.child.is_some() || args.partitions;
    let links = match (&args.parent, &args.child) {
        (Some(parent), Some(child)) => vec![driver::find_link(client, parent, child).await?],
        (parent, _) => client.list_links(parent.as_ref()).await?,
    };
    let format = context.document();
    if !wants_details {
        let rows: Vec<LinkRow> = links.into_iter().map(LinkRow::of).collect();
        return context.out.rows(format, &rows, link_table);
    }
    let mut rows = Vec::with_capacity(links.len());
    for status in links {
        let link = &status.link;
        match client.describe_link(&link.parent, &link.child).await {
            Ok(detail) => rows.push(DetailRow::of(detail)),
            // Ended since it was listed, and not asked for by name.
            Err(error) if error.code() == ErrorCode::UnknownLink && args.child.is_none() => {}
            Err(error) => return Err(undescribed(error)),
        }
    }
    if format != Format::Table {
        return context.out.rows(format, &rows, |_| comfy_table::Table::new());
    }
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            context.out.line("")?;
        }
        let links = link_table(std::slice::from_ref(&row.link));
        context.out.line(&output::render(&links))?;
        context.out.line("")?;
        context.out.line(&output::render(&cursor_table(row)))?;
        if row.buckets.iter().any(|buckets| !buckets.is_empty()) {
            context.out.line("")?;
            context.out.line(&output::render(&bucket_table(row)))?;
        }
    }
    Ok(())
}

/// A node of an earlier version refuses the request as a whole.
fn undescribed(error: ClientError) -> Failure {
    let is_older = error.code() == ErrorCode::InvalidRequest;
    let failure = Failure::from(error).about("details of a link");
    if is_older {
        failure.hint("this node does not tell the details of links; `tailwater link list` has the sums")
    } else {
        failure
    }
}

/// A link in detail as it is printed: what `link list` has, and for each of its `cursors`, in the same order, the child
/// partitions as that cursor sees them.
#[derive(Debug, Serialize)]
struct DetailRow {
    #[serde(flatten)]
    link: LinkRow,
    buckets: Vec<Vec<BucketStatus>>,
}

impl DetailRow {
    fn of(detail: LinkDetail) -> DetailRow {
        DetailRow {
            link: LinkRow::of(detail.status),
            buckets: detail.buckets,
        }
    }
}

fn cursor_table(row: &DetailRow) -> comfy_table::Table {
    let columns = [
        "partition",
        "position",
        "parent end",
        "lag",
        "due lag",
        "next due",
        "committed",
        "dropped",
        "filtered",
        "stalled",
    ];
    let numbers = [
        "partition",
        "position",
        "parent end",
        "lag",
        "due lag",
        "committed",
        "dropped",
        "filtered",
    ];
    let mut table = output::table(&columns, &numbers);
    for cursor in &row.link.cursors {
        table.add_row([
            cursor.partition.to_string(),
            cursor.position.to_string(),
            cursor.parent_high_water_mark.to_string(),
            cursor.parent_high_water_mark.since(cursor.position).to_string(),
            output::millis_text(cursor.due_lag_millis),
            cursor.next_due.map_or_else(|| "-".to_owned(), output::time_text),
            cursor.committed.to_string(),
            cursor.dropped.to_string(),
            cursor.filtered.to_string(),
            cursor.stalled.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table
}

fn bucket_table(row: &DetailRow) -> comfy_table::Table {
    let columns = [
        "partition",
        "child partition",
        "position",
        "committed",
        "dropped",
        "stalled",
    ];
    let mut table = output::table(&columns, &columns[..5]);
    for (cursor, buckets) in row.link.cursors.iter().zip(&row.buckets) {
        for bucket in buckets {
            table.add_row([
                cursor.partition.to_string(),
                bucket.partition.to_string(),
                bucket.position.to_string(),
                bucket.committed.to_string(),
                bucket.dropped.to_string(),
                bucket.stalled.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
    }
    table
}

/// A link with its progress as it is printed: summed over the parent's partitions.
#[derive(Debug, Serialize)]
pub struct LinkRow {
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
    /// Of what the node says.
    #[must_use]
    pub fn of(status: LinkStatus) -> LinkRow {
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

#[cfg(test)]
mod tests {
    use tailwater_wire::code::Refusal;
    use tailwater_wire::ids::{Delay, Epoch, Incarnation, Offset, PartitionId};
    use tailwater_wire::meta::{Link, LinkOptions};

    use super::*;

    fn cursor(partition: u32, position: u64, end: u64) -> CursorStatus {
        CursorStatus {
            partition: PartitionId(partition),
            epoch: Epoch([1; 8]),
            position: Offset(position),
            parent_high_water_mark: Offset(end),
            due_lag_millis: 0,
            next_due: None,
            committed: position,
            filtered: 1,
            dropped: 2,
            duplicates: 0,
            stalled: None,
        }
    }

    fn row(delay_ms: u64, cursors: Vec<CursorStatus>) -> LinkRow {
        let link = Link {
            parent: "parent".parse().expect("a name"),
            child: "child".parse().expect("a name"),
            epoch: Epoch([1; 8]),
            parent_incarnation: Incarnation([2; 8]),
            child_incarnation: Incarnation([3; 8]),
            options: LinkOptions {
                delay: Delay { millis: delay_ms },
                ..LinkOptions::default()
            },
            attach_offsets: vec![Offset(0); cursors.len()],
            index: 1,
        };
        LinkRow::of(LinkStatus { link, cursors })
    }

    #[test]
    fn cursors_are_summed_and_the_state_is_the_worst() {
        let link = row(0, vec![cursor(0, 5, 5), cursor(1, 3, 9)]);
        assert_eq!((link.cursor, link.lag, link.pending, link.dropped), (8, 6, 0, 4));
        assert_eq!(link.state, "behind");
        assert_eq!(row(0, vec![cursor(0, 5, 5)]).state, "current");
        assert_eq!(row(0, Vec::new()).state, "starting");
        let mut stalled = cursor(3, 5, 5);
        stalled.stalled = Some("child partition 1 is latched".to_owned());
        let link = row(0, vec![cursor(0, 5, 5), stalled]);
        assert_eq!(link.state, "stalled");
        assert_eq!(
            link.stalled.as_deref(),
            Some("partition 3: child partition 1 is latched")
        );
    }

    #[test]
    fn what_a_delay_holds_back_is_pending() {
        let mut held = cursor(0, 5, 8);
        held.next_due = Some(7);
        let mut other = cursor(1, 5, 8);
        other.next_due = Some(4);
        let link = row(2_000, vec![held, other]);
        assert_eq!((link.state, link.pending, link.next_due), ("waiting", 6, Some(4)));
        let mut due = cursor(0, 5, 8);
        due.due_lag_millis = 3;
        assert_eq!(row(2_000, vec![due]).state, "behind");
    }

    #[test]
    fn a_node_that_cannot_tell_is_named_as_such() {
        let refused = |code| undescribed(ClientError::Refused(Refusal::new(code, "not served yet")));
        let text = refused(ErrorCode::InvalidRequest).to_string();
        assert!(
            text.starts_with("error: details of a link: not served yet (INVALID_REQUEST)\nhint: this node")
        );
        assert!(!refused(ErrorCode::Busy).to_string().contains("this node"));
    }

    #[test]
    fn details_name_every_child_partition() {
        let bucket = |partition, stalled: Option<&str>| BucketStatus {
            partition: PartitionId(partition),
            position: Offset(7),
            committed: 3,
            dropped: 0,
            stalled: stalled.map(str::to_owned),
        };
        let detail = DetailRow {
            link: row(0, vec![cursor(0, 5, 9), cursor(1, 3, 9)]),
            buckets: vec![
                vec![bucket(0, None), bucket(1, Some("its disk is full"))],
                Vec::new(),
            ],
        };
        let text = output::render(&bucket_table(&detail));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("its disk is full"), "{text}");
        assert_eq!(output::render(&cursor_table(&detail)).lines().count(), 3);
        let json = serde_json::to_value(&detail).expect("serializable");
        assert_eq!(
            (&json["parent"], &json["buckets"][0][1]["position"]),
            (&"parent".into(), &7.into())
        );
    }
}
