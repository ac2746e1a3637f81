//! One node on an empty directory, with what the cells need of it: topics, lanes and CPU times.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tailwater_wire::client::{
    Client, ClientConfig, Consumed, Consumer, ConsumerOptions, Delivery, Producer, ProducerOptions, StartAt,
};
use tailwater_wire::ids::{Offset, PartitionId, TopicName};
use tailwater_wire::message::Place;
use tailwater_wire::meta::{Durability, Retention, Topic, TopicSpec};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;
use tempfile::TempDir;

use crate::load::Sender;
use crate::measure::for_a_while;
use crate::payload::Payload;
use crate::peer::lab::Lab;
use crate::peer::outcome::CpuTimes;
use crate::peer::process::{Server, addresses_in_a_row, eventually, free_addresses};
use crate::store::{From, LanePlan, Reader, Store, TopicPlan, dealt};

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
    dir: TempDir,
}

impl Node {
    /// Starts one on an empty directory, and waits until it serves.
    pub async fn start(binary: &Path, lab: &Lab) -> anyhow::Result<Node> {
        let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(&lab.dir)?;
        Node::start_on(dir, binary, lab).await
    }

    async fn start_on(dir: TempDir, binary: &Path, lab: &Lab) -> anyhow::Result<Node> {
        let shards = lab.options.shards;
        let (listen, [admin]) = (addresses_in_a_row(shards)?, free_addresses()?);
        let mut command = Command::new(binary);
        command.arg("serve").arg("--data").arg(dir.path().join("data"));
        command.args(["--listen", &listen.to_string(), "--admin", &admin.to_string()]);
        command.args(["--shards", &shards.to_string()]);
        // More shards than one core are not for one core.
        let cores = lab.cores.filter(|_| shards == 1);
        let server = Server::start("tailwater serve", &mut command, dir.path().join("log"), cores)?;
        let address = listen.to_string();
        let client = server
            .while_alive(eventually(START_WITHIN, || connect(&address)))
            .await?;
        Ok(Node {
            server,
            client,
            address,
            dir,
        })
    }

    /// Drains it.
    pub async fn stop(self) -> anyhow::Result<()> {
        drop(self.client);
        self.server.stop().await
    }

    /// Drains it and starts it again on the same data: nothing is in its memory then.
    pub async fn restart(self, binary: &Path, lab: &Lab) -> anyhow::Result<Node> {
        let Node {
            server, client, dir, ..
        } = self;
        drop(client);
        server.stop().await?;
        Node::start_on(dir, binary, lab).await
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
    async fn batch_in_the_middle(&self, topic: &TopicPlan) -> anyhow::Result<usize> {
        let (name, partition) = (&topic.name.parse::<TopicName>()?, PartitionId(0));
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
            other => bail!("nothing to read in the middle of `{name}`: {other:?}"),
        }
    }

    /// Producers, each on a connection of its own.
    pub async fn producers(
        &self,
        topic: &TopicName,
        partitions: u32,
        plan: LanePlan,
    ) -> anyhow::Result<Vec<Lane>> {
        let options = plan.batches.map_or_else(ProducerOptions::default, batches_of);
        let mut lanes = Vec::new();
        for lane in 0..plan.lanes {
            let producer = self.connect().await?.producer(topic, options.clone()).await?;
            let partitions = dealt(lane, plan.lanes, partitions);
            lanes.push(Lane {
                producer,
                partitions: partitions.into_iter().map(PartitionId).collect(),
            });
        }
        Ok(lanes)
    }

    /// A consumer of all partitions, on a connection of its own.
    pub async fn consume(&self, topic: &TopicName, from: StartAt) -> anyhow::Result<Records> {
        let options = ConsumerOptions {
            from,
            ..ConsumerOptions::default()
        };
        Ok(Records(self.connect().await?.consumer(topic, options).await?))
    }
}

impl Store for Node {
    type Lane = Lane;
    type Reader = Records;

    fn durability(&self) -> &'static str {
        Durability::Fsync.label()
    }

    fn cpu(&self) -> anyhow::Result<CpuTimes> {
        self.server.cpu()
    }

    async fn make(&self, topic: &TopicPlan) -> anyhow::Result<()> {
        self.topic(topic.name, topic.partitions).await.map(drop)
    }

    async fn lanes(&self, topic: &TopicPlan, plan: LanePlan) -> anyhow::Result<Vec<Lane>> {
        self.producers(&topic.name.parse()?, topic.partitions, plan).await
    }

    async fn reader(&self, topic: &TopicPlan, from: From) -> anyhow::Result<Records> {
        let from = match from {
            From::Earliest => StartAt::Earliest,
            From::Tail => StartAt::Tail,
        };
        self.consume(&topic.name.parse()?, from).await
    }

    async fn check(&self, topic: &TopicPlan, batch_records: usize) -> anyhow::Result<()> {
        let records = self.batch_in_the_middle(topic).await?;
        ensure!(
            records == batch_records,
            "a batch of {records} records where {batch_records} were meant"
        );
        Ok(())
    }
}

/// A consumer whose batches are taken apart.
pub struct Records(Consumer);

impl Reader for Records {
    async fn read(&mut self, take: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let Some(next) = for_a_while(self.0.next()).await else {
            return Ok(());
        };
        match next?.context("a consumer ended without being asked to")? {
            Consumed::Gap(gap) => bail!("records are missing: {gap:?}"),
            Consumed::Batch(batch) => batch.records().try_for_each(|record| take(record.value)),
        }
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
fn batches_of((records, in_flight): (usize, usize)) -> ProducerOptions {
    ProducerOptions {
        batch_records: records,
        batch_bytes: BATCH_BYTES,
        in_flight_per_partition: in_flight,
        ..ProducerOptions::default()
    }
}

/// A producer, its connection and its partitions.
pub struct Lane {
    producer: Producer,
    partitions: Vec<PartitionId>,
}

impl Sender for Lane {
    type Ack = Acked;

    async fn send(&self, turn: u64, payload: Payload) -> anyhow::Result<Acked> {
        let Payload { key, value } = payload;
        let record = Record {
            key,
            value,
            headers: Vec::new(),
            timestamp: TIMESTAMP_NS,
        };
        let partition = self.partitions[turn as usize % self.partitions.len()];
        Ok(Acked(self.producer.send_to(partition, record).await?))
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
