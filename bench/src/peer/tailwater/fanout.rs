//! The cells of `fanout` on a node: how fast copies are committed, and how late they arrive.

use std::time::Duration;

use anyhow::Context;
use tailwater_wire::client::{Client, StartAt};
use tailwater_wire::ids::PartitionId;
use tailwater_wire::message::Place;
use tailwater_wire::meta::{AttachFrom, LinkOptions, Topic};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::load::{Until, closed_lanes};
use crate::measure::{Counted, FILL, received_at_rate, watch_growth};
use crate::payload::Payloads;
use crate::peer::lab::Lab;
use crate::peer::outcome::{Outcome, per_op};
use crate::peer::tailwater::node::{Lane, Node};
use crate::scenario::{Fanout, Source};
use crate::store::LanePlan;
use crate::tally::Timeline;

/// How long a backfill is watched at most; a slower one is measured over this time.
const BACKFILL_WITHIN: Duration = Duration::from_secs(60);

/// One round of one cell; each outcome with what it counts.
pub async fn run(node: &Node, cell: &Fanout, lab: &Lab) -> anyhow::Result<Vec<Counted>> {
    let parent = node.topic("parent", cell.partitions).await?;
    let mut children = Vec::new();
    for number in 0..cell.children {
        children.push(
            node.topic(&format!("child-{number}"), cell.child_partitions)
                .await?,
        );
    }
    let family = Family {
        node,
        parent,
        children,
        bytes: cell.record_bytes as u64,
    };
    let payloads = Payloads::new(cell.record_bytes, true);
    match cell.source {
        Source::Backfill { records } => Ok(vec![("copies", family.backfill(records, &payloads).await?)]),
        Source::FullSpeed {
            batch_records,
            in_flight,
        } => {
            family.attach(AttachFrom::Tail).await?;
            family
                .at_full_speed(batch_records, in_flight, &payloads, lab)
                .await
        }
        Source::Rate { rate_per_s } => {
            family.attach(AttachFrom::Tail).await?;
            Ok(vec![("copies", family.at_rate(rate_per_s, payloads, lab).await?)])
        }
    }
}

/// A parent and its children.
struct Family<'n> {
    node: &'n Node,
    parent: Topic,
    children: Vec<Topic>,
    /// Bytes of each record.
    bytes: u64,
}

impl Family<'_> {
    async fn attach(&self, from: AttachFrom) -> anyhow::Result<()> {
        let options = LinkOptions {
            from,
            ..LinkOptions::default()
        };
        for child in &self.children {
            self.node
                .client
                .attach(&self.parent.spec.name, &child.spec.name, options.clone())
                .await?;
        }
        Ok(())
    }

    /// From the first attach until all children have everything.
    async fn backfill(&self, records: u64, payloads: &Payloads) -> anyhow::Result<Outcome> {
        let (batch, in_flight) = FILL;
        let lanes = self.producers(Some(FILL)).await?;
        let timeline = Timeline::starting_now(Duration::ZERO, Duration::MAX / 4);
        closed_lanes(
            lanes,
            payloads,
            batch,
            in_flight,
            Until::Records(records),
            timeline,
        )
        .await?;
        let (before, started) = (self.node.server.cpu()?, Instant::now());
        self.attach(AttachFrom::Earliest).await?;
        let copies = records * self.children.len() as u64;
        let committed = || async { Ok(self.committed().await?.iter().sum()) };
        let copies = watch_growth(copies, BACKFILL_WITHIN, committed).await?;
        let (after, seconds) = (self.node.server.cpu()?, started.elapsed().as_secs_f64());
        let load = after.load.saturating_sub(before.load).as_secs_f64() / seconds;
        let cpu = per_op(after.system.saturating_sub(before.system), copies as f64);
        Ok(Outcome {
            load_busy: Some(load),
            ..self.copies(copies as f64 / seconds, cpu)
        })
    }

    /// While producers send as fast as they may: the copies, and beside them the records that were produced.
    async fn at_full_speed(
        &self,
        batch: usize,
        in_flight: usize,
        payloads: &Payloads,
        lab: &Lab,
    ) -> anyhow::Result<Vec<Counted>> {
        let lanes = self.producers(Some((batch, in_flight))).await?;
        let timeline = Timeline::starting_now(lab.options.warmup, lab.options.steady);
        let sample = timeline.at_both_ends(|| async {
            let committed: u64 = self.committed().await?.iter().sum();
            Ok((committed, self.node.server.cpu()?))
        });
        let load = closed_lanes(lanes, payloads, batch, in_flight, Until::WindowEnds, timeline);
        let (tally, (first, last, between)) = tokio::try_join!(load, sample)?;
        let copies = last.0.saturating_sub(first.0) as f64;
        // One node's CPU time cannot be told apart by what it was spent on: it is given to the copies.
        let cpu = per_op(last.1.system.saturating_sub(first.1.system), copies);
        let produced = Outcome::of_tally(&tally, &timeline, (first.1, last.1, between), self.bytes);
        let copied = self.copies(copies / between.as_secs_f64(), cpu);
        Ok(vec![
            (
                "copies",
                Outcome {
                    load_busy: produced.load_busy,
                    ..copied
                },
            ),
            (
                "records",
                Outcome {
                    cpu_us_per_op: None,
                    ..produced
                },
            ),
        ])
    }

    /// Each copy from its record's intended send until a consumer of the child has it.
    async fn at_rate(&self, rate: u64, payloads: Payloads, lab: &Lab) -> anyhow::Result<Outcome> {
        let lanes = self.producers(None).await?;
        let mut readers = Vec::new();
        for child in &self.children {
            readers.push(self.node.consume(&child.spec.name, StartAt::Earliest).await?);
        }
        let timeline = Timeline::starting_now(lab.options.warmup, lab.options.seconds);
        let cpu = timeline.at_both_ends(|| async { self.node.server.cpu() });
        let ((_, sent), tally, arrived, cpu) =
            received_at_rate(lanes, readers, payloads, rate, timeline, cpu).await?;
        let children = self.children.len() as u64;
        let outcome = Outcome::of_tally(&tally, &timeline, cpu, self.bytes);
        Ok(Outcome {
            durability: self.durability(),
            offered_per_s: Some((rate * children) as f64),
            // Those that never came would be missing among the slowest.
            response: outcome.response.filter(|_| arrived >= sent * children),
            load_busy: None,
            ..outcome
        })
    }

    /// A producer for each partition of the parent.
    async fn producers(&self, batches: Option<(usize, usize)>) -> anyhow::Result<Vec<Lane>> {
        let spec = &self.parent.spec;
        let plan = LanePlan {
            lanes: spec.partitions,
            batches,
        };
        self.node.producers(&spec.name, spec.partitions, plan).await
    }

    /// The committed end of each child, summed over its partitions.
    async fn committed(&self) -> anyhow::Result<Vec<u64>> {
        let mut asked = JoinSet::new();
        for (index, child) in self.children.iter().enumerate() {
            for partition in (0..child.spec.partitions).map(PartitionId) {
                let (client, name): (Client, _) = (self.node.client.clone(), child.spec.name.clone());
                asked.spawn_local(async move {
                    let found = client.find_offset(&name, partition, Place::Tail).await;
                    found.map(|found| (index, found.high_water_mark.0))
                });
            }
        }
        let mut ends = vec![0; self.children.len()];
        while let Some(end) = asked.join_next().await {
            let (index, end) = end.context("asking for an end panicked")??;
            ends[index] += end;
        }
        Ok(ends)
    }

    fn copies(&self, achieved_per_s: f64, cpu_us_per_op: Option<f64>) -> Outcome {
        Outcome {
            achieved_per_s,
            bytes_per_op: self.bytes,
            cpu_us_per_op,
            ..Outcome::of_nothing(self.durability())
        }
    }

    fn durability(&self) -> &'static str {
        self.children
            .first()
            .map_or("none", |child| child.spec.durability.label())
    }
}
