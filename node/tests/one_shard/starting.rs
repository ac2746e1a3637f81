//! Links whose cursors do not run yet, as `link list` and the metrics show them.

use std::fs;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tailwater_node::control::request::ControlRequest;
use tailwater_node::router::placement::Placement;
use tailwater_storage::layout;
use tailwater_storage::proof::LeaderConfirmed;
use tailwater_wire::ids::{Epoch, PartitionId};
use tailwater_wire::message::{CursorStatus, LinkStatus};

use crate::support::{LIFE, link, metadata, name, on_a_shard};

const TOPICS: [(&str, u32); 2] = [("ticks", 4), ("copy", 2)];

/// Partition, position, the parent's end, and why it does not move.
type Told = (u32, u64, u64, Option<String>);

fn told(status: &LinkStatus) -> Vec<Told> {
    let of = |cursor: &CursorStatus| {
        assert_eq!(cursor.epoch, status.link.epoch);
        let (position, end) = (cursor.position.0, cursor.parent_high_water_mark.0);
        (cursor.partition.0, position, end, cursor.stalled.clone())
    };
    status.cursors.iter().map(of).collect()
}

fn starting(partition: u32, position: u64, end: u64) -> Told {
    (partition, position, end, Some("starting".to_owned()))
}

#[test]
fn a_cursor_that_does_not_run_yet_is_shown_at_its_attach_point_with_its_whole_lag() {
    on_a_shard(1, |shard| async move {
        shard.bring(&metadata(1, &TOPICS, &[])).await;
        for (partition, count) in [(0, 5), (1, 3), (3, 2)] {
            shard.produce("ticks", partition, count).await;
        }
        // The last partition was added after the attach: it is copied from its first record.
        shard
            .bring(&metadata(2, &TOPICS, &[link(1, 2, &[4, 0, 0])]))
            .await;
        let expected = [
            starting(0, 4, 5),
            starting(1, 0, 3),
            starting(2, 0, 0),
            starting(3, 0, 2),
        ];
        for parent in [None, Some(name("ticks"))] {
            let links = shard.cursors.link_status(parent.as_ref());
            assert_eq!(links.iter().map(told).collect::<Vec<_>>(), [expected.to_vec()]);
        }
        assert!(shard.cursors.link_status(Some(&name("copy"))).is_empty());
        let detail = shard.cursors.link_detail(&name("ticks"), &name("copy"));
        let detail = detail.expect("an attached pair");
        assert_eq!(told(&detail.status), expected);
        assert_eq!(detail.buckets, [[], [], [], []]);
    });
}

#[test]
fn a_partition_that_cannot_be_opened_is_shown_with_the_reason() {
    on_a_shard(1, |shard| async move {
        let data = shard.shared.partitions.data();
        let at = layout::partition_dir(data, &name("ticks"), PartitionId(1));
        fs::create_dir_all(at.parent().expect("the topic's")).expect("a directory");
        fs::write(&at, b"a file where a directory belongs").expect("written");
        shard
            .bring(&metadata(2, &TOPICS, &[link(1, 2, &[0, 7, 0, 0])]))
            .await;
        let links = shard.cursors.link_status(None);
        let stands = (1, 7, 7, Some("parent: PARTITION_LATCHED".to_owned()));
        assert_eq!(
            told(&links[0]),
            [starting(0, 0, 0), stands, starting(2, 0, 0), starting(3, 0, 0)]
        );
    });
}

#[test]
fn a_shard_shows_the_cursors_of_its_own_partitions_alone() {
    on_a_shard(2, |shard| async move {
        shard.bring(&metadata(2, &TOPICS, &[link(1, 2, &[0; 4])])).await;
        let first = Placement { shard: 0, shards: 2 };
        let mine = (0..4).filter(|&number| first.is_mine(LIFE, PartitionId(number)));
        let expected: Vec<Told> = mine.map(|number| starting(number, 0, 0)).collect();
        assert!((1..4).contains(&expected.len()), "both shards have some");
        assert_eq!(told(&shard.cursors.link_status(None)[0]), expected);
    });
}

#[test]
fn while_cursors_start_the_link_has_every_one_of_them_at_any_moment() {
    on_a_shard(1, |shard| async move {
        shard.bring(&metadata(1, &TOPICS, &[])).await;
        for partition in 0..4 {
            shard.produce("ticks", partition, 3).await;
        }
        shard.bring(&metadata(2, &TOPICS, &[link(1, 2, &[1; 4])])).await;
        glommio::spawn_local(Rc::clone(&shard.cursors).reconcile_loop()).detach();
        let requests = shard.requests.clone();
        glommio::spawn_local(async move {
            while let Ok(request) = requests.recv_async().await {
                if let ControlRequest::ConfirmLink {
                    parent,
                    child,
                    answer,
                } = request
                {
                    // The leader takes its time.
                    glommio::timer::sleep(Duration::from_millis(20)).await;
                    let word = LeaderConfirmed::by_leader(parent, child, Some(Epoch([1; 8])), 2);
                    let _unwanted = answer.send(Ok(word));
                }
            }
        })
        .detach();
        let (began, mut seen_starting) = (Instant::now(), false);
        loop {
            let told = told(&shard.cursors.link_status(None)[0]);
            let numbers: Vec<u32> = told.iter().map(|cursor| cursor.0).collect();
            assert_eq!(numbers, [0, 1, 2, 3], "{told:?}");
            assert!(
                told.iter()
                    .all(|&(_, position, end, _)| position >= 1 && end == 3),
                "{told:?}"
            );
            seen_starting |= told.iter().any(|cursor| cursor.3.is_some());
            if told.iter().all(|cursor| cursor.1 == 3 && cursor.3.is_none()) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{told:?}");
            glommio::timer::sleep(Duration::from_micros(200)).await;
        }
        assert!(seen_starting);
        shard.cursors.stop_all().await;
    });
}
