//! A million records and children that come, go and come back while they are produced.

use tailwater_tests::cluster::cli::number;
use tailwater_tests::cluster::load::{Load, LoadOptions, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::take_machine;
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log};

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

    // The first attachment copied a prefix of what came after it, in each parent partition, and ended with the detach.
    let mut first_span = Span::of(&first, &end);
    for partition in 0..first_span.to.len() {
        let of_first = live_copies
            .iter()
            .filter(|copy| copy.epoch == first.epoch && copy.parent_partition as usize == partition);
        let to = of_first.map(|copy| copy.parent_offset + 1).max();
        let to =
            to.unwrap_or_else(|| panic!("nothing of partition {partition} was copied before the detach"));
        assert!(
            to <= after_detach[partition],
            "partition {partition}: {to} was copied after the detach"
        );
        assert!(
            second.attach_offsets[partition].0 > before_detach[partition],
            "partition {partition}: a backfill"
        );
        first_span.to[partition] = to;
    }
    flawless("live, at first", &parent, &live_copies, &first_span);
    let copied = first_span.len() + second_span.len();
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
