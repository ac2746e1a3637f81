//! From a request to what answers it: this shard, the shard that owns the partition, all shards together, or the control
//! thread. Produces are handed on in order of arrival; whatever waits does so in a task of its own.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{PartitionId, TopicName};
use tailwater_wire::message::{FetchRequest, ProduceRequest, Reply, Request, Welcome};

use crate::budget::Budget;
use crate::clock::service as clock_service;
use crate::control::request::ControlRequest;
use crate::fanout::status::{join_details, join_links};
use crate::ingress::in_flight::{Connection, InFlight};
use crate::ingress::local::Local;
use crate::ingress::room::{Room, no_room};
use crate::partition::fetch;
use crate::partition::owner::Partitions;
use crate::router::mesh::Mesh;
use crate::router::message::{ShardReply, ShardRequest};

/// Who the node is, as clients are told.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its number.
    pub node: u64,
    /// The cluster's id, in hex.
    pub cluster: String,
    /// The client ports of its shards.
    pub shard_ports: Vec<u16>,
}

/// The shard's dispatcher; all its connections share it.
pub struct Dispatch {
    identity: Identity,
    local: Rc<Local>,
    mesh: Rc<Mesh>,
    control: flume::Sender<ControlRequest>,
    /// Memory for large frames that come in.
    receiving: Rc<Budget>,
}

/// The batches of a fetch, on their way out.
type Fetched = (Reply, Vec<Bytes>);

impl Dispatch {
    /// A dispatcher to this shard and all others.
    pub fn new(
        identity: Identity,
        local: Rc<Local>,
        mesh: Rc<Mesh>,
        control: flume::Sender<ControlRequest>,
        receiving: Rc<Budget>,
    ) -> Dispatch {
        Dispatch {
            identity,
            local,
            mesh,
            control,
            receiving,
        }
    }

    /// The shard's partitions.
    #[must_use]
    pub fn partitions(&self) -> &Partitions {
        self.local.partitions()
    }

    /// Memory for large frames that come in.
    #[must_use]
    pub fn receiving(&self) -> &Rc<Budget> {
        &self.receiving
    }

    /// Returns when the shard begins to drain.
    pub async fn until_draining(&self) {
        self.local.until_draining().await;
    }

    /// Takes a request. What can be decided at once is; the answer goes to the connection's outbox. The room that the
    /// frame took while it came in is given back when something else counts its payload.
    pub fn handle(
        self: &Rc<Dispatch>,
        connection: Rc<Connection>,
        place: InFlight,
        correlation: u64,
        request: Request,
        payload: Bytes,
        room: Room,
    ) {
        if let Err(draining) = self.local.check_open() {
            return self.answer(&connection, correlation, Err(draining));
        }
        if !payload.is_empty() && !matches!(request, Request::Produce(_)) {
            let refusal = Refusal::new(ErrorCode::InvalidRequest, "only a produce carries a payload");
            return self.answer(&connection, correlation, Err(refusal));
        }
        let this = Rc::clone(self);
        match request {
            Request::Produce(request) => {
                self.produce(connection, place, correlation, request, (payload, room));
            }
            Request::Fetch(request) => self.fetch(connection, place, correlation, request),
            Request::FindOffset(_) | Request::OpenProducer(_) | Request::ResetClock(_) => {
                self.later(connection, place, correlation, async move {
                    this.ask_owner(request).await
                });
            }
            Request::CreateTopic(_)
            | Request::DeleteTopic(_)
            | Request::AlterTopic(_)
            | Request::Attach(_)
            | Request::Detach(_) => {
                self.later(connection, place, correlation, async move {
                    this.change(request).await
                });
            }
            Request::Clock(request) => {
                let clock = self.partitions().clock().clone();
                self.later(connection, place, correlation, async move {
                    clock_service::answer(&clock, request).await
                });
            }
            Request::ListLinks(_) | Request::ListPartitions(_) | Request::DescribeLink(_) => {
                self.later(connection, place, correlation, async move {
                    this.ask_all(request).await
                });
            }
            Request::Hello(_) => {
                let welcome = Welcome {
                    node: self.identity.node,
                    cluster: self.identity.cluster.clone(),
                    shard: self.mesh.placement().shard,
                    shard_ports: self.identity.shard_ports.clone(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                };
                self.answer(&connection, correlation, Ok(Reply::Welcome(welcome)));
            }
            Request::Ping => self.answer(&connection, correlation, Ok(Reply::Pong)),
            Request::DescribeTopics(names) => {
                self.answer(&connection, correlation, self.describe(names.as_deref()));
            }
        }
    }

    fn produce(
        self: &Rc<Dispatch>,
        connection: Rc<Connection>,
        place: InFlight,
        correlation: u64,
        request: ProduceRequest,
        (payload, mut room): (Bytes, Room),
    ) {
        if let Some(owner) = self.other_owner(&request.topic, request.partition) {
            if !room.make_to_leave(&self.receiving, payload.len()) {
                return self.refuse(&connection, correlation, &no_room());
            }
            let request = Request::Produce(request);
            return match self.mesh.ask(owner, ShardRequest::Client { request, payload }) {
                Err(busy) => self.answer(&connection, correlation, Err(busy)),
                // The owner counts it when it takes it up, not while it waits for its turn to be sent.
                Ok(call) => self.later(connection, place, correlation, async move {
                    let _room = room;
                    client_reply(call.answer().await).map(|(reply, _)| reply)
                }),
            };
        }
        match self.local.produce(&request, payload) {
            Err(refusal) => self.answer(&connection, correlation, Err(refusal)),
            Ok(settled) => self.later(connection, place, correlation, settled),
        }
    }

    fn fetch(
        self: &Rc<Dispatch>,
        connection: Rc<Connection>,
        place: InFlight,
        correlation: u64,
        request: FetchRequest,
    ) {
        let this = Rc::clone(self);
        glommio::spawn_local(async move {
            let _place = place;
            match this.fetch_within_bounds(&connection, &request).await {
                Ok((reply, runs)) => connection.outbox.reply(correlation, &reply, runs),
                Err(refusal) => this.answer(&connection, correlation, Err(refusal)),
            }
        })
        .detach();
    }

    /// Memory is asked for before anything is read, and not held while the client waits at the tail: the connection's
    /// share first, then the shard's, which the answer keeps until it is sent.
    async fn fetch_within_bounds(
        &self,
        connection: &Rc<Connection>,
        request: &FetchRequest,
    ) -> Result<Fetched, Refusal> {
        let answers = self.local.answers();
        let mut may_wait = request.wait_millis > 0;
        loop {
            let _room = connection.reserve(fetch::bytes_max(request)).await;
            let charge = answers.take(fetch::bytes_max(request)).await;
            let (reply, runs) = self.fetch_once(request).await?;
            let nothing =
                runs.is_empty() && matches!(&reply, Reply::Fetched(fetched) if fetched.next == request.from);
            if !nothing || !may_wait {
                drop(charge);
                let runs = runs.into_iter().map(|run| answers.hold(run)).collect();
                return Ok((reply, runs));
            }
            drop((charge, _room));
            self.wait(request).await?;
            may_wait = false;
        }
    }

    async fn fetch_once(&self, request: &FetchRequest) -> Result<Fetched, Refusal> {
        let Some(owner) = self.other_owner(&request.topic, request.partition) else {
            let slab = self.local.fetch(request).await?;
            return Ok((Reply::Fetched(slab.reply), slab.runs));
        };
        let request = Request::Fetch(request.clone());
        let payload = Bytes::new();
        let call = self.mesh.ask(owner, ShardRequest::Client { request, payload })?;
        let (reply, run) = client_reply(call.answer().await)?;
        let runs = Vec::from_iter((!run.is_empty()).then_some(run));
        Ok((reply, runs))
    }

    async fn wait(&self, request: &FetchRequest) -> Result<(), Refusal> {
        match self.other_owner(&request.topic, request.partition) {
            None => self.local.wait(request).await,
            Some(owner) => {
                let call = self.mesh.ask(owner, ShardRequest::Wait(request.clone()))?;
                call.answer().await;
            }
        }
        Ok(())
    }

    /// The other shard that owns a partition. What is not known here is looked for here, and refused.
    fn other_owner(&self, topic: &TopicName, partition: PartitionId) -> Option<u32> {
        let owner = self.partitions().owner(topic, partition)?;
        (owner != self.mesh.placement().shard).then_some(owner)
    }

    async fn ask_owner(&self, request: Request) -> Result<Reply, Refusal> {
        let (topic, partition) = match &request {
            Request::FindOffset(request) => (&request.topic, request.partition),
            Request::OpenProducer(request) => (&request.topic, request.partition),
            Request::ResetClock(request) => (&request.topic, request.partition),
            _ => return Err(Refusal::new(ErrorCode::Internal, "not about one partition")),
        };
        let Some(owner) = self.other_owner(topic, partition) else {
            return self.local.ask(request).await;
        };
        let payload = Bytes::new();
        let call = self.mesh.ask(owner, ShardRequest::Client { request, payload })?;
        client_reply(call.answer().await).map(|(reply, _)| reply)
    }

    /// Asks every shard for its part, and puts the parts together.
    async fn ask_all(&self, request: Request) -> Result<Reply, Refusal> {
        if let Request::ListLinks(Some(name)) | Request::ListPartitions(Some(name)) = &request
            && self.local.shared().metadata().topic(name).is_none()
        {
            return Err(unknown_topic(name));
        }
        let placement = self.mesh.placement();
        let others = (0..placement.shards).filter(|shard| *shard != placement.shard);
        let calls = others
            .map(|shard| self.mesh.ask(shard, ShardRequest::Part(request.clone())))
            .collect::<Result<Vec<_>, Refusal>>()?;
        let mut whole = self.local.part(&request)?;
        for call in calls {
            let (part, _) = client_reply(call.answer().await)?;
            whole = join(whole, part)?;
        }
        Ok(whole)
    }

    fn describe(&self, names: Option<&[TopicName]>) -> Result<Reply, Refusal> {
        let snapshot = self.local.shared().metadata();
        let topics = match names {
            None => snapshot.topics.values().cloned().collect(),
            Some(names) => {
                if let Some(unknown) = names.iter().find(|name| snapshot.topic(name).is_none()) {
                    return Err(unknown_topic(unknown));
                }
                // A name is two bytes, and what it stands for is not.
                if names.len() > snapshot.topics.len() {
                    return Err(Refusal::new(ErrorCode::InvalidRequest, "it names a topic twice"));
                }
                names
                    .iter()
                    .filter_map(|name| snapshot.topic(name).cloned())
                    .collect()
            }
        };
        Ok(Reply::Topics(topics))
    }

    async fn change(&self, request: Request) -> Result<Reply, Refusal> {
        let (answer, answered) = flume::bounded(1);
        self.control
            .try_send(ControlRequest::Client { request, answer })
            .map_err(|error| match error {
                flume::TrySendError::Full(_) => {
                    Refusal::new(ErrorCode::Busy, "too many changes wait already")
                }
                flume::TrySendError::Disconnected(_) => {
                    Refusal::new(ErrorCode::Draining, "the node is shutting down")
                }
            })?;
        let gone = || Refusal::new(ErrorCode::Draining, "the node is shutting down");
        answered.recv_async().await.unwrap_or_else(|_| Err(gone()))
    }

    /// Runs what waits in a task of its own, and answers when it is done.
    fn later(
        self: &Rc<Dispatch>,
        connection: Rc<Connection>,
        place: InFlight,
        correlation: u64,
        work: impl Future<Output = Result<Reply, Refusal>> + 'static,
    ) {
        let this = Rc::clone(self);
        glommio::spawn_local(async move {
            let _place = place;
            let outcome = work.await;
            this.answer(&connection, correlation, outcome);
        })
        .detach();
    }

    fn answer(&self, connection: &Connection, correlation: u64, outcome: Result<Reply, Refusal>) {
        match outcome {
            Ok(reply) => connection.outbox.reply(correlation, &reply, Vec::new()),
            Err(refusal) => self.refuse(connection, correlation, &refusal),
        }
    }

    /// Answers that it was not done, and counts that.
    pub fn refuse(&self, connection: &Connection, correlation: u64, refusal: &Refusal) {
        self.partitions().counters().refusals.add(1);
        connection.outbox.refuse(correlation, refusal);
    }
}

fn unknown_topic(name: &TopicName) -> Refusal {
    Refusal::new(ErrorCode::UnknownTopic, format!("there is no topic `{name}`"))
}

fn client_reply(reply: ShardReply) -> Result<(Reply, Bytes), Refusal> {
    match reply {
        ShardReply::Client(answered) => *answered,
        _ => Err(Refusal::new(
            ErrorCode::Internal,
            "a shard answered something else",
        )),
    }
}

/// Puts two shards' parts of one answer together.
fn join(whole: Reply, part: Reply) -> Result<Reply, Refusal> {
    match (whole, part) {
        (Reply::Links(links), Reply::Links(more)) => Ok(Reply::Links(join_links(links, more))),
        (Reply::LinkDetail(whole), Reply::LinkDetail(part)) => {
            Ok(Reply::LinkDetail(join_details(whole, part)))
        }
        (Reply::Partitions(mut all), Reply::Partitions(more)) => {
            all.extend(more);
            all.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
            Ok(Reply::Partitions(all))
        }
        _ => Err(Refusal::new(
            ErrorCode::Internal,
            "shards gave answers of different kinds",
        )),
    }
}
