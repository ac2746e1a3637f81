//! A disk that is full: produce is refused by name, everything else goes on, and room ends it without a restart.

use std::io::Write;
use std::time::{Duration, Instant};

use tailwater_tests::cluster::load::{Acknowledged, Load, LoadOptions, produce, topic};
use tailwater_tests::cluster::mount::LoopMount;
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::{copies, drained, link, log};
use tailwater_tests::cluster::witness::spec;
use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::ErrorCode;

const DISK_MIB: u64 = 160;
/// Given back later: room for a child that holds all that its parent has, and for the segments that both make ready. With 80 MiB
/// a parent that had used its 80 to the last block left its child none.
const BALLAST_BYTES: u64 = 100 << 20;
/// Small segments, so that a full disk is not met as one that lacks room for a large segment only.
const CONFIG: &str = "[log]\nsegment_bytes_max = 4194304\n";
const VALUE_BYTES: usize = 4_096;
const RECOVERED_WITHIN: Duration = Duration::from_secs(15);

/// Produces until the disk is full; a refusal is reported after a second.
async fn fill(client: &Client, first: u64) -> Vec<Acknowledged> {
    let producer = ProducerOptions {
        batch_records: 100,
        delivery_timeout: Duration::from_secs(1),
        buffer_bytes: 4 << 20,
        ..ProducerOptions::default()
    };
    let options = LoadOptions {
        value_bytes: VALUE_BYTES,
        producer,
        ..LoadOptions::new(first, 1_000_000)
    };
    let load = Load::start(client, &topic("ticks"), options).await;
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        if load.acknowledged() == before {
            break;
        }
        before = load.acknowledged();
    }
    load.stop();
    let account = load.ended().await;
    let (_, error) = account.failed.first().expect("a full disk refuses");
    assert_eq!(error.code(), ErrorCode::DiskFull, "{error}");
    assert!(!account.acknowledged.is_empty(), "something fits");
    account.acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_is_refused_by_name_reads_go_on_and_room_ends_it() {
    let _shared = share_machine().await;
    let disk = LoopMount::new(DISK_MIB);
    let ballast = disk.path().join("ballast");
    let file = std::fs::File::create(&ballast).expect("a file");
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BALLAST_BYTES)
        .expect("room for the ballast");
    let mut node = TestNode::start_on(&disk.path().join("data"), CONFIG).await;
    let client = node.client().await;
    let (ticks, copy) = (topic("ticks"), topic("copy"));
    client.create_topic(spec(&ticks, 2)).await.expect("a topic");
    client.create_topic(spec(&copy, 1)).await.expect("a topic");
    node.cli().run("link attach ticks copy").await.succeeded();

    let mut acknowledged = fill(&client, 0).await;
    log(&client, &ticks).await.holds(&acknowledged);
    let cli = node.cli();
    assert_eq!(
        cli.json("topic list").await.as_array().map(Vec::len),
        Some(2),
        "questions are answered"
    );
    cli.json("link list").await;
    assert_eq!(node.get("/healthz").await.0, 200);
    assert_eq!(node.get("/metrics").await.0, 200);

    std::fs::remove_file(&ballast).expect("a file that can be removed");
    drop(file);
    // A node that was full and is stopped and started is whole as well; half of the way without a restart.
    recovered(&client, &mut acknowledged, 10_000_000).await;
    drained(&client, &ticks, &copy).await;
    node.stop().await;
    node.restart().await;
    let client = node.client().await;
    recovered(&client, &mut acknowledged, 20_000_000).await;
    drained(&client, &ticks, &copy).await;
    let parent = log(&client, &ticks).await;
    parent.holds(&acknowledged);
    let link = link(&client, &ticks, &copy).await.expect("an attached pair").link;
    flawless(
        "copy",
        &parent,
        &copies(&client, &copy).await,
        &Span::of(&link, &parent.ends()),
    );
    cli.verify("ticks", "copy").await;
}

/// Waits until records are taken again, and produces some.
async fn recovered(client: &Client, acknowledged: &mut Vec<Acknowledged>, first: u64) {
    let started = Instant::now();
    for attempt in 0.. {
        let producer = ProducerOptions {
            delivery_timeout: Duration::from_secs(1),
            ..ProducerOptions::default()
        };
        let options = LoadOptions {
            producer,
            ..LoadOptions::new(first + attempt * 1_000, 100)
        };
        let account = Load::start(client, &topic("ticks"), options).await.ended().await;
        acknowledged.extend(&account.acknowledged);
        if account.failed.is_empty() {
            break;
        }
        assert!(
            started.elapsed() < RECOVERED_WITHIN,
            "room is there again: {:?}",
            account.failed.first()
        );
    }
    let account = produce(
        client,
        &topic("ticks"),
        LoadOptions::new(first + 1_000_000, 2_000),
    )
    .await;
    acknowledged.extend(&account.acknowledged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_killed_on_a_full_disk_starts_again_and_has_everything() {
    let _shared = share_machine().await;
    let disk = LoopMount::new(DISK_MIB - (BALLAST_BYTES >> 20));
    let mut node = TestNode::start_on(&disk.path().join("data"), CONFIG).await;
    let client = node.client().await;
    client
        .create_topic(spec(&topic("ticks"), 2))
        .await
        .expect("a topic");
    let acknowledged = fill(&client, 0).await;
    node.kill();
    assert!(
        disk.free_bytes() < 8 << 20,
        "the disk is full: {} bytes are free",
        disk.free_bytes()
    );
    node.restart().await;
    let client = node.client().await;
    log(&client, &topic("ticks")).await.holds(&acknowledged);
    // The way out that an operator has.
    node.cli().run("topic delete ticks").await.succeeded();
    client
        .create_topic(spec(&topic("after"), 1))
        .await
        .expect("a topic fits again");
    let account = produce(&client, &topic("after"), LoadOptions::new(0, 1_000)).await;
    log(&client, &topic("after")).await.holds(&account.acknowledged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_on_a_full_disk_is_refused_or_served_once_there_is_room() {
    let _shared = share_machine().await;
    let disk = LoopMount::new(64);
    let node = TestNode::start_on(&disk.path().join("data"), CONFIG).await;
    let (cli, client) = (node.cli(), node.client().await);
    client
        .create_topic(spec(&topic("ticks"), 1))
        .await
        .expect("a topic");
    let ballast = disk.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("a file");
    while file.write_all(&[1; 64 << 10]).is_ok() {}
    while file.write_all(&[1; 512]).is_ok() {}
    let created = cli.run("topic create more").await;
    if created.code == Some(0) {
        let refused = cli.run_with_input(&["consume", "more"], b"").await;
        assert!(
            refused.code == Some(0) || refused.stderr.contains("(DISK_FULL)"),
            "{refused:?}"
        );
    } else {
        created.refused(1, "DISK_FULL");
    }
    drop(file);
    std::fs::remove_file(&ballast).expect("a file that can be removed");
    if created.code != Some(0) {
        cli.run("topic create more").await.succeeded();
    }
    let started = Instant::now();
    loop {
        let producer = ProducerOptions {
            delivery_timeout: Duration::from_secs(1),
            ..ProducerOptions::default()
        };
        let options = LoadOptions {
            producer,
            ..LoadOptions::new(started.elapsed().as_secs() * 1_000, 10)
        };
        let account = Load::start(&client, &topic("more"), options).await.ended().await;
        if account.failed.is_empty() {
            break;
        }
        assert!(
            started.elapsed() < RECOVERED_WITHIN,
            "room is there again: {:?}",
            account.failed.first()
        );
    }
    assert!(log(&client, &topic("more")).await.len() >= 10);
    produce(&client, &topic("ticks"), LoadOptions::new(0, 100)).await;
}

/// rabbitmq-delayed-message-exchange#90, #81: a full disk ended the node, and what waited for its time was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_its_time_survives_a_full_disk_and_a_kill_on_it() {
    let _shared = share_machine().await;
    let disk = LoopMount::new(DISK_MIB);
    let ballast = disk.path().join("ballast");
    let file = std::fs::File::create(&ballast).expect("a file");
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BALLAST_BYTES)
        .expect("room for the ballast");
    let mut node = TestNode::start_on(&disk.path().join("data"), CONFIG).await;
    let client = node.client().await;
    let (ticks, delayed) = (topic("ticks"), topic("delayed"));
    client.create_topic(spec(&ticks, 2)).await.expect("a topic");
    client.create_topic(spec(&delayed, 1)).await.expect("a topic");
    node.cli()
        .run("link attach ticks delayed --delay 12s")
        .await
        .succeeded();
    let mut acknowledged = fill(&client, 0).await;
    node.kill();
    node.restart().await;
    let client = node.client().await;
    // A partition that finds no room even to be opened is opened once there is some.
    std::fs::remove_file(&ballast).expect("a file that can be removed");
    drop(file);
    recovered(&client, &mut acknowledged, 10_000_000).await;
    drained(&client, &ticks, &delayed).await;
    let parent = log(&client, &ticks).await;
    parent.holds(&acknowledged);
    let link = link(&client, &ticks, &delayed)
        .await
        .expect("an attached pair")
        .link;
    let copies = copies(&client, &delayed).await;
    flawless("delayed", &parent, &copies, &Span::of(&link, &parent.ends()));
    node.cli().verify("ticks", "delayed").await;
}
