//! What earlier processes left on disk: deleted topics whose removal did not end, and lives of topics that are over.
//!
//! That the metastore does not know a topic is no proof that it was deleted: the metadata may have been lost, or
//! restored from an older copy. So a deletion leaves a mark beside the data before it is proposed, and data without
//! that mark is never removed at a start, whatever the metastore says.

use std::path::{Path, PathBuf};

use tailwater_storage::disk::device::{BLOCK, Disk, DiskResult, File, OpenMode};
use tailwater_storage::layout::{self, PartitionEntry, TopicsEntry};
use tailwater_storage::segment::format::SegmentHeader;
use tailwater_wire::ids::{Incarnation, TopicName};

/// Marks a topic's data, durably, as about to be deleted in this life.
///
/// # Errors
/// The disk's; the deletion must not be proposed then.
pub async fn mark<D: Disk>(
    disk: &D,
    data: &Path,
    topic: &TopicName,
    incarnation: Incarnation,
) -> DiskResult<()> {
    let dir = layout::topic_dir(data, topic);
    disk.create_dir_all(&dir).await?;
    disk.write_small(&mark_path(data, topic, incarnation), b"")
        .await?;
    disk.sync_dir(&dir).await
}

/// Takes the mark back: the deletion was refused.
///
/// # Errors
/// The disk's. A mark that stays does no harm: it still takes the metadata leader's word to delete anything.
pub async fn unmark<D: Disk>(
    disk: &D,
    data: &Path,
    topic: &TopicName,
    incarnation: Incarnation,
) -> DiskResult<()> {
    disk.remove_file(&mark_path(data, topic, incarnation)).await
}

/// Whether a topic's data was marked in this life.
pub async fn is_marked<D: Disk>(disk: &D, data: &Path, topic: &TopicName, incarnation: Incarnation) -> bool {
    let mark = disk.read_small(&mark_path(data, topic, incarnation)).await;
    mark.is_ok_and(|mark| mark.is_some())
}

fn mark_path(data: &Path, topic: &TopicName, incarnation: Incarnation) -> PathBuf {
    layout::topic_dir(data, topic).join(format!("deleting-{incarnation}"))
}

/// Removes topics that were renamed aside to be deleted. What cannot be removed is tried again at the next start.
pub async fn remove_deleted<D: Disk>(disk: &D, data: &Path) {
    let topics = layout::topics_dir(data);
    for entry in disk.list(&topics).await.unwrap_or_default() {
        if !matches!(layout::parse_topics_entry(&entry.name), TopicsEntry::Deleted(..)) {
            continue;
        }
        if let Err(error) = disk.remove_dir_all(&topics.join(&entry.name)).await {
            tracing::warn!(%error, "cannot remove a deleted topic's data; trying again at the next start");
        }
    }
}

/// The topics that have data under a name, and the life that the data is of. What cannot be read is left out: it is
/// told when its partition is opened.
pub async fn lives<D: Disk>(disk: &D, data: &Path) -> Vec<(TopicName, Incarnation)> {
    let mut found = Vec::new();
    for entry in disk.list(&layout::topics_dir(data)).await.unwrap_or_default() {
        if let TopicsEntry::Live(topic) = layout::parse_topics_entry(&entry.name)
            && let Some(incarnation) = life_of(disk, &layout::topic_dir(data, &topic)).await
        {
            found.push((topic, incarnation));
        }
    }
    found
}

async fn life_of<D: Disk>(disk: &D, topic: &Path) -> Option<Incarnation> {
    for partition in disk.list(topic).await.ok()?.iter().filter(|entry| entry.is_dir) {
        let dir = topic.join(&partition.name);
        for entry in disk.list(&dir).await.ok()? {
            if !matches!(
                layout::parse_partition_entry(&entry.name),
                PartitionEntry::Segment(_)
            ) {
                continue;
            }
            let file = disk.open(&dir.join(&entry.name), OpenMode::Read).await.ok()?;
            let block = file.read_at(0, BLOCK).await.ok()?;
            if let Ok(header) = SegmentHeader::decode(&block) {
                return Some(header.incarnation);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk};

    use super::*;

    #[test]
    fn a_mark_is_of_one_life_and_survives_a_power_cut() {
        let (disk, data) = (MemoryDisk::new(1), Path::new("/data"));
        let topic: TopicName = "orders".parse().expect("a name");
        let (this, other) = (Incarnation::from_u64(1), Incarnation::from_u64(2));
        block_on(mark(&disk, data, &topic, this)).expect("marked");
        let disk = disk.crash(CrashPlan::LoseAll);
        assert!(block_on(is_marked(&disk, data, &topic, this)));
        assert!(
            !block_on(is_marked(&disk, data, &topic, other)),
            "another life is not meant"
        );
        block_on(unmark(&disk, data, &topic, this)).expect("taken back");
        assert!(!block_on(is_marked(&disk, data, &topic, this)));
    }
}
