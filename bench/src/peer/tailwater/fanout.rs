//! The cells of `fanout` on a node: how fast copies are committed, and how late they arrive.

use std::time::Duration;

use anyhow::{Context, bail};
use tailwater_wire::client::{Client, Consumed, Consumer, ConsumerOptions, ProducerOptions, StartAt};
use tailwater_wire::ids::PartitionId;
use tailwater_wire::message::Place;
use tailwater_wire::meta::{AttachFrom, LinkOptions, Topic};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::load::{Expected, Until, closed_lanes, gather, paced};
use crate::payload::{Payloads, stamps};
use crate::peer::lab::Lab;
use crate::peer::outcome::{Outcome, per_op};
use crate::peer::tailwater::node::{Node, batches_of};
use crate::scenario::{Fanout, Source};
use crate::tally::{Tally, Timeline};

/// How often the children's ends are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long nothing may arrive anywhere before a cell is given up.
const STANDSTILL: Duration = Duration::from_secs(15);
/// How long copies may take to arrive after the last record was sent; what is later did not keep the rate.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);
/// How long a receiver waits before it looks whether it is done.
const RECEIVE_WITHIN: Duration = Duration::from_millis(50);
/// Batches that fill a parent: their size, and how many are unacknowledged in each partition.
const FILL: (usize, usize) = (1_000, 4);

/// One round of one cell; each outcome with what it counts.
pub async fn run(node: &Node, cell: &Fanout, lab: &Lab) -> anyhow::Result<Vec<(&'static str, Outcome)>> {
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
        let lanes = self
            .node
            .lanes(&self.parent, &batches_of(batch, in_flight))
            .await?;
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
        let (mut most, mut progress) = (0, Instant::now());
        loop {
            let ends = self.committed().await?;
            let committed: u64 = ends.iter().sum();
            if committed >= copies {
                break;
            }
            if committed > most {
                (most, progress) = (committed, Instant::now());
            }
            if progress.elapsed() > STANDSTILL {
                bail!(
                    "no copy arrived for {STANDSTILL:?}; of {records} records each, the children have {ends:?}"
                );
            }
            sleep(LOOK_EVERY).await;
        }
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
    ) -> anyhow::Result<Vec<(&'static str, Outcome)>> {
        let lanes = self
            .node
            .lanes(&self.parent, &batches_of(batch, in_flight))
            .await?;
        let timeline = Timeline::starting_now(lab.options.warmup, lab.options.seconds);
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
        let lanes = self.node.lanes(&self.parent, &ProducerOptions::default()).await?;
        let mut consumers = Vec::new();
        for child in &self.children {
            let options = ConsumerOptions {
                from: StartAt::Earliest,
                ..ConsumerOptions::default()
            };
            consumers.push(
                self.node
                    .connect()
                    .await?
                    .consumer(&child.spec.name, options)
                    .await?,
            );
        }
        let timeline = Timeline::starting_now(lab.options.warmup, lab.options.seconds);
        let (expected, mut receivers) = (Expected::default(), JoinSet::new());
        for consumer in consumers {
            receivers.spawn_local(receive(consumer, expected.clone(), timeline));
        }
        let load = async {
            let (_, sent) = paced(lanes, payloads, rate, timeline).await?;
            expected.tell(sent);
            Ok(sent)
        };
        let cpu = timeline.at_both_ends(|| async { self.node.server.cpu() });
        let (sent, tally, cpu) = tokio::try_join!(load, gather(receivers), cpu)?;
        let children = self.children.len() as u64;
        let arrived: u64 = self.committed().await?.iter().sum();
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
            durability: self.durability(),
            offered_per_s: None,
            achieved_per_s,
            response: None,
            service_p50_us: None,
            bytes_per_op: self.bytes,
            cpu_us_per_op,
            load_busy: None,
        }
    }

    fn durability(&self) -> &'static str {
        self.children
            .first()
            .map_or("none", |child| child.spec.durability.label())
    }
}

/// Takes copies until all that were sent have arrived, or too much time has passed since.
async fn receive(mut consumer: Consumer, expected: Expected, timeline: Timeline) -> anyhow::Result<Tally> {
    let (mut tally, mut arrived, mut known_since) = (Tally::default(), 0, None);
    loop {
        if let Some(sent) = expected.get() {
            let since = *known_since.get_or_insert_with(Instant::now);
            if arrived >= sent || since.elapsed() > DRAIN_WITHIN {
                return Ok(tally);
            }
        }
        let Ok(next) = timeout(RECEIVE_WITHIN, consumer.next()).await else {
            continue;
        };
        match next?.context("a consumer ended without being asked to")? {
            Consumed::Gap(gap) => bail!("a child has a gap: {gap:?}"),
            Consumed::Batch(batch) => {
                for record in batch.records() {
                    let (intended, sent) =
                        stamps(record.value).context("a record that the bench did not send")?;
                    tally.add(&timeline, intended, sent, 1);
                    arrived += 1;
                }
            }
        }
    }
}
