//! The shard's commit loop and its upkeep: one flush for all partitions that have something to commit, again and
//! again; and between them what must not wait in a commit's way.

use std::rc::Rc;
use std::time::Duration;

use tailwater_storage::group_commit::commit_round;

use crate::clock::system::elapsed_since_boot;
use crate::partition::owner::{Partition, Partitions};

/// How often idle partitions are looked after.
const UPKEEP_EVERY: Duration = Duration::from_millis(250);
/// Every so many upkeep passes, retention is applied: 5 s.
const RETENTION_PASSES: u64 = 20;

/// Commits what is pending, one round after another, for the life of the shard. While one round is being flushed
/// the next one gathers (DESIGN.md section 4).
pub async fn commit_loop(partitions: Rc<Partitions>) {
    loop {
        let dirty = partitions.take_dirty().await;
        let logs: Vec<_> = dirty.iter().map(|partition| Rc::clone(&partition.log)).collect();
        let started = elapsed_since_boot();
        let clock = *partitions.clock();
        let outcome = commit_round(partitions.disk(), &logs, clock.now(), &|| elapsed_since_boot()).await;
        let counters = partitions.counters();
        counters.log_bytes.add(outcome.bytes);
        if let Some(sync) = outcome.sync_took {
            counters.fsync.record(sync.as_nanos() as u64);
        }
        if let Some(error) = &outcome.latched {
            counters.latched.add(outcome.latched_partitions as u64);
            let took_us = (elapsed_since_boot() - started).as_micros() as u64;
            tracing::error!(%error, partitions = outcome.latched_partitions, took_us, "a write or flush failed: partitions are read-only until the node is restarted");
        }
        for partition in dirty.iter().filter(|partition| partition.log.has_pending()) {
            partitions.mark_dirty(partition);
        }
    }
}

/// Prepares segments ahead, proves idle logs with a frontier batch, applies retention.
pub async fn upkeep_loop(partitions: Rc<Partitions>) {
    for pass in 1u64.. {
        glommio::timer::sleep(UPKEEP_EVERY).await;
        for partition in partitions.all() {
            upkeep(&partitions, &partition, pass.is_multiple_of(RETENTION_PASSES)).await;
        }
    }
}

async fn upkeep(partitions: &Partitions, partition: &Rc<Partition>, retention: bool) {
    let (log, now) = (&partition.log, partitions.clock().now());
    let describe = || format!("partition {} of `{}`", partition.id, partition.topic);
    if log.needs_preparation()
        && let Err(error) = log.prepare_next().await
    {
        tracing::warn!(%error, "cannot prepare a segment for {}", describe());
    }
    if log.needs_frontier(now) {
        log.push_frontier(now);
        partitions.mark_dirty(partition);
    }
    if retention {
        match log.apply_retention(now, partition.retention.get()).await {
            Ok(removed) => removed.iter().for_each(|segment| {
                tracing::info!(base = segment.base.0, end = segment.end.0, "retention removed a segment of {}", describe());
            }),
            Err(error) => tracing::warn!(%error, "retention failed on {}", describe()),
        }
    }
}
