//! A link with a delay: nothing comes early, what is due comes soon, and what waits can be asked for.

use std::time::{Duration, Instant};

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log};

const DELAY: Duration = Duration::from_secs(2);
/// Usually within a second of due.
const LATE_AT_MOST: Duration = Duration::from_millis(1_500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_come_no_earlier_than_due_and_soon_after() {
    let _alone = take_machine().await;
    let node = TestNode::start().await;
    let (cli, client) = (node.cli(), node.client().await);
    for line in [
        "topic create ticks --partitions 2",
        "topic create delayed --partitions 3",
        "link attach ticks delayed --delay 2s",
    ] {
        cli.run(line).await.succeeded();
    }
    let (ticks, delayed) = (topic("ticks"), topic("delayed"));
    let started = Instant::now();
    let mut produced = 0;
    while started.elapsed() < DELAY * 2 {
        let burst = rand::random_range(1..=40);
        produce(&client, &ticks, LoadOptions::new(produced, burst)).await;
        produced += burst;
        // By this test's own clock: the first record is not due yet.
        if started.elapsed() < DELAY - Duration::from_millis(100) {
            let arrived: u64 = ends(&client, &delayed).await.iter().sum();
            assert!(
                arrived == 0 || started.elapsed() >= DELAY,
                "{arrived} records after {:?}",
                started.elapsed()
            );
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let rows = cli.json("link list ticks").await;
    let row = &rows[0];
    assert_eq!(number(row, "delay_ms"), 2_000, "{row}");
    assert!(
        number(row, "pending") > 0 && number(row, "pending") < produced,
        "{row}"
    );
    assert!(
        number(row, "due_lag_ms") < LATE_AT_MOST.as_millis() as u64,
        "{row}"
    );
    assert!(row["next_due"].is_u64(), "{row}");

    drained(&client, &ticks, &delayed).await;
    let parent = log(&client, &ticks).await;
    assert_eq!(parent.len(), produced);
    let copied = copies(&client, &delayed).await;
    let attached = link(&client, &ticks, &delayed)
        .await
        .expect("an attached pair")
        .link;
    let span = Span::of(&attached, &parent.ends());
    assert_eq!(span.delay_ns, DELAY.as_nanos() as u64);
    flawless("delayed", &parent, &copied, &span);
    let mut late: Vec<u64> = copied
        .iter()
        .map(|copy| {
            let original = parent
                .at(copy.parent_partition, copy.parent_offset)
                .expect("a copy of a record");
            copy.stored.commit_time - original.commit_time - span.delay_ns
        })
        .collect();
    late.sort_unstable();
    let (median, latest) = (late[late.len() / 2], late[late.len() - 1]);
    let in_time = Duration::from_nanos(latest) < LATE_AT_MOST;
    assert!(
        in_time,
        "{} records; median {median} ns late, latest {latest} ns",
        late.len()
    );

    let verified = cli.verify("ticks", "delayed").await;
    assert_eq!(number(&verified, "records"), produced);
    assert!(
        number(&verified, "max_late_ms") < LATE_AT_MOST.as_millis() as u64,
        "{verified}"
    );
    let row = &cli.json("link list ticks").await[0];
    assert_eq!((number(row, "pending"), number(row, "lag")), (0, 0), "{row}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_survives_kills_and_is_still_not_early() {
    let _alone = take_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    for line in [
        "topic create ticks",
        "topic create delayed --partitions 2",
        "link attach ticks delayed --delay 2s",
    ] {
        cli.run(line).await.succeeded();
    }
    let (ticks, delayed) = (topic("ticks"), topic("delayed"));
    for round in 0..4 {
        produce(&node.client().await, &ticks, LoadOptions::new(round * 500, 500)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        node.kill();
        node.restart().await;
    }
    let client = node.client().await;
    drained(&client, &ticks, &delayed).await;
    let parent = log(&client, &ticks).await;
    assert_eq!(parent.len(), 2_000);
    let attached = link(&client, &ticks, &delayed)
        .await
        .expect("an attached pair")
        .link;
    flawless(
        "delayed",
        &parent,
        &copies(&client, &delayed).await,
        &Span::of(&attached, &parent.ends()),
    );
    cli.verify("ticks", "delayed").await;
}
