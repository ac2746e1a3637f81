//! A million records and children that come, go and come back while they are produced.

use std::collections::HashMap;

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{Load, LoadOptions, key_of, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, faults, flawless};
use tailwater_tests::cluster::place::{share_machine, take_machine};
use tailwater_tests::cluster::reading::{Stored, copies, drained, ends, link, log};
use tailwater_wire::ids::Offset;
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::time::format_time;

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

/// A diamond, `a -> b -> d` and `a -> c -> d`, with another partition count on each side: `d` gets everything twice,
/// once on each way, from the places that were asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_chain_and_meet_and_begin_where_they_are_told() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    let (cli, client) = (node.cli(), node.client().await);
    for line in [
        "topic create a --partitions 3",
        "topic create b --partitions 2 --partitioner crc32c",
        "topic create c --partitions 4",
        "topic create d --partitions 3 --durability written",
        "link attach a b",
        "link attach b d",
        "link attach c d",
    ] {
        cli.run(line).await.succeeded();
    }
    let (a, d) = (topic("a"), topic("d"));
    for first in [0, 1_000, 2_000] {
        produce(&client, &a, LoadOptions::new(first, 1_000)).await;
    }
    // From a time: with the first record of each partition that was committed then or later.
    let parent = log(&client, &a).await;
    let time = parent.at(0, parent.ends()[0] / 2).expect("a record").commit_time;
    let earlier = |records: &Vec<Stored>| records.partition_point(|stored| stored.commit_time < time) as u64;
    let expected: Vec<u64> = parent.partitions.iter().map(earlier).collect();
    cli.run(&format!("link attach a c --from time:{}", format_time(time)))
        .await
        .succeeded();
    let by_time = link(&client, &a, &topic("c")).await.expect("just attached").link;
    assert_eq!(
        by_time.attach_offsets,
        expected.into_iter().map(Offset).collect::<Vec<_>>()
    );

    // Records without a key have places, too.
    cli.run_with_input(&["produce", "a"], "no key\n".repeat(1_000).as_bytes())
        .await
        .succeeded();
    for (parent, child) in [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")] {
        drained(&client, &topic(parent), &topic(child)).await;
        cli.verify(parent, child).await;
    }
    let through_c: u64 = ends(&client, &topic("c")).await.iter().sum();
    assert_eq!(ends(&client, &d).await.iter().sum::<u64>(), 4_000 + through_c);

    let offset = parent.ends().into_iter().min().expect("partitions") / 2;
    cli.run("topic create e").await.succeeded();
    cli.run(&format!("link attach a e --from offset:{offset}"))
        .await
        .succeeded();
    drained(&client, &a, &topic("e")).await;
    let expected: u64 = ends(&client, &a).await.iter().map(|end| end - offset).sum();
    assert_eq!(number(&cli.verify("a", "e").await, "records"), expected);
    cli.run("topic create f").await.succeeded();
    cli.run("link attach a f --from offset:99999999")
        .await
        .refused(1, "POSITION_AHEAD");
}
