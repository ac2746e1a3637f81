//! What earlier processes left on disk: deleted topics whose removal did not end, and lives of topics that are over.

use std::path::Path;

use tailwater_storage::disk::device::{BLOCK, Disk, File, OpenMode};
use tailwater_storage::layout::{self, PartitionEntry, TopicsEntry};
use tailwater_storage::segment::format::SegmentHeader;
use tailwater_wire::ids::{Incarnation, TopicName};

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
