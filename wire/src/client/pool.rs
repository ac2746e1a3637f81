//! The connections of one client: the first one, and one to each further shard that it has to do with, opened when it
//! is wanted for the first time. Which is taken, [`Routes`] says; here they are kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::client::config::ClientConfig;
use crate::client::connection::{Connection, Observer};
use crate::client::error::ClientError;
use crate::ids::{Incarnation, PartitionId};
use crate::message::{Hello, Reply, Request, Welcome};
use crate::session::action::NodeName;
use crate::session::routes::{Route, Routes};

/// The node is not asked for its shards more often than this.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);

/// See the module. At most one connection for each port that the node named, and the first.
#[derive(Debug)]
pub(crate) struct Pool {
    config: ClientConfig,
    /// Itself, for the reports of its connections.
    own: Weak<Pool>,
    started: Instant,
    first: OnceLock<Connection>,
    state: Mutex<State>,
    /// Raised whenever another way may be the right one.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    routes: Routes,
    /// By port, each with the number of its attempt.
    straight: HashMap<u16, (u64, Connection)>,
    attempts: u64,
    refreshed_at: Option<Instant>,
}

/// How a connection tells the pool what becomes of it.
#[derive(Debug)]
struct Report {
    pool: Weak<Pool>,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Straight { port: u16, attempt: u64 },
}

impl Pool {
    /// Connects and greets; fails if the first attempt does.
    pub(crate) async fn open(config: ClientConfig) -> Result<(Arc<Pool>, Welcome), ClientError> {
        let pool = Arc::new_cyclic(|own| Pool {
            config,
            own: own.clone(),
            started: Instant::now(),
            first: OnceLock::new(),
            state: Mutex::default(),
            changes: watch::channel(0).0,
        });
        let observer = pool.report(Place::First);
        let (connection, welcome) = Connection::open(&pool.config, observer).await?;
        pool.first.get_or_init(|| connection);
        Ok((pool, welcome))
    }

    pub(crate) fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// The connection that answers for everything.
    ///
    /// # Panics
    /// Before [`Pool::open`] has returned.
    pub(crate) fn first(&self) -> &Connection {
        self.first.get().expect("open has connected")
    }

    /// The connection to take to a partition now. Begins to open the owner's where that is not there yet.
    pub(crate) fn connection_to(&self, incarnation: Incarnation, partition: PartitionId) -> Connection {
        let mut state = self.lock();
        let choice = state.routes.route(incarnation, partition, self.started.elapsed());
        if let Some(port) = choice.open {
            self.begin(&mut state, port);
        }
        let straight = match choice.route {
            Route::First => None,
            Route::Straight(port) => state
                .straight
                .get(&port)
                .map(|(_, connection)| connection.clone()),
        };
        straight.unwrap_or_else(|| self.first().clone())
    }

    fn begin(&self, state: &mut State, port: u16) {
        state.attempts += 1;
        let attempt = state.attempts;
        let observer = self.report(Place::Straight { port, attempt });
        let host = self.config.server.rsplit_once(':').map_or("", |(host, _)| host);
        let (node, cluster) = state.routes.node();
        let node = NodeName {
            node,
            cluster: cluster.to_owned(),
        };
        let connection = Connection::beside(&self.config, format!("{host}:{port}"), node, observer);
        state.straight.insert(port, (attempt, connection));
    }

    fn report(&self, place: Place) -> Arc<dyn Observer> {
        let pool = self.own.clone();
        Arc::new(Report { pool, place })
    }

    /// Wakes whenever another way may be the right one.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A shard says that it does not own a partition: the node is asked which shards it has. If it was asked straight,
    /// the partition takes the first connection for a while.
    pub(crate) fn strayed(
        self: &Arc<Pool>,
        incarnation: Incarnation,
        partition: PartitionId,
        was_straight: bool,
    ) {
        let now = Instant::now();
        let mut state = self.lock();
        if was_straight {
            let now = now.duration_since(self.started);
            state.routes.strayed(incarnation, partition, now);
        }
        let lately = state.refreshed_at.is_some_and(|at| now < at + REFRESH_PAUSE);
        if !lately {
            state.refreshed_at = Some(now);
        }
        drop(state);
        self.changes.send_modify(|count| *count += 1);
        if !lately {
            tokio::spawn(Arc::clone(self).refresh());
        }
    }

    async fn refresh(self: Arc<Pool>) {
        let hello = Request::Hello(self.config.hello());
        let limit = self.config.connect_timeout;
        match self.first().call(hello, Bytes::new(), limit).await {
            Ok((Reply::Welcome(welcome), _)) => self.update(|state| state.routes.learn(&welcome)),
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "the node does not say which shards it has"),
        }
    }

    /// Changes the routes, and lets the connections go whose ports are returned.
    fn update(&self, change: impl FnOnce(&mut State) -> Vec<u16>) {
        let mut state = self.lock();
        for port in change(&mut state) {
            state.straight.remove(&port);
        }
        drop(state);
        self.changes.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole at every point where a holder could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_current(&self, port: u16, attempt: u64) -> bool {
        self.straight
            .get(&port)
            .is_some_and(|(current, _)| *current == attempt)
    }
}

impl Observer for Report {
    fn up(&self, welcome: &Welcome) {
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        pool.update(|state| match self.place {
            Place::First => state.routes.greeted(welcome),
            Place::Straight { port, attempt } if state.is_current(port, attempt) => {
                state.routes.up(port);
                state.routes.learn(welcome)
            }
            Place::Straight { .. } => Vec::new(),
        });
    }

    /// The first one tries again by itself; any other is given up for now.
    fn down(&self) {
        let (Some(pool), Place::Straight { port, attempt }) = (self.pool.upgrade(), self.place) else {
            return;
        };
        let now = pool.started.elapsed();
        pool.update(|state| {
            if !state.is_current(port, attempt) {
                return Vec::new();
            }
            state.routes.down(port, now);
            vec![port]
        });
    }
}

impl ClientConfig {
    /// How this client greets.
    pub(crate) fn hello(&self) -> Hello {
        Hello {
            client: self.name.clone(),
            token: self.token.clone(),
        }
    }
}
