//! What shards ask of each other. Everything here crosses cores: bytes are copies of their own, never views of a
//! shard's read buffers or budget.

use bytes::Bytes;

use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Offset, OriginId, PartitionId, TopicName};
use tailwater_wire::message::{FetchRequest, Reply, Request};

/// A child partition, as a cursor on another shard names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The child topic.
    pub topic: TopicName,
    /// Its partition.
    pub bucket: PartitionId,
    /// The link's epoch and the parent partition.
    pub origin: OriginId,
    /// The metadata index of the link: an owner that knows less catches up first (SPEC.md F8).
    pub index: u64,
}

/// From one shard to another.
#[derive(Debug)]
pub enum ShardRequest {
    /// What a child partition has of an origin.
    OpenOrigin(Child),
    /// Commit a child batch, flushed.
    Commit {
        /// Where.
        child: Child,
        /// Header and body.
        batch: Bytes,
    },
    /// A client's request for a partition of that shard, which came in here. A fetch does not wait at the tail: that is
    /// `Wait`.
    Client {
        /// Which.
        request: Request,
        /// A produce's batch.
        payload: Bytes,
    },
    /// Answered when a fetch would find something, or its time is over.
    Wait(FetchRequest),
    /// That shard's part of an answer that is put together from all shards.
    Part(Request),
}

/// What became of a child batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitReply {
    /// It is flushed in the child.
    Acked {
        /// Whether it had been there before.
        duplicate: bool,
    },
    /// The child has another watermark, flushed; nothing was appended.
    Expected(Offset),
    /// It failed, or nobody knows.
    Failed(ErrorCode),
}

/// The answer to a [`ShardRequest`].
#[derive(Debug)]
pub enum ShardReply {
    /// To `OpenOrigin`: the flushed watermark, and what the child remembers of the parent.
    Opened(Result<(Offset, Option<OriginMark>), ErrorCode>),
    /// To `Commit`.
    Committed(CommitReply),
    /// To `Client` and `Part`: the reply, and the batches of a fetch.
    Client(Box<Result<(Reply, Bytes), Refusal>>),
    /// To `Wait`.
    Waited,
}

impl ShardRequest {
    /// Requests that wait for the world, and those that are answered as fast as a disk allows, have credits of their own:
    /// a thousand readers at the tail must not hold up a commit.
    #[must_use]
    pub fn waits(&self) -> bool {
        matches!(self, ShardRequest::Wait(_))
    }
}
