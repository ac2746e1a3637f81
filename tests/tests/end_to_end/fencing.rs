//! Attach and detach as promises: a repeated request returns the first result, a drained detach leaves nothing behind,
//! and what a link copies is fenced by its epoch.

use std::time::Duration;

use bytes::Bytes;
use tailwater_tests::cluster::cli::finish;
use tailwater_tests::cluster::load::{Load, LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::{copies, copies_from, drained, ends, link, log};
use tailwater_tests::cluster::setup::{MANY_SHARDS, NodeOptions};
use tailwater_tests::cluster::witness::spec;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::message::{AttachRequest, Reply, Request};
use tailwater_wire::meta::{Link, LinkOptions};

async fn node() -> TestNode {
    TestNode::start_with(&NodeOptions::default().shards(MANY_SHARDS).config()).await
}

/// Attaches `copy` to `ticks` under a request id of the caller's.
async fn attach(client: &Client, request_id: [u8; 16]) -> Result<Link, ClientError> {
    let request = AttachRequest {
        request_id,
        parent: topic("ticks"),
        child: topic("copy"),
        options: LinkOptions::default(),
    };
    match client.request(Request::Attach(request), Bytes::new()).await?.0 {
        Reply::Attached(link) => Ok(link),
        other => panic!("an attach was answered with {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_attach_returns_the_first_result() {
    let _shared = share_machine().await;
    let mut node = node().await;
    let client = node.client().await;
    for (name, partitions) in [("ticks", 3), ("copy", 2)] {
        client
            .create_topic(spec(&topic(name), partitions))
            .await
            .expect("a topic");
    }
    produce(&client, &topic("ticks"), LoadOptions::new(0, 500)).await;
    let first = attach(&client, [1; 16]).await.expect("a link");
    // What is produced in between would move the attach point of a second attachment.
    produce(&client, &topic("ticks"), LoadOptions::new(500, 500)).await;
    let again = attach(&client, [1; 16]).await.expect("the first result");
    assert_eq!(again, first);
    let other = attach(&client, [2; 16])
        .await
        .expect_err("another request for the same pair");
    assert_eq!(other.code(), ErrorCode::LinkExists, "{other}");

    // Many at once are one.
    client
        .detach(&topic("ticks"), &topic("copy"))
        .await
        .expect("a detached link");
    let mut repeats = Vec::new();
    for _ in 0..8 {
        let client = node.client().await;
        repeats.push(tokio::spawn(async move { attach(&client, [3; 16]).await }));
    }
    let mut links = Vec::new();
    for repeat in repeats {
        links.push(repeat.await.expect("a request does not panic").expect("a link"));
    }
    assert!(links.iter().all(|link| *link == links[0]), "{links:?}");
    assert_ne!(links[0].epoch, first.epoch);

    // Also by a node that has been killed in between.
    node.kill();
    node.restart().await;
    let client = node.client().await;
    assert_eq!(
        attach(&client, [3; 16]).await.expect("the first result"),
        links[0]
    );
    produce(&client, &topic("ticks"), LoadOptions::new(1_000, 500)).await;
    drained(&client, &topic("ticks"), &topic("copy")).await;
    let parent = log(&client, &topic("ticks")).await;
    let span = Span::of(&links[0], &parent.ends());
    flawless(
        "attached once",
        &parent,
        &copies(&client, &topic("copy")).await,
        &span,
    );
    node.cli().verify("ticks", "copy").await;
}

/// A result that was given in an earlier life of the parent or the child is no link of this one's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_id_of_an_earlier_life_attaches_nothing_of_it() {
    let _shared = share_machine().await;
    let node = node().await;
    let client = node.client().await;
    for name in ["ticks", "copy"] {
        client.create_topic(spec(&topic(name), 2)).await.expect("a topic");
    }
    produce(&client, &topic("ticks"), LoadOptions::new(0, 500)).await;
    let old = attach(&client, [1; 16]).await.expect("a link");
    client
        .detach(&topic("ticks"), &topic("copy"))
        .await
        .expect("a detached link");
    client.delete_topic(&topic("ticks")).await.expect("a deletion");
    let new = client
        .create_topic(spec(&topic("ticks"), 2))
        .await
        .expect("a topic");
    produce(&client, &topic("ticks"), LoadOptions::new(1_000, 50)).await;
    // The first result again, and no cursor of it: there is no such link any more.
    if let Ok(repeated) = attach(&client, [1; 16]).await {
        assert_eq!(repeated, old);
    }
    assert_eq!(link(&client, &topic("ticks"), &topic("copy")).await, None);
    let attached = attach(&client, [2; 16]).await.expect("a link");
    assert_eq!(attached.parent_incarnation, new.incarnation);
    assert_ne!(attached.parent_incarnation, old.parent_incarnation);
    produce(&client, &topic("ticks"), LoadOptions::new(1_050, 50)).await;
    drained(&client, &topic("ticks"), &topic("copy")).await;
    let parent = log(&client, &topic("ticks")).await;
    let span = Span::of(&attached, &parent.ends());
    flawless(
        "attached anew",
        &parent,
        &copies(&client, &topic("copy")).await,
        &span,
    );
    assert_eq!(span.len(), 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_detach_leaves_nothing_behind() {
    let _shared = share_machine().await;
    let node = node().await;
    let (cli, client) = (node.cli(), node.client().await);
    for line in [
        "topic create ticks --partitions 4",
        "topic create copy --partitions 3",
        "link attach ticks copy --delay 1s",
    ] {
        cli.run(line).await.succeeded();
    }
    let (ticks, copy) = (topic("ticks"), topic("copy"));
    let attached = link(&client, &ticks, &copy).await.expect("an attached pair").link;
    let options = LoadOptions::new(0, 1_000_000).at_rate(5_000);
    let load = Load::start(&client, &ticks, options).await;
    load.reached(2_000).await;
    let before = ends(&client, &ticks).await;
    let draining = cli
        .command(&["link", "detach", "ticks", "copy", "--drain"])
        .spawn();
    let draining = draining.expect("the binary can be started");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        link(&client, &ticks, &copy).await.is_some(),
        "it is attached while it drains: a second's records wait"
    );
    finish(draining, "link detach --drain".to_owned())
        .await
        .succeeded();
    assert!(link(&client, &ticks, &copy).await.is_none());
    let (after, settled) = (ends(&client, &ticks).await, ends(&client, &copy).await);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(
        ends(&client, &copy).await,
        settled,
        "a detached child gets nothing"
    );
    load.stop();
    load.ended().await.complete();

    let parent = log(&client, &ticks).await;
    let copied = copies(&client, &copy).await;
    // Everything that was there when the drain was asked for; of what came later, nothing beyond the detach.
    let (in_time, later): (Vec<_>, Vec<_>) = copied
        .into_iter()
        .partition(|copy| copy.parent_offset < before[copy.parent_partition as usize]);
    flawless("drained", &parent, &in_time, &Span::of(&attached, &before));
    let beyond = later
        .iter()
        .find(|copy| copy.parent_offset >= after[copy.parent_partition as usize]);
    assert!(beyond.is_none(), "{beyond:?}");
}

/// The same pair, attached and detached without a pause: each detach has settled before the next attach reads its offsets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attachments_without_a_pause_share_no_record() {
    let _shared = share_machine().await;
    let node = node().await;
    let client = node.client().await;
    for (name, partitions) in [("ticks", 4), ("copy", 3)] {
        client
            .create_topic(spec(&topic(name), partitions))
            .await
            .expect("a topic");
    }
    let (ticks, copy) = (topic("ticks"), topic("copy"));
    let options = LoadOptions::new(0, 1_000_000).at_rate(10_000);
    let load = Load::start(&node.client().await, &ticks, options).await;
    let mut attachments: Vec<(Link, Vec<u64>)> = Vec::new();
    let mut before = vec![0; 3];
    for round in 0..60u64 {
        let attached = client
            .attach(&ticks, &copy, LinkOptions::default())
            .await
            .expect("a link");
        tokio::time::sleep(Duration::from_millis(round % 12)).await;
        client.detach(&ticks, &copy).await.expect("a detached link");
        attachments.push((attached, ends(&client, &copy).await));
    }
    load.stop();
    load.ended().await.complete();
    let mut copied = 0;
    for (attached, after) in attachments {
        let found = copies_from(&client, &copy, &before).await;
        let is_within = |partition: u32, offset: u64| offset < after[partition as usize];
        let of_it = found.iter().filter(|copy| is_within(copy.partition, copy.offset));
        for copy in of_it {
            assert_eq!(
                copy.epoch, attached.epoch,
                "between {before:?} and {after:?}: {copy:?}"
            );
            assert!(
                copy.parent_offset >= attached.attach_offset(copy.parent_partition).0,
                "{copy:?}"
            );
            copied += 1;
        }
        before = after;
    }
    assert_eq!(ends(&client, &copy).await, before);
    assert!(copied > 0, "nothing was copied in any attachment");
}
