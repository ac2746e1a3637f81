//! `link attach|detach|verify`.

use serde::Serialize;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::code::Retry;
use tailwater_wire::ids::Delay;
use tailwater_wire::meta::LinkOptions;

use crate::cli;
use crate::command::context::{Context, counter};
use crate::command::{drain, link_list};
use crate::error::Failure;
use crate::output::{self, Format};
use crate::verify::driver::{self, PATIENCE};
use crate::verify::row::Row;

/// Runs a link command.
///
/// # Errors
/// The node's refusals, that it cannot be reached, or exit 5 when a verification found something.
pub async fn run(context: &mut Context, command: cli::Link) -> Result<(), Failure> {
    match command {
        cli::Link::Attach(args) => attach(context, args).await,
        cli::Link::Detach { pair, drain } => detach(context, &pair, drain).await,
        cli::Link::List(args) => link_list::run(context, args).await,
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
    let attached = context
        .client
        .attach(&args.pair.parent, &args.pair.child, options)
        .await;
    let link = attached.map_err(unattached)?;
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

/// A link that was asked for may be there all the same, unless the node said that it is not.
fn unattached(error: ClientError) -> Failure {
    let is_unknown = error.retry() == Retry::OutcomeUnknown;
    let failure = Failure::from(error);
    if is_unknown {
        failure.hint("the link may exist: `tailwater link list` shows whether it does")
    } else {
        failure
    }
}

async fn detach(context: &mut Context, pair: &cli::Pair, drain: bool) -> Result<(), Failure> {
    if drain {
        drain::drain(&context.client, pair).await?;
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
            "and {} more; -o json has them all",
            output::counted((row.unverifiable.len() - SHOWN) as u64, "range")
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tailwater_wire::code::{ErrorCode, Refusal};

    use super::*;

    #[test]
    fn an_attach_without_an_answer_says_that_the_link_may_exist() {
        let what = || "attach".to_owned();
        let may_exist = [
            ClientError::TimedOut {
                what: what(),
                after: Duration::from_secs(30),
            },
            ClientError::OutcomeUnknown {
                what: what(),
                why: "the connection broke".to_owned(),
            },
        ];
        for error in may_exist {
            let text = unattached(error).to_string();
            assert!(
                text.contains("the link may exist: `tailwater link list` shows"),
                "{text}"
            );
        }
        let refused = Refusal::new(ErrorCode::UnknownTopic, "topic `a`: there is none");
        let text = unattached(ClientError::Refused(refused)).to_string();
        assert!(!text.contains("may exist"), "{text}");
    }
}
