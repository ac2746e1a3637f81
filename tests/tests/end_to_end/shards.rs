//! Several shards: they commit to each other at full load without standing still, also after a pause of the process.

use std::time::Duration;

use tailwater_tests::cluster::mutual::Mutual;
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::setup::NodeOptions;

const SHARDS: usize = 2;
/// Longer than a shard may stall before its process ends: a stopped process is no stalled shard.
const FROZEN: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_shards_that_commit_to_each_other_with_the_smallest_mailboxes_do_not_stand_still() {
    let _alone = take_machine().await;
    let options = NodeOptions::default().shards(SHARDS).mesh_credits(1);
    let mut node = TestNode::start_with(&options.config()).await;
    let mutual = Mutual::start(&node, SHARDS as u32).await;
    mutual.moves(Duration::from_secs(2)).await;
    node.freeze(FROZEN).await;
    mutual.moves(Duration::from_secs(2)).await;
    let records = mutual.is_clean(&node).await;
    assert!(records > 10_000, "{records} records: hardly a load");
    assert!(node.is_running() && !node.log().contains("panicked"));
    node.stop().await;
}
