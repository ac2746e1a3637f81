//! One node on an empty directory, with what the cells need of it: topics, lanes and CPU times.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, bail};
use tailwater_wire::client::{
    Client, ClientConfig, Consumed, ConsumerOptions, Delivery, Producer, ProducerOptions, StartAt,
};
use tailwater_wire::ids::{Offset, PartitionId, TopicName};
use tailwater_wire::message::Place;
use tailwater_wire::meta::{Durability, Retention, Topic, TopicSpec};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;
use tempfile::TempDir;

use crate::load::Sender;
use crate::payload::Payload;
use crate::peer::lab::Lab;
use crate::peer::process::{Server, eventually, free_addresses};

/// How long a node may take until it serves.
const START_WITHIN: Duration = Duration::from_secs(20);
/// Room for a batch of a thousand records of a kilobyte, with what a batch adds to them.
const BATCH_BYTES: usize = 2 << 20;
/// The wall clock when the bench was written: records need some time, and none of it is measured.
const TIMESTAMP_NS: i64 = 1_796_000_000_000_000_000;

/// A running node.
pub struct Node {
    /// Its process.
    pub server: Server,
    /// A connection for everything that is not measured.
    pub client: Client,
    address: String,
    /// Removed when it is dropped, after the process.
    _dir: TempDir,
}

impl Node {
    /// Starts one, and waits until it serves.
    pub async fn start(binary: &Path, lab: &Lab) -> anyhow::Result<Node> {
        let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(&lab.dir)?;
        let [listen, admin] = free_addresses()?;
        let mut command = Command::new(binary);
        command.arg("serve").arg("--data").arg(dir.path().join("data"));
        command.args(["--listen", &listen.to_string(), "--admin", &admin.to_string()]);
        let server = Server::start("tailwater serve", &mut command, dir.path().join("log"), lab.cores)?;
        let address = listen.to_string();
        let client = server
            .while_alive(eventually(START_WITHIN, || connect(&address)))
            .await?;
        Ok(Node {
            server,
            client,
            address,
            _dir: dir,
        })
    }

    /// Drains it.
    pub async fn stop(self) -> anyhow::Result<()> {
        drop(self.client);
        self.server.stop().await
    }

    /// One more connection.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        connect(&self.address).await
    }

    /// Makes an fsynced topic that keeps everything.
    pub async fn topic(&self, name: &str, partitions: u32) -> anyhow::Result<Topic> {
        let spec = TopicSpec {
            name: name.parse::<TopicName>()?,
            partitions,
            partitioner: Partitioner::default(),
            retention: Retention::default(),
            durability: Durability::Fsync,
        };
        self.client
            .create_topic(spec)
            .await
            .with_context(|| format!("topic {name}"))
    }

    /// How many records the batch has that lies in the middle of the first partition: what was measured is what was
    /// meant only if the client sent batches as they were handed over.
    pub async fn batch_in_the_middle(&self, topic: &Topic) -> anyhow::Result<usize> {
        let (name, partition) = (&topic.spec.name, PartitionId(0));
        let end = self
            .client
            .find_offset(name, partition, Place::Tail)
            .await?
            .high_water_mark;
        let options = ConsumerOptions {
            partitions: Some(vec![partition]),
            from: StartAt::Offset(Offset(end.0 / 2)),
            stop_at_end: true,
            ..ConsumerOptions::default()
        };
        match self.client.consumer(name, options).await?.next().await? {
            Some(Consumed::Batch(batch)) => Ok(batch.header.record_count as usize),
            other => bail!("nothing to read in the middle of {name}: {other:?}"),
        }
    }

    /// A producer on a connection of its own for each partition of a topic.
    pub async fn lanes(&self, topic: &Topic, options: &ProducerOptions) -> anyhow::Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        for partition in (0..topic.spec.partitions).map(PartitionId) {
            let client = self.connect().await?;
            let producer = client.producer(&topic.spec.name, options.clone()).await?;
            lanes.push(Lane { producer, partition });
        }
        Ok(lanes)
    }
}

async fn connect(address: &str) -> anyhow::Result<Client> {
    let name = concat!("tailwater-bench/", env!("CARGO_PKG_VERSION")).to_owned();
    Ok(Client::connect(ClientConfig {
        name,
        ..ClientConfig::new(address)
    })
    .await?)
}

/// Options under which a closed loop's batches are sent exactly as the loop makes them.
pub fn batches_of(records: usize, in_flight: usize) -> ProducerOptions {
    ProducerOptions {
        batch_records: records,
        batch_bytes: BATCH_BYTES,
        in_flight_per_partition: in_flight,
        ..ProducerOptions::default()
    }
}

/// A producer, a connection and a partition.
pub struct Lane {
    producer: Producer,
    partition: PartitionId,
}

impl Sender for Lane {
    type Ack = Acked;

    async fn send(&self, payload: Payload) -> anyhow::Result<Acked> {
        let Payload { key, value } = payload;
        let record = Record {
            key,
            value,
            headers: Vec::new(),
            timestamp: TIMESTAMP_NS,
        };
        Ok(Acked(self.producer.send_to(self.partition, record).await?))
    }
}

/// A delivery that says what it promises.
pub struct Acked(Delivery);

impl Future for Acked {
    type Output = anyhow::Result<&'static str>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|delivered| Ok(delivered?.durability.label()))
    }
}
