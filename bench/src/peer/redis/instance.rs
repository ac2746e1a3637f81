//! One redis-server on an empty directory, every append flushed before it is answered.

use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::peer::lab::Lab;
use crate::peer::outcome::CpuTimes;
use crate::peer::process::{Server, eventually, free_addresses};
use crate::peer::redis::client::{DURABILITY, Lane, StreamReader, ask, stream};
use crate::store::{From, LanePlan, Store, TopicPlan, dealt};

/// How long it may take until it serves.
const START_WITHIN: Duration = Duration::from_secs(20);

/// A running redis-server.
pub struct Instance {
    /// Its process.
    pub server: Server,
    address: String,
    /// Removed when it is dropped, after the process.
    _dir: TempDir,
}

impl Instance {
    /// Starts one, and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn start(lab: &Lab) -> anyhow::Result<Instance> {
        let dir = tempfile::Builder::new()
            .prefix("bench-redis-")
            .tempdir_in(&lab.dir)?;
        let [listen] = free_addresses()?;
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &listen.port().to_string()])
            .arg("--dir")
            .arg(dir.path());
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        // Neither snapshots nor rewrites of the log beside the load: they would be measured with it.
        command.args(["--save", "", "--auto-aof-rewrite-percentage", "0"]);
        let server = Server::start("redis-server", &mut command, dir.path().join("log"), lab.cores)?;
        let address = listen.to_string();
        server
            .while_alive(eventually(START_WITHIN, || ask(&address, &[b"PING"])))
            .await?;
        Ok(Instance {
            server,
            address,
            _dir: dir,
        })
    }
}

impl Store for Instance {
    type Lane = Lane;
    type Reader = StreamReader;

    fn durability(&self) -> &'static str {
        DURABILITY
    }

    fn cpu(&self) -> anyhow::Result<CpuTimes> {
        self.server.cpu()
    }

    /// Streams come to be with their first entry.
    async fn make(&self, _topic: &TopicPlan) -> anyhow::Result<()> {
        Ok(())
    }

    async fn lanes(&self, topic: &TopicPlan, plan: LanePlan) -> anyhow::Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        for lane in 0..plan.lanes {
            let partitions = dealt(lane, plan.lanes, topic.partitions).into_iter();
            let streams = partitions
                .map(|partition| stream(topic.name, partition))
                .collect();
            lanes.push(Lane::connect(&self.address, streams).await?);
        }
        Ok(lanes)
    }

    async fn reader(&self, topic: &TopicPlan, from: From) -> anyhow::Result<StreamReader> {
        let streams = (0..topic.partitions).map(|partition| stream(topic.name, partition));
        StreamReader::connect(&self.address, streams.collect(), from).await
    }

    /// It knows no batches: what arrives together is flushed together.
    async fn check(&self, _topic: &TopicPlan, _batch_records: usize) -> anyhow::Result<()> {
        Ok(())
    }
}
