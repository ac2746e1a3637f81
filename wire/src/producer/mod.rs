//! What a producer sends when, as a pure state machine: batches by partition, linger, sequences, retries.
//!
//! A partition with nothing in flight ships what it has at once; while a batch of it is in flight, the next one tops
//! up, until it is full or `linger` has passed. A batch stays in its partition once it is cut.
//!
//! With a producer id, batches of a partition are committed in order and once: after a failure the partition waits
//! until everything in flight has come back, then sends again from the first batch that was not acknowledged, under
//! the same sequences. When a batch fails for good, everything queued behind it in its partition fails with it, so
//! that no later record overtakes it. Without an id each batch stands alone, and one that may have been done is never
//! sent again.

pub mod action;
pub mod batcher;
mod lane;
