//! Changes of a topic's settings: checked by the metadata's rules, and against what the machine gives to new partitions.

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::message::{AlterTopic, Reply};

use crate::control::service::{Control, unexpected};
use crate::metastore::command::{Command, Outcome, TopicChange};
use crate::metastore::rules;

impl Control {
    /// Changes a topic, and returns when every shard has the change in force. Every refusal comes before anything is
    /// changed: files and room are asked for only when partitions are added.
    pub(super) async fn alter_topic(&self, request: AlterTopic) -> Result<Reply, Refusal> {
        let AlterTopic {
            topic: name,
            partitions,
            retention,
        } = request;
        if partitions.is_none() && retention.is_none() {
            let what = format!("nothing was asked to be changed of `{name}`");
            return Err(Refusal::new(ErrorCode::InvalidRequest, what));
        }
        let snapshot = self.metastore().snapshot();
        let live = rules::find_topic(&snapshot, &name)?;
        let added = u64::from(partitions.unwrap_or(0).saturating_sub(live.spec.partitions));
        let command = Command::AlterTopic {
            name,
            incarnation: Some(live.incarnation),
            change: TopicChange {
                partitions,
                retention,
                durability: None,
            },
        };
        // The rules first: a number of partitions that no topic may have is that, and not a want of files.
        self.metastore().check(&command)?;
        if added > 0 {
            self.check_room(added)?;
        }
        match self.metastore().propose(command).await? {
            Outcome::TopicAltered(topic) => {
                self.publish().await;
                Ok(Reply::TopicAltered(topic))
            }
            other => Err(unexpected(&other)),
        }
    }
}
