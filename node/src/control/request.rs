//! What shards and the control thread ask of each other. All channels are bounded; every request has its own reply.

use std::sync::Arc;

use tailwater_storage::proof::{EpochGone, LeaderConfirmed, TopicGone};
use tailwater_wire::code::Refusal;
use tailwater_wire::ids::{Epoch, Incarnation, Offset, PartitionId, TopicName};
use tailwater_wire::message::{Reply, Request};
use tailwater_wire::meta::{AttachFrom, MetaSnapshot};

use crate::telemetry::links::LinkTotals;

/// Requests that a shard may have waiting at the control thread.
pub const CONTROL_QUEUE: usize = 1_024;
/// Commands that the control thread may have waiting at a shard.
pub const SHARD_QUEUE: usize = 256;

/// Where an answer goes; a channel of one.
pub type Answer<T> = flume::Sender<T>;

/// From a shard to the control thread.
pub enum ControlRequest {
    /// A client's request that changes metadata.
    Client {
        /// Which.
        request: Request,
        /// The answer for the client.
        answer: Answer<Result<Reply, Refusal>>,
    },
    /// Is this link live, says the metadata leader? (SPEC.md F7)
    ConfirmLink {
        /// The topic that is copied.
        parent: TopicName,
        /// The topic that receives the copies.
        child: TopicName,
        /// The leader's word, or why there is none.
        answer: Answer<Result<LeaderConfirmed, Refusal>>,
    },
    /// Is this epoch no live link's any more, says the metadata leader? `None` when it is live.
    ConfirmGone {
        /// The attachment.
        epoch: Epoch,
        /// The leader's word, or why there is none.
        answer: Answer<Result<Option<EpochGone>, Refusal>>,
    },
    /// Is this life of a topic over, says the metadata leader? `None` when it is live.
    ConfirmTopicGone {
        /// Its name.
        topic: TopicName,
        /// The life.
        incarnation: Incarnation,
        /// The leader's word, or why there is none.
        answer: Answer<Result<Option<TopicGone>, Refusal>>,
    },
    /// The shard is broken beyond its own means; the process has to end.
    Fatal {
        /// Why, for the last line of the log.
        why: String,
    },
}

/// From the control thread to a shard. All that the control thread asks of several shards, it asks side by side.
pub enum ShardCommand {
    /// Before the first metadata, to one shard: remove what earlier processes left of lives that are over.
    Clean {
        /// What lives.
        snapshot: Arc<MetaSnapshot>,
        /// When it is removed, or left for want of proof.
        done: Answer<()>,
    },
    /// Every shard has its partitions open: let clients in.
    Serve,
    /// New metadata; answered when topics are opened or closed and cursors started or stopped accordingly.
    Metadata {
        /// All of it.
        snapshot: Arc<MetaSnapshot>,
        /// When it is in force.
        done: Answer<()>,
    },
    /// Where a new link would start in each partition of the parent that the shard owns, after every cursor of the pair
    /// there has stopped.
    AttachPoint {
        /// The topic to copy.
        parent: TopicName,
        /// Its life.
        incarnation: Incarnation,
        /// The topic that is to receive the copies.
        child: TopicName,
        /// Where to start.
        from: AttachFrom,
        /// An offset for each partition of the shard.
        answer: Answer<Result<Vec<(PartitionId, Offset)>, Refusal>>,
    },
    /// Answered when no cursor of this epoch runs any more and what it had in flight is settled.
    Settle {
        /// The attachment that was ended.
        epoch: Epoch,
        /// When it is settled.
        done: Answer<()>,
    },
    /// Mark a topic's data as about to be deleted, or take the mark back, durably: without it no later start removes
    /// anything.
    MarkTopic {
        /// Its name.
        topic: TopicName,
        /// The life that is meant.
        incarnation: Incarnation,
        /// Whether to set the mark.
        set: bool,
        /// Whether it was done.
        answer: Answer<Result<(), Refusal>>,
    },
    /// Remove the data of a topic's life that the metadata leader has confirmed to be over.
    RemoveTopic {
        /// The leader's word.
        gone: TopicGone,
        /// When it is removed.
        done: Answer<()>,
    },
    /// How far the links are, by their cursors on this shard.
    LinkTotals(Answer<LinkTotals>),
    /// Take no more requests, and stop the cursors: what they had in flight is settled, their positions are stored. Other
    /// shards' cursors are still served.
    Drain(Answer<()>),
    /// No shard has cursors any more: commit what was accepted, close the logs.
    Close(Answer<()>),
    /// Every log of the node is closed: let clients take their last answers, and end.
    End,
}
