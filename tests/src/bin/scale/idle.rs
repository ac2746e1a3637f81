//! What is there and does nothing: cursors of links without a record to copy, and connections without a request.

use std::time::{Duration, Instant};

use tailwater_tests::cluster::by_hand::Bounds;
use tailwater_tests::cluster::load::topic;
use tailwater_tests::cluster::node::TestNode;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::TopicName;
use tailwater_wire::meta::LinkOptions;

use crate::figures::{Latency, Rounds, becomes, idle_share, lone_records, median_of, metric, scrape};

const PARENT_PARTITIONS: usize = 64;
const CHILDREN: usize = 108;
const CURSORS: usize = PARENT_PARTITIONS * CHILDREN;
const CONNECTIONS: usize = 1_000;
const ROUNDS: usize = 3;
/// Lone records of one figure.
const RECORDS: u64 = 1_500;
const PAUSE: Duration = Duration::from_millis(3);
/// After a change, until what it set off is over.
const SETTLES_IN: Duration = Duration::from_secs(5);

/// One parent, its children, and a topic beside them.
struct Family {
    node: TestNode,
    client: Client,
    parent: TopicName,
    aside: TopicName,
    children: Vec<TopicName>,
}

impl Family {
    async fn start() -> Family {
        let node = TestNode::start_with("shards = 1").await;
        let (cli, client) = (node.cli(), node.client().await);
        let family = Family {
            parent: topic("parent"),
            aside: topic("aside"),
            children: (0..CHILDREN)
                .map(|child| topic(&format!("child-{child}")))
                .collect(),
            node,
            client,
        };
        cli.run(&format!("topic create parent --partitions {PARENT_PARTITIONS}"))
            .await
            .succeeded();
        for name in family.children.iter().chain([&family.aside]) {
            cli.run(&format!("topic create {name}")).await.succeeded();
        }
        tokio::time::sleep(SETTLES_IN).await;
        family
    }

    async fn attach_all(&self) {
        let began = Instant::now();
        for child in &self.children {
            let attached = self.client.attach(&self.parent, child, LinkOptions::default());
            attached.await.expect("attached");
        }
        let took = began.elapsed();
        let waited = becomes(&self.node, "fanout_cursors", CURSORS).await;
        println!("attached {CHILDREN} children in {took:?}; the last cursor ran {waited:?} after");
        tokio::time::sleep(SETTLES_IN).await;
    }

    async fn detach_all(&self) {
        let began = Instant::now();
        for child in &self.children {
            let detached = self.client.detach(&self.parent, child);
            detached.await.expect("detached");
        }
        becomes(&self.node, "fanout_cursors", 0).await;
        println!("detached {CHILDREN} children in {:?}", began.elapsed());
        tokio::time::sleep(SETTLES_IN).await;
    }

    async fn lone_aside(&self) -> Latency {
        lone_records(&self.client, &self.aside, RECORDS, PAUSE).await
    }
}

/// Children that wait for records cost next to nothing.
pub async fn children(bounds: &mut Bounds) {
    let mut family = Family::start().await;
    let bare_share = idle_share(&family.node, Duration::from_secs(30)).await;
    println!("without links: idle {:.2}% of a core", bare_share * 100.0);
    let to_parent = lone_records(&family.client, &family.parent, RECORDS, PAUSE).await;
    println!("without links: lone record to the parent {to_parent}");
    family.lone_aside().await;

    let mut rounds = Rounds::of(format!("{CURSORS} idle cursors"));
    for round in 0..ROUNDS {
        let without = family.lone_aside().await;
        family.attach_all().await;
        let with = family.lone_aside().await;
        println!("{}", rounds.add(without, with));
        if round + 1 < ROUNDS {
            family.detach_all().await;
        }
    }
    println!("{}", rounds.medians());
    let ratio = rounds.p99_ratio();
    bounds.hold(
        ratio <= 2.0,
        "median p99 beside idle cursors at most 2 x without",
        format!("{ratio:.2}"),
    );
    tokio::time::sleep(SETTLES_IN).await;
    cost_of_idling(&family, bounds).await;

    let copied = lone_records(&family.client, &family.parent, 300, Duration::from_millis(50)).await;
    println!("copied to {CHILDREN} children: lone record to the parent {copied}");
    let began = Instant::now();
    family.node.stop().await;
    println!("drained in {:?}", began.elapsed());
    let ready = family.node.restart().await;
    let waited = becomes(&family.node, "fanout_cursors", CURSORS).await;
    println!("ready after {ready:?}, all cursors {waited:?} later");
}

async fn cost_of_idling(family: &Family, bounds: &mut Bounds) {
    const OVER: Duration = Duration::from_secs(65);
    let Family {
        node, client, parent, ..
    } = family;
    let before = scrape(node).await;
    let share = idle_share(node, OVER).await;
    let after = scrape(node).await;
    let gained = |name: &str, labels: &str| metric(&after, name, labels) - metric(&before, name, labels);
    let passes = gained("fanout_reconcile_seconds_count", "");
    let quick = gained("fanout_reconcile_seconds_bucket", "le=\"0.001\"");
    println!("{CURSORS} idle cursors: {:.2}% of a core", share * 100.0);
    println!(
        "{passes} passes in {:.3} ms each, {quick} of them within 1 ms; cursors busy {:.4}% of a core",
        gained("fanout_reconcile_seconds_sum", "") / passes * 1e3,
        gained("fanout_busy_seconds_total", "") / OVER.as_secs_f64() * 100.0
    );
    let scraped = median_of(|| scrape(node)).await;
    let listed = median_of(|| client.list_links(Some(parent))).await;
    println!("a scrape takes {scraped:?}, a list of all links with all cursors {listed:?}");
    bounds.hold(
        passes > 0.0 && quick == passes,
        "every pass over unchanged metadata under 1 ms",
        format!("{quick} of {passes}"),
    );
    bounds.hold(
        share < 0.02,
        "idle cursors under 2% of a core",
        format!("{:.2}%", share * 100.0),
    );
    // Of our own: it has to name 6,912 cursors.
    bounds.hold(
        scraped < Duration::from_millis(20),
        "a scrape under 20 ms",
        format!("{scraped:?}"),
    );
}

/// Connections that ask nothing cost memory, and nothing else.
pub async fn connections(bounds: &mut Bounds) {
    const OVER: Duration = Duration::from_secs(20);
    let node = TestNode::start_with("shards = 1").await;
    let client = node.client().await;
    node.cli().run("topic create ticks").await.succeeded();
    let ticks = topic("ticks");
    let lone = || lone_records(&client, &ticks, RECORDS, PAUSE);
    lone().await;
    tokio::time::sleep(SETTLES_IN).await;
    becomes(&node, "client_connections", 1).await;
    let (bare_share, bare_resident) = (idle_share(&node, OVER).await, node.resident_bytes());
    let mut rounds = Rounds::of(format!("{CONNECTIONS} connections"));
    let mut without = lone().await;
    for round in 0..ROUNDS {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(node.client().await);
        }
        becomes(&node, "client_connections", 1 + CONNECTIONS).await;
        tokio::time::sleep(SETTLES_IN).await;
        if round == 0 {
            let share = idle_share(&node, OVER).await;
            let each = node.resident_bytes().saturating_sub(bare_resident) / CONNECTIONS as u64;
            println!(
                "idle: {:.2}% of a core, with {CONNECTIONS} connections {:.2}%",
                bare_share * 100.0,
                share * 100.0
            );
            println!("resident per connection: {each} bytes");
            bounds.hold(
                share < bare_share + 0.005,
                "idle connections cost under 0.5% of a core",
                format!("{:.2}%", (share - bare_share) * 100.0),
            );
        }
        let with = lone().await;
        drop(clients);
        becomes(&node, "client_connections", 1).await;
        tokio::time::sleep(SETTLES_IN).await;
        // Before and after, in equal parts: what changes with the hour is in both halves.
        let later = lone().await;
        println!("{}", rounds.add(Latency::between(without, later), with));
        without = later;
    }
    println!("{}", rounds.medians());
    let ratio = rounds.p99_ratio();
    bounds.hold(
        ratio <= 1.3,
        "median p99 beside idle connections at most 1.3 x without",
        format!("{ratio:.2}"),
    );
}
