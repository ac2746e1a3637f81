//! What the keeper of the owner's clock is told to do, by any shard.

/// Orders that may wait for the keeper; one more is refused as busy.
pub const ORDERS_MAX: usize = 16;

/// What the keeper is told to do. It answers when the result is durable, or says why it is not.
#[derive(Debug)]
pub enum ClockOrder {
    /// An operator vouches for the wall clock.
    Accept(flume::Sender<Result<(), String>>),
    /// The node stops: store a last reading, and end.
    Stop(flume::Sender<Result<(), String>>),
}
