//! The messages of the client protocol. The first request on a connection is `Hello`; requests may be pipelined, and
//! are answered in any order, matched by the frame's correlation.
//!
//! A message is encoded with postcard (<https://postcard.jamesmunns.com/wire-format>): fields in order, enums by
//! variant number. So variants and fields are only ever appended, with a new protocol version.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Incarnation, Lineage, Offset, PartitionId, TopicName, Writer};
use crate::meta::{Durability, Link, LinkOptions, Retention, Topic, TopicSpec};

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first request: who is there, and which versions it speaks.
    Hello(Hello),
    /// Is the node there? Answered by `Pong`.
    Ping,
    /// Topics by name, or all.
    DescribeTopics(Option<Vec<TopicName>>),
    /// Make a topic.
    CreateTopic(TopicSpec),
    /// Remove a topic and its data.
    DeleteTopic(TopicName),
    /// Attach a child to a parent.
    Attach(AttachRequest),
    /// End a link.
    Detach(DetachRequest),
    /// Links with their progress, of one parent or all.
    ListLinks(Option<TopicName>),
    /// Append one batch, which is the frame's payload, to one partition.
    Produce(ProduceRequest),
    /// Begin or resume an idempotent producer on a partition.
    OpenProducer(OpenProducer),
    /// Read slabs.
    Fetch(FetchRequest),
    /// Where a partition begins, ends, or was at a time.
    FindOffset(FindOffset),
    /// Change settings of a topic.
    AlterTopic(AlterTopic),
    /// Partitions with their place and their ends, of one topic or all.
    ListPartitions(Option<TopicName>),
    /// One link in detail: every cursor, every child partition.
    DescribeLink(DetachRequest),
    /// What the owner's clock says, and whether it is held back; or release it (SPEC.md G6).
    Clock(ClockRequest),
    /// Recover a partition that was stamped in a false future (G6).
    ResetClock(ResetClock),
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To `Hello`.
    Welcome(Welcome),
    /// To `Ping`.
    Pong,
    /// To `DescribeTopics`.
    Topics(Vec<Topic>),
    /// To `CreateTopic`.
    TopicCreated(Topic),
    /// To `DeleteTopic`.
    TopicDeleted,
    /// To `Attach`.
    Attached(Link),
    /// To `Detach`: every cursor has stopped, and what was in flight is settled.
    Detached,
    /// To `ListLinks`.
    Links(Vec<LinkStatus>),
    /// To `Produce`: committed.
    Produced(Produced),
    /// To `OpenProducer`.
    ProducerOpened(ProducerOpened),
    /// To `Fetch`; the batches are the frame's payload.
    Fetched(Fetched),
    /// To `FindOffset`.
    FoundOffset(FoundOffset),
    /// To `AlterTopic`: the topic as it now is.
    TopicAltered(Topic),
    /// To `ListPartitions`, by topic, then partition.
    Partitions(Vec<PartitionStatus>),
    /// To `DescribeLink`.
    LinkDetail(LinkDetail),
    /// To `Clock`: one for each shard.
    Clocks(Vec<ClockStatus>),
    /// To `ResetClock`: the partition's clock goes on from here.
    ClockReset(ClockStatus),
}

/// See [`Request::Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The program and its version, for the node's log; at most 128 bytes.
    pub client: String,
    /// A secret, when the node asks for one.
    pub token: Option<String>,
}

/// See [`Reply::Welcome`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The node's number.
    pub node: u64,
    /// The cluster's random id, in hex.
    pub cluster: String,
    /// The shard that answers.
    pub shard: u32,
    /// The ports of all shards of the node, by shard.
    pub shard_ports: Vec<u16>,
    /// The node's software version.
    pub version: String,
}

/// See [`Request::Attach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// Repeating a request with the same id returns the first result.
    pub request_id: [u8; 16],
    /// The topic to copy.
    pub parent: TopicName,
    /// The topic that receives the copies.
    pub child: TopicName,
    /// How.
    pub options: LinkOptions,
}

/// See [`Request::Detach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachRequest {
    /// The topic that was copied.
    pub parent: TopicName,
    /// The topic that received the copies.
    pub child: TopicName,
}

/// See [`Request::Produce`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProduceRequest {
    /// The topic.
    pub topic: TopicName,
    /// Its life, as the client knows it; a re-created topic refuses.
    pub incarnation: Incarnation,
    /// The partition.
    pub partition: PartitionId,
}

/// See [`Reply::Produced`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Produced {
    /// The offset of the batch's first record; unknown for a repeat of a batch that lies too far back.
    pub base_offset: Option<Offset>,
    /// The owner's commit time of the batch, nanoseconds since the epoch; unknown likewise.
    pub commit_time: Option<u64>,
    /// What the acknowledgement promises.
    pub durability: Durability,
    /// The partition's history.
    pub lineage: Lineage,
    /// Whether the batch had been committed before, and was not appended again.
    pub duplicate: bool,
}

/// Which producer to open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProducerKey {
    /// By a random id of the client's own.
    Random([u8; 16]),
    /// By a name that the application chose.
    Named(String),
}

/// See [`Request::OpenProducer`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenProducer {
    /// The topic.
    pub topic: TopicName,
    /// Its life, as the client knows it.
    pub incarnation: Incarnation,
    /// The partition.
    pub partition: PartitionId,
    /// Which one.
    pub producer: ProducerKey,
}

/// See [`Reply::ProducerOpened`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerOpened {
    /// What to put into batch headers.
    pub writer: Writer,
    /// The sequence of its last committed record; 0 for a new one.
    pub last_sequence: u64,
    /// The partition's history.
    pub lineage: Lineage,
}

/// See [`Request::Fetch`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchRequest {
    /// The topic.
    pub topic: TopicName,
    /// Its life, if the client holds a position of it.
    pub incarnation: Option<Incarnation>,
    /// The history that the position is of, if the client holds one.
    pub lineage: Option<Lineage>,
    /// The partition.
    pub partition: PartitionId,
    /// The first offset wanted. The first batch returned may begin below it.
    pub from: Offset,
    /// At most about so many bytes; one batch is returned even if it is larger.
    pub bytes_max: u32,
    /// At the end of the log, wait so long for more, in milliseconds.
    pub wait_millis: u32,
}

/// See [`Reply::Fetched`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// The topic's life.
    pub incarnation: Incarnation,
    /// The partition's history.
    pub lineage: Lineage,
    /// The oldest offset that is still there.
    pub log_start: Offset,
    /// The end of what is committed.
    pub high_water_mark: Offset,
    /// Where to go on. Beyond the last record returned when what lies between is gone or quarantined.
    pub next: Offset,
    /// Ranges `[from, to)` within what this reply covers that are damaged on disk.
    pub quarantined: Vec<(Offset, Offset)>,
}

/// See [`Request::FindOffset`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindOffset {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// Which place.
    pub at: Place,
}

/// A place in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The oldest record.
    Earliest,
    /// The end of what is committed.
    Tail,
    /// The first record committed at or after this time, nanoseconds since the epoch.
    Time(u64),
}

/// See [`Reply::FoundOffset`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundOffset {
    /// The offset asked for.
    pub offset: Offset,
    /// The oldest offset that is still there.
    pub log_start: Offset,
    /// The end of what is committed.
    pub high_water_mark: Offset,
    /// The topic's life.
    pub incarnation: Incarnation,
    /// The partition's history.
    pub lineage: Lineage,
}

/// A link and how far it is, summed over the parent's partitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The link.
    pub link: Link,
    /// The cursor of each parent partition.
    pub cursors: Vec<CursorStatus>,
}

/// One cursor's progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorStatus {
    /// The parent's partition.
    pub partition: PartitionId,
    /// Its epoch: the link's, unless the reconciler has not caught up.
    pub epoch: Epoch,
    /// Everything below was copied, for every child partition.
    pub position: Offset,
    /// The parent's committed end.
    pub parent_high_water_mark: Offset,
    /// How far behind what is due it is, in milliseconds.
    pub due_lag_millis: u64,
    /// When the next record is due, nanoseconds since the epoch; none when nothing is pending.
    pub next_due: Option<u64>,
    /// Records copied since the cursor started.
    pub committed: u64,
    /// Records that the filter held back since the attach, by this node.
    pub filtered: u64,
    /// Records that retention removed before they were copied.
    pub dropped: u64,
    /// Records that were sent again and not appended again.
    pub duplicates: u64,
    /// Why it does not move, if it does not.
    pub stalled: Option<String>,
}

/// See [`Request::AlterTopic`]; what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlterTopic {
    /// The topic.
    pub topic: TopicName,
    /// A greater number of partitions; refused while the topic is the child of a live link.
    pub partitions: Option<u32>,
    /// How long records are kept, replaced as a whole.
    pub retention: Option<Retention>,
}

/// A partition's place and ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionStatus {
    /// Its topic.
    pub topic: TopicName,
    /// Its number.
    pub partition: PartitionId,
    /// The shard that owns it.
    pub shard: u32,
    /// The oldest offset that is there.
    pub log_start: Offset,
    /// The end of what is committed.
    pub high_water_mark: Offset,
    /// Its history; none while it cannot be served.
    pub lineage: Option<Lineage>,
    /// Why it cannot be served or written, if so.
    pub trouble: Option<String>,
}

/// See [`Request::DescribeLink`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDetail {
    /// The link and its cursors.
    pub status: LinkStatus,
    /// For each cursor, in the same order, what it knows of each child partition.
    pub buckets: Vec<Vec<BucketStatus>>,
}

/// A child partition as one cursor sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketStatus {
    /// The child's partition.
    pub partition: PartitionId,
    /// Every parent record below is there, if it belongs there.
    pub position: Offset,
    /// Records copied since the cursor started.
    pub committed: u64,
    /// Records of this child partition that retention or rot took, since the cursor started.
    pub dropped: u64,
    /// Why it does not move, if it does not.
    pub stalled: Option<String>,
}

/// See [`Request::Clock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClockRequest {
    /// Say what the clock says.
    Read,
    /// An operator vouches for the wall clock: what was held back goes on.
    Accept,
}

/// A shard's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStatus {
    /// The shard.
    pub shard: u32,
    /// The owner's clock, nanoseconds since the epoch.
    pub now: u64,
    /// The wall clock, nanoseconds since the epoch.
    pub wall: u64,
    /// Whether delay gates and retention by time are held back.
    pub held: bool,
}

/// See [`Request::ResetClock`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetClock {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
}
