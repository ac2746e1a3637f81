//! The handle that everything begins with: one node, its topics and links, and raw round trips.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use crate::client::config::ClientConfig;
use crate::client::connection::Connection;
use crate::client::error::ClientError;
use crate::code::{ErrorCode, Refusal};
use crate::ids::{PartitionId, TopicName};
use crate::message::{
    AlterTopic, AttachRequest, ClockRequest, ClockStatus, DetachRequest, FetchRequest, Fetched, FindOffset,
    FoundOffset, LinkDetail, LinkStatus, PartitionStatus, Place, Reply, Request, ResetClock, Welcome,
};
use crate::meta::{Link, LinkOptions, Topic, TopicSpec};

/// The pause before a request is made again that the node was not ready for.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A client of one node; clones share its connection. It lives until the last clone, producer and consumer is gone.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    welcome: Welcome,
    connection: Connection,
    /// What was last described, by name.
    topics: Mutex<HashMap<TopicName, Topic>>,
}

impl Client {
    /// Connects and greets. The first attempt must succeed; later ones are repeated as long as requests wait.
    ///
    /// # Errors
    /// Unreachable, refused, or not this protocol.
    pub async fn connect(config: ClientConfig) -> Result<Client, ClientError> {
        let (connection, welcome) = Connection::open(&config).await?;
        let inner = Inner {
            config,
            welcome,
            connection,
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
        &self.inner.config
    }

    /// One raw round trip. A break in between is handled as the session does (see [`crate::session`]).
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn request(&self, request: Request, payload: Bytes) -> Result<(Reply, Bytes), ClientError> {
        let limit = self.limit_of(&request);
        self.inner.connection.call(request, payload, limit).await
    }

    /// As [`Client::request`], without payloads, and again while the node says that it did nothing and will soon be
    /// able to.
    async fn ask(&self, request: Request) -> Result<Reply, ClientError> {
        let give_up = Instant::now() + self.inner.config.request_timeout;
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

    /// The connection to the shard that owns a partition: the one there is, which answers for all partitions.
    pub(crate) fn connection_to(&self, _topic: &Topic, _partition: PartitionId) -> &Connection {
        &self.inner.connection
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
        self.inner.config.request_timeout.saturating_add(wait)
    }

    pub(crate) fn unexpected(&self, reply: &Reply) -> ClientError {
        ClientError::Protocol {
            server: self.inner.config.server.clone(),
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

/// Whether a refusal says that nothing was done, and is over in moments: not a full disk, nor a node that leaves.
fn is_momentary(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Busy | ErrorCode::TooManyInFlight | ErrorCode::NoLeader
    )
}

/// An answer that does not fit its question, in words.
pub(crate) fn unexpected(reply: &Reply) -> String {
    let text = format!("{reply:?}");
    let name = text.split(['(', ' ']).next().unwrap_or_default();
    format!("the node answered with {name}, which does not fit the request")
}
