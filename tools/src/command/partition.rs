//! `partition reset-clock`.

use tailwater_wire::message::{Reply, Request, ResetClock};

use crate::cli;
use crate::command::clock::{ClockRow, table};
use crate::command::context::Context;
use crate::error::Failure;
use crate::output::{self, Format};

/// Runs a partition command.
///
/// # Errors
/// The node's refusals, or that it cannot be reached.
pub async fn run(context: &mut Context, command: cli::Partition) -> Result<(), Failure> {
    let cli::Partition::ResetClock { topic, partition } = command;
    let request = Request::ResetClock(ResetClock {
        topic: topic.clone(),
        partition,
    });
    let (reply, _) = context.client.request(request, bytes::Bytes::new()).await?;
    let Reply::ClockReset(status) = reply else {
        let what = "the node answered with something that does not fit the request";
        return Err(Failure::local("partition reset-clock", what, "PROTOCOL"));
    };
    let format = context.document();
    context.out.one(format, &ClockRow::of(&status), |row| {
        table(std::slice::from_ref(row))
    })?;
    if format == Format::Table {
        output::note(&format!(
            "partition {partition} of {topic} goes on with the present time"
        ));
    }
    Ok(())
}
