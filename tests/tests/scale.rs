//! The engine at its full size, with figures: each test prints what it measured and holds it against its bound. They judge
//! by time and want the machine for themselves, so they run by hand (docs/testing.md has the command).
#![allow(clippy::print_stdout)] // by hand: the figures are what it is run for

use std::time::{Duration, Instant};

use tailwater_tests::cluster::load::{LoadOptions, produce, record, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::reading::{copies, drained, link, log};
use tailwater_wire::client::config::{ConsumerOptions, ProducerOptions};
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::{Delay, PartitionId, TopicName};
use tailwater_wire::meta::{AttachFrom, LinkOptions};

const PARENT_PARTITIONS: u32 = 64;
const CHILDREN: u32 = 108;
const CURSORS: f64 = (PARENT_PARTITIONS * CHILDREN) as f64;
/// Lone records of one latency figure.
const SAMPLES: usize = 3_000;

/// Time on a processor that the node has used.
fn cpu_time(node: &TestNode) -> Duration {
    let threads = format!("/proc/{}/task", node.pid().as_raw_nonzero());
    let nanos = |thread: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let stat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse().ok()
    };
    let threads = std::fs::read_dir(threads).expect("a running process");
    Duration::from_nanos(threads.filter_map(nanos).sum())
}

/// The share of a core that the node uses while nothing is asked of it.
async fn idle_share(node: &TestNode, over: Duration) -> f64 {
    let (began, before) = (Instant::now(), cpu_time(node));
    tokio::time::sleep(over).await;
    (cpu_time(node) - before).as_secs_f64() / began.elapsed().as_secs_f64()
}

/// The sum of a metric's series whose labels contain a text.
fn metric(text: &str, name: &str, labels: &str) -> f64 {
    let of_name = |line: &&str| {
        let rest = line
            .strip_prefix("tailwater_")
            .and_then(|line| line.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
    };
    let values = text.lines().filter(of_name);
    values
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn scrape(node: &TestNode) -> String {
    let (status, text) = node.get("/metrics").await;
    assert_eq!(status, 200);
    text
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// How long a step takes, median of many.
async fn median<F: Future>(mut step: impl FnMut() -> F) -> Duration {
    let mut took = Vec::new();
    for _ in 0..40 {
        let began = Instant::now();
        step().await;
        took.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    took.sort_unstable();
    quantile(&took, 0.5)
}

/// Lone records to one partition, each sent when the one before was acknowledged and a pause is over; p50 and p99.
async fn lone_records(client: &Client, to: &TopicName, pause: Duration) -> (Duration, Duration) {
    let options = ProducerOptions {
        partition: Some(PartitionId(0)),
        ..ProducerOptions::default()
    };
    let producer = client.producer(to, options).await.expect("a producer");
    let mut took = Vec::with_capacity(SAMPLES);
    for number in 0..SAMPLES as u64 {
        let began = Instant::now();
        let delivery = producer.send(record(number, 100)).await.expect("taken");
        delivery.await.expect("acknowledged");
        took.push(began.elapsed());
        tokio::time::sleep(pause).await;
    }
    took.sort_unstable();
    (quantile(&took, 0.5), quantile(&took, 0.99))
}

async fn cursors_running(node: &TestNode, wanted: f64) -> Duration {
    let began = Instant::now();
    while metric(&scrape(node).await, "fanout_cursors", "") < wanted {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "the cursors do not start"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "by hand: it measures"]
async fn idle_children_cost_next_to_nothing() {
    const PAUSE: Duration = Duration::from_millis(3);
    let _alone = take_machine().await;
    let mut node = TestNode::start_with("shards = 1").await;
    let client = node.client().await;
    let cli = node.cli();
    cli.run(&format!("topic create parent --partitions {PARENT_PARTITIONS}"))
        .await
        .succeeded();
    cli.run("topic create aside").await.succeeded();
    for child in 0..CHILDREN {
        cli.run(&format!("topic create child-{child}")).await.succeeded();
    }
    let (parent, aside) = (topic("parent"), topic("aside"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let bare_share = idle_share(&node, Duration::from_secs(30)).await;
    let (aside_p50, aside_p99) = lone_records(&client, &aside, PAUSE).await;
    let (parent_p50, parent_p99) = lone_records(&client, &parent, PAUSE).await;
    println!("without links: idle {:.2}% of a core", bare_share * 100.0);
    println!("without links: lone record aside p50 {aside_p50:?} p99 {aside_p99:?}");
    println!("without links: lone record to the parent p50 {parent_p50:?} p99 {parent_p99:?}");

    let began = Instant::now();
    for child in 0..CHILDREN {
        let child = topic(&format!("child-{child}"));
        client
            .attach(&parent, &child, LinkOptions::default())
            .await
            .expect("attached");
    }
    let waited = cursors_running(&node, CURSORS).await;
    println!(
        "attached {CHILDREN} children in {:?}; the last ran {waited:?} after",
        began.elapsed()
    );
    tokio::time::sleep(Duration::from_secs(5)).await;

    let before = scrape(&node).await;
    let share = idle_share(&node, Duration::from_secs(65)).await;
    let after = scrape(&node).await;
    let gained = |name: &str, labels: &str| metric(&after, name, labels) - metric(&before, name, labels);
    let passes = gained("fanout_reconcile_seconds_count", "");
    let quick = gained("fanout_reconcile_seconds_bucket", "le=\"0.001\"");
    println!("{CURSORS} idle cursors: {:.2}% of a core", share * 100.0);
    println!(
        "{passes} passes in {:.3} ms each, {quick} of them within 1 ms; cursors busy {:.4}% of a core",
        gained("fanout_reconcile_seconds_sum", "") / passes * 1e3,
        gained("fanout_busy_seconds_total", "") / 65.0 * 100.0
    );
    let scraped = median(|| scrape(&node)).await;
    let listed = median(|| client.list_links(Some(&parent))).await;
    println!("a scrape takes {scraped:?}, a list of all links with all cursors {listed:?}");

    let (with_p50, with_p99) = lone_records(&client, &aside, PAUSE).await;
    println!("beside idle cursors: lone record aside p50 {with_p50:?} p99 {with_p99:?}");
    let (copied_p50, copied_p99) = lone_records(&client, &parent, Duration::from_millis(50)).await;
    println!(
        "copied to {CHILDREN} children: lone record to the parent p50 {copied_p50:?} p99 {copied_p99:?}"
    );

    let began = Instant::now();
    node.stop().await;
    println!("drained in {:?}", began.elapsed());
    let ready = node.restart().await;
    let waited = cursors_running(&node, CURSORS).await;
    println!("ready after {ready:?}, all cursors {waited:?} later");

    assert_eq!(passes, quick, "an unchanged version costs under 1 ms");
    assert!(share < 0.02, "{share}");
    assert!(scraped < Duration::from_millis(5), "{scraped:?}");
    assert!(with_p99 < aside_p99 * 2, "{with_p99:?} against {aside_p99:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "by hand: it measures"]
async fn a_delayed_copy_is_never_early_and_seldom_late() {
    const PER_TICK: u64 = 100;
    const TICK: Duration = Duration::from_millis(5);
    const FOR: Duration = Duration::from_secs(60);
    let _alone = take_machine().await;
    let node = TestNode::start_with("shards = 1").await;
    let (cli, client) = (node.cli(), node.client().await);
    for line in [
        "topic create ticks --partitions 4",
        "topic create delayed --partitions 4",
        "link attach ticks delayed --delay 2s",
    ] {
        cli.run(line).await.succeeded();
    }
    let (ticks, delayed) = (topic("ticks"), topic("delayed"));
    let producer = client
        .producer(&ticks, ProducerOptions::default())
        .await
        .expect("a producer");
    let (began, before) = (Instant::now(), scrape(&node).await);
    let cpu = cpu_time(&node);
    let (mut number, mut last) = (0, None);
    while began.elapsed() < FOR {
        // What fell behind is caught up with.
        let wanted = (began.elapsed().as_nanos() / TICK.as_nanos()) as u64 * PER_TICK;
        while number < wanted {
            last = Some(producer.send(record(number, 100)).await.expect("taken"));
            number += 1;
        }
        tokio::time::sleep(TICK).await;
    }
    if let Some(last) = last {
        last.await.expect("acknowledged");
    }
    let (cpu, after) = (cpu_time(&node) - cpu, scrape(&node).await);
    drained(&client, &ticks, &delayed).await;
    let parent = log(&client, &ticks).await;
    let copied = copies(&client, &delayed).await;
    assert_eq!(parent.len(), number);
    assert_eq!(copied.len() as u64, number);
    let delay_ns = 2_000_000_000;
    let mut early = 0;
    let mut late: Vec<Duration> = copied
        .iter()
        .map(|copy| {
            let original = parent.at(copy.parent_partition, copy.parent_offset);
            let due = original.expect("a copy of a record").commit_time + delay_ns;
            early += u64::from(copy.stored.commit_time < due || copy.released_at < due);
            Duration::from_nanos(copy.stored.commit_time.saturating_sub(due))
        })
        .collect();
    late.sort_unstable();
    let seconds = FOR.as_secs_f64();
    let busy =
        metric(&after, "fanout_busy_seconds_total", "") - metric(&before, "fanout_busy_seconds_total", "");
    println!("{number} records in {FOR:?}: {early} early");
    println!(
        "late p50 {:?} p99 {:?} p99.9 {:?} at most {:?}",
        quantile(&late, 0.5),
        quantile(&late, 0.99),
        quantile(&late, 0.999),
        late[late.len() - 1]
    );
    println!(
        "the node used {:.1}% of a core, its cursors {:.1}%, in {} batches",
        cpu.as_secs_f64() / seconds * 100.0,
        busy / seconds * 100.0,
        metric(&after, "log_batches_total", "") - metric(&before, "log_batches_total", "")
    );
    assert_eq!(early, 0);
    let p99 = quantile(&late, 0.99);
    assert!(p99 < Duration::from_millis(20), "{p99:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "by hand: it measures"]
async fn a_million_pending_records_cost_what_one_does() {
    const RECORDS: u64 = 1_000_000;
    let _alone = take_machine().await;
    let mut resident = Vec::new();
    for linked in [false, true] {
        let node = TestNode::start_with("shards = 1").await;
        let (cli, client) = (node.cli(), node.client().await);
        cli.run("topic create ticks --partitions 4").await.succeeded();
        cli.run("topic create late --partitions 4").await.succeeded();
        let (ticks, late) = (topic("ticks"), topic("late"));
        if linked {
            let options = LinkOptions {
                delay: Delay { millis: 3_600_000 },
                from: AttachFrom::Tail,
                ..LinkOptions::default()
            };
            client.attach(&ticks, &late, options).await.expect("attached");
        }
        produce(&client, &ticks, LoadOptions::new(0, RECORDS)).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        resident.push(node.resident_bytes());
        if !linked {
            continue;
        }
        let status = link(&client, &ticks, &late).await.expect("an attached pair");
        let pending: u64 = status
            .cursors
            .iter()
            .map(|cursor| cursor.parent_high_water_mark.since(cursor.position))
            .sum();
        assert_eq!(pending, RECORDS);
        assert!(status.cursors.iter().all(|cursor| cursor.next_due.is_some()));
        const OVER: Duration = Duration::from_secs(90);
        let of_link = "parent=\"ticks\",child=\"late\"";
        let busy = |text: &str| metric(text, "fanout_link_busy_seconds_total", of_link);
        let before = busy(&scrape(&node).await);
        tokio::time::sleep(OVER).await;
        let share = (busy(&scrape(&node).await) - before) / OVER.as_secs_f64();
        let listed = median(|| client.list_links(Some(&ticks))).await;
        let scraped = median(|| scrape(&node)).await;
        println!(
            "4 cursors with {pending} records pending: {:.5}% of a core",
            share * 100.0
        );
        println!("`link list` takes {listed:?}, a scrape {scraped:?}");
        assert!(share < 0.001, "{share}");
        assert!(listed < Duration::from_millis(5), "{listed:?}");
        assert!(scraped < Duration::from_millis(5), "{scraped:?}");
    }
    let ratio = resident[1] as f64 / resident[0] as f64;
    println!(
        "resident without the link {} bytes, with it {}: {ratio:.3}",
        resident[0], resident[1]
    );
    assert!(ratio < 1.05, "{ratio}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "by hand: it measures"]
async fn tail_readers_hardly_slow_producers() {
    const READERS: usize = 10;
    let _alone = take_machine().await;
    let node = TestNode::start_with("shards = 1").await;
    let client = node.client().await;
    node.cli().run("topic create ticks").await.succeeded();
    let ticks = topic("ticks");
    let pause = Duration::from_millis(3);
    lone_records(&client, &ticks, pause).await;
    let (alone_p50, alone_p99) = lone_records(&client, &ticks, pause).await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let client = node.client().await;
        let consumer = client.consumer(&ticks, ConsumerOptions::default()).await;
        let mut consumer = consumer.expect("a consumer");
        readers.push(tokio::spawn(async move {
            let mut batches = 0;
            while batches < SAMPLES && consumer.next().await.expect("readable").is_some() {
                batches += 1;
            }
            batches
        }));
    }
    let (read_p50, read_p99) = lone_records(&client, &ticks, pause).await;
    println!("lone record without readers p50 {alone_p50:?} p99 {alone_p99:?}");
    println!("lone record with {READERS} tail readers p50 {read_p50:?} p99 {read_p99:?}");
    for reader in &readers {
        reader.abort();
    }
    let ratio = read_p99.as_secs_f64() / alone_p99.as_secs_f64();
    assert!(ratio <= 1.3, "{ratio}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "by hand: it measures"]
async fn idle_connections_cost_memory_and_nothing_else() {
    const CONNECTIONS: usize = 1_000;
    let _alone = take_machine().await;
    let node = TestNode::start_with("shards = 1").await;
    let client = node.client().await;
    node.cli().run("topic create ticks").await.succeeded();
    let ticks = topic("ticks");
    let pause = Duration::from_millis(3);
    lone_records(&client, &ticks, pause).await;
    let (before_p50, before_p99) = lone_records(&client, &ticks, pause).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let share_before = idle_share(&node, Duration::from_secs(20)).await;
    let resident = node.resident_bytes();
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(node.client().await);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let share = idle_share(&node, Duration::from_secs(20)).await;
    let each = node.resident_bytes().saturating_sub(resident) / CONNECTIONS as u64;
    let (p50, p99) = lone_records(&client, &ticks, pause).await;
    assert_eq!(
        metric(&scrape(&node).await, "client_connections", "") as usize,
        CONNECTIONS + 1
    );
    println!(
        "idle: {:.2}% of a core, with {CONNECTIONS} connections {:.2}%",
        share_before * 100.0,
        share * 100.0
    );
    println!("resident per connection: {each} bytes");
    println!("lone record p50 {before_p50:?} p99 {before_p99:?}, with them p50 {p50:?} p99 {p99:?}");
    assert!(share < share_before + 0.005, "{share} against {share_before}");
    assert!(p99 < before_p99.mul_f64(1.3), "{p99:?} against {before_p99:?}");
}
