//! One nats-server with JetStream on files, flushing each message before its acknowledgement or as it ships.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::peer::lab::Lab;
use crate::peer::nats::client::{Lane, PushReader, Session};
use crate::peer::outcome::CpuTimes;
use crate::peer::process::{Server, eventually, free_addresses};
use crate::store::{From, LanePlan, Store, TopicPlan, dealt};

/// How long it may take until it serves.
const START_WITHIN: Duration = Duration::from_secs(20);

/// When JetStream flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// Each message, before its acknowledgement.
    Always,
    /// Every two minutes, as it ships.
    Shipped,
}

impl Flush {
    /// What an acknowledgement promises.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Flush::Always => "fsync",
            Flush::Shipped => "page cache",
        }
    }
}

/// A running nats-server.
pub struct Instance {
    /// Its process.
    pub server: Server,
    address: String,
    flush: Flush,
    /// Removed when it is dropped, after the process.
    dir: TempDir,
}

impl Instance {
    /// Starts one on an empty directory, and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn start(binary: &Path, flush: Flush, lab: &Lab) -> anyhow::Result<Instance> {
        let dir = tempfile::Builder::new()
            .prefix("bench-nats-")
            .tempdir_in(&lab.dir)?;
        Instance::start_on(dir, binary, flush, lab).await
    }

    /// Stops it, and starts it on the same data with another kind of flush.
    ///
    /// # Errors
    /// When it does not stop or start.
    pub async fn restart(self, binary: &Path, flush: Flush, lab: &Lab) -> anyhow::Result<Instance> {
        let Instance { server, dir, .. } = self;
        server.stop().await?;
        Instance::start_on(dir, binary, flush, lab).await
    }

    async fn start_on(dir: TempDir, binary: &Path, flush: Flush, lab: &Lab) -> anyhow::Result<Instance> {
        let [listen] = free_addresses()?;
        let sync = match flush {
            Flush::Always => "sync_interval: always",
            Flush::Shipped => "",
        };
        let store = dir.path().join("store");
        let text = format!(
            "listen: \"{listen}\"\njetstream {{\n  store_dir: \"{}\"\n  max_file_store: 64GB\n  {sync}\n}}\n",
            store.display()
        );
        let config = dir.path().join("nats.conf");
        fs::write(&config, text).with_context(|| format!("{}: cannot write it", config.display()))?;
        let mut command = Command::new(binary);
        command.arg("--config").arg(&config);
        let server = Server::start("nats-server", &mut command, dir.path().join("log"), lab.cores)?;
        let address = listen.to_string();
        let greeted = eventually(START_WITHIN, || async {
            let mut session = Session::connect(&address).await?;
            session.ask("INFO", &json!({})).await
        });
        server.while_alive(greeted).await?;
        Ok(Instance {
            server,
            address,
            flush,
            dir,
        })
    }

    /// A connection for requests.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn session(&self) -> anyhow::Result<Session> {
        Session::connect(&self.address).await
    }

    /// Makes a stream on files, of a subject or from other streams.
    ///
    /// # Errors
    /// When it refuses.
    pub async fn stream(session: &mut Session, name: &str, from: Origin<'_>) -> anyhow::Result<()> {
        let mut config = json!({
            "name": name, "storage": "file", "retention": "limits", "discard": "old", "num_replicas": 1,
            "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msg_size": -1,
            // It keeps a table of messages it has seen only for those with an id, which these do not have.
            "duplicate_window": 100_000_000,
        });
        match from {
            Origin::Subject => config["subjects"] = json!([name]),
            Origin::Streams(parents) => {
                let sources: Vec<Value> = parents.iter().map(|parent| json!({ "name": parent })).collect();
                config["sources"] = Value::from(sources);
            }
        }
        session
            .ask(&format!("STREAM.CREATE.{name}"), &config)
            .await
            .map(drop)
    }
}

/// Where the messages of a stream come from.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// They are published to a subject of the stream's name.
    Subject,
    /// They are copied from streams.
    Streams(&'a [String]),
}

/// The stream that stands for one partition of a topic, and its subject.
#[must_use]
pub fn stream_name(topic: &str, partition: u32) -> String {
    format!("{topic}-{partition}")
}

fn names(topic: &TopicPlan) -> Vec<String> {
    (0..topic.partitions)
        .map(|partition| stream_name(topic.name, partition))
        .collect()
}

impl Store for Instance {
    type Lane = Lane;
    type Reader = PushReader;

    fn durability(&self) -> &'static str {
        self.flush.label()
    }

    fn cpu(&self) -> anyhow::Result<CpuTimes> {
        self.server.cpu()
    }

    async fn make(&self, topic: &TopicPlan) -> anyhow::Result<()> {
        let mut session = self.session().await?;
        for name in names(topic) {
            Instance::stream(&mut session, &name, Origin::Subject).await?;
        }
        Ok(())
    }

    async fn lanes(&self, topic: &TopicPlan, plan: LanePlan) -> anyhow::Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        for lane in 0..plan.lanes {
            let partitions = dealt(lane, plan.lanes, topic.partitions).into_iter();
            let subjects = partitions
                .map(|partition| stream_name(topic.name, partition))
                .collect();
            let name = format!("lane{lane}");
            lanes.push(Lane::connect(&self.address, &name, subjects, self.flush.label()).await?);
        }
        Ok(lanes)
    }

    async fn reader(&self, topic: &TopicPlan, from: From) -> anyhow::Result<PushReader> {
        PushReader::connect(&self.address, &names(topic), from).await
    }

    /// It knows no batches: each message is stored by itself.
    async fn check(&self, _topic: &TopicPlan, _batch_records: usize) -> anyhow::Result<()> {
        Ok(())
    }
}
