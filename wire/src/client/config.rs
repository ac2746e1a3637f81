//! How clients, producers and consumers are set up; every default is here.

use std::time::Duration;

use crate::ids::{Offset, PartitionId};
use crate::limits::{BATCH_BYTES_MAX, BATCH_BYTES_TARGET, BATCH_RECORDS_MAX};

/// How to reach a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// `HOST:PORT` of one shard.
    pub server: String,
    /// A secret, when the node asks for one.
    pub token: Option<String>,
    /// After how long a request is given up, reconnects included. A fetch may wait at the end of the log on top.
    pub request_timeout: Duration,
    /// How long connecting and the handshake may take together.
    pub connect_timeout: Duration,
    /// The program and its version, for the node's log.
    pub name: String,
}

impl ClientConfig {
    /// The defaults: no token, 35 s for a request, 5 s to connect.
    pub fn new(server: impl Into<String>) -> ClientConfig {
        ClientConfig {
            server: server.into(),
            token: None,
            // Longer than a node takes at most for a change of metadata, so that its own answer comes first.
            request_timeout: Duration::from_secs(35),
            connect_timeout: Duration::from_secs(5),
            name: concat!("tailwater-wire/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// Whether and how a producer's batches are deduplicated (SPEC.md D9).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Idempotence {
    /// Under a random id: retries within this producer commit once.
    #[default]
    Random,
    /// Under a name of the application's: also across its restarts, when it resumes after
    /// [`crate::client::producer::Producer::last_sequence`]. One producer at a time may use a name.
    Named(String),
    /// Not at all: a batch whose outcome is unknown is reported, and not sent again.
    None,
}

/// How a producer gathers and sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerOptions {
    /// Deduplication.
    pub idempotence: Idempotence,
    /// A batch is full with so many records.
    pub batch_records: usize,
    /// A batch is full with so many bytes.
    pub batch_bytes: usize,
    /// How long a batch tops up while another of its partition is in flight. With none in flight it ships at once.
    pub linger: Duration,
    /// Batches of one partition that may be unacknowledged.
    pub in_flight_per_partition: usize,
    /// Bytes of records that may be unacknowledged; `send` waits when they are reached.
    pub buffer_bytes: usize,
    /// Send all records here, whatever their keys.
    pub partition: Option<PartitionId>,
    /// How long after its first record a batch is given up.
    pub delivery_timeout: Duration,
}

impl Default for ProducerOptions {
    fn default() -> ProducerOptions {
        ProducerOptions {
            idempotence: Idempotence::Random,
            batch_records: 4_096,
            batch_bytes: BATCH_BYTES_TARGET,
            linger: Duration::from_millis(5),
            in_flight_per_partition: 5,
            buffer_bytes: 32 << 20,
            partition: None,
            delivery_timeout: Duration::from_secs(60),
        }
    }
}

impl ProducerOptions {
    /// Which option makes no sense, if one does not.
    pub(crate) fn fault(&self) -> Option<String> {
        if self.batch_records == 0 || self.batch_records > BATCH_RECORDS_MAX {
            return Some(format!("batch_records must be 1 to {BATCH_RECORDS_MAX}"));
        }
        if self.batch_bytes == 0 || self.batch_bytes > BATCH_BYTES_MAX {
            return Some(format!("batch_bytes must be 1 to {BATCH_BYTES_MAX}"));
        }
        if self.in_flight_per_partition == 0 {
            return Some("in_flight_per_partition must be at least 1".to_owned());
        }
        if self.buffer_bytes == 0 || u32::try_from(self.buffer_bytes).is_err() {
            return Some("buffer_bytes must be 1 to 4 GiB - 1".to_owned());
        }
        None
    }
}

/// Where a consumer begins in each partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// With the oldest record.
    Earliest,
    /// After the last record that is committed now.
    #[default]
    Tail,
    /// With this offset.
    Offset(Offset),
    /// With the first record committed at or after this time, nanoseconds since the epoch.
    Time(u64),
}

/// What a consumer reads, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// Which partitions; all without a list.
    pub partitions: Option<Vec<PartitionId>>,
    /// Where to begin.
    pub from: StartAt,
    /// About how many bytes one fetch brings; a consumer holds at most two such slabs for each partition.
    pub bytes_max: u32,
    /// How long one fetch waits at the end of the log.
    pub wait: Duration,
    /// End at what was committed when the consumer was made, instead of waiting for more.
    pub stop_at_end: bool,
}

impl Default for ConsumerOptions {
    fn default() -> ConsumerOptions {
        ConsumerOptions {
            partitions: None,
            from: StartAt::Tail,
            bytes_max: 1 << 20,
            wait: Duration::from_secs(1),
            stop_at_end: false,
        }
    }
}
