//! The process: one control thread and the shards, started together, stopped together, and never half alive.

mod ports;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tailwater_storage::disk::executor::{self, ExecutorError, ExecutorOptions, RunningExecutor};
use tailwater_storage::disk::flush_watch::FailedFlushes;
use tailwater_storage::disk::preflight;
use tailwater_storage::disk::watchdog::{Watchdog, WatchdogOptions};
use tailwater_storage::layout::{self, TopicsEntry};

use crate::clock::keeper::Keeper;
use crate::clock::system::SystemClock;
use crate::config::{ConfigError, NodeConfig};
use crate::control::admin_http::{self, AdminState};
use crate::control::request::{CONTROL_QUEUE, ControlRequest, SHARD_QUEUE, ShardCommand};
use crate::control::service::{Bounds, Control};
use crate::control::space::Space;
use crate::ingress::dispatch::Identity;
use crate::metastore::handle::{Metastore, Options as MetastoreOptions};
use crate::router::mesh;
use crate::shard::{self, ShardSetup};
use crate::telemetry::counters::{ShardCounters, quantile_ns};
use crate::telemetry::exporter::Exporter;

/// This node's number; others come with the cluster.
const NODE_ID: u64 = 1;
/// Files that a partition holds open: its active segment, one that is read, one that is made ready.
const FILES_PER_PARTITION: u64 = 3;
/// Files that the process holds open beside partitions and clients.
const OTHER_FILES: u64 = 128;
/// I/O memory that a shard asks for; less is taken where RLIMIT_MEMLOCK demands it.
const IO_MEMORY_BYTES: u64 = 64 << 20;

/// Why a node does not start. Nothing of it runs then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory cannot be used.
    #[error("the data directory {} cannot be used: {source}", path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There are topics, and the metadata that knows them is gone.
    #[error(
        "{} has topics and no metadata (meta/meta.redb): restore the metadata, or move the topics away to begin anew",
        .0.display()
    )]
    MetadataMissing(PathBuf),
    /// Another process works in the data directory.
    #[error("the data directory {} is in use by another process", .0.display())]
    DataDirInUse(PathBuf),
    /// A listener cannot be had.
    #[error("cannot listen on {address} for {purpose}: {source}")]
    Listen {
        /// What for.
        purpose: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The shards' ports would run over the last one.
    #[error("{shards} shards cannot listen on ports from {first} on: the last port is 65535")]
    PortsExhausted {
        /// The first shard's port.
        first: u16,
        /// How many there are.
        shards: u32,
    },
    /// The process may not open enough files for a single partition.
    #[error(
        "the process may open {limit} files (RLIMIT_NOFILE), and needs {needed} for {connections} connections \
         (connections_max) and one partition"
    )]
    OpenFiles {
        /// What the limit is.
        limit: u64,
        /// What it must be at least.
        needed: u64,
        /// How many clients there may be.
        connections: usize,
    },
    /// A shard did not start.
    #[error("{0}")]
    Shard(String),
    /// The machine does not fit: io_uring, locked memory.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    /// The metastore did not start.
    #[error("the metastore did not start: {0}")]
    Metastore(String),
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Why a node ended otherwise than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// A shard died.
    #[error(transparent)]
    Shard(#[from] ExecutorError),
    /// The control thread died, or gave up.
    #[error("the control thread ended: {0}")]
    Control(String),
}

/// A running node.
pub struct Node {
    listen: SocketAddr,
    admin: SocketAddr,
    counters: Vec<Arc<ShardCounters>>,
    ready: Arc<AtomicBool>,
    shards: Shards,
    control: JoinHandle<Result<(), String>>,
    stop_control: Arc<tokio::sync::Notify>,
    _lock: File,
}

/// The shards' threads, and the way to them.
struct Shards {
    commands: Vec<flume::Sender<ShardCommand>>,
    executors: Vec<RunningExecutor<()>>,
}

impl Shards {
    /// In step: no shard closes its logs while another one's cursors may still commit to them, and none ends while
    /// another one still waits for its answer.
    fn stop(self) -> Result<(), ExecutorError> {
        for step in [ShardCommand::Drain, ShardCommand::Close] {
            let begun: Vec<_> = self
                .commands
                .iter()
                .map(|shard| {
                    let (done, finished) = flume::bounded(1);
                    let _dead_already = shard.send(step(done));
                    finished
                })
                .collect();
            for finished in begun {
                let _dead_already = finished.recv();
            }
        }
        for shard in &self.commands {
            let _dead_already = shard.send(ShardCommand::End);
        }
        // All are waited for, before the first that had died is told.
        let ends: Vec<_> = self.executors.into_iter().map(RunningExecutor::join).collect();
        ends.into_iter().collect()
    }
}

/// What the control thread is started with.
struct ControlSetup {
    data: PathBuf,
    admin: std::net::TcpListener,
    requests: flume::Receiver<ControlRequest>,
    shards: Vec<flume::Sender<ShardCommand>>,
    bounds: Bounds,
    exporter: Exporter,
    clock: SystemClock,
    ready: Arc<AtomicBool>,
    stop: Arc<tokio::sync::Notify>,
    started: flume::Sender<Result<String, String>>,
    shards_listen: flume::Receiver<()>,
    serving: flume::Sender<()>,
}

impl Node {
    /// Starts a node; returns when it serves clients.
    ///
    /// # Errors
    /// [`StartError`], with everything that was started stopped again.
    pub fn start(config: NodeConfig) -> Result<Node, StartError> {
        config.check()?;
        abort_on_panic();
        let open_files = preflight::raise_open_files();
        tracing::info!(
            open_files,
            "raised the soft limit of open files to the hard one (RLIMIT_NOFILE)"
        );
        check_open_files(open_files, config.connections_max)?;
        let lock = lock_data_dir(&config.data)?;
        check_metadata(&config.data)?;
        Space::new(&config.data).make_room();
        let (clock, keeper) = Keeper::open(&config.data, config.clock.clone());
        let (admin, admin_address) = ports::bind(config.admin, "admin HTTP")?;
        let watchdog =
            Watchdog::start(WatchdogOptions::default(), Box::new(on_stall)).map_err(StartError::Thread)?;
        let watchdog = Arc::new(watchdog);
        let shards = config.shard_count();
        let listeners = ports::listen(&config, shards)?;
        let listen = listeners[0].1;
        let counters: Vec<_> = (0..shards).map(|_| Arc::new(ShardCounters::default())).collect();
        let (control_requests, requests) = flume::bounded(CONTROL_QUEUE);
        let (shard_commands, commands): (Vec<_>, Vec<_>) =
            (0..shards).map(|_| flume::bounded(SHARD_QUEUE)).unzip();
        let (ready, stop_control) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(tokio::sync::Notify::new()),
        );
        let (started, control_started) = flume::bounded(1);
        let (shards_are_up, shards_listen) = flume::bounded(1);
        let (serving, served) = flume::bounded(1);
        let setup = ControlSetup {
            data: config.data.clone(),
            admin,
            requests,
            shards: shard_commands.clone(),
            bounds: Bounds {
                partitions_max: open_files.map(|files| {
                    files.saturating_sub(config.connections_max as u64 + OTHER_FILES) / FILES_PER_PARTITION
                }),
                space: Space::new(&config.data),
                segment_bytes_first: config.log.segment_bytes_first,
            },
            exporter: Exporter::new(counters.clone(), Arc::clone(&watchdog)).with_clock(clock.clone()),
            clock: clock.clone(),
            ready: Arc::clone(&ready),
            stop: Arc::clone(&stop_control),
            started,
            shards_listen,
            serving,
        };
        let control = std::thread::Builder::new().name("control".into());
        let control = control
            .spawn(move || control_thread(setup))
            .map_err(StartError::Thread)?;
        let cluster = match control_started.recv() {
            Ok(Ok(cluster)) => cluster,
            Ok(Err(why)) => return Err(StartError::Metastore(why)),
            Err(_) => return Err(StartError::Metastore("its thread ended".to_owned())),
        };
        let identity = Identity {
            node: NODE_ID,
            cluster,
            shard_ports: listeners.iter().map(|(_, address)| address.port()).collect(),
        };
        // Whatever does not start takes the rest with it: the control thread ends, and the shards after it.
        let stop = || stop_control.notify_one();
        let (failed_flushes, mut keeper) = (FailedFlushes::default(), Some(keeper));
        let ends = mesh::ends(shards, config.mesh.credits);
        let mut executors = Vec::with_capacity(shards as usize);
        for (((number, mesh), (listener, _)), commands) in (0..).zip(ends).zip(listeners).zip(commands) {
            let (started, shard_started) = flume::bounded(1);
            let options = ExecutorOptions {
                name: format!("shard-{number}"),
                core: config.pin_cores.then_some(number),
                spin_before_park: Duration::from_micros(config.spin_before_park_us),
                io_memory_bytes: IO_MEMORY_BYTES,
                executors: u64::from(shards),
            };
            let setup = ShardSetup {
                config: config.clone(),
                identity: identity.clone(),
                mesh,
                listener,
                clock: clock.clone(),
                // The first shard keeps the clock of all.
                keeper: keeper.take(),
                failed_flushes: failed_flushes.clone(),
                counters: counters.clone(),
                commands,
                control: control_requests.clone(),
                started,
            };
            let executor =
                executor::spawn(&options, &watchdog, move || shard::run(setup)).inspect_err(|_| stop())?;
            match shard_started.recv() {
                Ok(Ok(())) => executors.push(executor),
                Ok(Err(why)) => {
                    stop();
                    return Err(StartError::Shard(why));
                }
                Err(_) => {
                    stop();
                    return Err(executor
                        .join()
                        .err()
                        .map_or(StartError::Shard("it ended".to_owned()), StartError::from));
                }
            }
        }
        let _control_gone = shards_are_up.send(());
        if served.recv().is_err() {
            return Err(StartError::Metastore("its thread ended".to_owned()));
        }
        ready.store(true, Ordering::Release);
        tracing::info!(%listen, admin = %admin_address, shards, "serving");
        Ok(Node {
            listen,
            admin: admin_address,
            counters,
            ready,
            shards: Shards {
                commands: shard_commands,
                executors,
            },
            control,
            stop_control,
            _lock: lock,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn listen_addr(&self) -> SocketAddr {
        self.listen
    }

    /// Where metrics and health are served.
    #[must_use]
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin
    }

    /// The median of all flushes so far, in microseconds.
    #[must_use]
    pub fn fsync_p50_us(&self) -> u64 {
        let flushes = self.counters.iter().map(|shard| &shard.fsync);
        quantile_ns(flushes, 0.5) / 1_000
    }

    /// Whether one of its threads has ended by itself.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.control.is_finished()
    }

    /// Drains: nothing new is taken, what was accepted is committed and answered, everything is closed.
    ///
    /// # Errors
    /// [`StopError`] when a thread had died.
    pub fn stop(self) -> Result<(), StopError> {
        self.ready.store(false, Ordering::Release);
        self.shards.stop()?;
        self.stop_control.notify_one();
        match self.control.join() {
            Ok(ended) => ended.map_err(StopError::Control),
            Err(_) => Err(StopError::Control("it panicked".to_owned())),
        }
    }
}

fn control_thread(setup: ControlSetup) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(control_main(setup))
}

async fn control_main(setup: ControlSetup) -> Result<(), String> {
    let ControlSetup {
        data,
        admin,
        requests,
        shards,
        bounds,
        exporter,
        clock,
        ready,
        stop,
        started,
        shards_listen,
        serving,
    } = setup;
    let opened = Metastore::open(&data, NODE_ID, MetastoreOptions::default()).await;
    let metastore = match opened {
        Ok(metastore) => metastore,
        Err(error) => {
            let _starter_gone = started.send(Err(error.chain()));
            return Ok(());
        }
    };
    let _starter_gone = started.send(Ok(metastore.identity().cluster_id.to_string()));
    let control = Arc::new(Control::new(metastore, shards, exporter, bounds));
    let admin = admin
        .set_nonblocking(true)
        .and_then(|()| tokio::net::TcpListener::from_std(admin));
    let admin = admin.map_err(|e| e.to_string())?;
    let admin = tokio::spawn(admin_http::serve(
        admin,
        AdminState {
            control: Arc::clone(&control),
            clock,
            ready,
        },
    ));
    let serve_requests = Arc::clone(&control).run(requests);
    let first_metadata = async {
        if shards_listen.recv_async().await.is_ok() {
            control.begin_serving().await;
            let _starter_gone = serving.send(());
        }
        std::future::pending::<()>().await;
    };
    let changes = Arc::clone(&control).publish_changes();
    let engine = control.metastore().clone();
    let fatal = tokio::select! {
        fatal = serve_requests => fatal,
        () = first_metadata => None,
        () = stop.notified() => None,
        () = changes => None,
        why = engine.ended() => Some(format!("the metastore ended: {why}")),
        ended = admin => Some(format!("the admin server ended: {ended:?}")),
    };
    control.metastore().shutdown().await;
    fatal.map_or(Ok(()), Err)
}

/// Refuses a start that could not open a single partition. What begins anyway is hard to recognise later: connections
/// that fail, and topics that cannot be made.
fn check_open_files(limit: Option<u64>, connections: usize) -> Result<(), StartError> {
    let needed = connections as u64 + OTHER_FILES + FILES_PER_PARTITION;
    match limit {
        Some(limit) if limit < needed => Err(StartError::OpenFiles {
            limit,
            needed,
            connections,
        }),
        _ => Ok(()),
    }
}

/// Creates the data directory, and locks it for the life of the process.
fn lock_data_dir(data: &Path) -> Result<File, StartError> {
    let unusable = |source| StartError::DataDir {
        path: data.to_owned(),
        source,
    };
    std::fs::create_dir_all(data).map_err(unusable)?;
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(data.join("LOCK"))
        .map_err(unusable)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(StartError::DataDirInUse(data.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(unusable(source)),
    }
}

/// A new cluster is made only where there is nothing yet: with topics there, their metadata must be, too.
fn check_metadata(data: &Path) -> Result<(), StartError> {
    if data.join("meta").join("meta.redb").exists() {
        return Ok(());
    }
    let topics = std::fs::read_dir(layout::topics_dir(data))
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let live = |name: &std::ffi::OsStr| {
        matches!(
            layout::parse_topics_entry(&name.to_string_lossy()),
            TopicsEntry::Live(_)
        )
    };
    if topics.map(|entry| entry.file_name()).any(|name| live(&name)) {
        return Err(StartError::MetadataMissing(data.to_owned()));
    }
    Ok(())
}

/// A node is never half alive: a panic on one of its threads ends the process, with the panic's message.
fn abort_on_panic() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            print(panic);
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default();
            if name == "control" || name.starts_with("shard-") || name == "watchdog" {
                tracing::error!(thread = name, "a thread of the node panicked: the process ends");
                std::process::abort();
            }
        }));
    });
}

fn on_stall(shard: &str, stalled: Duration) {
    tracing::error!(shard, ?stalled, "a shard does not run any more: the process ends");
    std::process::abort();
}
