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

/// Joins two shards' parts of one link's details, by partition.
#[must_use]
pub fn join_details(whole: LinkDetail, part: LinkDetail) -> LinkDetail {
    let LinkDetail { mut status, buckets } = whole;
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
