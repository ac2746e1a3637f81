//! From a request to what answers it. Produces get their offsets here, in order of arrival; whatever waits does so
//! in a task of its own.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::TopicName;
use tailwater_wire::message::{
    FetchRequest, FindOffset, OpenProducer, ProduceRequest, ProducerOpened, Reply, Request, Welcome,
};

use crate::budget::Budget;
use crate::clock::service as clock_service;
use crate::control::request::ControlRequest;
use crate::fanout::cursors::Cursors;
use crate::ingress::in_flight::{Connection, InFlight};
use crate::partition::commit;
use crate::partition::era;
use crate::partition::fetch::{self, FetchedSlab};
use crate::partition::owner::{Partition, Partitions};
use crate::partition::refusal;
use crate::signal::Signal;

/// Memory of a shard for fetched slabs that are not sent yet, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

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
    partitions: Rc<Partitions>,
    cursors: Rc<Cursors>,
    control: flume::Sender<ControlRequest>,
    draining: Cell<bool>,
    drained: Signal,
    /// Memory for fetched slabs on their way out.
    answers: Rc<Budget>,
}

impl Dispatch {
    /// A dispatcher to these parts of the shard.
    pub fn new(
        identity: Identity,
        partitions: Rc<Partitions>,
        cursors: Rc<Cursors>,
        control: flume::Sender<ControlRequest>,
    ) -> Dispatch {
        Dispatch {
            identity,
            partitions,
            cursors,
            control,
            draining: Cell::new(false),
            drained: Signal::default(),
            answers: Budget::new(ANSWER_BYTES_MAX),
        }
    }

    /// The shard's partitions.
    #[must_use]
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// From now on everything new is refused with `DRAINING`.
    pub fn drain(&self) {
        self.draining.set(true);
        self.drained.notify();
    }

    /// Returns when the shard begins to drain.
    pub async fn until_draining(&self) {
        self.drained.until(|| self.draining.get()).await;
    }

    /// Takes a request. What can be decided at once is; the answer goes to the connection's outbox.
    pub fn handle(
        self: &Rc<Dispatch>,
        connection: Rc<Connection>,
        place: InFlight,
        correlation: u64,
        request: Request,
        payload: Bytes,
    ) {
        if self.draining.get() {
            let refusal = Refusal::new(ErrorCode::Draining, "the node is shutting down");
            return self.answer(&connection, correlation, Err(refusal));
        }
        if !payload.is_empty() && !matches!(request, Request::Produce(_)) {
            let refusal = Refusal::new(ErrorCode::InvalidRequest, "only a produce carries a payload");
            return self.answer(&connection, correlation, Err(refusal));
        }
        match request {
            Request::Produce(request) => self.produce(connection, place, correlation, &request, payload),
            Request::Fetch(request) => self.fetch(connection, place, correlation, request),
            Request::FindOffset(request) => {
                let this = Rc::clone(self);
                self.later(connection, place, correlation, async move {
                    this.find_offset(&request).await
                });
            }
            Request::CreateTopic(_) | Request::DeleteTopic(_) | Request::Attach(_) | Request::Detach(_) => {
                let this = Rc::clone(self);
                self.later(connection, place, correlation, async move {
                    this.change(request).await
                });
            }
            Request::Hello(_) => {
                let welcome = Welcome {
                    node: self.identity.node,
                    cluster: self.identity.cluster.clone(),
                    shard: 0,
                    shard_ports: self.identity.shard_ports.clone(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                };
                self.answer(&connection, correlation, Ok(Reply::Welcome(welcome)));
            }
            Request::Ping => self.answer(&connection, correlation, Ok(Reply::Pong)),
            Request::DescribeTopics(names) => {
                self.answer(&connection, correlation, self.describe(names.as_deref()));
            }
            Request::ListLinks(parent) => {
                self.answer(&connection, correlation, self.list_links(parent.as_ref()));
            }
            Request::AlterTopic(_) | Request::ListPartitions(_) | Request::DescribeLink(_) => {
                let refusal = Refusal::new(ErrorCode::InvalidRequest, "not served yet");
                self.answer(&connection, correlation, Err(refusal));
            }
            Request::Clock(request) => {
                let clock = self.partitions.clock().clone();
                self.later(connection, place, correlation, async move {
                    clock_service::answer(&clock, request).await
                });
            }
            Request::ResetClock(request) => {
                let partitions = Rc::clone(&self.partitions);
                self.later(connection, place, correlation, async move {
                    era::reset(&partitions, &request).await
                });
            }
            Request::OpenProducer(request) => {
                let this = Rc::clone(self);
                self.later(connection, place, correlation, async move {
                    this.open_producer(request).await
                });
            }
        }
    }

    fn produce(
        self: &Rc<Dispatch>,
        connection: Rc<Connection>,
        place: InFlight,
        correlation: u64,
        request: &ProduceRequest,
        payload: Bytes,
    ) {
        let found = self
            .partitions
            .find(&request.topic, Some(request.incarnation), request.partition);
        let accepted = found.and_then(|partition| {
            commit::accept(&self.partitions, &partition, payload).map(|accepted| (partition, accepted))
        });
        match accepted {
            Err(refusal) => self.answer(&connection, correlation, Err(refusal)),
            Ok((partition, accepted)) => {
                let partitions = Rc::clone(&self.partitions);
                self.later(connection, place, correlation, async move {
                    let settled = commit::settle(&partitions, accepted).await;
                    settled
                        .map(Reply::Produced)
                        .map_err(|error| refusal::commit(&partition, &error))
                });
            }
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
            let found = this
                .partitions
                .find(&request.topic, request.incarnation, request.partition);
            let fetched = match found {
                Ok(partition) => this.fetch_within_bounds(&connection, &partition, &request).await,
                Err(refusal) => Err(refusal),
            };
            match fetched {
                Ok(slab) => connection
                    .outbox
                    .reply(correlation, &Reply::Fetched(slab.reply), slab.runs),
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
        partition: &Rc<Partition>,
        request: &FetchRequest,
    ) -> Result<FetchedSlab, Refusal> {
        let mut may_wait = request.wait_millis > 0;
        loop {
            let _room = connection.reserve(fetch::bytes_max(request)).await;
            let charge = self.answers.take(fetch::bytes_max(request)).await;
            let mut slab = fetch::fetch(&self.partitions, partition, request).await?;
            let nothing = slab.runs.is_empty() && slab.reply.next == request.from;
            if !nothing || !may_wait {
                drop(charge);
                slab.runs = slab.runs.into_iter().map(|run| self.answers.hold(run)).collect();
                return Ok(slab);
            }
            drop((charge, _room));
            fetch::wait(partition, request).await;
            may_wait = false;
        }
    }

    async fn find_offset(&self, request: &FindOffset) -> Result<Reply, Refusal> {
        let partition = self.partitions.find(&request.topic, None, request.partition)?;
        fetch::find_offset(&partition, request)
            .await
            .map(Reply::FoundOffset)
    }

    fn describe(&self, names: Option<&[TopicName]>) -> Result<Reply, Refusal> {
        let snapshot = self.cursors.shared().metadata();
        let topics = match names {
            None => snapshot.topics.values().cloned().collect(),
            Some(names) => names
                .iter()
                .map(|name| {
                    let unknown =
                        || Refusal::new(ErrorCode::UnknownTopic, format!("there is no topic `{name}`"));
                    snapshot.topic(name).cloned().ok_or_else(unknown)
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Reply::Topics(topics))
    }

    fn list_links(&self, parent: Option<&TopicName>) -> Result<Reply, Refusal> {
        if let Some(name) = parent
            && self.cursors.shared().metadata().topic(name).is_none()
        {
            return Err(Refusal::new(
                ErrorCode::UnknownTopic,
                format!("there is no topic `{name}`"),
            ));
        }
        Ok(Reply::Links(self.cursors.link_status(parent)))
    }

    async fn open_producer(&self, request: OpenProducer) -> Result<Reply, Refusal> {
        let partition = self
            .partitions
            .find(&request.topic, Some(request.incarnation), request.partition)?;
        let (log, now) = (&partition.log, self.partitions.clock().now());
        let opened = log
            .open_producer(&request.producer, now)
            .map_err(|error| refusal::producer(&partition, &error))?;
        if let Some(end) = opened.unflushed_until {
            // The sequence is told only when a crash cannot take it back.
            log.committed(end)
                .await
                .map_err(|error| refusal::commit(&partition, &error))?;
        }
        let (writer, last_sequence) = (opened.writer, opened.last_sequence);
        Ok(Reply::ProducerOpened(ProducerOpened {
            writer,
            last_sequence,
            lineage: log.lineage(),
        }))
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
            Err(refusal) => {
                self.partitions.counters().refusals.add(1);
                connection.outbox.refuse(correlation, &refusal);
            }
        }
    }
}
