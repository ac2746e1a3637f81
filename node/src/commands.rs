//! What a shard does at the control thread's word: metadata comes into force, cursors settle, topics go, the shard ends.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tailwater_storage::disk::device::{DiskError, DiskErrorKind};
use tailwater_storage::proof::TopicGone;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Incarnation, TopicName};
use tailwater_wire::meta::MetaSnapshot;

use crate::clock::service as clock_service;
use crate::control::request::ShardCommand;
use crate::fanout::cursors::Cursors;
use crate::ingress::local::Local;
use crate::partition::leftovers;
use crate::partition::owner::Partitions;
use crate::telemetry::links::LinkTotals;

/// Executes commands, one after another. Shard-local.
pub struct Commands {
    local: Rc<Local>,
    cursors: Rc<Cursors>,
    /// Nothing is opened any more.
    closed: Cell<bool>,
}

impl Commands {
    /// Over the parts of a shard.
    #[must_use]
    pub fn new(local: Rc<Local>, cursors: Rc<Cursors>) -> Commands {
        Commands {
            local,
            cursors,
            closed: Cell::new(false),
        }
    }

    fn partitions(&self) -> &Rc<Partitions> {
        self.local.partitions()
    }

    /// Executes one. What waits for cursors of other shards does so beside the next command.
    pub async fn execute(&self, command: ShardCommand) {
        match command {
            ShardCommand::Clean { snapshot, done } => {
                self.clean(&snapshot).await;
                let _unwanted = done.send(());
            }
            ShardCommand::Metadata { snapshot, done } => {
                if !self.closed.get() {
                    self.apply(snapshot).await;
                }
                let _unwanted = done.send(());
            }
            ShardCommand::AttachPoint {
                parent,
                incarnation,
                child,
                from,
                answer,
            } => {
                let cursors = Rc::clone(&self.cursors);
                glommio::spawn_local(async move {
                    let offsets = cursors.attach_point(&parent, incarnation, &child, from).await;
                    let _unwanted = answer.send(offsets);
                })
                .detach();
            }
            ShardCommand::Settle { epoch, done } => {
                let cursors = Rc::clone(&self.cursors);
                glommio::spawn_local(async move {
                    cursors.settled(epoch).await;
                    let _unwanted = done.send(());
                })
                .detach();
            }
            ShardCommand::MarkTopic {
                topic,
                incarnation,
                set,
                answer,
            } => {
                let (disk, data) = (self.partitions().disk(), self.partitions().data());
                let marked = if set {
                    leftovers::mark(disk, data, &topic, incarnation).await
                } else {
                    leftovers::unmark(disk, data, &topic, incarnation).await
                };
                let _unwanted = answer.send(marked.map_err(not_noted));
            }
            ShardCommand::RemoveTopic { gone, done } => {
                self.remove(&gone).await;
                let _unwanted = done.send(());
            }
            ShardCommand::LinkTotals(answer) => {
                let _unwanted = answer.send(LinkTotals::of(self.cursors.link_status(None)));
            }
            ShardCommand::Drain(done) => {
                self.local.drain();
                self.cursors.stop_all().await;
                let _unwanted = done.send(());
            }
            ShardCommand::Close(done) => {
                self.closed.set(true);
                self.partitions().close_all().await;
                if self.partitions().placement().shard == 0 {
                    clock_service::stop(self.partitions().clock()).await;
                }
                let _unwanted = done.send(());
            }
            ShardCommand::Serve | ShardCommand::End => {}
        }
    }

    /// Data of a life that is over, which an earlier process did not come to remove, is removed with the leader's word,
    /// before any shard opens its successor.
    async fn clean(&self, snapshot: &MetaSnapshot) {
        for (topic, found) in leftovers::lives(self.partitions().disk(), self.partitions().data()).await {
            let live = snapshot
                .topic(&topic)
                .is_some_and(|live| live.incarnation == found);
            if !live {
                self.remove_if_deleted(&topic, found).await;
            }
        }
    }

    /// Brings metadata into force: topics that are gone are closed, new ones opened, cursors compared. An older or equal
    /// version changes nothing.
    async fn apply(&self, snapshot: Arc<MetaSnapshot>) {
        let (shared, partitions) = (self.cursors.shared(), self.partitions());
        if shared
            .in_force()
            .is_some_and(|version| version >= snapshot.version)
        {
            return;
        }
        shared.set_metadata(Arc::clone(&snapshot));
        for (topic, incarnation) in partitions.open_topics() {
            if snapshot
                .topic(&topic)
                .is_none_or(|live| live.incarnation != incarnation)
            {
                self.cursors.settle_topic(&topic).await;
                partitions.close_topic(&topic).await;
            }
        }
        for topic in snapshot.topics.values() {
            partitions.open_topic(topic).await;
        }
        shared.set_in_force(snapshot.version);
        self.cursors.owned_changed();
    }

    /// Data that the metadata does not know is removed only if a deletion of this very life was begun, and the metadata
    /// leader says that it is over. Anything else is left alone, and named: the metadata may be the thing that is wrong.
    async fn remove_if_deleted(&self, topic: &TopicName, found: Incarnation) {
        let (disk, data) = (self.partitions().disk(), self.partitions().data());
        if leftovers::is_marked(disk, data, topic, found).await {
            let shared = self.cursors.shared();
            if let Ok(Some(gone)) = shared.confirm_topic_gone(topic, found).await {
                self.remove(&gone).await;
            }
            return;
        }
        tracing::error!(%topic, incarnation = %found, "the data directory has data of a topic that the metadata does not know: it is left alone; was the metadata lost or restored, or a file moved?");
    }

    async fn remove(&self, gone: &TopicGone) {
        if let Err(error) = self.partitions().remove_topic(gone).await {
            tracing::warn!(%error, topic = %gone.topic(), "cannot remove a deleted topic's data; trying again at the next start");
        }
    }
}

fn not_noted(error: DiskError) -> Refusal {
    let code = match error.kind {
        DiskErrorKind::NoSpace => ErrorCode::DiskFull,
        _ => ErrorCode::Internal,
    };
    Refusal::new(code, format!("the deletion cannot be noted down: {error}"))
}
