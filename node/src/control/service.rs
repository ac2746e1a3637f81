//! The control thread's service: changes of metadata, each brought to the shards before its client is answered.
//!
//! Nothing on the data path waits for this thread. Changes run one at a time; questions run beside them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tailwater_storage::proof::{EpochGone, LeaderConfirmed, TopicGone};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Epoch, Incarnation, Offset, PartitionId, TopicName};
use tailwater_wire::message::{AttachRequest, DetachRequest, Reply, Request};
use tailwater_wire::meta::{Link, MetaSnapshot, TopicSpec};

use crate::control::request::{Answer, ControlRequest, ShardCommand};
use crate::control::space::Space;
use crate::fanout::filter::Filter;
use crate::metastore::command::{Attach, Command, Outcome};
use crate::metastore::handle::{AttachCheck, Metastore};
use crate::telemetry::exporter::{Exporter, MetastoreFacts};
use crate::telemetry::links::LinkTotals;

/// How long a client's change may take before it is answered `PENDING`.
const CHANGE_WITHIN: Duration = Duration::from_secs(30);
/// How long a shard may take to say how far its links are.
const STATUS_WITHIN: Duration = Duration::from_secs(2);

/// The control thread's service; its clones share everything.
pub struct Control {
    metastore: Metastore,
    shards: Vec<flume::Sender<ShardCommand>>,
    exporter: Exporter,
    changes: tokio::sync::Mutex<()>,
    bounds: Bounds,
}

/// What the machine gives: changes that would ask for more are refused before they are made.
pub struct Bounds {
    /// Partitions that the process has files for; no bound without.
    pub partitions_max: Option<u64>,
    /// The data directory's filesystem.
    pub space: Space,
    /// What a new partition takes to begin with, in bytes.
    pub segment_bytes_first: u64,
}

impl Control {
    /// A service over an open metastore and the shards' command queues.
    #[must_use]
    pub fn new(
        metastore: Metastore,
        shards: Vec<flume::Sender<ShardCommand>>,
        exporter: Exporter,
        bounds: Bounds,
    ) -> Control {
        bounds.space.make_room();
        Control {
            metastore,
            shards,
            exporter,
            changes: tokio::sync::Mutex::default(),
            bounds,
        }
    }

    /// The metastore.
    #[must_use]
    pub fn metastore(&self) -> &Metastore {
        &self.metastore
    }

    /// Serves the shards' requests until they are gone. Returns the reason when a shard calls the process dead.
    pub async fn run(self: Arc<Control>, requests: flume::Receiver<ControlRequest>) -> Option<String> {
        while let Ok(request) = requests.recv_async().await {
            if let ControlRequest::Fatal { why } = request {
                return Some(why);
            }
            let control = Arc::clone(&self);
            tokio::spawn(async move { control.serve(request).await });
        }
        None
    }

    async fn serve(&self, request: ControlRequest) {
        match request {
            ControlRequest::Client { request, answer } => reply(&answer, self.client(request).await),
            ControlRequest::ConfirmLink {
                parent,
                child,
                answer,
            } => {
                reply(&answer, self.confirm_link(&parent, &child).await);
            }
            ControlRequest::ConfirmGone { epoch, answer } => reply(&answer, self.confirm_gone(epoch).await),
            ControlRequest::ConfirmTopicGone {
                topic,
                incarnation,
                answer,
            } => {
                reply(&answer, self.confirm_topic_gone(&topic, incarnation).await);
            }
            ControlRequest::Fatal { .. } => {}
        }
    }

    async fn client(&self, request: Request) -> Result<Reply, Refusal> {
        let change = async {
            let _one_at_a_time = self.changes.lock().await;
            self.bounds.space.make_room();
            match request {
                Request::CreateTopic(spec) => self.create_topic(spec).await,
                Request::DeleteTopic(name) => self.delete_topic(name).await,
                Request::AlterTopic(request) => self.alter_topic(request).await,
                Request::Attach(request) => self.attach(request).await.map(Reply::Attached),
                Request::Detach(request) => self.detach(request).await,
                _ => Err(Refusal::new(
                    ErrorCode::Internal,
                    "not a request for the control thread",
                )),
            }
        };
        tokio::time::timeout(CHANGE_WITHIN, change)
            .await
            .unwrap_or_else(|_| {
                let what = format!(
                    "the change was accepted or is being made, and did not finish in {CHANGE_WITHIN:?}"
                );
                Err(Refusal::new(ErrorCode::Pending, what))
            })
    }

    async fn create_topic(&self, spec: TopicSpec) -> Result<Reply, Refusal> {
        let wanted = u64::from(spec.partitions);
        let incarnation = Incarnation::from_u64(rand::random());
        let command = Command::CreateTopic { spec, incarnation };
        self.metastore.check(&command)?;
        self.check_room(wanted)?;
        match self.metastore.propose(command).await? {
            Outcome::TopicCreated(topic) => {
                self.publish().await;
                Ok(Reply::TopicCreated(topic))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the machine has files and room for so many partitions more.
    pub(super) fn check_room(&self, wanted: u64) -> Result<(), Refusal> {
        self.check_files(wanted)?;
        self.bounds.space.check(wanted, self.bounds.segment_bytes_first)
    }

    /// Whether the process may open files for so many partitions more.
    fn check_files(&self, wanted: u64) -> Result<(), Refusal> {
        let snapshot = self.metastore.snapshot();
        let present: u64 = snapshot
            .topics
            .values()
            .map(|topic| u64::from(topic.spec.partitions))
            .sum();
        match self.bounds.partitions_max {
            Some(most) if present + wanted > most => {
                let what = format!(
                    "there would be {} partitions, and the process may open files for {most} (RLIMIT_NOFILE): raise \
                     `ulimit -n`, or LimitNOFILE= in the systemd unit, and restart",
                    present + wanted
                );
                Err(Refusal::new(ErrorCode::InvalidPartitions, what))
            }
            _ => Ok(()),
        }
    }

    /// Marked first, then committed, then removed: whatever a crash leaves of it, a later start can tell a deletion from
    /// metadata that was lost.
    async fn delete_topic(&self, name: TopicName) -> Result<Reply, Refusal> {
        let snapshot = self.metastore.snapshot();
        let incarnation = snapshot.topic(&name).map(|topic| topic.incarnation);
        let delete = Command::DeleteTopic {
            name: name.clone(),
            incarnation,
        };
        self.metastore.check(&delete)?;
        let Some(incarnation) = incarnation else {
            return Err(Refusal::new(
                ErrorCode::UnknownTopic,
                format!("there is no topic `{name}`"),
            ));
        };
        self.mark(&name, incarnation, true).await?;
        match self.metastore.propose(delete).await {
            Ok(Outcome::TopicDeleted(_)) => {}
            Ok(other) => return Err(unexpected(&other)),
            Err(refusal) => {
                if refusal.code != ErrorCode::OutcomeUnknown {
                    self.mark(&name, incarnation, false).await?;
                }
                return Err(refusal);
            }
        }
        self.publish().await;
        if let Some(gone) = self.confirm_topic_gone(&name, incarnation).await? {
            self.to_all(|done| ShardCommand::RemoveTopic {
                gone: gone.clone(),
                done,
            })
            .await;
        }
        Ok(Reply::TopicDeleted)
    }

    async fn mark(&self, topic: &TopicName, incarnation: Incarnation, set: bool) -> Result<(), Refusal> {
        let (answer, answered) = flume::bounded(1);
        let topic = topic.clone();
        self.send(
            0,
            ShardCommand::MarkTopic {
                topic,
                incarnation,
                set,
                answer,
            },
        )
        .await?;
        answered.recv_async().await.map_err(|_| shard_gone())?
    }

    async fn attach(&self, request: AttachRequest) -> Result<Link, Refusal> {
        let AttachRequest {
            request_id,
            parent,
            child,
            options,
        } = request;
        if let Some(text) = &options.filter {
            Filter::parse(text).map_err(|error| Refusal::new(ErrorCode::InvalidFilter, error.to_string()))?;
        }
        // A quick refusal, before any cursor is stopped; what decides is the same check when the command is applied.
        let (parent_topic, child_topic) =
            match self
                .metastore
                .check_attach(&request_id, &parent, &child, &options)?
            {
                AttachCheck::Done(link) => return Ok(link),
                AttachCheck::Go { parent, child } => (parent, child),
            };
        // A detach that went before may not have been waited for: every shard learns of it now, so that no older cursor
        // of the pair commits anything after an end was read (SPEC.md F6).
        self.publish().await;
        let incarnation = parent_topic.incarnation;
        let point = self.ask_all(|answer| ShardCommand::AttachPoint {
            parent: parent.clone(),
            incarnation,
            child: child.clone(),
            from: options.from,
            answer,
        });
        let attach = Attach {
            request_id,
            attach_offsets: in_order(point.await?, parent_topic.spec.partitions)?,
            epoch: Epoch::from_u64(rand::random()),
            parent_incarnation: parent_topic.incarnation,
            child_incarnation: child_topic.incarnation,
            owner_epochs: parent_topic.owner_epochs,
            options,
            parent: parent_topic.spec.name,
            child: child_topic.spec.name,
        };
        match self.metastore.propose(Command::Attach(attach)).await? {
            Outcome::Attached(link) => {
                self.publish().await;
                Ok(link)
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn detach(&self, request: DetachRequest) -> Result<Reply, Refusal> {
        let DetachRequest { parent, child } = request;
        let snapshot = self.metastore.snapshot();
        let Some(link) = snapshot.link(&parent, &child) else {
            let what = format!("`{child}` is not attached to `{parent}`");
            return Err(Refusal::new(ErrorCode::UnknownLink, what));
        };
        let epoch = link.epoch;
        self.metastore
            .propose(Command::Detach { parent, child, epoch })
            .await?;
        self.publish().await;
        self.to_all(|done| ShardCommand::Settle { epoch, done }).await;
        Ok(Reply::Detached)
    }

    /// The first metadata: what is over is removed, then every shard opens its partitions, then clients come in.
    pub async fn begin_serving(&self) {
        let snapshot = self.metastore.snapshot();
        let (done, cleaned) = flume::bounded(1);
        if self.send(0, ShardCommand::Clean { snapshot, done }).await.is_ok() {
            let _gone = cleaned.recv_async().await;
        }
        self.publish().await;
        for shard in 0..self.shards.len() {
            let _gone = self.send(shard, ShardCommand::Serve).await;
        }
    }

    /// Brings the newest metadata to every shard, and waits until it is in force there.
    pub async fn publish(&self) {
        let snapshot: Arc<MetaSnapshot> = self.metastore.snapshot();
        self.to_all(|done| ShardCommand::Metadata {
            snapshot: Arc::clone(&snapshot),
            done,
        })
        .await;
    }

    /// Publishes whatever is applied, also what no client of this node waits for any more; for the node's life.
    pub async fn publish_changes(self: Arc<Control>) {
        let mut changes = self.metastore.subscribe();
        while changes.changed().await.is_ok() {
            self.publish().await;
        }
        std::future::pending().await
    }

    /// How far all links are; a shard that does not answer in time is left out.
    async fn link_totals(&self) -> LinkTotals {
        let parts = tokio::time::timeout(STATUS_WITHIN, self.begin(ShardCommand::LinkTotals)).await;
        let mut whole = LinkTotals::default();
        for part in parts.unwrap_or_default() {
            let answered = tokio::time::timeout(STATUS_WITHIN, part.recv_async()).await;
            whole.join(answered.ok().and_then(Result::ok).unwrap_or_default());
        }
        whole
    }

    /// The text for `/metrics`.
    pub async fn scrape(&self) -> String {
        let links = self.link_totals().await;
        let status = self.metastore.status();
        let facts = MetastoreFacts {
            leader: status.leader,
            term: status.term,
            applied: status.applied_index,
        };
        self.exporter.render(&links, facts)
    }

    async fn confirm_link(&self, parent: &TopicName, child: &TopicName) -> Result<LeaderConfirmed, Refusal> {
        self.metastore.prove_link(parent, child).await
    }

    async fn confirm_gone(&self, epoch: Epoch) -> Result<Option<EpochGone>, Refusal> {
        self.metastore.prove_epoch_gone(epoch).await
    }

    async fn confirm_topic_gone(
        &self,
        topic: &TopicName,
        incarnation: Incarnation,
    ) -> Result<Option<TopicGone>, Refusal> {
        self.metastore.prove_topic_gone(topic, incarnation).await
    }

    /// Gives every shard a command, side by side, and waits for all. A shard that goes away without an answer has nothing
    /// running any more.
    async fn to_all(&self, command: impl Fn(Answer<()>) -> ShardCommand) {
        for finished in self.begin(command).await {
            let _gone = finished.recv_async().await;
        }
    }

    /// As `to_all`, with answers that may be refusals.
    async fn ask_all<T>(
        &self,
        command: impl Fn(Answer<Result<T, Refusal>>) -> ShardCommand,
    ) -> Result<Vec<T>, Refusal> {
        let mut all = Vec::with_capacity(self.shards.len());
        for answered in self.begin(command).await {
            all.push(answered.recv_async().await.map_err(|_| shard_gone())??);
        }
        Ok(all)
    }

    async fn begin<T>(&self, command: impl Fn(Answer<T>) -> ShardCommand) -> Vec<flume::Receiver<T>> {
        let mut answers = Vec::with_capacity(self.shards.len());
        for shard in 0..self.shards.len() {
            let (answer, answered) = flume::bounded(1);
            // Without a shard nobody answers, which the receiver then says.
            let _gone = self.send(shard, command(answer)).await;
            answers.push(answered);
        }
        answers
    }

    async fn send(&self, shard: usize, command: ShardCommand) -> Result<(), Refusal> {
        self.shards[shard]
            .send_async(command)
            .await
            .map_err(|_| shard_gone())
    }
}

fn reply<T>(answer: &Answer<T>, value: T) {
    // Whoever asked may have gone; then nobody wants the answer.
    let _unwanted = answer.try_send(value);
}

/// The shards' attach points by partition.
fn in_order(parts: Vec<Vec<(PartitionId, Offset)>>, partitions: u32) -> Result<Vec<Offset>, Refusal> {
    let points: BTreeMap<PartitionId, Offset> = parts.into_iter().flatten().collect();
    let missing = |partition| {
        let what =
            format!("no shard owns partition {partition} of the parent: its topic has changed meanwhile");
        Refusal::new(ErrorCode::StaleIncarnation, what)
    };
    let point = |partition| points.get(&partition).copied().ok_or_else(|| missing(partition));
    (0..partitions).map(PartitionId).map(point).collect()
}

fn shard_gone() -> Refusal {
    Refusal::new(ErrorCode::Draining, "the node is shutting down")
}

pub(super) fn unexpected(outcome: &Outcome) -> Refusal {
    Refusal::new(
        ErrorCode::Internal,
        format!("the metastore answered with something else: {outcome:?}"),
    )
}
