//! What clients ask of the owner's clock, and the orders that this gives to its keeper. On any shard.

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::message::{ClockRequest, ClockStatus, Reply};

use crate::clock::order::ClockOrder;
use crate::clock::system::SystemClock;

/// Serves a client's request.
///
/// # Errors
/// `BUSY` and `DRAINING` when the keeper takes no order; `INTERNAL` when the clock was accepted and that could not be
/// stored, so that the next start may ask again.
pub async fn answer(clock: &SystemClock, request: ClockRequest) -> Result<Reply, Refusal> {
    match request {
        ClockRequest::Read => {}
        ClockRequest::Accept => accept(clock).await?,
    }
    Ok(Reply::Clocks(vec![status(clock)]))
}

/// The clock of this process, which all its shards share: told as shard 0's.
#[must_use]
pub fn status(clock: &SystemClock) -> ClockStatus {
    let (now, wall) = (clock.now().0, clock.reading().wall);
    ClockStatus {
        shard: 0,
        now,
        wall,
        held: clock.is_held(),
    }
}

/// In words, when the clock is held: what is the matter, and which command ends it.
#[must_use]
pub fn held_detail(clock: &SystemClock) -> Option<String> {
    let offset = clock.wall_offset() / 1_000_000_000;
    clock.is_held().then(|| {
        format!(
            "the owner's clock is held, and with it delay links and retention by time: the wall clock is {offset} s off \
             and nothing vouches for it; when it is right, run `tailwater clock accept`"
        )
    })
}

async fn accept(clock: &SystemClock) -> Result<(), Refusal> {
    let (answer, answered) = flume::bounded(1);
    order(clock, ClockOrder::Accept(answer))?;
    match answered.recv_async().await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => {
            let what = format!(
                "the wall clock is accepted, but that cannot be stored, and a restart may hold it again: {why}"
            );
            Err(Refusal::new(ErrorCode::Internal, what))
        }
        Err(_) => Err(draining()),
    }
}

/// Has the last reading stored, as the node stops.
pub async fn stop(clock: &SystemClock) {
    let (answer, answered) = flume::bounded(1);
    // A keeper that is gone, or that has more to do than it can, has stored a reading within the last seconds.
    if order(clock, ClockOrder::Stop(answer)).is_ok() {
        let _stored_or_logged = answered.recv_async().await;
    }
}

fn order(clock: &SystemClock, order: ClockOrder) -> Result<(), Refusal> {
    clock.keeper().try_send(order).map_err(|error| match error {
        flume::TrySendError::Full(_) => {
            Refusal::new(ErrorCode::Busy, "too many orders to the clock wait already")
        }
        flume::TrySendError::Disconnected(_) => draining(),
    })
}

fn draining() -> Refusal {
    Refusal::new(ErrorCode::Draining, "the node is shutting down")
}
