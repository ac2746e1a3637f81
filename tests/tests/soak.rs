//! Long runs by hand; docs/testing.md says how. Each has a short form among the end-to-end tests.

use std::str::FromStr;
use std::time::Duration;

use tailwater_tests::cluster::mutual::Mutual;
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::rounds::{self, Seen};
use tailwater_tests::cluster::setup::{MANY_SHARDS, NodeOptions};
use tailwater_tests::cluster::storm;

const RATE: u64 = 50_000;
/// Shards that commit to each other.
const SHARDS: usize = 2;

/// A number from the environment.
fn setting<T: FromStr>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{name}={text}: not a number"))
}

async fn attach_rounds(recreate: bool) -> Seen {
    let plan = rounds::Plan {
        rounds: setting("TAILWATER_SOAK_ROUNDS", 200),
        rate: RATE,
        shards: setting("TAILWATER_SOAK_SHARDS", MANY_SHARDS),
        seed: setting("TAILWATER_SOAK_SEED", rand::random()),
        verify_every: 1,
        recreate,
    };
    let seen = rounds::run(plan).await;
    let rate = seen.acknowledged as f64 / seen.took.as_secs_f64();
    eprintln!("{seen:?}: {rate:.0} records a second");
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn two_hundred_rounds_of_attach_and_detach_under_load() {
    let seen = attach_rounds(false).await;
    let rate = seen.acknowledged as f64 / seen.took.as_secs_f64();
    assert!(
        rate > RATE as f64 * 0.9,
        "{rate:.0} records a second, and {RATE} were asked for"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn two_hundred_rounds_with_topics_made_anew() {
    attach_rounds(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn two_shards_commit_to_each_other_before_and_after_half_a_minute_of_sigstop() {
    let options = NodeOptions::default().shards(SHARDS).mesh_credits(1);
    let node = TestNode::start_with(&options.config()).await;
    let mutual = Mutual::start(&node, SHARDS as u32).await;
    mutual.moves(Duration::from_secs(20)).await;
    node.freeze(Duration::from_secs(30)).await;
    mutual.moves(Duration::from_secs(10)).await;
    let records = mutual.is_clean(&node).await;
    eprintln!("{records} records, each copied once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes an hour"]
async fn an_hour_of_storm() {
    let done = storm::run(storm::Plan {
        duration: Duration::from_secs(setting("TAILWATER_SOAK_SECONDS", 3_600)),
        seed: setting("TAILWATER_SOAK_SEED", rand::random()),
        partitions: 12,
        children: 16,
        rate: setting("TAILWATER_SOAK_RATE", 5_000),
        shards: (1..=setting("TAILWATER_SOAK_SHARDS", MANY_SHARDS)).collect(),
    })
    .await;
    eprintln!("clean: {done:?}");
}
