//! What a running system that stores records must be able to do, so that one workload measures all of them.

use crate::load::Sender;
use crate::peer::outcome::CpuTimes;

/// A topic as a cell needs it; a system without partitions has a stream for each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicPlan {
    /// Its name.
    pub name: &'static str,
    /// Its partitions.
    pub partitions: u32,
}

/// How producers send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LanePlan {
    /// Lanes, each a connection; the partitions are dealt out to them in turn, or all go to each if there is one.
    pub lanes: u32,
    /// Records of a batch and batches in flight in a closed loop; none in a paced load, where the client gathers.
    pub batches: Option<(usize, usize)>,
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// With the oldest record.
    Earliest,
    /// After the last one that is there now.
    Tail,
}

/// A reader of all partitions of a topic.
pub trait Reader {
    /// Waits for a while, and hands over each record that came: its value, without its key.
    ///
    /// # Errors
    /// When the system fails, or hands out something else than records.
    async fn read(&mut self, take: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()>;
}

/// A running system on an empty directory.
pub trait Store: Sized {
    /// What producers send by.
    type Lane: Sender + 'static;
    /// What consumers read by.
    type Reader: Reader + 'static;

    /// What it promises of a record that can be read: the label of rows that measure reading.
    fn durability(&self) -> &'static str;

    /// CPU times so far.
    ///
    /// # Errors
    /// When its process is gone.
    fn cpu(&self) -> anyhow::Result<CpuTimes>;

    /// Makes a topic.
    ///
    /// # Errors
    /// When the system refuses.
    async fn make(&self, topic: &TopicPlan) -> anyhow::Result<()>;

    /// Connects producers.
    ///
    /// # Errors
    /// When the system refuses.
    async fn lanes(&self, topic: &TopicPlan, plan: LanePlan) -> anyhow::Result<Vec<Self::Lane>>;

    /// Connects a reader, which misses nothing that is sent after this returns.
    ///
    /// # Errors
    /// When the system refuses.
    async fn reader(&self, topic: &TopicPlan, from: From) -> anyhow::Result<Self::Reader>;

    /// Checks what only the system can tell about what a closed loop sent, as that batches were what was meant.
    ///
    /// # Errors
    /// When the cell measured something else.
    async fn check(&self, topic: &TopicPlan, batch_records: usize) -> anyhow::Result<()>;
}

/// The partitions of one lane: every lane-th, or all.
#[must_use]
pub fn dealt(lane: u32, lanes: u32, partitions: u32) -> Vec<u32> {
    let own: Vec<u32> = (0..partitions)
        .filter(|partition| partition % lanes == lane)
        .collect();
    if own.is_empty() {
        vec![lane % partitions]
    } else {
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_dealt_so_that_each_has_a_lane() {
        assert_eq!(dealt(0, 1, 4), [0, 1, 2, 3]);
        assert_eq!((dealt(0, 4, 4), dealt(3, 4, 4)), (vec![0], vec![3]));
        assert_eq!((dealt(1, 2, 5), dealt(0, 2, 5)), (vec![1, 3], vec![0, 2, 4]));
        assert_eq!(dealt(5, 8, 2), [1], "more lanes than partitions share them");
    }
}
