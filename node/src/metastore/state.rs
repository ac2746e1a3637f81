//! The metadata as a value: commands go in, in the order of the replicated log, and every replica comes to the same
//! state. No clock, no randomness and no I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{OwnerEpoch, TopicName};
use tailwater_wire::meta::{Link, MetaSnapshot, Topic};

use crate::metastore::command::{Attach, Command, Outcome, RequestId};
use crate::metastore::rules;

/// Results of attach requests that are remembered. A repeat that comes after so many others is taken for a new
/// request.
pub const REQUEST_RESULTS_MAX: usize = 1_024;

/// The owner epoch of a partition that was just made; 0 is nobody's.
pub const FIRST_OWNER_EPOCH: OwnerEpoch = OwnerEpoch(1);

/// The metadata, and what is needed to answer repeated requests. A view of the cluster; each node's control thread
/// has one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetaState {
    /// Shared with readers: a change copies it when somebody still holds the version before.
    /// Its version is the index of the last command that changed anything.
    snapshot: Arc<MetaSnapshot>,
    /// By log index, so the first is the oldest; at most [`REQUEST_RESULTS_MAX`].
    /// Only successes: a refusal changed nothing, so a repeat of it may be judged anew.
    results: BTreeMap<u64, RequestResult>,
}

/// The first result of an attach request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestResult {
    /// The client's id.
    #[serde(with = "crate::metastore::hex16")]
    pub request_id: RequestId,
    /// The link as it began; it may have ended since.
    pub link: Link,
}

/// The parts of the state that a command may have changed: what a store writes anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched<'a> {
    /// One topic.
    Topic(&'a TopicName),
    /// One link, and the remembered results.
    Link(&'a TopicName, &'a TopicName),
}

impl Command {
    /// What applying this command may change.
    #[must_use]
    pub fn touches(&self) -> Touched<'_> {
        match self {
            Command::CreateTopic { spec, .. } => Touched::Topic(&spec.name),
            Command::DeleteTopic { name, .. } | Command::AlterTopic { name, .. } => Touched::Topic(name),
            Command::Attach(Attach { parent, child, .. }) | Command::Detach { parent, child, .. } => {
                Touched::Link(parent, child)
            }
        }
    }
}

impl MetaState {
    /// A state from what was stored.
    ///
    /// # Errors
    /// A sentence that says why these parts are not a state that commands have made.
    pub fn from_parts(
        snapshot: MetaSnapshot,
        results: BTreeMap<u64, RequestResult>,
    ) -> Result<MetaState, String> {
        rules::check_invariants(&snapshot)?;
        if results.len() > REQUEST_RESULTS_MAX {
            return Err(format!(
                "{} request results are stored, and at most {REQUEST_RESULTS_MAX} may be",
                results.len()
            ));
        }
        Ok(MetaState {
            snapshot: Arc::new(snapshot),
            results,
        })
    }

    /// The metadata at this version.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<MetaSnapshot> {
        &self.snapshot
    }

    /// The remembered results, by the log index of their command.
    #[must_use]
    pub fn results(&self) -> &BTreeMap<u64, RequestResult> {
        &self.results
    }

    /// What an attach request with this id did at first, if it is remembered.
    #[must_use]
    pub fn result_of(&self, request_id: &RequestId) -> Option<&Link> {
        let mut results = self.results.values().rev();
        results
            .find(|result| result.request_id == *request_id)
            .map(|result| &result.link)
    }

    /// Whether a command would be accepted in this state.
    ///
    /// # Errors
    /// The refusal that applying it would answer.
    pub fn check(&self, command: &Command) -> Result<(), Refusal> {
        match self.repeated(command)? {
            Some(_) => Ok(()),
            None => rules::check(&self.snapshot, command),
        }
    }

    /// Applies the command of the log entry `index`. A refused command changes nothing.
    ///
    /// # Errors
    /// Why it was refused.
    pub fn apply(&mut self, index: u64, command: &Command) -> Result<Outcome, Refusal> {
        assert!(
            index > self.snapshot.version,
            "commands are applied once, in order"
        );
        if let Some(first) = self.repeated(command)? {
            return Ok(first);
        }
        rules::check(&self.snapshot, command)?;
        Ok(match command {
            Command::CreateTopic { spec, incarnation } => {
                if let Some(live) = self.snapshot.topic(&spec.name) {
                    return Ok(Outcome::TopicCreated(live.clone()));
                }
                let topic = Topic {
                    spec: spec.clone(),
                    incarnation: *incarnation,
                    owner_epochs: vec![FIRST_OWNER_EPOCH; spec.partitions as usize],
                };
                self.change(index).topics.insert(spec.name.clone(), topic.clone());
                Outcome::TopicCreated(topic)
            }
            Command::DeleteTopic { name, .. } => {
                Outcome::TopicDeleted(found(self.change(index).topics.remove(name)))
            }
            Command::AlterTopic { name, change, .. } => {
                let topic = found(self.change(index).topics.get_mut(name));
                if let Some(partitions) = change.partitions {
                    topic.spec.partitions = partitions;
                    topic.owner_epochs.resize(partitions as usize, FIRST_OWNER_EPOCH);
                }
                topic.spec.retention = change.retention.unwrap_or(topic.spec.retention);
                topic.spec.durability = change.durability.unwrap_or(topic.spec.durability);
                Outcome::TopicAltered(topic.clone())
            }
            Command::Attach(attach) => Outcome::Attached(self.attach(index, attach)),
            Command::Detach { parent, child, .. } => {
                let links = &mut self.change(index).links;
                let children = found(links.get_mut(parent));
                let link = found(children.remove(child));
                if children.is_empty() {
                    links.remove(parent);
                }
                Outcome::Detached(link)
            }
        })
    }

    fn repeated(&self, command: &Command) -> Result<Option<Outcome>, Refusal> {
        let Command::Attach(attach) = command else {
            return Ok(None);
        };
        match self.result_of(&attach.request_id) {
            Some(link) => {
                same_pair(link, &attach.parent, &attach.child).map(|()| Some(Outcome::Attached(link.clone())))
            }
            None => Ok(None),
        }
    }

    fn attach(&mut self, index: u64, attach: &Attach) -> Link {
        let link = Link {
            parent: attach.parent.clone(),
            child: attach.child.clone(),
            epoch: attach.epoch,
            parent_incarnation: attach.parent_incarnation,
            child_incarnation: attach.child_incarnation,
            options: attach.options.clone(),
            attach_offsets: attach.attach_offsets.clone(),
            index,
        };
        let children = self.change(index).links.entry(link.parent.clone()).or_default();
        children.insert(link.child.clone(), link.clone());
        while self.results.len() >= REQUEST_RESULTS_MAX {
            self.results.pop_first();
        }
        let result = RequestResult {
            request_id: attach.request_id,
            link: link.clone(),
        };
        self.results.insert(index, result);
        link
    }

    fn change(&mut self, index: u64) -> &mut MetaSnapshot {
        let snapshot = Arc::make_mut(&mut self.snapshot);
        snapshot.version = index;
        snapshot
    }
}

/// Whether a remembered result is of the pair that is asked for now.
///
/// # Errors
/// `InvalidRequest`: one id was used for two requests.
pub fn same_pair(first: &Link, parent: &TopicName, child: &TopicName) -> Result<(), Refusal> {
    if first.parent == *parent && first.child == *child {
        return Ok(());
    }
    let what = format!(
        "the request id belongs to the attach of `{}` to `{}`, and came again for `{child}` to `{parent}`",
        first.child, first.parent
    );
    Err(Refusal::new(ErrorCode::InvalidRequest, what))
}

fn found<T>(checked: Option<T>) -> T {
    checked.expect("the rules found it")
}
