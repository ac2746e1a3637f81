//! The cells of `fanout` on nats-server: children are streams that source from the parent's streams.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tokio::time::Instant;

use crate::load::{Until, closed_lanes};
use crate::measure::{Counted, fill, received_at_rate, watch_growth};
use crate::payload::Payloads;
use crate::peer::lab::Lab;
use crate::peer::nats::client::Session;
use crate::peer::nats::instance::{Flush, Instance, Origin, stream_name};
use crate::peer::outcome::{Outcome, per_op};
use crate::scenario::{Fanout, Source};
use crate::store::{From, LanePlan, Store, TopicPlan};
use crate::tally::Timeline;

/// How long a backfill is watched at most; a slower one is measured over this time.
const BACKFILL_WITHIN: Duration = Duration::from_secs(15);
/// Names of the children, as topics.
const CHILDREN: [&str; 16] = [
    "c00", "c01", "c02", "c03", "c04", "c05", "c06", "c07", "c08", "c09", "c10", "c11", "c12", "c13", "c14",
    "c15",
];

/// One round of one cell on an instance of its own.
///
/// # Errors
/// When it fails.
pub async fn run(binary: &Path, flush: Flush, cell: &Fanout, lab: &Lab) -> anyhow::Result<Vec<Counted>> {
    // A parent that is there before is filled without flushes; nobody measures that.
    let fills = matches!(cell.source, Source::Backfill { .. });
    let at_first = if fills { Flush::Shipped } else { flush };
    let mut instance = Instance::start(binary, at_first, lab).await?;
    let parent = TopicPlan {
        name: "parent",
        partitions: cell.partitions,
    };
    let payloads = Payloads::new(cell.record_bytes, true);
    let prepared = async {
        instance.make(&parent).await?;
        if let Source::Backfill { records } = cell.source {
            fill(&instance, &parent, &payloads, records).await?;
        }
        anyhow::Ok(())
    };
    instance.server.while_alive(prepared).await?;
    if fills {
        instance = instance.restart(binary, flush, lab).await?;
    }
    let children: Vec<TopicPlan> = CHILDREN
        .iter()
        .take(cell.children as usize)
        .map(|name| TopicPlan {
            name,
            partitions: cell.child_partitions,
        })
        .collect();
    let family = Family {
        instance: &instance,
        parent,
        children,
        bytes: cell.record_bytes as u64,
    };
    let measured = async {
        match cell.source {
            Source::Backfill { records } => Ok(vec![("copies", family.backfill(records).await?)]),
            Source::FullSpeed {
                batch_records,
                in_flight,
            } => {
                family
                    .at_full_speed((batch_records, in_flight), payloads, lab)
                    .await
            }
            Source::Rate { rate_per_s } => {
                Ok(vec![("copies", family.at_rate(rate_per_s, payloads, lab).await?)])
            }
        }
    };
    let outcomes = instance.server.while_alive(measured).await?;
    instance.server.stop().await?;
    Ok(outcomes)
}

struct Family<'i> {
    instance: &'i Instance,
    parent: TopicPlan,
    children: Vec<TopicPlan>,
    /// Bytes of each record.
    bytes: u64,
}

impl Family<'_> {
    /// Makes the children's streams, each sourcing from the parent's stream of its number.
    async fn attach(&self) -> anyhow::Result<()> {
        let mut session = self.instance.session().await?;
        for child in &self.children {
            for partition in 0..child.partitions {
                let name = stream_name(child.name, partition);
                let from = [stream_name(self.parent.name, partition)];
                Instance::stream(&mut session, &name, Origin::Streams(&from)).await?;
            }
        }
        Ok(())
    }

    async fn backfill(&self, records: u64) -> anyhow::Result<Outcome> {
        let (before, started) = (self.instance.cpu()?, Instant::now());
        self.attach().await?;
        let session = RefCell::new(Some(self.instance.session().await?));
        let whole = records * self.children.len() as u64;
        let copies = watch_growth(whole, BACKFILL_WITHIN, || self.copied(&session)).await?;
        let (after, seconds) = (self.instance.cpu()?, started.elapsed().as_secs_f64());
        Ok(Outcome {
            achieved_per_s: copies as f64 / seconds,
            bytes_per_op: self.bytes,
            cpu_us_per_op: per_op(after.system.saturating_sub(before.system), copies as f64),
            ..Outcome::of_nothing(self.instance.durability())
        })
    }

    async fn at_full_speed(
        &self,
        batches: (usize, usize),
        payloads: Payloads,
        lab: &Lab,
    ) -> anyhow::Result<Vec<Counted>> {
        self.attach().await?;
        let plan = LanePlan {
            lanes: self.parent.partitions,
            batches: Some(batches),
        };
        let lanes = self.instance.lanes(&self.parent, plan).await?;
        let session = RefCell::new(Some(self.instance.session().await?));
        let timeline = Timeline::starting_now(lab.options.warmup, lab.options.steady);
        let sample =
            timeline.at_both_ends(|| async { Ok((self.copied(&session).await?, self.instance.cpu()?)) });
        let (batch, in_flight) = batches;
        let load = closed_lanes(lanes, &payloads, batch, in_flight, Until::WindowEnds, timeline);
        let (tally, (first, last, between)) = tokio::try_join!(load, sample)?;
        let copies = last.0.saturating_sub(first.0) as f64;
        let produced = Outcome::of_tally(&tally, &timeline, (first.1, last.1, between), self.bytes);
        let copied = Outcome {
            achieved_per_s: copies / between.as_secs_f64(),
            bytes_per_op: self.bytes,
            cpu_us_per_op: per_op(last.1.system.saturating_sub(first.1.system), copies),
            load_busy: produced.load_busy,
            ..Outcome::of_nothing(self.instance.durability())
        };
        let produced = Outcome {
            cpu_us_per_op: None,
            ..produced
        };
        Ok(vec![("copies", copied), ("records", produced)])
    }

    async fn at_rate(&self, rate: u64, payloads: Payloads, lab: &Lab) -> anyhow::Result<Outcome> {
        self.attach().await?;
        let plan = LanePlan {
            lanes: self.parent.partitions,
            batches: None,
        };
        let lanes = self.instance.lanes(&self.parent, plan).await?;
        let mut readers = Vec::new();
        for child in &self.children {
            readers.push(self.instance.reader(child, From::Earliest).await?);
        }
        let timeline = Timeline::starting_now(lab.options.warmup, lab.options.seconds);
        let cpu = timeline.at_both_ends(|| async { self.instance.cpu() });
        let ((_, sent), tally, arrived, cpu) =
            received_at_rate(lanes, readers, payloads, rate, timeline, cpu).await?;
        let children = self.children.len() as u64;
        let outcome = Outcome::of_tally(&tally, &timeline, cpu, self.bytes);
        Ok(Outcome {
            durability: self.instance.durability(),
            offered_per_s: Some((rate * children) as f64),
            response: outcome.response.filter(|_| arrived >= sent * children),
            load_busy: None,
            ..outcome
        })
    }

    /// Messages in the children's streams.
    async fn copied(&self, session: &RefCell<Option<Session>>) -> anyhow::Result<u64> {
        // Taken out for the time of the requests: nothing is borrowed while they are waited for.
        let mut asking = session.take().context("one count at a time")?;
        let mut copies = 0;
        for child in &self.children {
            for partition in 0..child.partitions {
                let name = stream_name(child.name, partition);
                let info = asking.ask(&format!("STREAM.INFO.{name}"), &json!({})).await?;
                copies += info["state"]["messages"]
                    .as_u64()
                    .context("a stream without messages")?;
            }
        }
        session.replace(Some(asking));
        Ok(copies)
    }
}
