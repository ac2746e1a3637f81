//! The shard's commit loop and its upkeep: one flush for all partitions that have something to commit, again and
//! again; and between them what must not wait in a commit's way.

use std::rc::Rc;
use std::time::Duration;

use tailwater_storage::error::CommitError;
use tailwater_storage::log::round::commit_round_timed;

use crate::clock::system::elapsed_since_boot;
use crate::partition::owner::{Partition, Partitions};

/// How often idle partitions are looked after.
const UPKEEP_EVERY: Duration = Duration::from_millis(250);
/// How long to wait after a segment could not be prepared.
const PREPARE_AGAIN: Duration = Duration::from_secs(5);

/// Commits what is pending, one round after another, for the life of the shard. While one round is being flushed
/// the next one gathers (DESIGN.md section 4). A partition that needs a new segment takes part again when it has it.
pub async fn commit_loop(partitions: Rc<Partitions>) {
    loop {
        let mut dirty = partitions.take_dirty().await;
        for partition in dirty.extract_if(.., |partition| partition.log.needs_roll()) {
            glommio::spawn_local(roll(Rc::clone(&partitions), partition)).detach();
        }
        let logs: Vec<_> = dirty.iter().map(|partition| Rc::clone(&partition.log)).collect();
        let now = partitions.clock().now();
        let outcome = commit_round_timed(partitions.disk(), &logs, now, &elapsed_since_boot).await;
        let counters = partitions.counters();
        counters.log_bytes.add(outcome.bytes);
        counters.latched.add(outcome.latched as u64);
        if outcome.partitions > 0 {
            counters.fsync.record(outcome.flush_time.as_nanos() as u64);
        }
        for partition in &dirty {
            if partition.log.needs_round() {
                partitions.mark_dirty(partition);
            }
            prepare_ahead(partition);
        }
    }
}

/// Prepares segments ahead, and proves idle logs with a frontier batch. Retention has a loop of its own
/// ([`accounting`](crate::fanout::accounting)): it may read for long.
pub async fn upkeep_loop(partitions: Rc<Partitions>) {
    loop {
        glommio::timer::sleep(UPKEEP_EVERY).await;
        for partition in partitions.all() {
            upkeep(&partitions, &partition);
        }
    }
}

/// In a task of its own: several flushes, one after another, for which the shard's other partitions do not wait.
async fn roll(partitions: Rc<Partitions>, partition: Rc<Partition>) {
    let (began, now) = (elapsed_since_boot(), partitions.clock().now());
    let Some(outcome) = partition.log.roll_if_needed(now).await else {
        return;
    };
    let counters = partitions.counters();
    let took = elapsed_since_boot().saturating_sub(began);
    counters.roll.record(took.as_nanos() as u64);
    if matches!(outcome, Err(CommitError::OutcomeUnknown(_))) {
        counters.latched.add(1);
    }
    if partition.log.needs_round() {
        partitions.mark_dirty(&partition);
    }
    prepare_ahead(&partition);
}

/// Has the next segment made ready as soon as one is wanted: a fast producer fills the rest of the active one in a
/// fraction of a second, and a roll that finds nothing ready has to wait for the zeroing.
fn prepare_ahead(partition: &Rc<Partition>) {
    if partition.log.needs_preparation() && !partition.preparing.replace(true) {
        glommio::spawn_local(prepare(Rc::clone(partition))).detach();
    }
}

/// In a task of its own: zeroing takes a while, and nobody waits for it.
async fn prepare(partition: Rc<Partition>) {
    if let Err(error) = partition.log.prepare_next().await {
        tracing::warn!(%error, topic = %partition.topic, partition = partition.id.0, "cannot prepare a segment; trying again");
        glommio::timer::sleep(PREPARE_AGAIN).await;
    }
    partition.preparing.set(false);
}

fn upkeep(partitions: &Partitions, partition: &Rc<Partition>) {
    let log = &partition.log;
    prepare_ahead(partition);
    if log.needs_frontier(partitions.clock().now()) {
        log.push_frontier();
        partitions.mark_dirty(partition);
    }
}
