//! A parent that grows while it is attached: what is produced to a new partition at once is copied from its first record.

use std::collections::BTreeSet;

use bytes::Bytes;
use tailwater_tests::cluster::load::{LoadOptions, produce, record, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::{copies, drained, link, log};
use tailwater_tests::cluster::setup::{MANY_SHARDS, NodeOptions};
use tailwater_tests::cluster::witness::spec;
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::ids::PartitionId;
use tailwater_wire::message::{AlterTopic, Reply, Request};
use tailwater_wire::meta::LinkOptions;

/// The case: in Narad's fan-out engine, a partition that was added after the attach was anchored behind its first records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_added_after_the_attach_is_copied_from_its_first_record() {
    let _shared = share_machine().await;
    let options = NodeOptions::default().shards(MANY_SHARDS);
    let node = TestNode::start_with(&options.config()).await;
    let client = node.client().await;
    let (ticks, copy) = (topic("ticks"), topic("copy"));
    for (name, partitions) in [(&ticks, 1), (&copy, 2)] {
        client
            .create_topic(spec(name, partitions))
            .await
            .expect("a topic");
    }
    produce(&client, &ticks, LoadOptions::new(0, 1_000)).await;
    client
        .attach(&ticks, &copy, LinkOptions::default())
        .await
        .expect("a link");
    for partitions in 2..=6 {
        let alter = AlterTopic {
            topic: ticks.clone(),
            partitions: Some(partitions),
            retention: None,
        };
        let altered = client.request(Request::AlterTopic(alter), Bytes::new()).await;
        let (reply, _) = altered.expect("an altered topic");
        assert!(matches!(reply, Reply::TopicAltered(_)), "{reply:?}");
        // At once, by a client that has never known the topic otherwise.
        let fresh = node.client().await;
        let producer = fresh.producer(&ticks, ProducerOptions::default()).await;
        let producer = producer.expect("a producer");
        let partition = PartitionId(partitions - 1);
        let number = 10_000 + u64::from(partitions);
        let sent = producer
            .send_to(partition, record(number, 100))
            .await
            .expect("a taken record");
        assert_eq!(
            sent.await
                .expect("an acknowledgement")
                .offset
                .map(|offset| offset.0),
            Some(0)
        );
    }
    let client = node.client().await;
    produce(&client, &ticks, LoadOptions::new(20_000, 1_000)).await;
    drained(&client, &ticks, &copy).await;
    let parent = log(&client, &ticks).await;
    let attached = link(&client, &ticks, &copy).await.expect("an attached pair").link;
    let copied = copies(&client, &copy).await;
    flawless(
        "a grown parent's child",
        &parent,
        &copied,
        &Span::of(&attached, &parent.ends()),
    );
    let firsts = copied.iter().filter(|copy| copy.parent_offset == 0);
    let firsts: BTreeSet<u32> = firsts.map(|copy| copy.parent_partition).collect();
    assert_eq!(firsts, (1..6).collect(), "the first record of each new partition");
    node.cli().verify("ticks", "copy").await;
}
