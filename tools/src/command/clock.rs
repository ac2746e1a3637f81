//! `clock status|accept`.

use serde::Serialize;
use tailwater_wire::message::{ClockRequest, ClockStatus, Reply, Request};

use crate::cli;
use crate::command::context::Context;
use crate::error::Failure;
use crate::output;

/// A clock as it is printed.
#[derive(Debug, Serialize)]
pub struct ClockRow {
    shard: u32,
    /// The owner's clock, nanoseconds since the epoch.
    now: u64,
    /// The wall clock, likewise.
    wall: u64,
    /// How far the wall clock is ahead, in milliseconds.
    wall_offset_ms: i64,
    held: bool,
}

impl ClockRow {
    /// Of what a node said.
    #[must_use]
    pub fn of(status: &ClockStatus) -> ClockRow {
        let offset = (i128::from(status.wall) - i128::from(status.now)) / 1_000_000;
        ClockRow {
            shard: status.shard,
            now: status.now,
            wall: status.wall,
            wall_offset_ms: i64::try_from(offset).unwrap_or(if offset > 0 { i64::MAX } else { i64::MIN }),
            held: status.held,
        }
    }
}

/// Runs a clock command.
///
/// # Errors
/// The node's refusals, or that it cannot be reached.
pub async fn run(context: &mut Context, command: cli::Clock) -> Result<(), Failure> {
    let request = match command {
        cli::Clock::Status => ClockRequest::Read,
        cli::Clock::Accept => ClockRequest::Accept,
    };
    let (reply, _) = context
        .client
        .request(Request::Clock(request), bytes::Bytes::new())
        .await?;
    let Reply::Clocks(clocks) = reply else {
        let what = "the node answered with something that does not fit the request";
        return Err(Failure::local("clock", what, "PROTOCOL"));
    };
    let rows: Vec<ClockRow> = clocks.iter().map(ClockRow::of).collect();
    let format = context.document();
    context.out.rows(format, &rows, table)?;
    if rows.iter().any(|row| row.held) {
        output::note(
            "held: delay links and retention by time wait; when the wall clock is right, run `tailwater clock accept`",
        );
    }
    Ok(())
}

/// Clocks, one a line.
#[must_use]
pub fn table(rows: &[ClockRow]) -> comfy_table::Table {
    let columns = ["shard", "owner's clock", "wall clock", "wall offset", "held"];
    let mut table = output::table(&columns, &["shard", "wall offset"]);
    for row in rows {
        table.add_row([
            row.shard.to_string(),
            output::time_text(row.now),
            output::time_text(row.wall),
            format!("{} ms", row.wall_offset_ms),
            if row.held { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}
