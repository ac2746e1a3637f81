//! The leader's word as a value: the proofs that destructive moves take, made from linearizable reads and from
//! nothing else (SPEC.md F7).

use tailwater_storage::proof::{EpochGone, LeaderConfirmed, TopicGone};
use tailwater_wire::code::Refusal;
use tailwater_wire::ids::{Epoch, Incarnation, TopicName};

use crate::metastore::handle::Metastore;

impl Metastore {
    /// The leader's word on which epoch links a pair, if any.
    ///
    /// # Errors
    /// `NoLeader`: nothing is confirmed, and the caller defers.
    pub async fn prove_link(
        &self,
        parent: &TopicName,
        child: &TopicName,
    ) -> Result<LeaderConfirmed, Refusal> {
        let confirmed = self.confirm_link(parent, child).await?;
        let epoch = confirmed.link.map(|link| link.epoch);
        Ok(LeaderConfirmed::by_leader(
            parent.clone(),
            child.clone(),
            epoch,
            confirmed.index,
        ))
    }

    /// The leader's word that no live link has an epoch; `None` when one has.
    ///
    /// # Errors
    /// `NoLeader`: nothing is confirmed, and the caller defers.
    pub async fn prove_epoch_gone(&self, epoch: Epoch) -> Result<Option<EpochGone>, Refusal> {
        let confirmed = self.confirm().await?;
        Ok(confirmed
            .epoch_is_gone(epoch)
            .then(|| EpochGone::by_leader(epoch, confirmed.index)))
    }

    /// The leader's word that a topic's life is over; `None` when it goes on.
    ///
    /// # Errors
    /// `NoLeader`: nothing is confirmed, and the caller defers.
    pub async fn prove_topic_gone(
        &self,
        topic: &TopicName,
        incarnation: Incarnation,
    ) -> Result<Option<TopicGone>, Refusal> {
        let confirmed = self.confirm().await?;
        let lives = confirmed
            .snapshot
            .topic(topic)
            .is_some_and(|live| live.incarnation == incarnation);
        Ok((!lives).then(|| TopicGone::by_leader(topic.clone(), incarnation, confirmed.index)))
    }
}
