//! Rounds of attach, detach and attach again under load, and what each must have copied: from exactly its attach offset,
//! without a hole, nothing once the detach has returned, and nothing of what came in between.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::TopicName;
use tailwater_wire::meta::{Link, LinkOptions};

use crate::cluster::load::{Load, LoadOptions, topic};
use crate::cluster::node::TestNode;
use crate::cluster::oracle::prefix_faults;
use crate::cluster::reading::{Log, copies_from, ends, link, log_from};
use crate::cluster::setup::NodeOptions;
use crate::cluster::witness::spec;

const PARENT_PARTITIONS: u32 = 4;
const CHILD_PARTITIONS: u32 = 3;
/// How long a link may take to copy its first records.
const COPIES_WITHIN: Duration = Duration::from_secs(20);
/// Each life of the parent has numbers of its own.
const LIFE_NUMBERS: u64 = 1_000_000_000;

/// Which rounds.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many.
    pub rounds: u32,
    /// Records a second.
    pub rate: u64,
    /// Shards of the node.
    pub shards: usize,
    /// What is drawn in between.
    pub seed: u64,
    /// Verify the link in every n-th round.
    pub verify_every: u32,
    /// Delete and make anew parent and child in between, too.
    pub recreate: bool,
}

/// What was seen, so that a caller can judge whether anything was tried.
#[derive(Debug, Default)]
pub struct Seen {
    /// Records copied in all rounds.
    pub copied: u64,
    /// Records produced between a detach and the next attach.
    pub between: u64,
    /// Rounds in which a detach met a cursor that was at work in every partition.
    pub at_work: u32,
    /// Times that the parent was made anew.
    pub parents: u32,
    /// Times that the child was made anew.
    pub children: u32,
    /// Records acknowledged, and in how long.
    pub acknowledged: u64,
    /// How long all took.
    pub took: Duration,
}

struct Rounds {
    plan: Plan,
    node: TestNode,
    client: Client,
    rng: SmallRng,
    parent: TopicName,
    child: TopicName,
    load: Option<Load>,
    /// Parent's ends when the last detach had returned; none after the parent was made anew.
    detached_at: Option<Vec<u64>>,
    /// The child's ends likewise: only what lies above is new.
    child_ends: Vec<u64>,
    life: u64,
    seen: Seen,
}

/// Runs them.
///
/// # Panics
/// At the first round that is not as it must be.
pub async fn run(plan: Plan) -> Seen {
    eprintln!("{plan:?}");
    let node = TestNode::start_with(&NodeOptions::default().shards(plan.shards).config()).await;
    let client = node.client().await;
    let mut rounds = Rounds {
        rng: SmallRng::seed_from_u64(plan.seed),
        plan,
        node,
        client,
        parent: topic("ticks"),
        child: topic("copy"),
        load: None,
        detached_at: None,
        child_ends: Vec::new(),
        life: 0,
        seen: Seen::default(),
    };
    let started = Instant::now();
    rounds.make_parent().await;
    rounds.make_child().await;
    for round in 0..rounds.plan.rounds {
        rounds.round(round).await;
    }
    rounds.seen.took = started.elapsed();
    rounds.end_load(false).await;
    assert!(!rounds.node.log().contains("panicked"), "a node that panicked");
    rounds.seen
}

impl Rounds {
    async fn make_parent(&mut self) {
        let made = self
            .client
            .create_topic(spec(&self.parent, PARENT_PARTITIONS))
            .await;
        made.expect("a topic");
        self.life += 1;
        self.detached_at = None;
        let producer = ProducerOptions {
            batch_records: 500,
            delivery_timeout: Duration::from_secs(10),
            ..ProducerOptions::default()
        };
        let options = LoadOptions {
            producer,
            ..LoadOptions::new(self.life * LIFE_NUMBERS, LIFE_NUMBERS).at_rate(self.plan.rate)
        };
        // A client of its own: what one remembers of the earlier life is not to help or hurt the other.
        let load = Load::start(&self.node.client().await, &self.parent, options).await;
        load.reached(1).await;
        self.load = Some(load);
    }

    async fn make_child(&mut self) {
        let made = self
            .client
            .create_topic(spec(&self.child, CHILD_PARTITIONS))
            .await;
        made.expect("a topic");
        self.child_ends = vec![0; CHILD_PARTITIONS as usize];
    }

    /// A load whose topic was deleted under it has been told so, by name.
    async fn end_load(&mut self, deleted: bool) {
        let load = self.load.take().expect("the parent's load");
        load.stop();
        let account = load.ended().await;
        self.seen.acknowledged += account.acknowledged.len() as u64;
        let named = [ErrorCode::UnknownTopic, ErrorCode::StaleIncarnation];
        let strange = account
            .failed
            .iter()
            .find(|(_, error)| !named.contains(&error.code()));
        assert!(strange.is_none(), "of a deleted topic: {strange:?}");
        assert!(
            deleted || account.failed.is_empty(),
            "{:?}",
            account.failed.first()
        );
    }

    async fn pause(&mut self, most_ms: u64) {
        let pause = self.rng.random_range(0..=most_ms);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    async fn round(&mut self, round: u32) {
        let before = ends(&self.client, &self.parent).await;
        let attached = self
            .client
            .attach(&self.parent, &self.child, LinkOptions::default())
            .await;
        let attached = attached.expect("a link");
        let starts: Vec<u64> = attached.attach_offsets.iter().map(|offset| offset.0).collect();
        // The tail at the time of the attach: nothing that was acknowledged before, everything that is acknowledged later.
        let after = ends(&self.client, &self.parent).await;
        let is_tail = |partition: usize| (before[partition]..=after[partition]).contains(&starts[partition]);
        assert!(
            (0..starts.len()).all(is_tail),
            "round {round}: attached at {starts:?}, between {before:?} and {after:?}"
        );
        if let Some(before) = &self.detached_at {
            let between = before.iter().zip(&starts).map(|(before, start)| {
                assert!(
                    before <= start,
                    "round {round}: attached at {starts:?}, detached at {before}"
                );
                start - before
            });
            self.seen.between += between.sum::<u64>();
        }
        // One detach in five comes at once, whatever the cursors are doing.
        let at_work = self.rng.random_range(0..5) > 0;
        if at_work {
            self.copies_from_everywhere(&starts).await;
            self.seen.at_work += 1;
        }
        self.pause(200).await;
        if at_work && round.is_multiple_of(self.plan.verify_every) {
            self.node.cli().verify("ticks", "copy").await;
        }
        self.client
            .detach(&self.parent, &self.child)
            .await
            .expect("a detached link");
        // From here on nothing of it may arrive.
        let (parent_ends, child_ends) = (
            ends(&self.client, &self.parent).await,
            ends(&self.client, &self.child).await,
        );
        self.check(round, &attached, at_work, &parent_ends, &child_ends)
            .await;
        self.pause(100).await;
        let later = ends(&self.client, &self.child).await;
        assert_eq!(
            later, child_ends,
            "round {round}: a child that grows while it is detached"
        );
        (self.detached_at, self.child_ends) = (Some(parent_ends), child_ends);
        if self.plan.recreate {
            self.make_anew().await;
        }
    }

    async fn make_anew(&mut self) {
        let (parent, child) =
            [(true, false), (false, true), (true, true), (false, false)][self.rng.random_range(0..4)];
        if child {
            self.client.delete_topic(&self.child).await.expect("a deletion");
            self.pause(30).await;
            self.make_child().await;
            self.seen.children += 1;
        }
        if parent {
            // While it is being produced to.
            self.client.delete_topic(&self.parent).await.expect("a deletion");
            self.pause(30).await;
            if self.rng.random_bool(0.5) {
                // The old producer still tries when the new life is there: none of its records may get in.
                let old = self.load.take().expect("the parent's load");
                self.make_parent().await;
                let new = self.load.replace(old);
                self.pause(50).await;
                self.end_load(true).await;
                self.load = new;
            } else {
                self.end_load(true).await;
                self.make_parent().await;
            }
            self.seen.parents += 1;
        }
    }

    /// Waits until every cursor has passed its first record.
    async fn copies_from_everywhere(&self, starts: &[u64]) {
        let started = Instant::now();
        loop {
            let status = link(&self.client, &self.parent, &self.child)
                .await
                .expect("just attached");
            let passed = status.cursors.iter().filter(|cursor| {
                cursor.epoch == status.link.epoch && cursor.position.0 > starts[cursor.partition.0 as usize]
            });
            if passed.count() == starts.len() {
                return;
            }
            assert!(
                started.elapsed() < COPIES_WITHIN,
                "a link that does not copy: {status:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What has arrived since the last round is this attachment's, begins exactly where it was attached, and has no hole.
    async fn check(
        &mut self,
        round: u32,
        attached: &Link,
        at_work: bool,
        parent_ends: &[u64],
        child_ends: &[u64],
    ) {
        let starts: Vec<u64> = attached.attach_offsets.iter().map(|offset| offset.0).collect();
        let copied = copies_from(&self.client, &self.child, &self.child_ends).await;
        let grown: u64 = child_ends
            .iter()
            .zip(&self.child_ends)
            .map(|(now, before)| now - before)
            .sum();
        assert_eq!(
            copied.len() as u64,
            grown,
            "round {round}: all of the child's records are copies"
        );
        let stranger = copied.iter().find(|copy| copy.epoch != attached.epoch);
        assert!(
            stranger.is_none(),
            "round {round}: a copy of another attachment than {}: {stranger:?}",
            attached.epoch
        );
        let late = copied
            .iter()
            .find(|copy| copy.parent_offset >= parent_ends[copy.parent_partition as usize]);
        assert!(
            late.is_none(),
            "round {round}: copied after the detach, with the parent's ends at {parent_ends:?}: {late:?}"
        );
        let mut first: BTreeMap<u32, u64> = BTreeMap::new();
        for copy in &copied {
            let smallest = first.entry(copy.parent_partition).or_insert(u64::MAX);
            *smallest = (*smallest).min(copy.parent_offset);
        }
        if at_work {
            let first: Vec<Option<u64>> = (0..PARENT_PARTITIONS).map(|p| first.get(&p).copied()).collect();
            let expected: Vec<Option<u64>> = starts.iter().copied().map(Some).collect();
            assert_eq!(
                first, expected,
                "round {round}: the first offset copied of each partition"
            );
        }
        let parent: Log = log_from(&self.client, &self.parent, &starts).await;
        let faults = prefix_faults(&parent, &copied, attached, CHILD_PARTITIONS);
        assert!(
            faults.is_empty(),
            "round {round}: {:#?}",
            &faults[..faults.len().min(5)]
        );
        self.seen.copied += grown;
    }
}
