//! How far links are, put together from the shards that run their cursors.

use tailwater_wire::message::{LinkDetail, LinkStatus};

/// Joins what two shards say: the cursors of the same attachment come together, by partition.
#[must_use]
pub fn join_links(mut whole: Vec<LinkStatus>, part: Vec<LinkStatus>) -> Vec<LinkStatus> {
    for more in part {
        match whole
            .iter_mut()
            .find(|status| status.link.epoch == more.link.epoch)
        {
            Some(status) => {
                status.cursors.extend(more.cursors);
                status.cursors.sort_by_key(|cursor| cursor.partition);
            }
            // Its shard has newer metadata than the others.
            None => whole.push(more),
        }
    }
    whole
}

/// Joins two shards' parts of one link's details, by partition. Where they speak of two attachments of the pair, the newer
/// one is what is described, and a cursor of the older one is told by its epoch.
#[must_use]
pub fn join_details(whole: LinkDetail, part: LinkDetail) -> LinkDetail {
    let LinkDetail { mut status, buckets } = whole;
    if part.status.link.index > status.link.index {
        status.link = part.status.link;
    }
    let mut both: Vec<_> = std::mem::take(&mut status.cursors)
        .into_iter()
        .zip(buckets)
        .chain(part.status.cursors.into_iter().zip(part.buckets))
        .collect();
    both.sort_by_key(|(cursor, _)| cursor.partition);
    let buckets;
    (status.cursors, buckets) = both.into_iter().unzip();
    LinkDetail { status, buckets }
}

#[cfg(test)]
mod tests {
    use tailwater_wire::ids::{Epoch, Incarnation, Offset, PartitionId};
    use tailwater_wire::message::{BucketStatus, CursorStatus};
    use tailwater_wire::meta::{Link, LinkOptions};

    use super::*;

    /// A link from `ticks` with the cursors of these partitions; its epoch is also the index of its attach.
    fn status(child: &str, epoch: u8, partitions: &[u32]) -> LinkStatus {
        let cursor = |&partition: &u32| CursorStatus {
            partition: PartitionId(partition),
            epoch: Epoch([epoch; 8]),
            position: Offset(u64::from(partition)),
            parent_high_water_mark: Offset(100),
            due_lag_millis: 0,
            next_due: None,
            committed: 0,
            filtered: 0,
            dropped: 0,
            duplicates: 0,
            stalled: None,
        };
        LinkStatus {
            link: Link {
                parent: "ticks".parse().expect("a name"),
                child: child.parse().expect("a name"),
                epoch: Epoch([epoch; 8]),
                parent_incarnation: Incarnation([1; 8]),
                child_incarnation: Incarnation([2; 8]),
                options: LinkOptions::default(),
                attach_offsets: vec![Offset(0); 8],
                index: u64::from(epoch),
            },
            cursors: partitions.iter().map(cursor).collect(),
        }
    }

    /// The same in detail: one bucket for each cursor, which stands where its cursor does.
    fn detail(epoch: u8, partitions: &[u32]) -> LinkDetail {
        let bucket = |&partition: &u32| BucketStatus {
            partition: PartitionId(0),
            position: Offset(u64::from(partition)),
            committed: 0,
            dropped: 0,
            stalled: None,
        };
        LinkDetail {
            status: status("copy", epoch, partitions),
            buckets: partitions.iter().map(|p| vec![bucket(p)]).collect(),
        }
    }

    fn check_links(shards: Vec<Vec<LinkStatus>>, expected: &[(&str, u8, &[u32])]) {
        let told = |status: &LinkStatus| {
            let cursors: Vec<u32> = status.cursors.iter().map(|cursor| cursor.partition.0).collect();
            (status.link.child.to_string(), status.link.epoch.0[0], cursors)
        };
        let joined: Vec<_> = shards
            .into_iter()
            .fold(Vec::new(), join_links)
            .iter()
            .map(told)
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(child, epoch, partitions)| ((*child).to_owned(), *epoch, partitions.to_vec()))
            .collect();
        assert_eq!(joined, expected);
    }

    #[test]
    fn cursors_of_one_attachment_come_together_by_partition() {
        check_links(
            vec![
                vec![status("copy", 1, &[2, 5]), status("late", 2, &[])],
                vec![status("copy", 1, &[0, 7]), status("late", 2, &[1])],
                vec![status("copy", 1, &[]), status("late", 2, &[0])],
            ],
            &[("copy", 1, &[0, 2, 5, 7]), ("late", 2, &[0, 1])],
        );
    }

    #[test]
    fn a_link_that_one_shard_alone_knows_is_listed_once_whichever_shard_it_is() {
        for knows in 0..3 {
            let shard = |number: usize| {
                let mut links = vec![status("copy", 1, &[number as u32])];
                links.extend((number == knows).then(|| status("new", 2, &[4])));
                links
            };
            check_links(
                (0..3).map(shard).collect(),
                &[("copy", 1, &[0, 1, 2]), ("new", 2, &[4])],
            );
        }
    }

    #[test]
    fn two_attachments_of_one_pair_are_not_taken_for_one() {
        check_links(
            vec![
                vec![status("copy", 1, &[3])],
                vec![status("copy", 2, &[0])],
                vec![status("copy", 1, &[1])],
            ],
            &[("copy", 1, &[1, 3]), ("copy", 2, &[0])],
        );
    }

    fn check_detail(shards: Vec<LinkDetail>, epoch: u8, expected: &[(u32, u8)]) {
        let joined = shards.into_iter().reduce(join_details).expect("a shard");
        assert_eq!(joined.status.link.epoch, Epoch([epoch; 8]));
        let cursors = &joined.status.cursors;
        let told: Vec<_> = cursors.iter().map(|c| (c.partition.0, c.epoch.0[0])).collect();
        assert_eq!(told, expected);
        assert_eq!(joined.buckets.len(), cursors.len());
        for (cursor, buckets) in cursors.iter().zip(&joined.buckets) {
            assert_eq!(
                buckets[0].position, cursor.position,
                "partition {}",
                cursor.partition
            );
        }
    }

    #[test]
    fn buckets_stay_with_their_cursors_and_both_are_in_order() {
        check_detail(
            vec![
                detail(1, &[2, 5]),
                detail(1, &[]),
                detail(1, &[0, 7]),
                detail(1, &[1]),
            ],
            1,
            &[(0, 1), (1, 1), (2, 1), (5, 1), (7, 1)],
        );
    }

    /// The incident: while an attach came into force on one shard after another, `link describe` could name the
    /// attachment that was over, with the cursors of the new one below it.
    #[test]
    fn of_two_attachments_the_newer_is_described_whoever_knows_it() {
        for epochs in [[1, 2], [2, 1]] {
            let shards = vec![detail(epochs[0], &[1]), detail(epochs[1], &[0])];
            check_detail(shards, 2, &[(0, epochs[1]), (1, epochs[0])]);
        }
    }
}
