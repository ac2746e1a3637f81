//! The way of records out of a partition: slabs as they lie on disk, and the long wait at the tail.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use tailwater_storage::slab::{ReadLimits, Slab};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{CommitTime, Offset};
use tailwater_wire::limits::{FETCH_BYTES_MAX, FETCH_WAIT_MILLIS_MAX};
use tailwater_wire::message::{FetchRequest, Fetched, FindOffset, FoundOffset, Place};

use crate::partition::owner::{Partition, Partitions};
use crate::partition::refusal;

/// What a fetch found: the typed part of the reply, and the batches as they lie on disk.
pub struct FetchedSlab {
    /// The reply.
    pub reply: Fetched,
    /// Whole batches, run by run.
    pub runs: Vec<Bytes>,
}

/// Bytes that a fetch may return, but for a single batch that is larger.
#[must_use]
pub fn bytes_max(request: &FetchRequest) -> usize {
    (request.bytes_max as usize).clamp(1, FETCH_BYTES_MAX)
}

/// Reads what a client's fetch asks for and is there now.
///
/// # Errors
/// `STALE_LINEAGE`, `POSITION_AHEAD`, `POSITION_BEHIND` and what the disk says.
pub async fn fetch(
    partitions: &Partitions,
    partition: &Rc<Partition>,
    request: &FetchRequest,
) -> Result<FetchedSlab, Refusal> {
    let log = &partition.log;
    if request.lineage.is_some_and(|wanted| wanted != log.lineage()) {
        let what = format!(
            "partition {} of `{}` has a new history (lineage {}); positions of the old one mean nothing in it",
            partition.id,
            partition.topic,
            log.lineage()
        );
        return Err(Refusal::new(ErrorCode::StaleLineage, what));
    }
    let limits = ReadLimits {
        bytes_max: bytes_max(request),
        ..ReadLimits::default()
    };
    let slab = read(partitions, partition, request.from, limits).await?;
    let reply = Fetched {
        incarnation: partition.incarnation,
        lineage: log.lineage(),
        log_start: log.log_start(),
        high_water_mark: log.high_water_mark(),
        next: slab.next_offset,
        quarantined: slab
            .quarantined
            .iter()
            .map(|range| (range.start, range.end))
            .collect(),
    };
    Ok(FetchedSlab {
        reply,
        runs: slab.runs,
    })
}

/// Waits at the tail for what a client's fetch asks for, as long as the client wants to.
pub async fn wait(partition: &Partition, request: &FetchRequest) {
    let wait = Duration::from_millis(u64::from(request.wait_millis).min(FETCH_WAIT_MILLIS_MAX));
    at_most(wait, partition.log.beyond(request.from)).await;
}

/// Waits for something that may not come, at most so long. Only for waits of this shard's own: an operation of the
/// kernel must not be dropped half-way.
pub async fn at_most(wait: Duration, wanted: impl Future<Output = ()>) {
    let wanted = async {
        wanted.await;
        Ok(())
    };
    let _in_time_or_not = glommio::timer::timeout(wait, wanted).await;
}

async fn read(
    partitions: &Partitions,
    partition: &Partition,
    from: Offset,
    limits: ReadLimits,
) -> Result<Slab, Refusal> {
    let slab = partition
        .log
        .read(from, limits)
        .await
        .map_err(|error| refusal::read(partition, &error))?;
    partitions
        .counters()
        .corrupt_batches
        .add(slab.quarantined.len() as u64);
    Ok(slab)
}

/// Serves a client's question for a place in the log.
///
/// # Errors
/// What the disk says.
pub async fn find_offset(partition: &Partition, request: &FindOffset) -> Result<FoundOffset, Refusal> {
    let log = &partition.log;
    let offset = match request.at {
        Place::Earliest => log.log_start(),
        Place::Tail => log.high_water_mark(),
        Place::Time(at) => log
            .find_time(CommitTime(at))
            .await
            .map_err(|error| refusal::read(partition, &error))?,
    };
    Ok(FoundOffset {
        offset,
        log_start: log.log_start(),
        high_water_mark: log.high_water_mark(),
        incarnation: partition.incarnation,
        lineage: log.lineage(),
    })
}
