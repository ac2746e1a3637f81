//! `partition reset-clock`: a partition that was stamped in a false future goes on with the present clock (SPEC.md G6).

use tailwater_storage::log::era::EndEraError;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::message::{Reply, ResetClock};

use crate::clock::service::{self, held_detail};
use crate::partition::owner::Partitions;
use crate::partition::refusal;

/// Ends the partition's era, if it is stamped ahead of the owner's clock; else there is nothing to do. A repeat is harmless.
///
/// # Errors
/// `CLOCK_HELD` while the clock is held: it may be far behind then, and what was committed at the right time would count
/// as committed earlier, and be released too early. `BUSY`, `DISK_FULL`, `OUTCOME_UNKNOWN` and what `find` refuses.
pub async fn reset(partitions: &Partitions, request: &ResetClock) -> Result<Reply, Refusal> {
    let clock = partitions.clock();
    if let Some(detail) = held_detail(clock) {
        return Err(Refusal::new(ErrorCode::ClockHeld, detail));
    }
    let partition = partitions.find(&request.topic, None, request.partition)?;
    partition
        .log
        .end_era(clock.now())
        .await
        .map_err(|error| match error {
            EndEraError::Busy => Refusal::new(ErrorCode::Busy, error.to_string()),
            EndEraError::TooMany(_) => Refusal::new(ErrorCode::InvalidRequest, error.to_string()),
            EndEraError::Commit(error) => refusal::commit(&partition, &error),
        })?;
    Ok(Reply::ClockReset(service::status(clock)))
}
