//! The cells of `produce` on a node.

use anyhow::ensure;
use tailwater_wire::client::ProducerOptions;

use crate::load::{Until, closed_lanes, paced};
use crate::payload::Payloads;
use crate::peer::lab::Lab;
use crate::peer::outcome::Outcome;
use crate::peer::tailwater::node::{Node, batches_of};
use crate::scenario::Produce;
use crate::tally::Timeline;

/// One round of one cell.
pub async fn run(node: &Node, cell: &Produce, lab: &Lab) -> anyhow::Result<Outcome> {
    let topic = node.topic("bench", cell.partitions).await?;
    let payloads = Payloads::new(cell.record_bytes, false);
    let bytes = cell.record_bytes as u64;
    let options = match cell.in_flight {
        Some(in_flight) => batches_of(cell.batch_records, in_flight),
        None => ProducerOptions::default(),
    };
    let lanes = node.lanes(&topic, &options).await?;
    let timeline = Timeline::starting_now(lab.options.warmup, lab.options.seconds);
    let cpu = timeline.at_both_ends(|| async { node.server.cpu() });
    if let Some(rate) = cell.rate_per_s {
        let ((tally, _), cpu) = tokio::try_join!(paced(lanes, payloads, rate, timeline), cpu)?;
        let outcome = Outcome::of_tally(&tally, &timeline, cpu, bytes);
        // It waits awake, so its core is always busy.
        return Ok(Outcome {
            offered_per_s: Some(rate as f64),
            load_busy: None,
            ..outcome
        });
    }
    let in_flight = cell.in_flight.unwrap_or(1);
    let load = closed_lanes(
        lanes,
        &payloads,
        cell.batch_records,
        in_flight,
        Until::WindowEnds,
        timeline,
    );
    let (tally, cpu) = tokio::try_join!(load, cpu)?;
    let records = node.batch_in_the_middle(&topic).await?;
    ensure!(
        records == cell.batch_records,
        "a batch of {records} records where {} were meant",
        cell.batch_records
    );
    Ok(Outcome::of_tally(&tally, &timeline, cpu, bytes))
}
