//! Attach, detach and attach again under load: each link begins at exactly the record it was attached at. The program `soak` has
//! more rounds of the same.

use std::time::Duration;

use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::rounds::{Plan, Seen, run};
use tailwater_tests::cluster::setup::MANY_SHARDS;

const RATE: u64 = 50_000;

fn plan(rounds: u32, recreate: bool) -> Plan {
    Plan {
        rounds,
        rate: RATE,
        shards: MANY_SHARDS,
        seed: rand::random(),
        verify_every: 3,
        recreate,
    }
}

fn per_second(count: u64, took: Duration) -> u64 {
    (count as f64 / took.as_secs_f64()) as u64
}

/// The case: Narad's fan-out engine skipped what was produced between the commit of an attach and the cursor's first
/// read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_attach_begins_at_exactly_its_offset_and_copies_nothing_from_in_between() {
    let _alone = take_machine().await;
    let plan = plan(30, false);
    let seen: Seen = run(plan.clone()).await;
    eprintln!("{seen:?}");
    let rate = per_second(seen.acknowledged, seen.took);
    assert!(rate > RATE / 5, "{rate} records a second: hardly a load");
    assert!(seen.at_work >= plan.rounds / 3, "{seen:?}");
    assert!(seen.between > 1_000 && seen.copied > 10_000, "{seen:?}");
}

/// The cases: a source or target that was made anew copies nothing, or what was of the old one: nats-server#8346,
/// strimzi-kafka-operator#3375.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_that_are_deleted_and_made_anew_under_load_begin_anew_as_well() {
    let _alone = take_machine().await;
    let plan = plan(16, true);
    let seen: Seen = run(plan.clone()).await;
    eprintln!("{seen:?}");
    assert!(seen.parents >= 2 && seen.children >= 2, "{seen:?}");
    assert!(seen.copied > 5_000, "{seen:?}");
}
