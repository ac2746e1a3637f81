//! Two shards that commit to each other at full load: links whose cursors on each shard feed child partitions on the other.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::{Incarnation, PartitionId, TopicName};
use tailwater_wire::placement::shard_of;

use crate::cluster::load::{Load, LoadOptions, topic};
use crate::cluster::node::TestNode;
use crate::cluster::oracle::{Span, flawless};
use crate::cluster::reading::{copies, drained, ends, link, log};
use crate::cluster::witness::spec;

const PARTITIONS: u32 = 4;
/// Under full load, nothing may stand still for so long.
const MOVES_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Two pairs of topics, `a -> b` and `c -> d`, each with partitions on every shard.
#[derive(Debug)]
pub struct Mutual {
    client: Client,
    loads: Vec<Load>,
    parents: Vec<TopicName>,
    children: Vec<TopicName>,
}

/// The ways, from shard to shard, that the copies of a link take.
fn ways(parent: Incarnation, child: Incarnation, shards: u32) -> BTreeSet<(u32, u32)> {
    let owners = |incarnation| {
        (0..PARTITIONS).map(move |partition| shard_of(incarnation, PartitionId(partition), shards))
    };
    owners(parent)
        .flat_map(|from| owners(child).map(move |to| (from, to)))
        .collect()
}

impl Mutual {
    /// Makes topics and links, and begins to produce to both parents at full speed.
    ///
    /// # Panics
    /// When the links do not cross the shards in every direction.
    pub async fn start(node: &TestNode, shards: u32) -> Mutual {
        let client = node.client().await;
        let names = |names: [&str; 2]| names.map(topic).to_vec();
        let (parents, children) = (names(["a", "c"]), names(["b", "d"]));
        let mut loads = Vec::new();
        for (number, (parent, child)) in parents.iter().zip(&children).enumerate() {
            let from = client
                .create_topic(spec(parent, PARTITIONS))
                .await
                .expect("a topic");
            let to = client
                .create_topic(spec(child, PARTITIONS))
                .await
                .expect("a topic");
            let ways = ways(from.incarnation, to.incarnation, shards);
            let all = (0..shards).flat_map(|from| (0..shards).map(move |to| (from, to)));
            assert_eq!(ways, all.collect(), "the ways of {parent} -> {child}");
            let attached = client.attach(parent, child, Default::default()).await;
            attached.expect("a link");
            let producer = ProducerOptions {
                batch_records: 200,
                buffer_bytes: 1 << 20,
                delivery_timeout: Duration::from_secs(120),
                ..ProducerOptions::default()
            };
            let options = LoadOptions {
                producer,
                ..LoadOptions::new(number as u64 * 1_000_000_000, 1_000_000_000)
            };
            loads.push(Load::start(&node.client().await, parent, options).await);
        }
        Mutual {
            client,
            loads,
            parents,
            children,
        }
    }

    /// What was acknowledged to each load and what each child has.
    async fn progress(&self) -> Vec<u64> {
        let mut progress: Vec<u64> = self.loads.iter().map(Load::acknowledged).collect();
        for child in &self.children {
            progress.push(ends(&self.client, child).await.iter().sum());
        }
        progress
    }

    /// Watches for so long that every load and every child moves.
    ///
    /// # Panics
    /// When one stands still.
    pub async fn moves(&self, duration: Duration) {
        let started = Instant::now();
        let mut last = self.progress().await;
        let mut moved = vec![Instant::now(); last.len()];
        while started.elapsed() < duration || moved.iter().any(|&at| at < started) {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.progress().await;
            for (index, moved) in moved.iter_mut().enumerate() {
                if now[index] > last[index] {
                    *moved = Instant::now();
                }
                assert!(
                    moved.elapsed() < MOVES_WITHIN,
                    "acknowledged to each load, copied to each child: number {index} of {now:?} stands still"
                );
            }
            last = now;
        }
    }

    /// Ends the loads, lets everything arrive, and checks it. Returns how many records there were.
    ///
    /// # Panics
    /// When something is missing, or there twice.
    pub async fn is_clean(mut self, node: &TestNode) -> u64 {
        let mut records = 0;
        for (load, (parent, child)) in self.loads.drain(..).zip(self.parents.iter().zip(&self.children)) {
            load.stop();
            let account = load.ended().await.complete();
            let client = node.client().await;
            drained(&client, parent, child).await;
            let written = log(&client, parent).await;
            written.holds(&account.acknowledged);
            assert_eq!(
                written.len(),
                account.acknowledged.len() as u64,
                "{parent} has each record once"
            );
            let attached = link(&client, parent, child).await.expect("an attached pair").link;
            let span = Span::of(&attached, &written.ends());
            flawless(child.as_str(), &written, &copies(&client, child).await, &span);
            node.cli().verify(parent.as_str(), child.as_str()).await;
            records += written.len();
        }
        records
    }
}
