//! A storm: a topic with many partitions and children, produced to all the while, and at random moments detach, attach,
//! `kill -9`, stop, and start with another number of shards. Then everything arrives, and is checked against what was
//! acknowledged.
//!
//! It goes in stretches, each on topics of its own which are deleted in the end, so that a long storm fits on a disk.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Delay, TopicName};
use tailwater_wire::meta::{AttachFrom, LinkOptions};

use crate::cluster::load::{Account, Load, LoadOptions, topic};
use crate::cluster::node::TestNode;
use crate::cluster::oracle::{Span, faults};
use crate::cluster::reading::{Log, copies, drained, ends, link, log};
use crate::cluster::setup::NodeOptions;
use crate::cluster::witness::spec;

/// One stretch of a long storm.
const STRETCH: Duration = Duration::from_secs(300);
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Keys that pass the children with a filter.
const FILTER: &str = "key^=k00";

/// Which storm.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How long, without what is checked at the end of each stretch.
    pub duration: Duration,
    /// What is drawn.
    pub seed: u64,
    /// Partitions of the parent.
    pub partitions: u32,
    /// Children.
    pub children: u32,
    /// Records a second.
    pub rate: u64,
    /// The numbers of shards that the node is started with.
    pub shards: Vec<usize>,
}

/// What was done.
#[derive(Debug, Default, Clone)]
pub struct Done {
    /// Records acknowledged.
    pub records: u64,
    /// Records in the children at the stretches' ends.
    pub copies: u64,
    /// Kills.
    pub kills: u32,
    /// Kills while a change of metadata was on its way.
    pub kills_in_a_change: u32,
    /// Stops with SIGTERM.
    pub stops: u32,
    /// Attaches.
    pub attaches: u32,
    /// Detaches.
    pub detaches: u32,
    /// Links that were verified.
    pub verified: u32,
}

struct Storm {
    plan: Plan,
    rng: SmallRng,
    node: TestNode,
    done: Done,
    parent: TopicName,
    children: Vec<TopicName>,
}

/// Goes through a storm; says one line a minute.
///
/// # Panics
/// At the first thing that is not as it must be.
pub async fn run(plan: Plan) -> Done {
    eprintln!("{plan:?}");
    let mut rng = SmallRng::seed_from_u64(plan.seed);
    let shards = *plan.shards.choose(&mut rng).expect("a number of shards");
    let node = TestNode::start_with(&NodeOptions::default().shards(shards).config()).await;
    let mut storm = Storm {
        rng,
        node,
        plan,
        done: Done::default(),
        parent: topic("parent"),
        children: Vec::new(),
    };
    let mut left = storm.plan.duration;
    for number in 0.. {
        let stretch = left.min(STRETCH);
        storm.stretch(number, stretch).await;
        left -= stretch;
        if left.is_zero() {
            break;
        }
    }
    assert!(!storm.node.log().contains("panicked"), "a node that panicked");
    storm.node.stop().await;
    storm.done
}

/// A kind of link for each child: plain, delayed, filtered, or with everything from the start.
fn options(child: usize) -> LinkOptions {
    let plain = LinkOptions::default();
    match child % 4 {
        1 => LinkOptions {
            delay: Delay { millis: 300 },
            ..plain
        },
        2 => LinkOptions {
            filter: Some(FILTER.to_owned()),
            ..plain
        },
        3 => LinkOptions {
            from: AttachFrom::Earliest,
            ..plain
        },
        _ => plain,
    }
}

impl Storm {
    async fn stretch(&mut self, number: u64, duration: Duration) {
        let client = self.node.client().await;
        self.parent = topic(&format!("parent-{number}"));
        let names = (0..self.plan.children).map(|child| topic(&format!("child-{number}-{child}")));
        self.children = names.collect();
        client
            .create_topic(spec(&self.parent, self.plan.partitions))
            .await
            .expect("a topic");
        for (index, child) in self.children.clone().iter().enumerate() {
            client
                .create_topic(spec(child, 1 + index as u32 % 4))
                .await
                .expect("a topic");
            self.attach(&client, index).await;
        }
        let producer = ProducerOptions {
            batch_records: 200,
            buffer_bytes: 1 << 20,
            delivery_timeout: Duration::from_secs(120),
            ..ProducerOptions::default()
        };
        let load = LoadOptions {
            producer,
            value_bytes: 24,
            ..LoadOptions::new(number << 40, 1 << 40).at_rate(self.plan.rate)
        };
        let load = Load::start(&client, &self.parent, load).await;
        let (started, mut said) = (Instant::now(), Instant::now());
        while started.elapsed() < duration {
            self.something_happens().await;
            if said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                let records = self.done.records + load.acknowledged();
                let copies = self.done.copies + self.copied().await;
                eprintln!(
                    "stretch {number}: {records} records, {copies} copies now, {:?}",
                    self.done
                );
            }
        }
        load.stop();
        let account = load.ended().await.complete();
        self.done.records += account.acknowledged.len() as u64;
        self.check(&account).await;
        self.clear_away().await;
    }

    async fn copied(&self) -> u64 {
        let client = self.node.client().await;
        let mut copied = 0;
        for child in &self.children {
            copied += ends(&client, child).await.iter().sum::<u64>();
        }
        copied
    }

    async fn attach(&mut self, client: &Client, child: usize) {
        let attached = client
            .attach(&self.parent, &self.children[child], options(child))
            .await;
        attached.expect("a link");
        self.done.attaches += 1;
    }

    async fn pause(&mut self, most_ms: u64) {
        let pause = self.rng.random_range(0..=most_ms);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    async fn something_happens(&mut self) {
        self.pause(1_500).await;
        match self.rng.random_range(0..10) {
            0 | 1 => self.kill().await,
            2 => self.stop().await,
            _ => {
                let client = self.node.client().await;
                self.change(&client).await;
            }
        }
    }

    /// Detaches a child that is attached, or attaches one that is not; some get both at once.
    async fn change(&mut self, client: &Client) {
        let child = self.rng.random_range(0..self.children.len());
        let name = self.children[child].clone();
        let is_attached = link(client, &self.parent, &name).await.is_some();
        if is_attached {
            client.detach(&self.parent, &name).await.expect("a detached link");
            self.done.detaches += 1;
            let before = ends(client, &name).await;
            self.pause(200).await;
            assert_eq!(
                ends(client, &name).await,
                before,
                "{name} grows while it is detached"
            );
        }
        if !is_attached || self.rng.random_bool(0.5) {
            self.attach(client, child).await;
        }
    }

    /// The next start is with another number of shards.
    async fn start_again(&mut self) {
        let shards = *self
            .plan
            .shards
            .choose(&mut self.rng)
            .expect("a number of shards");
        self.node
            .configure(&NodeOptions::default().shards(shards).config());
        self.node.restart().await;
    }

    async fn kill(&mut self) {
        if self.rng.random_bool(0.4) {
            // While a change is on its way: it is there afterwards, or it is not.
            let mut config = self.node.client_config();
            config.request_timeout = Duration::from_secs(2);
            let client = Client::connect(config).await.expect("the node takes connections");
            let child = self.rng.random_range(0..self.children.len());
            let (parent, name) = (self.parent.clone(), self.children[child].clone());
            let is_attached = link(&client, &parent, &name).await.is_some();
            let change = tokio::spawn(async move {
                if is_attached {
                    client.detach(&parent, &name).await
                } else {
                    client.attach(&parent, &name, options(child)).await.map(drop)
                }
            });
            self.pause(20).await;
            self.node.kill();
            self.done.kills_in_a_change += 1;
            // Sent again by the client to the node that is there by then, or given up.
            self.start_again().await;
            if let Err(error) = change.await.expect("a change does not panic") {
                let named = [
                    ErrorCode::TimedOut,
                    ErrorCode::Unreachable,
                    ErrorCode::OutcomeUnknown,
                    ErrorCode::UnknownLink,
                    ErrorCode::LinkExists,
                ];
                assert!(
                    named.contains(&error.code()),
                    "a change that a kill has hit: {error}"
                );
            }
        } else {
            self.node.kill();
            if self.rng.random_bool(0.2) {
                // Again while it recovers.
                self.node.spawn();
                self.pause(80).await;
                self.node.kill();
            }
            self.start_again().await;
        }
        self.done.kills += 1;
    }

    async fn stop(&mut self) {
        self.node.stop().await;
        self.done.stops += 1;
        self.start_again().await;
    }

    /// Everything acknowledged is there once; every link is clean.
    async fn check(&mut self, account: &Account) {
        let client = self.node.client().await;
        let parent = log(&client, &self.parent).await;
        parent.holds(&account.acknowledged);
        assert_eq!(
            parent.len(),
            account.acknowledged.len() as u64,
            "each record is there once"
        );
        for index in 0..self.children.len() {
            if link(&client, &self.parent, &self.children[index]).await.is_none() {
                self.attach(&client, index).await;
            }
        }
        // By its own eyes, one child of each kind; by `link verify`, all.
        let looked_at = self.rng.random_range(0..self.children.len());
        for (index, child) in self.children.iter().enumerate() {
            drained(&client, &self.parent, child).await;
            self.node.cli().verify(self.parent.as_str(), child.as_str()).await;
            self.done.verified += 1;
            if index / 4 == looked_at / 4 {
                self.check_child(&client, &parent, index).await;
            }
            self.done.copies += ends(&client, child).await.iter().sum::<u64>();
        }
    }

    async fn check_child(&self, client: &Client, parent: &Log, index: usize) {
        let child = &self.children[index];
        let attached = link(client, &self.parent, child)
            .await
            .expect("an attached pair")
            .link;
        let span = Span::of(&attached, &parent.ends());
        let copies = copies(client, child).await;
        let passes = |_, _, number| {
            attached.options.filter.is_none() || crate::cluster::load::key_of(number).starts_with("k00")
        };
        let faults = faults(parent, &copies, &span, passes);
        assert!(
            faults.is_empty(),
            "{child}: {} faults, the first: {}",
            faults.len(),
            faults[0]
        );
        // Of every attachment that there was: no parent record twice, and each copy equal to its original.
        let mut places: Vec<_> = copies
            .iter()
            .map(|copy| (copy.epoch, copy.parent_partition, copy.parent_offset))
            .collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(
            places.len(),
            copies.len(),
            "{child}: a record that one attachment has copied twice"
        );
        for copy in &copies {
            let original = parent.at(copy.parent_partition, copy.parent_offset);
            let is_equal = original.is_some_and(|original| original.number == copy.stored.number);
            assert!(is_equal, "{child}: {copy:?} of {original:?}");
        }
    }

    async fn clear_away(&self) {
        let client = self.node.client().await;
        for child in &self.children {
            client.detach(&self.parent, child).await.expect("a detached link");
            client.delete_topic(child).await.expect("a deletion");
        }
        client.delete_topic(&self.parent).await.expect("a deletion");
    }
}
