//! A million records and children that come, go and come back while they are produced.

use std::collections::HashMap;

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{Load, LoadOptions, key_of, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, faults, flawless};
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log};
use tailwater_wire::partitioner::Partitioner;

const RECORDS: u64 = 1_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_attach_detach_and_attach_again_under_full_load() {
    let _alone = take_machine().await;
    let node = TestNode::start().await;
    let (cli, client) = (node.cli(), node.client().await);
    let (ticks, live, all) = (topic("ticks"), topic("live"), topic("all"));
    for line in [
        "topic create ticks --partitions 8",
        "topic create live --partitions 5",
        "topic create all --partitions 3",
    ] {
        cli.run(line).await.succeeded();
    }

    let producing = node.client().await;
    let load = Load::start(&producing, &ticks, LoadOptions::new(0, RECORDS)).await;
    load.reached(RECORDS / 10).await;
    cli.run("link attach ticks live").await.succeeded();
    let first = link(&client, &ticks, &live).await.expect("just attached").link;
    assert!(
        first.attach_offsets.iter().all(|offset| offset.0 > 0),
        "attached at the tail, under way: {first:?}"
    );

    load.reached(RECORDS * 4 / 10).await;
    let before_detach = ends(&client, &ticks).await;
    cli.run("link detach ticks live").await.succeeded();
    let (after_detach, live_at_detach) = (ends(&client, &ticks).await, ends(&client, &live).await);

    load.reached(RECORDS * 5 / 10).await;
    assert_eq!(
        ends(&client, &live).await,
        live_at_detach,
        "a detached child gets nothing"
    );
    cli.run("link attach ticks live").await.succeeded();
    let second = link(&client, &ticks, &live).await.expect("attached again").link;
    assert!(
        load.acknowledged() < RECORDS,
        "the second attach came too late to be under load"
    );
    cli.run("link attach ticks all --from earliest").await.succeeded();
    let backfill = link(&client, &ticks, &all).await.expect("just attached").link;
    assert!(
        backfill.attach_offsets.iter().all(|offset| offset.0 == 0),
        "{backfill:?}"
    );

    let account = load.ended().await.complete();
    assert_eq!(account.acknowledged.len() as u64, RECORDS);
    drained(&client, &ticks, &live).await;
    drained(&client, &ticks, &all).await;

    let parent = log(&client, &ticks).await;
    assert_eq!(parent.len(), RECORDS);
    parent.holds(&account.acknowledged);
    let end = parent.ends();

    let verified = cli.verify("ticks", "all").await;
    assert_eq!(number(&verified, "records"), RECORDS);
    flawless(
        "all",
        &parent,
        &copies(&client, &all).await,
        &Span::of(&backfill, &end),
    );

    let live_copies = copies(&client, &live).await;
    let second_span = Span::of(&second, &end);
    let verified = cli.verify("ticks", "live").await;
    assert_eq!(number(&verified, "records"), second_span.len());
    flawless("live, attached again", &parent, &live_copies, &second_span);

    // In each pair of partitions, the first attachment copied a prefix of what came after it, and ended with the detach.
    let bucket_of = |number| {
        let partitioner = Partitioner::default();
        partitioner
            .partition(partitioner.hash(key_of(number).as_bytes()), 5)
            .0
    };
    let mut reached: HashMap<(u32, u32), u64> = HashMap::new();
    for copy in live_copies.iter().filter(|copy| copy.epoch == first.epoch) {
        let to = reached
            .entry((copy.parent_partition, copy.partition))
            .or_default();
        *to = (*to).max(copy.parent_offset + 1);
    }
    for (&(partition, bucket), &to) in &reached {
        let end = after_detach[partition as usize];
        assert!(
            to <= end,
            "{to} of partition {partition} was copied to {bucket} after the detach at {end}"
        );
    }
    let backfilled = second
        .attach_offsets
        .iter()
        .zip(&before_detach)
        .position(|(offset, end)| offset.0 <= *end);
    assert_eq!(
        backfilled, None,
        "a partition whose second attachment begins before the detach"
    );
    let first_span = Span::of(&first, &after_detach);
    let was_reached = |partition, offset, number| {
        reached
            .get(&(partition, bucket_of(number)))
            .is_some_and(|&to| offset < to)
    };
    let faults = faults(&parent, &live_copies, &first_span, was_reached);
    assert!(
        faults.is_empty(),
        "live, at first: {} faults, the first: {}",
        faults.len(),
        faults[0]
    );
    let of_first = live_copies
        .iter()
        .filter(|copy| copy.epoch == first.epoch)
        .count() as u64;
    assert!(
        of_first > RECORDS / 20,
        "{of_first} records were copied before the detach"
    );
    let copied = of_first + second_span.len();
    assert_eq!(
        live_copies.len() as u64,
        copied,
        "what was produced in between is not in the child"
    );
    assert!(
        copied < RECORDS * 9 / 10,
        "a tenth of all was produced while the child was detached"
    );
}
