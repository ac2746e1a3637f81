//! What all cursors of a shard share: its partitions, the metadata as it is in force here, the way to the leader's
//! word, and the memory for slabs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tailwater_storage::proof::{EpochGone, LeaderConfirmed, TopicGone};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Epoch, Incarnation, TopicName};
use tailwater_wire::meta::MetaSnapshot;

use crate::budget::Budget;
use crate::control::request::{Answer, ControlRequest};
use crate::partition::owner::Partitions;
use crate::router::mesh::Mesh;
use crate::signal::Signal;

/// Shard-local.
pub struct Shared {
    /// The shard's partitions.
    pub partitions: Rc<Partitions>,
    /// Memory for slabs in flight.
    pub budget: Rc<Budget>,
    /// The way to other shards.
    pub mesh: Rc<Mesh>,
    control: flume::Sender<ControlRequest>,
    metadata: RefCell<Arc<MetaSnapshot>>,
    /// The version of the metadata whose topics are open here.
    in_force: Cell<Option<u64>>,
    put_in_force: Signal,
    unique: Cell<u64>,
}

impl Shared {
    /// With no metadata yet.
    #[must_use]
    pub fn new(
        partitions: Rc<Partitions>,
        budget: Rc<Budget>,
        mesh: Rc<Mesh>,
        control: flume::Sender<ControlRequest>,
    ) -> Shared {
        Shared {
            partitions,
            budget,
            mesh,
            control,
            metadata: RefCell::default(),
            in_force: Cell::new(None),
            put_in_force: Signal::default(),
            unique: Cell::new(0),
        }
    }

    /// The metadata in force on this shard.
    #[must_use]
    pub fn metadata(&self) -> Arc<MetaSnapshot> {
        Arc::clone(&self.metadata.borrow())
    }

    /// Takes newer metadata; it is in force when its topics are open, too.
    pub fn set_metadata(&self, snapshot: Arc<MetaSnapshot>) {
        self.metadata.replace(snapshot);
    }

    /// The topics of this version are open here.
    pub fn set_in_force(&self, version: u64) {
        self.in_force.set(Some(version));
        self.put_in_force.notify();
    }

    /// The version whose topics are open here; none before the first.
    #[must_use]
    pub fn in_force(&self) -> Option<u64> {
        self.in_force.get()
    }

    /// Returns when metadata of at least this index is in force.
    pub async fn until_in_force(&self, index: u64) {
        self.put_in_force
            .until(|| self.in_force.get().is_some_and(|version| version >= index))
            .await;
    }

    /// A number that no other replacement of a file of this process has.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.unique.set(self.unique.get() + 1);
        self.unique.get()
    }

    /// The metadata leader's word on a pair of topics.
    ///
    /// # Errors
    /// No word, and the caller defers.
    pub async fn confirm_link(
        &self,
        parent: &TopicName,
        child: &TopicName,
    ) -> Result<LeaderConfirmed, Refusal> {
        let (parent, child) = (parent.clone(), child.clone());
        self.ask(|answer| ControlRequest::ConfirmLink {
            parent,
            child,
            answer,
        })
        .await
    }

    /// The metadata leader's word that an epoch is gone; `None` when it is live.
    ///
    /// # Errors
    /// No word, and the caller defers.
    pub async fn confirm_epoch_gone(&self, epoch: Epoch) -> Result<Option<EpochGone>, Refusal> {
        self.ask(|answer| ControlRequest::ConfirmGone { epoch, answer })
            .await
    }

    /// The metadata leader's word that a topic's life is over; `None` when it goes on.
    ///
    /// # Errors
    /// No word, and the caller defers.
    pub async fn confirm_topic_gone(
        &self,
        topic: &TopicName,
        incarnation: Incarnation,
    ) -> Result<Option<TopicGone>, Refusal> {
        let topic = topic.clone();
        self.ask(|answer| ControlRequest::ConfirmTopicGone {
            topic,
            incarnation,
            answer,
        })
        .await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(Answer<Result<T, Refusal>>) -> ControlRequest,
    ) -> Result<T, Refusal> {
        let (answer, answered) = flume::bounded(1);
        self.control
            .try_send(request(answer))
            .map_err(|_| Refusal::new(ErrorCode::Busy, "the control thread cannot be asked right now"))?;
        let gone = || Refusal::new(ErrorCode::Draining, "the control thread is gone");
        answered.recv_async().await.unwrap_or_else(|_| Err(gone()))
    }
}
