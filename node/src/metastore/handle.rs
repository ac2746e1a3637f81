//! How the rest of the node asks the metastore: propose a command, look at the local replica, or have the leader
//! confirm what is true.
//!
//! Whether this node leads is never decided from Raft's metrics; only a linearizable read or a committed entry says
//! so. Both are bounded in time here, which openraft does not do itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, ClientWriteError, Fatal, RaftError};
use openraft::{BasicNode, Config, SnapshotPolicy};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Epoch, Incarnation, TopicName};
use tailwater_wire::meta::{Link, LinkOptions, MetaSnapshot, Topic};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::metastore::command::{Answer, Command, Outcome, RequestId};
use crate::metastore::database::{ClusterId, Database, Identity};
use crate::metastore::error::{MetastoreError, StoreError};
use crate::metastore::machine::{Shared, StateMachine};
use crate::metastore::network::NoPeers;
use crate::metastore::store::LogStore;
use crate::metastore::types::Raft;
use crate::metastore::{rules, state, watchdog};

/// Times and sizes of one metastore.
#[derive(Debug, Clone)]
pub struct Options {
    /// How often a leader is heard of.
    pub heartbeat: Duration,
    /// The shortest silence after which a follower stands for election.
    pub election_timeout_min: Duration,
    /// The longest; each process draws one between the two.
    pub election_timeout_max: Duration,
    /// How long `open` waits until this node's replica can be confirmed.
    pub start_timeout: Duration,
    /// How long a proposal may take before its outcome is unknown.
    pub propose_timeout: Duration,
    /// How long a confirmation by the leader may take.
    pub confirm_timeout: Duration,
    /// Log entries between two snapshots.
    pub snapshot_every_entries: u64,
    /// Log entries that are kept although a snapshot has them.
    pub kept_entries: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            heartbeat: Duration::from_millis(250),
            election_timeout_min: Duration::from_millis(1_000),
            election_timeout_max: Duration::from_millis(2_000),
            start_timeout: Duration::from_secs(30),
            propose_timeout: Duration::from_secs(10),
            confirm_timeout: Duration::from_secs(5),
            snapshot_every_entries: 5_000,
            kept_entries: 1_000,
        }
    }
}

impl Options {
    fn raft_config(&self, cluster: ClusterId) -> Result<Config, MetastoreError> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let config = Config {
            cluster_name: cluster.to_string(),
            heartbeat_interval: millis(self.heartbeat),
            election_timeout_min: millis(self.election_timeout_min),
            election_timeout_max: millis(self.election_timeout_max),
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_every_entries),
            max_in_snapshot_log_to_keep: self.kept_entries,
            ..Config::default()
        };
        config.validate().map_err(|error| MetastoreError::Raft {
            step: "configure the metadata engine",
            what: error.to_string(),
        })
    }
}

/// The metastore of this node; clones are of the same one. Lives on the control thread.
#[derive(Clone)]
pub struct Metastore {
    inner: Arc<Inner>,
}

struct Inner {
    raft: Raft,
    shared: Shared,
    identity: Identity,
    options: Options,
    /// Held by Raft alone, so that the file is closed when Raft has ended.
    database: Weak<Database>,
    watchdog: Mutex<Option<JoinHandle<()>>>,
    closing: AtomicBool,
}

/// What the leader confirmed: a replica that contains everything that was committed before it was asked for.
#[derive(Debug, Clone)]
pub struct Confirmed {
    /// The index of the last log entry in it.
    pub index: u64,
    /// The metadata.
    pub snapshot: Arc<MetaSnapshot>,
}

/// What the leader confirmed about one pair of topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfirmedLink {
    /// The topic that is or was copied.
    pub parent: TopicName,
    /// The topic that receives or received the copies.
    pub child: TopicName,
    /// The metadata index at which this was true.
    pub index: u64,
    /// The live link with its epoch and attach offsets; none if the pair is not attached.
    pub link: Option<Link>,
}

/// What to do with an attach request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachCheck {
    /// It was done before: answer this.
    Done(Link),
    /// Nothing known speaks against it: read the parent's offsets and propose it.
    Go {
        /// The parent, as this replica knows it.
        parent: Topic,
        /// The child, as this replica knows it.
        child: Topic,
    },
}

/// How the engine is, for metrics and people. Nothing may be decided by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Whether this node believes that it leads.
    pub leader: bool,
    /// Who is believed to lead.
    pub current_leader: Option<u64>,
    /// The term.
    pub term: u64,
    /// The last entry of the log.
    pub log_index: u64,
    /// The last entry that was applied.
    pub applied_index: u64,
    /// The version of the metadata.
    pub version: u64,
    /// Why the engine has ended, if it has.
    pub ended: Option<String>,
}

impl Metastore {
    /// Opens the metastore in `<data>/meta`, or makes one for a new cluster with this node as its only voter, and waits
    /// until its replica can be confirmed. Needs a tokio runtime; one thread is enough.
    ///
    /// # Errors
    /// See [`MetastoreError`]. A log that turns out unreadable later ends the process.
    pub async fn open(data: &Path, node_id: u64, options: Options) -> Result<Metastore, MetastoreError> {
        let Opened {
            database,
            log,
            machine,
        } = open_files(data, node_id)?;
        let identity = database.identity();
        let config = options.raft_config(identity.cluster_id)?;
        let shared = machine.shared();
        let raft = Raft::new(node_id, Arc::new(config), NoPeers, log, machine)
            .await
            .map_err(|error| MetastoreError::Raft {
                step: "start the metadata engine",
                what: error.to_string(),
            })?;
        let metastore = Metastore {
            inner: Arc::new(Inner {
                watchdog: Mutex::new(Some(tokio::spawn(watchdog::run(
                    raft.clone(),
                    options.election_timeout_max,
                )))),
                raft,
                shared,
                identity,
                options,
                database: Arc::downgrade(&database),
                closing: AtomicBool::new(false),
            }),
        };
        drop(database);
        let started = match metastore.initialize().await {
            Ok(()) => metastore.wait_until_confirmed().await,
            Err(error) => Err(error),
        };
        if let Err(error) = started {
            metastore.shutdown().await;
            return Err(error);
        }
        Ok(metastore)
    }

    /// Makes this node the only voter of its cluster, if it is in none.
    async fn initialize(&self) -> Result<(), MetastoreError> {
        let failed = |what: String| MetastoreError::Raft {
            step: "make a cluster of one",
            what,
        };
        match self.inner.raft.is_initialized().await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
        let voter = BTreeMap::from([(self.inner.identity.node_id, BasicNode::default())]);
        let made = self.inner.raft.initialize(voter).await;
        made.map_err(|error| failed(error.to_string()))
    }

    async fn wait_until_confirmed(&self) -> Result<(), MetastoreError> {
        const RETRY_EVERY: Duration = Duration::from_millis(20);
        let waited = self.inner.options.start_timeout;
        let mut last = Refusal::new(ErrorCode::NoLeader, "nobody has answered");
        let confirmed = timeout(waited, async {
            while let Err(refusal) = self.confirm().await {
                last = refusal;
                sleep(RETRY_EVERY).await;
            }
        });
        match confirmed.await {
            Ok(()) => Ok(()),
            Err(_) => Err(MetastoreError::NoLeader {
                waited,
                what: last.what,
            }),
        }
    }

    /// Who this node is, and of which cluster.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// The local replica, which may lag behind the cluster: good for reading, no proof of anything.
    #[must_use]
    pub fn snapshot(&self) -> Arc<MetaSnapshot> {
        self.inner.shared.replica().state.snapshot().clone()
    }

    /// The local replica, with a notice of every change. What changed in quick succession is seen as one change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<MetaSnapshot>> {
        self.inner.shared.subscribe()
    }

    /// Whether the local replica would accept a command: quick, and not decisive.
    ///
    /// # Errors
    /// The refusal that proposing it would most likely answer.
    pub fn check(&self, command: &Command) -> Result<(), Refusal> {
        self.inner.shared.replica().state.check(command)
    }

    /// What to do with an attach request, before any offset of the parent is read.
    ///
    /// # Errors
    /// The refusal that attaching would most likely answer.
    pub fn check_attach(
        &self,
        request_id: &RequestId,
        parent: &TopicName,
        child: &TopicName,
        options: &LinkOptions,
    ) -> Result<AttachCheck, Refusal> {
        let replica = self.inner.shared.replica();
        if let Some(first) = replica.state.result_of(request_id) {
            state::same_pair(first, parent, child)?;
            return Ok(AttachCheck::Done(first.clone()));
        }
        let (parent, child) = rules::check_link(replica.state.snapshot(), parent, child, options)?;
        Ok(AttachCheck::Go {
            parent: parent.clone(),
            child: child.clone(),
        })
    }

    /// Has a command committed and applied.
    ///
    /// # Errors
    /// The rules' refusal; `NoLeader` if this node does not lead; `Draining` after [`Metastore::shutdown`]; and
    /// `OutcomeUnknown` if it may yet be applied: commands carry what makes repeating them harmless (an
    /// incarnation, an epoch, a request id).
    pub async fn propose(&self, command: Command) -> Result<Outcome, Refusal> {
        if self.inner.closing.load(Ordering::Relaxed) {
            return Err(Refusal::new(
                ErrorCode::Draining,
                "the metastore is shutting down",
            ));
        }
        let limit = self.inner.options.propose_timeout;
        let unknown = |why: String| {
            let what = format!("the change of the metadata may or may not have been made: {why}");
            Refusal::new(ErrorCode::OutcomeUnknown, what)
        };
        // If the wait ends early the entry stays in the log, and may be committed later.
        match timeout(limit, self.inner.raft.client_write(command)).await {
            Err(_) => Err(unknown(format!("no answer within {limit:?}"))),
            Ok(Ok(written)) => match written.data {
                Answer::Command(outcome) => outcome,
                Answer::Nothing => Err(unknown("its entry was answered as none of ours".to_owned())),
            },
            Ok(Err(RaftError::Fatal(fatal))) => Err(unknown(fatal.to_string())),
            // Also said when a leader was deposed before the entry was committed and its successor overwrote it.
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to)))) => {
                let leader = to
                    .leader_id
                    .map_or("unknown".to_owned(), |id| format!("node {id}"));
                let what = format!("this node does not lead the metadata; the leader is {leader}");
                Err(Refusal::new(ErrorCode::NoLeader, what))
            }
            Ok(Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error)))) => {
                Err(Refusal::new(ErrorCode::Internal, error.to_string()))
            }
        }
    }

    /// A linearizable read: everything that was committed before this call is in it. An error or a timeout
    /// confirms nothing, and the caller tries again later.
    ///
    /// # Errors
    /// `NoLeader`.
    pub async fn confirm(&self) -> Result<Confirmed, Refusal> {
        let no_leader = |what: String| Refusal::new(ErrorCode::NoLeader, what);
        let limit = self.inner.options.confirm_timeout;
        let barrier = timeout(limit, self.inner.raft.ensure_linearizable()).await;
        let read_index = match barrier {
            Ok(Ok(read)) => read.map_or(0, |id| id.index),
            Err(_) => {
                return Err(no_leader(format!(
                    "the metadata leader gave no answer within {limit:?}"
                )));
            }
            Ok(Err(RaftError::Fatal(Fatal::Stopped))) => {
                return Err(no_leader("the metadata engine has stopped".to_owned()));
            }
            Ok(Err(RaftError::Fatal(fatal))) => return Err(no_leader(fatal.to_string())),
            Ok(Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(to)))) => {
                let leader = to
                    .leader_id
                    .map_or("unknown".to_owned(), |id| format!("node {id}"));
                let what = format!("this node does not lead the metadata; the leader is {leader}");
                return Err(no_leader(what));
            }
            Ok(Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(error)))) => {
                return Err(no_leader(error.to_string()));
            }
        };
        let replica = self.inner.shared.replica();
        let index = replica.last_applied.map_or(0, |id| id.index);
        assert!(
            index >= read_index,
            "the replica contains what the barrier waited for"
        );
        Ok(Confirmed {
            index,
            snapshot: replica.state.snapshot().clone(),
        })
    }

    /// Whether a pair is attached, as the leader confirms: what a proof for cursor files is made from (SPEC.md F7).
    ///
    /// # Errors
    /// `NoLeader`.
    pub async fn confirm_link(
        &self,
        parent: &TopicName,
        child: &TopicName,
    ) -> Result<ConfirmedLink, Refusal> {
        let confirmed = self.confirm().await?;
        Ok(confirmed.link(parent, child))
    }

    /// How the engine is.
    #[must_use]
    pub fn status(&self) -> Status {
        let metrics = self.inner.raft.metrics();
        let now = metrics.borrow();
        Status {
            leader: now.current_leader == Some(self.inner.identity.node_id),
            current_leader: now.current_leader,
            term: now.current_term,
            log_index: now.last_log_index.unwrap_or(0),
            applied_index: now.last_applied.map_or(0, |id| id.index),
            version: self.snapshot().version,
            ended: now.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// Returns when the engine has ended, with the reason: after [`Metastore::shutdown`], or because the disk
    /// failed it. In the second case the process should end too: no command will be applied any more.
    pub async fn ended(&self) -> String {
        let mut metrics = self.inner.raft.metrics();
        let ended = metrics.wait_for(|now| now.running_state.is_err()).await;
        match ended {
            Ok(now) => now
                .running_state
                .as_ref()
                .err()
                .map(ToString::to_string)
                .unwrap_or_default(),
            Err(_) => "the metadata engine has gone without a word".to_owned(),
        }
    }

    /// Stops the engine and closes the file; what was proposed and not answered is unknown. Harmless when repeated.
    pub async fn shutdown(&self) {
        const CLOSE_WAIT_STEPS: u32 = 1_000;
        const CLOSE_WAIT_STEP: Duration = Duration::from_millis(5);
        self.inner.closing.store(true, Ordering::Relaxed);
        let watchdog = self
            .inner
            .watchdog
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(watchdog) = watchdog {
            watchdog.abort();
        }
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::error!(%error, "the metadata engine did not stop cleanly");
        }
        // Raft's helper tasks let go of the file a moment later.
        for _ in 0..CLOSE_WAIT_STEPS {
            if self.inner.database.strong_count() == 0 {
                return;
            }
            sleep(CLOSE_WAIT_STEP).await;
        }
        tracing::error!("the metadata file is still open after the engine has stopped");
    }
}

/// What is read from the file before the engine starts.
struct Opened {
    database: Arc<Database>,
    log: LogStore,
    machine: StateMachine,
}

/// Opens and reads the file through, on a thread of its own: redb panics on some kinds of damage, and that is an error
/// like any other then (the incident: bytes flipped in its pages at rest ended the start with a backtrace).
fn open_files(data: &Path, node_id: u64) -> Result<Opened, MetastoreError> {
    let owned = data.to_owned();
    let open = move || {
        let database = Arc::new(Database::open(&owned, node_id, ClusterId(rand::random()))?);
        let unreadable = |source: StoreError| MetastoreError::Damaged {
            path: database.path().to_owned(),
            what: source.chain(),
        };
        let log = LogStore::open(database.clone()).map_err(unreadable)?;
        let machine = StateMachine::open(database.clone()).map_err(unreadable)?;
        Ok(Opened {
            database,
            log,
            machine,
        })
    };
    std::thread::spawn(open).join().unwrap_or_else(|_| {
        Err(MetastoreError::Damaged {
            path: data.to_owned(),
            what: "its pages contradict each other".to_owned(),
        })
    })
}

impl Confirmed {
    /// What this says about one pair of topics.
    #[must_use]
    pub fn link(&self, parent: &TopicName, child: &TopicName) -> ConfirmedLink {
        ConfirmedLink {
            parent: parent.clone(),
            child: child.clone(),
            index: self.index,
            link: self.snapshot.link(parent, child).cloned(),
        }
    }

    /// Whether no live link has this epoch. Epochs are drawn once and never come back, so this stays true of any
    /// epoch that was ever seen in a live link.
    #[must_use]
    pub fn epoch_is_gone(&self, epoch: Epoch) -> bool {
        self.snapshot.all_links().all(|link| link.epoch != epoch)
    }

    /// Whether this life of a topic has ended. Stays true of any life that was ever seen alive.
    #[must_use]
    pub fn topic_is_gone(&self, name: &TopicName, incarnation: Incarnation) -> bool {
        self.snapshot.topic(name).map(|topic| topic.incarnation) != Some(incarnation)
    }
}

#[cfg(test)]
mod tests {
    use tailwater_wire::meta::{Durability, Retention, TopicSpec};
    use tailwater_wire::partitioner::Partitioner;

    use super::*;

    fn create(topic: &str) -> Command {
        Command::CreateTopic {
            spec: TopicSpec {
                name: topic.parse().expect("a name"),
                partitions: 1,
                partitioner: Partitioner::Murmur2,
                retention: Retention::default(),
                durability: Durability::Fsync,
            },
            incarnation: Incarnation([1; 8]),
        }
    }

    /// A leader that can no longer reach a majority still believes that it leads. It must confirm nothing, answer in
    /// time, and not come up again as if nothing were.
    #[tokio::test(flavor = "current_thread")]
    async fn a_leader_without_a_majority_confirms_nothing() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let options = Options {
            propose_timeout: Duration::from_millis(300),
            confirm_timeout: Duration::from_millis(300),
            ..Options::default()
        };
        let metastore = Metastore::open(dir.path(), 1, options.clone())
            .await
            .expect("opens");
        metastore.propose(create("a")).await.expect("created");
        let raft = metastore.inner.raft.clone();
        raft.add_learner(2, BasicNode::default(), false)
            .await
            .expect("a learner");
        let joining = timeout(Duration::from_millis(300), raft.change_membership([1, 2], false)).await;
        assert!(joining.is_err(), "nobody answers for node 2");
        assert!(metastore.status().leader, "it believes that it leads");

        let refusal = metastore.confirm().await.expect_err("no majority");
        assert_eq!(refusal.code, ErrorCode::NoLeader, "{refusal}");
        let refusal = metastore.propose(create("b")).await.expect_err("no majority");
        assert_eq!(refusal.code, ErrorCode::OutcomeUnknown, "{refusal}");
        assert_eq!(
            metastore.snapshot().topics.len(),
            1,
            "the local replica can be read all the time"
        );
        metastore.shutdown().await;

        let options = Options {
            start_timeout: Duration::from_millis(700),
            ..options
        };
        let again = Metastore::open(dir.path(), 1, options).await;
        assert!(
            matches!(again, Err(MetastoreError::NoLeader { .. })),
            "{:?}",
            again.err()
        );
    }
}
