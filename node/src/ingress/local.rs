//! What a shard answers by itself: as the owner of partitions, to a client that came in here or at another shard, and its
//! own part of answers that are put together from all shards.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::TopicName;
use tailwater_wire::message::{
    DetachRequest, FetchRequest, FindOffset, OpenProducer, PartitionStatus, ProduceRequest, Reply, Request,
};

use crate::budget::Budget;
use crate::fanout::cursors::Cursors;
use crate::fanout::shared::Shared;
use crate::partition::commit;
use crate::partition::era;
use crate::partition::fetch::{self, FetchedSlab};
use crate::partition::owner::Partitions;
use crate::partition::refusal;
use crate::signal::Signal;

/// Memory of a shard for fetched slabs that are not sent yet, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// See the module.
pub struct Local {
    partitions: Rc<Partitions>,
    cursors: Rc<Cursors>,
    draining: Cell<bool>,
    drained: Signal,
    /// Memory for fetched slabs on their way out.
    answers: Rc<Budget>,
}

impl Local {
    /// Over the shard's partitions and cursors.
    #[must_use]
    pub fn new(partitions: Rc<Partitions>, cursors: Rc<Cursors>) -> Local {
        Local {
            partitions,
            cursors,
            draining: Cell::new(false),
            drained: Signal::default(),
            answers: Budget::new(ANSWER_BYTES_MAX),
        }
    }

    /// The shard's partitions.
    #[must_use]
    pub fn partitions(&self) -> &Rc<Partitions> {
        &self.partitions
    }

    /// What the shard's cursors share.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        self.cursors.shared()
    }

    /// Memory for answers on their way out.
    #[must_use]
    pub fn answers(&self) -> &Rc<Budget> {
        &self.answers
    }

    /// From now on everything new of clients is refused with `DRAINING`.
    pub fn drain(&self) {
        self.draining.set(true);
        self.drained.notify();
    }

    /// Returns when the shard begins to drain.
    pub async fn until_draining(&self) {
        self.drained.until(|| self.draining.get()).await;
    }

    /// Whether clients' requests are still taken.
    ///
    /// # Errors
    /// `DRAINING`.
    pub fn check_open(&self) -> Result<(), Refusal> {
        if self.draining.get() {
            return Err(Refusal::new(ErrorCode::Draining, "the node is shutting down"));
        }
        Ok(())
    }

    /// Gives a batch its place at once; the future ends when it is settled.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn produce(
        &self,
        request: &ProduceRequest,
        payload: Bytes,
    ) -> Result<impl Future<Output = Result<Reply, Refusal>> + 'static, Refusal> {
        self.check_open()?;
        let partition = self
            .partitions
            .find(&request.topic, Some(request.incarnation), request.partition)?;
        let accepted = commit::accept(&self.partitions, &partition, payload)?;
        let partitions = Rc::clone(&self.partitions);
        Ok(async move {
            let settled = commit::settle(&partitions, accepted).await;
            settled
                .map(Reply::Produced)
                .map_err(|error| refusal::commit(&partition, &error))
        })
    }

    /// Reads what is there, without waiting for more.
    ///
    /// # Errors
    /// As [`fetch::fetch`].
    pub async fn fetch(&self, request: &FetchRequest) -> Result<FetchedSlab, Refusal> {
        self.check_open()?;
        let partition = self
            .partitions
            .find(&request.topic, request.incarnation, request.partition)?;
        fetch::fetch(&self.partitions, &partition, request).await
    }

    /// As [`Local::fetch`], for a client at another shard: the bytes are copied, because what was read stays on this core.
    ///
    /// # Errors
    /// As [`fetch::fetch`].
    pub async fn fetch_copied(&self, request: &FetchRequest) -> Result<(Reply, Bytes), Refusal> {
        let _room = self.answers.take(fetch::bytes_max(request)).await;
        let slab = self.fetch(request).await?;
        let mut copy = BytesMut::with_capacity(slab.runs.iter().map(Bytes::len).sum());
        slab.runs.iter().for_each(|run| copy.extend_from_slice(run));
        Ok((Reply::Fetched(slab.reply), copy.freeze()))
    }

    /// Waits at the tail for what a fetch asks for, as long as its client wants to.
    pub async fn wait(&self, request: &FetchRequest) {
        let found = self
            .partitions
            .find(&request.topic, request.incarnation, request.partition);
        if let Ok(partition) = found {
            fetch::wait(&partition, request).await;
        }
    }

    /// Answers a question about a partition.
    ///
    /// # Errors
    /// The refusal for the client.
    pub async fn ask(&self, request: Request) -> Result<Reply, Refusal> {
        self.check_open()?;
        match request {
            Request::FindOffset(request) => self.find_offset(&request).await,
            Request::OpenProducer(request) => self.open_producer(request).await,
            Request::ResetClock(request) => era::reset(&self.partitions, &request).await,
            _ => Err(Refusal::new(
                ErrorCode::Internal,
                "not a request for a partition's owner",
            )),
        }
    }

    async fn find_offset(&self, request: &FindOffset) -> Result<Reply, Refusal> {
        let partition = self.partitions.find(&request.topic, None, request.partition)?;
        fetch::find_offset(&partition, request)
            .await
            .map(Reply::FoundOffset)
    }

    async fn open_producer(&self, request: OpenProducer) -> Result<Reply, Refusal> {
        let partition = self
            .partitions
            .find(&request.topic, Some(request.incarnation), request.partition)?;
        commit::open_producer(&self.partitions, &partition, &request.producer)
            .await
            .map(Reply::ProducerOpened)
    }

    /// This shard's part of an answer.
    ///
    /// # Errors
    /// The refusal for the client.
    pub fn part(&self, request: &Request) -> Result<Reply, Refusal> {
        match request {
            Request::ListLinks(parent) => Ok(Reply::Links(self.cursors.link_status(parent.as_ref()))),
            Request::ListPartitions(topic) => Ok(Reply::Partitions(self.partition_status(topic.as_ref()))),
            Request::DescribeLink(DetachRequest { parent, child }) => {
                let detail = self.cursors.link_detail(parent, child);
                detail.map(Reply::LinkDetail).ok_or_else(|| {
                    let what = format!("`{child}` is not attached to `{parent}`");
                    Refusal::new(ErrorCode::UnknownLink, what)
                })
            }
            _ => Err(Refusal::new(
                ErrorCode::Internal,
                "not a request that shards answer in parts",
            )),
        }
    }

    fn partition_status(&self, topic: Option<&TopicName>) -> Vec<PartitionStatus> {
        let mine = self.partitions.mine(topic);
        mine.into_iter()
            .map(|(topic, partition, found)| {
                let log = found.as_ref().ok().map(|found| &found.log);
                let latched = log.and_then(|log| log.latched().map(|why| why.to_string()));
                PartitionStatus {
                    topic,
                    partition,
                    shard: self.partitions.placement().shard,
                    log_start: log.map(|log| log.log_start()).unwrap_or_default(),
                    high_water_mark: log.map(|log| log.high_water_mark()).unwrap_or_default(),
                    lineage: log.map(|log| log.lineage()),
                    trouble: found
                        .as_ref()
                        .err()
                        .map(|refusal| refusal.what.clone())
                        .or(latched),
                }
            })
            .collect()
    }
}
