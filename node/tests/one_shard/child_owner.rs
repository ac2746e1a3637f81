//! What the owner of a child partition does with a link that its own metadata does not have, or has no more (SPEC.md F8,
//! F12).

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_lite::future::{or, poll_once};
use tailwater_node::fanout::committer::{commit_here, open_origin_here};
use tailwater_node::router::message::{Child, CommitReply};
use tailwater_wire::batch::builder::{BatchBuilder, OriginStamp};
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Epoch, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

use crate::support::{link, metadata, name, on_a_shard};

const TOPICS: [(&str, u32); 2] = [("ticks", 1), ("copy", 1)];
const ACKED: CommitReply = CommitReply::Acked { duplicate: false };
const STALE: CommitReply = CommitReply::Failed(ErrorCode::StaleEpoch);

fn child(epoch: u8, index: u64) -> Child {
    Child {
        topic: name("copy"),
        bucket: PartitionId(0),
        origin: OriginId {
            epoch: Epoch([epoch; 8]),
            partition: PartitionId(0),
        },
        index,
    }
}

/// The copy of the parent's first record under this epoch.
fn copy(epoch: u8) -> Bytes {
    let mut parent = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    parent.push(&Record::default()).expect("fits");
    let parent = parent.finish(Writer::Anonymous, 0).expect("a record");
    let record = BatchView::parse(&parent).expect("sound").record(0).expect("one");
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    builder.push_copy(&record, 0).expect("fits");
    let stamp = OriginStamp {
        end: Offset(1),
        ..OriginStamp::default()
    };
    let writer = Writer::Origin(child(epoch, 0).origin);
    builder.finish_copy(writer, Offset(0), stamp).expect("a record")
}

/// Time for whatever goes on without being told to.
async fn a_while() {
    glommio::timer::sleep(Duration::from_millis(30)).await;
}

#[test]
fn a_batch_of_a_link_that_is_not_known_yet_waits_for_the_metadata_and_is_taken() {
    on_a_shard(1, |shard| async move {
        let shared = Rc::clone(&shard.shared);
        shard.bring(&metadata(5, &TOPICS, &[])).await;
        let child = child(1, 7);
        let mut commit = pin!(commit_here(&shared, &child, copy(1)));
        let mut opening = pin!(open_origin_here(&shared, &child));
        let newer = metadata(7, &TOPICS, &[link(1, 7, &[0])]);
        // Something newer, but not new enough; then the metadata itself, whose topics are not open yet.
        shard.bring(&metadata(6, &TOPICS, &[])).await;
        assert!(poll_once(commit.as_mut()).await.is_none() && poll_once(opening.as_mut()).await.is_none());
        shared.set_metadata(newer.clone().into());
        a_while().await;
        assert!(poll_once(commit.as_mut()).await.is_none() && poll_once(opening.as_mut()).await.is_none());
        shard.bring(&newer).await;
        assert_eq!(opening.await, Ok((Offset(0), None)));
        assert_eq!(commit.await, ACKED);
        assert_eq!(shard.end("copy", 0), Offset(1));
    });
}

#[test]
fn a_link_that_does_not_become_known_is_refused_after_a_second() {
    on_a_shard(1, |shard| async move {
        let shared = Rc::clone(&shard.shared);
        shard.bring(&metadata(5, &TOPICS, &[])).await;
        let began = Instant::now();
        let child = child(1, 7);
        let for_ever = async {
            glommio::timer::sleep(Duration::from_secs(20)).await;
            panic!("it waits for ever");
        };
        let refused = or(commit_here(&shared, &child, copy(1)), for_ever).await;
        assert_eq!(refused, STALE);
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(shard.end("copy", 0), Offset(0));
    });
}

#[test]
fn a_batch_of_a_dead_epoch_is_refused_at_once() {
    on_a_shard(1, |shard| async move {
        let shared = Rc::clone(&shard.shared);
        // Detached, then attached anew.
        for links in [vec![], vec![link(2, 8, &[0])]] {
            shard
                .bring(&metadata(7 + links.len() as u64, &TOPICS, &links))
                .await;
            let dead = child(1, 6);
            let refused = poll_once(pin!(commit_here(&shared, &dead, copy(1)))).await;
            assert_eq!(refused, Some(STALE), "without any wait");
            let refused = poll_once(pin!(open_origin_here(&shared, &dead))).await;
            assert_eq!(refused, Some(Err(ErrorCode::StaleEpoch)));
            assert_eq!(shard.end("copy", 0), Offset(0));
        }
        assert_eq!(commit_here(&shared, &child(2, 8), copy(2)).await, ACKED);
    });
}
