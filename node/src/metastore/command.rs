//! What can be asked of the metadata: the commands of the replicated log, and what became of them.

use serde::{Deserialize, Serialize};
use tailwater_wire::code::Refusal;
use tailwater_wire::ids::{Epoch, Incarnation, Offset, OwnerEpoch, TopicName};
use tailwater_wire::meta::{Durability, Link, LinkOptions, Retention, Topic, TopicSpec};

/// Chosen by the client; a repeated attach with the same id returns the first result (SPEC.md F6).
pub type RequestId = [u8; 16];

/// One change of the metadata. Whatever is random or was read elsewhere stands inside, so that every replica that
/// applies it comes to the same state. Commands are kept in the log as JSON: variants and fields are only added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Make a topic. Repeating it with the same incarnation and spec changes nothing and succeeds.
    CreateTopic {
        /// Name and settings.
        spec: TopicSpec,
        /// Random, drawn by the proposer.
        incarnation: Incarnation,
    },
    /// Remove a topic. Refused while it is the parent or child of a live link.
    DeleteTopic {
        /// Its name.
        name: TopicName,
        /// The life that is meant; any without one.
        incarnation: Option<Incarnation>,
    },
    /// Change settings of a topic.
    AlterTopic {
        /// Its name.
        name: TopicName,
        /// The life that is meant; any without one.
        incarnation: Option<Incarnation>,
        /// What changes.
        change: TopicChange,
    },
    /// Attach a child to a parent.
    Attach(Attach),
    /// End a link.
    Detach {
        /// The topic that is copied.
        parent: TopicName,
        /// The topic that receives the copies.
        child: TopicName,
        /// The attachment that is meant.
        epoch: Epoch,
    },
}

/// See [`Command::Attach`]: everything of the link that is not decided when the command is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The client's id of this request.
    #[serde(with = "crate::metastore::hex16")]
    pub request_id: RequestId,
    /// The topic to copy.
    pub parent: TopicName,
    /// The topic that receives the copies.
    pub child: TopicName,
    /// What the link does.
    pub options: LinkOptions,
    /// Random, drawn by the proposer.
    pub epoch: Epoch,
    /// The first offset to copy, one for each parent partition, as its owner read it.
    pub attach_offsets: Vec<Offset>,
    /// The parent's life when the offsets were read.
    pub parent_incarnation: Incarnation,
    /// The child's life when the offsets were read.
    pub child_incarnation: Incarnation,
    /// The owner epoch of each parent partition under which its offset was read.
    pub owner_epochs: Vec<OwnerEpoch>,
}

/// See [`Command::AlterTopic`]; what is `None` stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TopicChange {
    /// A greater number of partitions; refused while the topic is the child of a live link (SPEC.md D1).
    #[serde(default)]
    pub partitions: Option<u32>,
    /// How long records are kept, replaced as a whole.
    #[serde(default)]
    pub retention: Option<Retention>,
    /// When acknowledgements are given.
    #[serde(default)]
    pub durability: Option<Durability>,
}

/// What a command did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The topic as it now is.
    TopicCreated(Topic),
    /// The topic as it last was.
    TopicDeleted(Topic),
    /// The topic as it now is.
    TopicAltered(Topic),
    /// The link as it began.
    Attached(Link),
    /// The link as it last was.
    Detached(Link),
}

/// What applying one log entry answers its proposer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The entry was Raft's own.
    Nothing,
    /// The entry was a command.
    Command(Result<Outcome, Refusal>),
}
