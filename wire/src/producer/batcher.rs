//! All partitions of one producer: routes records, begins batches, and lets each partition send what it may.

use std::time::Duration;

use crate::batch::builder::{BatchBuilder, PushError};
use crate::ids::PartitionId;
use crate::producer::action::{Action, BatchId, BatcherConfig, Event};
use crate::producer::lane::Lane;
use crate::record::Record;

/// Emptied builders kept for their memory.
const SPARE_BUILDERS_MAX: usize = 16;

/// The state machine of a producer; see [`crate::producer`].
#[derive(Debug)]
pub struct Batcher {
    config: BatcherConfig,
    lanes: Vec<Lane>,
    next_batch: BatchId,
    /// The partition of records without keys, until its batch is cut.
    keyless: usize,
    spare: Vec<BatchBuilder>,
}

impl Batcher {
    /// With nothing pushed.
    ///
    /// # Panics
    /// When there are no partitions, or a batch could never be filled or sent.
    #[must_use]
    pub fn new(config: BatcherConfig) -> Batcher {
        assert!(config.partitions > 0 && config.in_flight > 0 && config.batch_records > 0);
        let lane = |partition| Lane::new(PartitionId(partition), config.idempotence);
        Batcher {
            lanes: (0..config.partitions).map(lane).collect(),
            keyless: (config.first_keyless % config.partitions) as usize,
            config,
            next_batch: 1,
            spare: Vec::new(),
        }
    }

    /// Where a record goes: by its key; without one, with the batch without keys that is being filled. That passes
    /// by partitions that are failing (SPEC.md D10); a batch that was begun in one stays there.
    #[must_use]
    pub fn route(&mut self, record: &Record) -> PartitionId {
        if let Some(key) = record.key.as_deref() {
            let partitioner = self.config.partitioner;
            return partitioner.partition(partitioner.hash(key), self.config.partitions);
        }
        if !self.lanes[self.keyless].is_healthy() {
            self.turn_keyless();
        }
        PartitionId(self.keyless as u32)
    }

    fn turn_keyless(&mut self) {
        let count = self.lanes.len();
        let healthy = (1..=count)
            .map(|step| (self.keyless + step) % count)
            .find(|&next| self.lanes[next].is_healthy());
        self.keyless = healthy.unwrap_or((self.keyless + 1) % count);
    }

    /// Takes a record into a partition; it has the returned place within the returned batch. Follow it with
    /// [`Event::Tick`].
    ///
    /// # Errors
    /// A record over a limit; `None` for a partition that the topic does not have.
    pub fn push(
        &mut self,
        partition: PartitionId,
        record: &Record,
        now: Duration,
    ) -> Result<(BatchId, u32), Option<PushError>> {
        let lane = self.lanes.get_mut(partition.0 as usize).ok_or(None)?;
        match lane.push(record, self.config.batch_records) {
            Ok(place) => return Ok(place),
            Err(PushError::Full) => {}
            Err(error) => return Err(Some(error)),
        }
        let mut builder = self
            .spare
            .pop()
            .unwrap_or_else(|| BatchBuilder::new(self.config.partitioner, self.config.batch_bytes));
        if let Err(error) = builder.push(record) {
            self.spare.push(builder);
            return Err(Some(error));
        }
        let id = self.next_batch;
        self.next_batch += 1;
        lane.begin(id, builder, now);
        Ok((id, 0))
    }

    /// Whether nothing is waiting or in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lanes.iter().all(Lane::is_idle)
    }

    /// When to come back with [`Event::Tick`], if nothing else happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        self.lanes
            .iter()
            .filter_map(|lane| lane.wake_at(&self.config))
            .min()
    }

    /// The sequence of the last record that was cut in a partition, and whether a producer is open there.
    #[must_use]
    pub fn sequence(&self, partition: PartitionId) -> Option<u64> {
        self.lanes.get(partition.0 as usize).and_then(Lane::sequence)
    }

    /// Takes an event and says what to do, in order.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut out = Vec::new();
        match event {
            Event::Opened { partition, result } => {
                let index = partition.0 as usize;
                self.lanes[index].opened(result, now, &mut out);
                self.pump(index, now, &mut out);
            }
            Event::Settled {
                partition,
                batch,
                resent,
                result,
            } => {
                let index = partition.0 as usize;
                self.lanes[index].settled(batch, resent, result, now, &mut out);
                self.pump(index, now, &mut out);
            }
            Event::Reroute { partition } => {
                if let Some(lane) = self.lanes.get_mut(partition.0 as usize) {
                    lane.reroute();
                    self.pump(partition.0 as usize, now, &mut out);
                }
            }
            Event::Flush => {
                for index in 0..self.lanes.len() {
                    self.lanes[index].flush();
                    self.pump(index, now, &mut out);
                }
            }
            Event::Tick => (0..self.lanes.len()).for_each(|index| self.pump(index, now, &mut out)),
        }
        out
    }

    /// Sends what a partition may send now.
    fn pump(&mut self, index: usize, now: Duration, out: &mut Vec<Action>) {
        let lane = &mut self.lanes[index];
        if lane.is_idle() || !lane.prepare(now, &self.config, out) {
            return;
        }
        let mut cut_any = false;
        while lane.may_cut(now, &self.config) {
            cut_any = true;
            let builder = lane.cut(&self.config, out);
            if self.spare.len() < SPARE_BUILDERS_MAX {
                self.spare.push(builder);
            }
        }
        if cut_any && index == self.keyless {
            self.turn_keyless();
        }
    }
}
