//! Requests that are well-formed and wrong: each is refused by name with the exit code that scripts rely on, by the
//! CLI and by the node behind it, while another client is served.

use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::{drained, log};
use tailwater_tests::cluster::witness::{Witness, spec};
use tailwater_wire::client::error::ClientError;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::Delay;
use tailwater_wire::limits::{CHILDREN_MAX, DELAY_MILLIS_MAX, RECORD_BYTES_MAX};
use tailwater_wire::meta::LinkOptions;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_refused_by_name_with_its_exit_code() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    let cli = node.cli();
    for line in [
        "topic create a --partitions 2",
        "topic create b",
        "topic create c",
        "topic create short --retention 90m",
        "topic create small --retention-bytes 1GiB",
        "link attach a b",
        "link attach b c",
    ] {
        cli.run(line).await.succeeded();
    }
    for (line, exit, code) in [
        ("topic describe nothing", 3, "UNKNOWN_TOPIC"),
        ("topic delete nothing", 3, "UNKNOWN_TOPIC"),
        ("consume nothing", 3, "UNKNOWN_TOPIC"),
        ("produce nothing", 3, "UNKNOWN_TOPIC"),
        ("link attach nothing a", 3, "UNKNOWN_TOPIC"),
        ("link attach a nothing", 3, "UNKNOWN_TOPIC"),
        ("consume a -p 7", 3, "UNKNOWN_PARTITION"),
        ("produce a -p 7", 3, "UNKNOWN_PARTITION"),
        ("link detach a c", 3, "UNKNOWN_LINK"),
        ("link verify a c", 3, "UNKNOWN_LINK"),
        ("topic create x..y", 2, "INVALID_NAME"),
        ("topic create X", 2, "INVALID_NAME"),
        ("consume ../a", 2, "INVALID_NAME"),
        ("topic create x --partitions 0", 2, "INVALID_PARTITIONS"),
        ("topic create x --partitions 100000", 2, "INVALID_PARTITIONS"),
        ("link attach a c --delay 366d", 2, "DELAY_TOO_LONG"),
        ("link attach a c --filter price", 2, "INVALID_FILTER"),
        ("topic create a", 1, "TOPIC_EXISTS"),
        ("link attach a b", 1, "LINK_EXISTS"),
        ("link attach c a", 1, "LINK_CYCLE"),
        ("link attach a a", 1, "LINK_CYCLE"),
        ("link attach short c --delay 31m", 1, "RETENTION_BELOW_FLOOR"),
        ("link attach small c --delay 1m", 1, "RETENTION_BELOW_FLOOR"),
        ("topic delete b", 1, "TOPIC_IN_USE"),
    ] {
        let refused = cli
            .run_with_input(&line.split(' ').collect::<Vec<_>>(), b"a line\n")
            .await;
        refused.refused(exit, code);
    }
    let floor = cli.run("link attach short c --delay 31m").await;
    let named = floor.refused(1, "RETENTION_BELOW_FLOOR");
    assert!(
        named.contains("5460000 ms") || named.contains("1h 31m"),
        "the floor is not named: {named}"
    );
    cli.run("link attach short c --delay 30m").await.succeeded();

    for line in [
        "no-such-command",
        "topic create",
        "doctor",
        "consume a --from yesterday",
        "topic list -o yaml",
    ] {
        assert_eq!(cli.run(line).await.code, Some(2), "{line}");
    }

    let client = node.client().await;
    produce(&client, &topic("a"), LoadOptions::new(0, 1_000)).await;
    drained(&client, &topic("a"), &topic("b")).await;
    drained(&client, &topic("b"), &topic("c")).await;
    assert_eq!(
        log(&client, &topic("c")).await.len(),
        1_000,
        "what was refused has left nothing behind"
    );
    cli.verify("a", "b").await;
    cli.verify("b", "c").await;
    witness.was_served().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_refuses_what_another_client_would_not_have_checked() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    let client = node.client().await;
    let code = |result: Result<(), ClientError>| result.expect_err("a refusal").code();
    for partitions in [0, 1_025, 100_000, u32::MAX] {
        let created = client.create_topic(spec(&topic("x"), partitions)).await;
        assert_eq!(
            code(created.map(drop)),
            ErrorCode::InvalidPartitions,
            "{partitions}"
        );
    }
    for name in ["a", "b"] {
        client.create_topic(spec(&topic(name), 1)).await.expect("a topic");
    }
    for millis in [DELAY_MILLIS_MAX + 1, u64::MAX] {
        let options = LinkOptions {
            delay: Delay { millis },
            ..LinkOptions::default()
        };
        let attached = client.attach(&topic("a"), &topic("b"), options).await;
        assert_eq!(code(attached.map(drop)), ErrorCode::DelayTooLong, "{millis}");
    }
    let options = LinkOptions {
        filter: Some("price".to_owned()),
        ..LinkOptions::default()
    };
    let attached = client.attach(&topic("a"), &topic("b"), options).await;
    assert_eq!(code(attached.map(drop)), ErrorCode::InvalidFilter);
    let topics = client.describe_topics(None).await.expect("a list of topics");
    assert_eq!(topics.len(), 3, "a, b and the witness's: {topics:?}");
    witness.was_served().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_8_mib_passes_and_one_byte_more_does_not() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    let cli = node.cli();
    cli.run("topic create a").await.succeeded();
    cli.run("topic create copy").await.succeeded();
    cli.run("link attach a copy").await.succeeded();
    let mut line = vec![b'x'; RECORD_BYTES_MAX];
    cli.run_with_input(&["produce", "a"], &line).await.succeeded();
    line.push(b'x');
    let refused = cli.run_with_input(&["produce", "a"], &line).await;
    refused.refused(1, "RECORD_TOO_LARGE");
    cli.run_with_input(&["produce", "a"], b"small\n")
        .await
        .succeeded();

    let client = node.client().await;
    drained(&client, &topic("a"), &topic("copy")).await;
    for name in ["a", "copy"] {
        let read = cli.run(&format!("consume {name} -f %s\\n")).await.succeeded();
        let lengths: Vec<usize> = read.stdout.lines().map(str::len).collect();
        assert_eq!(lengths, [RECORD_BYTES_MAX, 5], "{name}");
    }
    cli.verify("a", "copy").await;
    witness.was_served().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_109th_child_is_refused_and_the_108_are_served() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let witness = Witness::start(&node).await;
    let (cli, client) = (node.cli(), node.client().await);
    client
        .create_topic(spec(&topic("parent"), 1))
        .await
        .expect("a topic");
    let child = |number: usize| topic(&format!("child-{number}"));
    for number in 1..=CHILDREN_MAX + 1 {
        client
            .create_topic(spec(&child(number), 1))
            .await
            .expect("a topic");
    }
    for number in 1..=CHILDREN_MAX {
        client
            .attach(&topic("parent"), &child(number), LinkOptions::default())
            .await
            .expect("a link");
    }
    let one_more = format!("link attach parent child-{}", CHILDREN_MAX + 1);
    cli.run(&one_more).await.refused(1, "TOO_MANY_CHILDREN");

    produce(&client, &topic("parent"), LoadOptions::new(0, 2_000)).await;
    for number in 1..=CHILDREN_MAX {
        drained(&client, &topic("parent"), &child(number)).await;
        assert_eq!(log(&client, &child(number)).await.len(), 2_000, "child {number}");
    }
    cli.run("link detach parent child-1").await.succeeded();
    cli.run(&one_more).await.succeeded();
    witness.was_served().await;
}
