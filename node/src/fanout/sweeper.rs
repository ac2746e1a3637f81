//! Removes what dead links have left: cursor files beside the logs, and what children remember of their origins. Each
//! removal takes the metadata leader's word (SPEC.md F7, F8).

use std::collections::BTreeSet;

use tailwater_storage::cursor_file;
use tailwater_storage::disk::device::Disk;
use tailwater_storage::layout::{CursorPath, PartitionEntry, parse_partition_entry};
use tailwater_wire::ids::Epoch;

use crate::fanout::desired::CursorKey;
use crate::fanout::diff::{self, Sweep};
use crate::fanout::ledger;
use crate::fanout::shared::Shared;
use crate::partition::owner::Partition;

/// One sweep over the partitions of this shard. `in_use` says which cursors run or should.
pub async fn sweep(shared: &Shared, in_use: impl Fn(&CursorKey) -> bool) {
    let mut doubtful = BTreeSet::new();
    let metadata = shared.metadata();
    for partition in shared.partitions.all() {
        cursor_files(shared, &partition, &in_use).await;
        let of_no_link = |epoch: &Epoch| metadata.link_by_epoch(&partition.topic, *epoch).is_none();
        let origins = partition.log.origins().into_iter();
        // A child has an origin for each partition of its parent, and they share the epoch.
        let epochs: BTreeSet<Epoch> = origins.map(|origin| origin.epoch).collect();
        doubtful.extend(epochs.into_iter().filter(of_no_link));
        // One partition at a time: the next one's turn comes after whoever else is ready.
        glommio::yield_if_needed().await;
    }
    for epoch in doubtful {
        if let Ok(Some(gone)) = shared.confirm_epoch_gone(epoch).await {
            for partition in shared.partitions.all() {
                partition.log.forget_origins(&gone);
            }
        }
    }
}

async fn cursor_files(shared: &Shared, partition: &Partition, in_use: &impl Fn(&CursorKey) -> bool) {
    let (disk, data) = (shared.partitions.disk(), shared.partitions.data());
    let entries = disk.list(partition.log.dir()).await.unwrap_or_default();
    for entry in entries {
        let (child, is_ledger) = match parse_partition_entry(&entry.name) {
            PartitionEntry::Cursor(child) => (child, false),
            PartitionEntry::Gaps(child) => (child, true),
            _ => continue,
        };
        let key = CursorKey {
            parent: partition.topic.clone(),
            partition: partition.id,
            child,
        };
        // Thousands are, and none of them needs to be read to know it.
        if in_use(&key) {
            continue;
        }
        if is_ledger {
            ledger::sweep(shared, &key, in_use(&key)).await;
            continue;
        }
        let at = CursorPath::new(data, &key.parent, key.partition, &key.child);
        // Read before the leader is asked: its word is about what was seen.
        let Ok(seen) = cursor_file::read(disk, &at).await else {
            continue;
        };
        if diff::sweep(&key, &seen, in_use(&key), None) != Sweep::Ask {
            continue;
        }
        let Ok(word) = shared.confirm_link(&key.parent, &key.child).await else {
            continue;
        };
        let Sweep::Remove(proof) = diff::sweep(&key, &seen, in_use(&key), Some(&word)) else {
            continue;
        };
        match cursor_file::remove(disk, &at, &seen, proof).await {
            Ok(()) => tracing::info!(file = %at.path().display(), "removed the cursor file of a dead link"),
            Err(cursor_file::CursorFileError::NotConfirmed | cursor_file::CursorFileError::Changed(_)) => {}
            Err(error) => tracing::warn!(%error, "cannot remove a cursor file; trying again later"),
        }
    }
}
