//! The handle that everything begins with: one node, its topics and links, and raw round trips.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::client::config::ClientConfig;
use crate::client::connection::Connection;
use crate::client::error::ClientError;
use crate::client::pool::Pool;
use crate::code::{ErrorCode, Refusal, Retry};
use crate::ids::{Incarnation, PartitionId, TopicName};
use crate::message::{
    AlterTopic, AttachRequest, ClockRequest, ClockStatus, DetachRequest, FetchRequest, Fetched, FindOffset,
    FoundOffset, LinkDetail, LinkStatus, PartitionStatus, Place, Reply, Request, ResetClock, Welcome,
};
use crate::meta::{Link, LinkOptions, Topic, TopicSpec};
use crate::session::machine::is_repeatable;

/// The pause before a request is made again that the node was not ready for.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A client of one node; clones share its connections: the first, which answers for everything, and one straight to each
/// further shard that owns a partition it has to do with (SPEC.md C1). It lives until the last clone, producer and consumer is gone.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    welcome: Welcome,
    pool: Arc<Pool>,
    /// What was last described, by name.
    topics: Mutex<HashMap<TopicName, Topic>>,
}

impl Client {
    /// Connects and greets. The first attempt must succeed; later ones are repeated as long as requests wait.
    ///
    /// # Errors
    /// Unreachable, refused, or not this protocol.
    pub async fn connect(config: ClientConfig) -> Result<Client, ClientError> {
        let (pool, welcome) = Pool::open(config).await?;
        let inner = Inner {
            welcome,
            pool,
            topics: Mutex::default(),
        };
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// What the node said of itself at the first connect.
    #[must_use]
    pub fn welcome(&self) -> &Welcome {
        &self.inner.welcome
    }

    /// How this client was set up.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        self.inner.pool.config()
    }

    /// One raw round trip, straight to the owner if it is about a partition of a topic that this client has described.
    /// A break in between is handled as the session does (see [`crate::session`]).
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn request(&self, request: Request, payload: Bytes) -> Result<(Reply, Bytes), ClientError> {
        let limit = self.limit_of(&request);
        let Some((incarnation, partition)) = self.place_of(&request) else {
            return self.inner.pool.first().call(request, payload, limit).await;
        };
        let connection = self.inner.pool.connection_to(incarnation, partition);
        let answer = connection.call(request.clone(), payload.clone(), limit).await;
        match &answer {
            // The owner cannot be reached, which is no reason to fail: the first connection's shard forwards it.
            Err(ClientError::Unreachable { .. }) if connection.is_beside() => {
                self.inner.pool.first().call(request, payload, limit).await
            }
            Err(ClientError::OutcomeUnknown { .. })
                if connection.is_beside() && is_repeatable(&request, &payload) =>
            {
                self.inner.pool.first().call(request, payload, limit).await
            }
            Err(error) if error.code() == ErrorCode::NotOwner => {
                let was_straight = connection.is_beside();
                self.inner.pool.strayed(incarnation, partition, was_straight);
                answer
            }
            _ => answer,
        }
    }

    /// As [`Client::request`], without payloads, and again while the node says that it did nothing and will soon be
    /// able to.
    async fn ask(&self, request: Request) -> Result<Reply, ClientError> {
        let give_up = Instant::now() + self.config().request_timeout;
        loop {
            match self.request(request.clone(), Bytes::new()).await {
                Err(error) if is_momentary(error.code()) && Instant::now() + RETRY_PAUSE < give_up => {
                    sleep(RETRY_PAUSE).await;
                }
                other => return Ok(other?.0),
            }
        }
    }

    /// Is the node there?
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn ping(&self) -> Result<(), ClientError> {
        match self.request(Request::Ping, Bytes::new()).await?.0 {
            Reply::Pong => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Topics by name, or all, by name.
    ///
    /// # Errors
    /// Any [`ClientError`]; `UNKNOWN_TOPIC` when a name is none.
    pub async fn describe_topics(&self, names: Option<Vec<TopicName>>) -> Result<Vec<Topic>, ClientError> {
        let request = Request::DescribeTopics(names);
        match self.ask(request).await? {
            Reply::Topics(topics) => Ok(topics),
            other => Err(self.unexpected(&other)),
        }
    }

    /// One topic, asked for once and then remembered, until a refusal shows that it has changed.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, or any [`ClientError`].
    pub async fn topic(&self, name: &TopicName) -> Result<Topic, ClientError> {
        let known = self.topics().get(name).cloned();
        if let Some(topic) = known {
            return Ok(topic);
        }
        let described = self.describe_topics(Some(vec![name.clone()])).await?;
        let found = described.into_iter().find(|topic| topic.spec.name == *name);
        let topic = found.ok_or_else(|| {
            let what = format!("topic {name}: there is none of this name");
            ClientError::Refused(Refusal::new(ErrorCode::UnknownTopic, what))
        })?;
        self.topics().insert(name.clone(), topic.clone());
        Ok(topic)
    }

    /// Makes a topic.
    ///
    /// # Errors
    /// Any [`ClientError`]; after `OUTCOME_UNKNOWN` it may be there.
    pub async fn create_topic(&self, spec: TopicSpec) -> Result<Topic, ClientError> {
        match self.ask(Request::CreateTopic(spec)).await? {
            Reply::TopicCreated(topic) => {
                self.topics().insert(topic.spec.name.clone(), topic.clone());
                Ok(topic)
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Removes a topic and its data.
    ///
    /// # Errors
    /// Any [`ClientError`]; after `OUTCOME_UNKNOWN` it may be gone.
    pub async fn delete_topic(&self, name: &TopicName) -> Result<(), ClientError> {
        self.forget(name);
        match self.ask(Request::DeleteTopic(name.clone())).await? {
            Reply::TopicDeleted => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Attaches a child to a parent, under a random request id, so that a repeat after a break attaches once.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn attach(
        &self,
        parent: &TopicName,
        child: &TopicName,
        options: LinkOptions,
    ) -> Result<Link, ClientError> {
        let request = AttachRequest {
            request_id: rand::random(),
            parent: parent.clone(),
            child: child.clone(),
            options,
        };
        match self.ask(Request::Attach(request)).await? {
            Reply::Attached(link) => Ok(link),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Ends a link; returns when every cursor of it has stopped.
    ///
    /// # Errors
    /// Any [`ClientError`]; `PENDING` when the cursors have not stopped in time, and will.
    pub async fn detach(&self, parent: &TopicName, child: &TopicName) -> Result<(), ClientError> {
        let request = DetachRequest {
            parent: parent.clone(),
            child: child.clone(),
        };
        match self.ask(Request::Detach(request)).await? {
            Reply::Detached => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Links with their progress, of one parent or all.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn list_links(&self, parent: Option<&TopicName>) -> Result<Vec<LinkStatus>, ClientError> {
        let request = Request::ListLinks(parent.cloned());
        match self.ask(request).await? {
            Reply::Links(links) => Ok(links),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Where a partition begins, ends, or was at a time.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn find_offset(
        &self,
        topic: &TopicName,
        partition: PartitionId,
        at: Place,
    ) -> Result<FoundOffset, ClientError> {
        let request = FindOffset {
            topic: topic.clone(),
            partition,
            at,
        };
        match self.ask(Request::FindOffset(request)).await? {
            Reply::FoundOffset(found) => Ok(found),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Reads slabs; the bytes are whole batches as they lie on the node's disk, not yet checked.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn fetch(&self, request: FetchRequest) -> Result<(Fetched, Bytes), ClientError> {
        match self.request(Request::Fetch(request), Bytes::new()).await? {
            (Reply::Fetched(fetched), payload) => Ok((fetched, payload)),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Which partition a request is about, if it is about one and the life of its topic is known.
    fn place_of(&self, request: &Request) -> Option<(Incarnation, PartitionId)> {
        let (topic, life, partition) = match request {
            Request::Produce(request) => (&request.topic, Some(request.incarnation), request.partition),
            Request::OpenProducer(request) => (&request.topic, Some(request.incarnation), request.partition),
            Request::Fetch(request) => (&request.topic, request.incarnation, request.partition),
            Request::FindOffset(request) => (&request.topic, None, request.partition),
            _ => return None,
        };
        let life = life.or_else(|| Some(self.topics().get(topic)?.incarnation))?;
        Some((life, partition))
    }

    /// The connection to the shard that owns a partition, or the first one as long as that cannot be had.
    pub(crate) fn connection_to(&self, topic: &Topic, partition: PartitionId) -> Connection {
        self.inner.pool.connection_to(topic.incarnation, partition)
    }

    /// Wakes whenever [`Client::connection_to`] may say another one.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.inner.pool.changes()
    }

    /// Takes note of a refusal: what it says to be stale is not used again.
    pub(crate) fn refused(
        &self,
        topic: &Topic,
        partition: PartitionId,
        refusal: &Refusal,
        was_straight: bool,
    ) {
        if refusal.code == ErrorCode::NotOwner {
            let pool = &self.inner.pool;
            pool.strayed(topic.incarnation, partition, was_straight);
        }
        if refusal.code.retry() == Retry::Refresh {
            self.forget(&topic.spec.name);
        }
    }

    /// Drops what is remembered of a topic: a refusal says that it is stale.
    pub(crate) fn forget(&self, name: &TopicName) {
        self.topics().remove(name);
    }

    /// How long a request may take.
    pub(crate) fn limit_of(&self, request: &Request) -> Duration {
        let wait = match request {
            Request::Fetch(fetch) => Duration::from_millis(u64::from(fetch.wait_millis)),
            _ => Duration::ZERO,
        };
        self.config().request_timeout.saturating_add(wait)
    }

    pub(crate) fn unexpected(&self, reply: &Reply) -> ClientError {
        ClientError::Protocol {
            server: self.config().server.clone(),
            why: unexpected(reply),
        }
    }

    fn topics(&self) -> std::sync::MutexGuard<'_, HashMap<TopicName, Topic>> {
        // The map is whole at every point where a holder could panic.
        self.inner.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes settings of a topic; the topic as it then is.
    ///
    /// # Errors
    /// Any [`ClientError`]; after `OUTCOME_UNKNOWN` it may be changed.
    pub async fn alter_topic(&self, change: AlterTopic) -> Result<Topic, ClientError> {
        self.forget(&change.topic);
        match self.ask(Request::AlterTopic(change)).await? {
            Reply::TopicAltered(topic) => {
                self.topics().insert(topic.spec.name.clone(), topic.clone());
                Ok(topic)
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Partitions with their place and their ends, of one topic or all, by topic, then number.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn list_partitions(
        &self,
        topic: Option<&TopicName>,
    ) -> Result<Vec<PartitionStatus>, ClientError> {
        let request = Request::ListPartitions(topic.cloned());
        match self.ask(request).await? {
            Reply::Partitions(partitions) => Ok(partitions),
            other => Err(self.unexpected(&other)),
        }
    }

    /// One link in detail: every cursor, and every child partition as each of them sees it.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn describe_link(
        &self,
        parent: &TopicName,
        child: &TopicName,
    ) -> Result<LinkDetail, ClientError> {
        let request = DetachRequest {
            parent: parent.clone(),
            child: child.clone(),
        };
        match self.ask(Request::DescribeLink(request)).await? {
            Reply::LinkDetail(detail) => Ok(detail),
            other => Err(self.unexpected(&other)),
        }
    }

    /// What each shard's clock says and whether it is held back; or releases it (SPEC.md G6).
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn clock(&self, request: ClockRequest) -> Result<Vec<ClockStatus>, ClientError> {
        match self.ask(Request::Clock(request)).await? {
            Reply::Clocks(clocks) => Ok(clocks),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Recovers a partition that was stamped in a false future (G6); its clock as it goes on.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn reset_clock(
        &self,
        topic: &TopicName,
        partition: PartitionId,
    ) -> Result<ClockStatus, ClientError> {
        let request = ResetClock {
            topic: topic.clone(),
            partition,
        };
        match self.ask(Request::ResetClock(request)).await? {
            Reply::ClockReset(status) => Ok(status),
            other => Err(self.unexpected(&other)),
        }
    }
}

/// Whether a refusal says that nothing was done, and is over in moments: not a full disk, nor a node that leaves. Nor
/// does a wrong shard last: the next attempt takes another way.
fn is_momentary(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Busy | ErrorCode::TooManyInFlight | ErrorCode::NoLeader | ErrorCode::NotOwner
    )
}

/// An answer that does not fit its question, in words.
pub(crate) fn unexpected(reply: &Reply) -> String {
    let text = format!("{reply:?}");
    let name = text.split(['(', ' ']).next().unwrap_or_default();
    format!("the node answered with {name}, which does not fit the request")
}
