//! The removal of a deleted topic's data, on a shard on which the topic is not open.

use tailwater_node::partition::leftovers;
use tailwater_storage::disk::device::Disk;
use tailwater_storage::layout;
use tailwater_storage::proof::TopicGone;
use tailwater_wire::ids::Incarnation;

use crate::support::{name, on_a_shard};

/// A shard that stood still for longer than a change waits for it was told of a deletion when the name had been given
/// again: the topic was not open there, and the new one's data, which lay in the old one's place, was removed.
#[test]
fn what_was_not_marked_for_this_deletion_is_left_alone() {
    on_a_shard(2, |shard| async move {
        let partitions = &shard.shared.partitions;
        let (disk, data, topic) = (partitions.disk(), partitions.data(), name("ticks"));
        let directory = layout::topic_dir(data, &topic);
        disk.create_dir_all(&directory.join("p00000"))
            .await
            .expect("a directory");
        let (gone, next) = (Incarnation::from_u64(7), Incarnation::from_u64(8));
        let proof = TopicGone::by_leader(topic.clone(), gone, 1);
        for marked in [None, Some(next)] {
            if let Some(life) = marked {
                leftovers::mark(disk, data, &topic, life).await.expect("a mark");
            }
            partitions.remove_topic(&proof).await.expect("nothing to do");
            assert!(disk.list(&directory).await.is_ok(), "marked: {marked:?}");
        }
        leftovers::mark(disk, data, &topic, gone).await.expect("a mark");
        partitions.remove_topic(&proof).await.expect("removed");
        assert!(disk.list(&directory).await.is_err(), "what was meant is gone");
    });
}
