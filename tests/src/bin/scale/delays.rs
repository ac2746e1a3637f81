//! Links with a delay: when copies come, and what those that wait cost.

use std::time::{Duration, Instant};

use tailwater_tests::cluster::by_hand::Bounds;
use tailwater_tests::cluster::load::{LoadOptions, produce, record, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::reading::{copies, drained, link, log};
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::{Delay, TopicName};
use tailwater_wire::meta::{AttachFrom, LinkOptions};

use crate::figures::{median_of, metric, quantile, scrape};

/// A copy under a delay of 2 s is never early and seldom late.
pub async fn delayed_copy(bounds: &mut Bounds) {
    const FOR: Duration = Duration::from_secs(60);
    const DELAY: Duration = Duration::from_secs(2);
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
    let (cpu, before) = (node.processor_time(), scrape(&node).await);
    let number = paced(&client, &ticks, FOR).await;
    let (cpu, after) = (node.processor_time() - cpu, scrape(&node).await);
    drained(&client, &ticks, &delayed).await;
    let parent = log(&client, &ticks).await;
    let copied = copies(&client, &delayed).await;
    assert_eq!(parent.len(), number);
    assert_eq!(copied.len() as u64, number);
    let delay_ns = DELAY.as_nanos() as u64;
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
    let gained = |name: &str| metric(&after, name, "") - metric(&before, name, "");
    println!("{number} records in {FOR:?}: {early} early");
    let p99 = quantile(&late, 0.99);
    println!(
        "late p50 {:?} p99 {p99:?} p99.9 {:?} at most {:?}",
        quantile(&late, 0.5),
        quantile(&late, 0.999),
        late[late.len() - 1]
    );
    println!(
        "the node used {:.1}% of a core, its cursors {:.1}%, in {} batches",
        cpu.as_secs_f64() / FOR.as_secs_f64() * 100.0,
        gained("fanout_busy_seconds_total") / FOR.as_secs_f64() * 100.0,
        gained("log_batches_total")
    );
    bounds.hold(early == 0, "none early", early);
    bounds.hold(
        p99 < Duration::from_millis(20),
        "p99 of the lateness under 20 ms",
        format!("{p99:?}"),
    );
}

/// Produces 20,000 records a second, and waits for all acknowledgements; returns how many.
async fn paced(client: &Client, to: &TopicName, over: Duration) -> u64 {
    const PER_TICK: u64 = 100;
    const TICK: Duration = Duration::from_millis(5);
    let producer = client
        .producer(to, ProducerOptions::default())
        .await
        .expect("a producer");
    let began = Instant::now();
    let (mut number, mut last) = (0, None);
    while began.elapsed() < over {
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
    number
}

/// A million records that wait cost what one does.
pub async fn pending_records(bounds: &mut Bounds) {
    const RECORDS: u64 = 1_000_000;
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
        if linked {
            let status = link(&client, &ticks, &late).await.expect("an attached pair");
            let pending = status
                .cursors
                .iter()
                .map(|cursor| cursor.parent_high_water_mark.since(cursor.position));
            assert_eq!(pending.sum::<u64>(), RECORDS);
            assert!(status.cursors.iter().all(|cursor| cursor.next_due.is_some()));
            cost_of_waiting(&node, &client, &ticks, bounds).await;
        }
    }
    let ratio = resident[1] as f64 / resident[0] as f64;
    println!(
        "resident without the link {} bytes, with it {}: {ratio:.3}",
        resident[0], resident[1]
    );
    bounds.hold(
        ratio < 1.05,
        "resident memory within 5% of that without the link",
        format!("{ratio:.3}"),
    );
}

/// What the link `ticks -> late` costs while nothing is due.
async fn cost_of_waiting(node: &TestNode, client: &Client, ticks: &TopicName, bounds: &mut Bounds) {
    const OVER: Duration = Duration::from_secs(90);
    const ANSWERED: Duration = Duration::from_millis(5);
    let of_link = "parent=\"ticks\",child=\"late\"";
    let busy = |text: &str| metric(text, "fanout_link_busy_seconds_total", of_link);
    let before = busy(&scrape(node).await);
    tokio::time::sleep(OVER).await;
    let share = (busy(&scrape(node).await) - before) / OVER.as_secs_f64();
    let listed = median_of(|| client.list_links(Some(ticks))).await;
    let scraped = median_of(|| scrape(node)).await;
    println!(
        "4 cursors with all records pending: {:.5}% of a core",
        share * 100.0
    );
    println!("`link list` takes {listed:?}, a scrape {scraped:?}");
    bounds.hold(
        share < 0.001,
        "cursors busy under 0.1% of a core",
        format!("{:.5}%", share * 100.0),
    );
    bounds.hold(listed < ANSWERED, "`link list` under 5 ms", format!("{listed:?}"));
    bounds.hold(scraped < ANSWERED, "a scrape under 5 ms", format!("{scraped:?}"));
}
