//! Half a minute of the storm that the program `soak` lets blow for an hour.

use std::time::Duration;

use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::setup::MANY_SHARDS;
use tailwater_tests::cluster::storm::{Plan, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_come_and_go_over_kills_and_other_numbers_of_shards() {
    let _alone = take_machine().await;
    let done = run(Plan {
        duration: Duration::from_secs(30),
        seed: rand::random(),
        partitions: 12,
        children: 16,
        rate: 3_000,
        shards: (1..=MANY_SHARDS).collect(),
    })
    .await;
    eprintln!("{done:?}");
    assert!(done.records > 10_000 && done.copies > done.records, "{done:?}");
    assert!(done.kills > 0 && done.detaches > 0, "{done:?}");
}
