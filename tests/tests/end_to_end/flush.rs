//! An acknowledgement means a flush: counted by the block device, on a filesystem of the test's own.

use std::time::Duration;

use tailwater_tests::cluster::block_device::BlockDevice;
use tailwater_tests::cluster::load::{LoadOptions, produce, record, topic};
use tailwater_tests::cluster::mount::LoopMount;
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::{directory, take_machine};
use tailwater_tests::cluster::reading::log;
use tailwater_tests::cluster::witness::spec;
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::PartitionId;

const LONE: u64 = 50;
const UNDER_LOAD: u64 = 200_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_device_flushes_before_each_lone_acknowledgement_and_seldom_under_load() {
    let _alone = take_machine().await;
    let disk = LoopMount::new(1_024);
    let device = BlockDevice::of(disk.path());
    let node = TestNode::start_on(&disk.path().join("data"), "").await;
    let client = node.client().await;
    let ticks = topic("ticks");
    client.create_topic(spec(&ticks, 8)).await.expect("a topic");
    // What preparing the topic has begun is over, and the first idle frontier is written.
    lone(&client, 0).await;
    tokio::time::sleep(Duration::from_secs(3)).await;

    let before = device.flushes();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let idle = device.flushes() - before;
    assert!(
        idle <= 4,
        "{idle} flushes while nothing happened: they would pass for those of acknowledgements"
    );

    let at_start = device.flushes();
    for number in 1..=LONE {
        let before = device.flushes();
        lone(&client, number).await;
        let after = device.flushes();
        assert!(
            after > before,
            "record {number} of {LONE} was acknowledged without a flush"
        );
    }
    let flushes = device.flushes() - at_start;
    assert!(flushes >= LONE, "{flushes} flushes for {LONE} lone records");

    let before = device.flushes();
    let account = produce(&client, &ticks, LoadOptions::new(1_000, UNDER_LOAD)).await;
    let flushes = device.flushes() - before;
    assert_eq!(account.acknowledged.len() as u64, UNDER_LOAD);
    assert!(flushes > 0, "no flush for {UNDER_LOAD} records");
    assert!(
        flushes < UNDER_LOAD / 50,
        "{flushes} flushes for {UNDER_LOAD} records: commits are not grouped"
    );

    let stored = log(&client, &ticks).await;
    stored.holds(&account.acknowledged);
    assert_eq!(stored.len(), UNDER_LOAD + LONE + 1);
}

/// Produces one record, alone, and waits for its acknowledgement.
async fn lone(client: &Client, number: u64) {
    let ticks = topic("ticks");
    let options = ProducerOptions {
        partition: Some(PartitionId((number % 8) as u32)),
        ..ProducerOptions::default()
    };
    let producer = client.producer(&ticks, options).await.expect("a producer");
    let delivery = producer
        .send(record(number, 100))
        .await
        .expect("a producer takes a record");
    let delivered = delivery.await.expect("an acknowledgement");
    assert_eq!(delivered.durability.label(), "fsync");
}

/// As on the machine's own disk, where others flush too: each lone record still needs at least one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_of_the_data_directory_flushes_for_lone_records() {
    let _alone = take_machine().await;
    let home = directory();
    let device = BlockDevice::of(home.path());
    let node = TestNode::start_on(&home.path().join("data"), "").await;
    let client = node.client().await;
    client
        .create_topic(spec(&topic("ticks"), 8))
        .await
        .expect("a topic");
    let at_start = device.flushes();
    for number in 1..=LONE {
        let before = device.flushes();
        lone(&client, number).await;
        assert!(
            device.flushes() > before,
            "record {number} of {LONE} was acknowledged without a flush"
        );
    }
    let flushes = device.flushes() - at_start;
    assert!(flushes >= LONE, "{flushes} flushes for {LONE} lone records");
    assert_eq!(log(&client, &topic("ticks")).await.len(), LONE);
}
