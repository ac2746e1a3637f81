//! Elections that do not end: openraft 0.9 draws its election timeout once per process, so nodes that drew alike
//! split the vote again and again. Whoever sees no leader for three timeouts waits a random time, then stands.
//!
//! This is about being available, never about who may decide: the leader it looks for is a hint.

use std::time::Duration;

use crate::metastore::types::Raft;

/// Election timeouts without a leader before this node stands by itself.
const PATIENCE_TIMEOUTS: u32 = 3;

/// Counts how long no leader was known. Pure: it is told how time passes, and what was drawn.
#[derive(Debug, Clone)]
pub struct Watchdog {
    timeout: Duration,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Led,
    Alone(Duration),
    Waiting(Duration),
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Look again later.
    Wait,
    /// Trigger an election.
    Stand,
}

impl Watchdog {
    /// For a node whose election timeout is at most `timeout`.
    #[must_use]
    pub fn new(timeout: Duration) -> Watchdog {
        Watchdog {
            timeout,
            state: State::Led,
        }
    }

    /// `elapsed` has passed since the last look. `draw` is random and decides how long to wait, up to one timeout.
    pub fn step(&mut self, leader_known: bool, elapsed: Duration, draw: u64) -> Advice {
        if leader_known {
            self.state = State::Led;
            return Advice::Wait;
        }
        self.state = match self.state {
            State::Led => State::Alone(Duration::ZERO),
            State::Alone(since) if since + elapsed < self.timeout * PATIENCE_TIMEOUTS => {
                State::Alone(since + elapsed)
            }
            State::Alone(_) => {
                let micros = u64::try_from(self.timeout.as_micros()).unwrap_or(u64::MAX).max(1);
                State::Waiting(Duration::from_micros(draw % micros))
            }
            State::Waiting(left) if left > elapsed => State::Waiting(left - elapsed),
            State::Waiting(_) => {
                self.state = State::Alone(Duration::ZERO);
                return Advice::Stand;
            }
        };
        Advice::Wait
    }
}

/// Watches over one node until Raft stops.
pub(crate) async fn run(raft: Raft, timeout: Duration) {
    let mut watchdog = Watchdog::new(timeout);
    let mut metrics = raft.metrics();
    let look_every = timeout / 4;
    loop {
        tokio::time::sleep(look_every).await;
        let (stopped, leader_known) = {
            let now = metrics.borrow_and_update();
            (now.running_state.is_err(), now.current_leader.is_some())
        };
        if stopped {
            return;
        }
        if watchdog.step(leader_known, look_every, rand::random()) == Advice::Stand {
            tracing::warn!("no metadata leader for a while: standing for election");
            if raft.trigger().elect().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use openraft::storage::RaftLogStorage;
    use openraft::{BasicNode, Config, ServerState};

    use super::*;
    use crate::metastore::database::{ClusterId, Database};
    use crate::metastore::machine::StateMachine;
    use crate::metastore::network::NoPeers;
    use crate::metastore::store::LogStore;
    use crate::metastore::types::Vote;

    const TIMEOUT: Duration = Duration::from_millis(1_000);
    const LOOK: Duration = Duration::from_millis(250);

    /// How many looks without a leader until the node stands.
    fn looks_until_stand(watchdog: &mut Watchdog, draw: u64) -> u32 {
        (1..=100)
            .find(|_| watchdog.step(false, LOOK, draw) == Advice::Stand)
            .expect("stands at last")
    }

    #[test]
    fn stands_after_three_timeouts_and_a_random_wait() {
        // One look to notice, twelve to be patient, one to end the wait.
        assert_eq!(looks_until_stand(&mut Watchdog::new(TIMEOUT), 0), 14);
        assert_eq!(looks_until_stand(&mut Watchdog::new(TIMEOUT), 600_000), 16);
        assert_eq!(looks_until_stand(&mut Watchdog::new(TIMEOUT), u64::MAX), 16);
    }

    #[test]
    fn a_leader_in_between_starts_the_count_again() {
        let mut watchdog = Watchdog::new(TIMEOUT);
        for _ in 0..13 {
            assert_eq!(watchdog.step(false, LOOK, 0), Advice::Wait);
        }
        assert_eq!(watchdog.step(true, LOOK, 0), Advice::Wait);
        assert_eq!(looks_until_stand(&mut watchdog, 0), 14);
    }

    /// A voter that never stands by itself.
    async fn passive(data: &std::path::Path, voted: Option<Vote>) -> Raft {
        let database = Database::open(data, 1, ClusterId([7; 16])).expect("opens");
        let database = Arc::new(database);
        let mut log = LogStore::open(database.clone()).expect("a log");
        if let Some(vote) = voted {
            log.save_vote(&vote).await.expect("saved");
        }
        let machine = StateMachine::open(database).expect("a state");
        let config = Config {
            enable_elect: false,
            ..Config::default()
        };
        Raft::new(1, Arc::new(config), NoPeers, log, machine)
            .await
            .expect("starts")
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_node_that_would_wait_for_ever_becomes_leader() {
        let data = tempfile::TempDir::new().expect("a directory");
        let raft = passive(data.path(), None).await;
        raft.initialize(BTreeMap::from([(1, BasicNode::default())]))
            .await
            .expect("a cluster of one");
        raft.shutdown().await.expect("stops");
        drop(raft);
        tokio::time::sleep(Duration::from_millis(50)).await;

        // It voted for a node that was never elected, and has no leader since.
        let raft = passive(data.path(), Some(Vote::new(50, 2))).await;
        let timeout = Duration::from_millis(40);
        let alone = raft
            .wait(Some(timeout * 10))
            .state(ServerState::Leader, "by itself")
            .await;
        assert!(alone.is_err(), "without a watchdog nothing happens");
        let watching = tokio::spawn(run(raft.clone(), timeout));
        raft.wait(Some(Duration::from_secs(20)))
            .state(ServerState::Leader, "stood")
            .await
            .expect("leads");
        raft.shutdown().await.expect("stops");
        watching.await.expect("the watchdog ends with Raft");
    }
}
