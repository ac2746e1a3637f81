//! `kill -9`, thirty times, while records are produced and fanned out.

use std::time::Duration;

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{Account, Load, LoadOptions, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log, log_from};
use tailwater_wire::client::config::{Idempotence, ProducerOptions};

const ROUNDS: u64 = 30;
/// Records are numbered from here in each round by the producer that lives for one round only.
const ROUND_NUMBERS: u64 = 1_000_000_000;

/// Small batches, several in flight, little memory: many batches are on their way when the node dies.
fn options(first: u64, idempotence: Idempotence) -> LoadOptions {
    let producer = ProducerOptions {
        idempotence,
        batch_records: 50,
        buffer_bytes: 256 << 10,
        ..ProducerOptions::default()
    };
    LoadOptions {
        producer,
        ..LoadOptions::new(first, ROUND_NUMBERS)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_and_nothing_is_copied_twice_over_thirty_kills() {
    let _alone = take_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    for line in [
        "topic create ticks --partitions 4",
        "topic create near --partitions 3",
        "topic create later --partitions 2",
        "link attach ticks near",
        "link attach ticks later --delay 300ms",
    ] {
        cli.run(line).await.succeeded();
    }
    let (ticks, near, later) = (topic("ticks"), topic("near"), topic("later"));

    // One idempotent producer lives through all kills: each of its records must be there exactly once.
    let patient = Load::start(&node.client().await, &ticks, options(0, Idempotence::Random)).await;
    let mut accounts = Vec::new();
    for round in 1..=ROUNDS {
        // Another one knows of no retries: what it was not told it was is allowed to be there or not.
        let hasty = options(round * ROUND_NUMBERS, Idempotence::None);
        let client = node.client().await;
        let before = ends(&client, &ticks).await;
        let hasty = Load::start(&client, &ticks, hasty).await;
        let reached = patient.acknowledged() + 1;
        patient.reached(reached).await;
        hasty.reached(1).await;
        tokio::time::sleep(Duration::from_millis(rand::random_range(50..400))).await;
        node.kill();
        hasty.stop();
        if round % 5 == 0 {
            // Killed again while it recovers.
            node.spawn();
            tokio::time::sleep(Duration::from_millis(rand::random_range(1..80))).await;
            node.kill();
        }
        node.restart().await;
        let account = hasty.ended().await;
        log_from(&node.client().await, &ticks, &before)
            .await
            .holds(&account.acknowledged);
        accounts.push(account);
    }
    patient.stop();
    let patient = patient.ended().await.complete();

    let client = node.client().await;
    drained(&client, &ticks, &near).await;
    drained(&client, &ticks, &later).await;
    let parent = log(&client, &ticks).await;
    parent.holds(&patient.acknowledged);
    accounts
        .iter()
        .for_each(|account| parent.holds(&account.acknowledged));
    check_occurrences(&parent.occurrences(), &patient, &accounts);

    for (child, name) in [(&near, "near"), (&later, "later")] {
        let status = link(&client, &ticks, child).await.expect("an attached pair");
        let span = Span::of(&status.link, &parent.ends());
        let copied = copies(&client, child).await;
        flawless(name, &parent, &copied, &span);
        assert_eq!(
            copied.len() as u64,
            parent.len(),
            "{name} was attached before the first record"
        );
        assert_eq!(number(&cli.verify("ticks", name).await, "records"), parent.len());
    }
}

/// The patient producer's records are there once each; the hasty ones' at most once; nobody else's.
fn check_occurrences(found: &std::collections::HashMap<u64, u32>, patient: &Account, hasty: &[Account]) {
    for record in &patient.acknowledged {
        assert_eq!(
            found.get(&record.number),
            Some(&1),
            "record {} of the patient producer",
            record.number
        );
    }
    let twice = found.iter().find(|&(_, &count)| count > 1);
    assert_eq!(twice, None, "a record (number, count) that was produced once");
    let acknowledged = hasty
        .iter()
        .map(|account| account.acknowledged.len())
        .sum::<usize>();
    let failed = hasty.iter().map(|account| account.failed.len()).sum::<usize>();
    let total = patient.acknowledged.len() + acknowledged;
    assert!(
        (total..=total + failed).contains(&found.len()),
        "{} records of {total} to {}",
        found.len(),
        total + failed
    );
    assert!(
        failed > 0,
        "no kill has hit a batch on its way: the test has tried nothing"
    );
}
