//! One shard, composed: its disk, partitions, cursors and clients on one core, and the commands of the control thread.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};

use tailwater_storage::disk::device::{Disk, DiskError, DiskErrorKind};
use tailwater_storage::disk::flush_watch::FailedFlushes;
use tailwater_storage::disk::uring::UringDisk;
use tailwater_storage::layout;
use tailwater_storage::proof::TopicGone;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Incarnation, TopicName};
use tailwater_wire::meta::MetaSnapshot;

use crate::budget::Budget;
use crate::clock::system::{SystemClock, elapsed_since_boot};
use crate::config::NodeConfig;
use crate::control::request::{ControlRequest, ShardCommand};
use crate::fanout::accounting;
use crate::fanout::cursors::Cursors;
use crate::fanout::shared::Shared;
use crate::ingress::dispatch::{Dispatch, Identity};
use crate::ingress::listener::accept_loop;
use crate::ingress::socket::Listener;
use crate::partition::group;
use crate::partition::leftovers;
use crate::partition::owner::Partitions;
use crate::telemetry::counters::ShardCounters;

/// How long a draining shard waits for clients to take their last answers, in milliseconds.
const LAST_ANSWERS_WITHIN_MS: u32 = 2_000;
/// How often the shard measures how busy it is.
const BUSY_EVERY: Duration = Duration::from_secs(2);

/// What a shard is started with. Crosses from the starting thread to the shard's.
pub struct ShardSetup {
    /// The node's settings.
    pub config: NodeConfig,
    /// Who the node is; the shard adds its own port.
    pub identity: Identity,
    /// Where its counters are read.
    pub counters: Arc<ShardCounters>,
    /// Commands of the control thread.
    pub commands: flume::Receiver<ShardCommand>,
    /// The control thread's request queue.
    pub control: flume::Sender<ControlRequest>,
    /// Told once: the address it listens on, or why it does not start.
    pub started: flume::Sender<Result<SocketAddr, ShardError>>,
}

/// Why a shard does not start.
#[derive(Debug)]
pub enum ShardError {
    /// The data directory's disk does not do.
    Disk(String),
    /// It cannot listen for clients.
    Listen(std::io::Error),
}

/// Runs a shard until it is drained.
pub async fn run(setup: ShardSetup) {
    let ShardSetup {
        config,
        mut identity,
        counters,
        commands,
        control,
        started,
    } = setup;
    let (disk, listener, address) = match open(&config).await {
        Ok(opened) => opened,
        Err(why) => {
            let _starter_gone = started.send(Err(why));
            return;
        }
    };
    identity.shard_ports = vec![address.port()];
    let rng = Rc::new(Cell::new(SmallRng::from_os_rng()));
    let random: Rc<dyn Fn() -> u64> = Rc::new(move || {
        let mut own = rng.replace(SmallRng::seed_from_u64(0));
        let drawn = own.random();
        rng.set(own);
        drawn
    });
    let clock = SystemClock::start();
    let (data, log) = (config.data.clone(), config.log.clone());
    let partitions = Rc::new(Partitions::new(
        disk,
        data,
        log,
        clock,
        random,
        Arc::clone(&counters),
    ));
    let budget = Budget::new(config.fanout.memory_bytes);
    let shared = Rc::new(Shared::new(Rc::clone(&partitions), budget, control.clone()));
    let cursors = Rc::new(Cursors::new(shared, config.fanout.clone()));
    let dispatch = Rc::new(Dispatch::new(
        identity,
        Rc::clone(&partitions),
        Rc::clone(&cursors),
        control.clone(),
    ));
    glommio::spawn_local(group::commit_loop(Rc::clone(&partitions))).detach();
    glommio::spawn_local(group::upkeep_loop(Rc::clone(&partitions))).detach();
    glommio::spawn_local(accounting::retention_loop(Rc::clone(&cursors))).detach();
    glommio::spawn_local(Rc::clone(&cursors).reconcile_loop()).detach();
    glommio::spawn_local(Rc::clone(&cursors).store_loop()).detach();
    glommio::spawn_local(measure_busy(counters)).detach();
    let _starter_gone = started.send(Ok(address));

    let mut listener = Some(listener);
    while let Ok(command) = commands.recv_async().await {
        if matches!(command, ShardCommand::Drain) {
            break;
        }
        let first_metadata = matches!(command, ShardCommand::Metadata { .. });
        execute(&cursors, &partitions, command).await;
        // Clients come in when the partitions are open, not before.
        if first_metadata && let Some(listener) = listener.take() {
            let accepting = accept_loop(listener, Rc::clone(&dispatch), config.connections_max);
            glommio::spawn_local(accepting).detach();
        }
    }
    dispatch.drain();
    cursors.stop_all().await;
    partitions.close_all().await;
    // What was accepted has been settled by now; its answers go out, and the connections end by themselves.
    for _ in 0..LAST_ANSWERS_WITHIN_MS {
        if partitions.counters().connections.get() == 0 {
            return;
        }
        glommio::timer::sleep(Duration::from_millis(1)).await;
    }
    tracing::warn!("clients did not take their last answers in time");
}

async fn open(config: &NodeConfig) -> Result<(UringDisk, Listener, SocketAddr), ShardError> {
    let self_test = UringDisk::start(&config.data, FailedFlushes::default()).await;
    let disk = self_test.map_err(|error| ShardError::Disk(format!("the disk cannot be used: {error}")))?;
    let topics = disk.create_dir_all(&layout::topics_dir(&config.data)).await;
    topics.map_err(|error| ShardError::Disk(error.to_string()))?;
    leftovers::remove_deleted(&disk, &config.data).await;
    let listener = Listener::bind(config.listen).map_err(ShardError::Listen)?;
    let address = listener.local_addr().map_err(ShardError::Listen)?;
    Ok((disk, listener, address))
}

async fn execute(cursors: &Rc<Cursors>, partitions: &Rc<Partitions>, command: ShardCommand) {
    match command {
        ShardCommand::Metadata { snapshot, done } => {
            apply(cursors, partitions, snapshot).await;
            let _unwanted = done.send(());
        }
        ShardCommand::AttachPoint {
            parent,
            incarnation,
            child,
            from,
            answer,
        } => {
            let offsets = cursors.attach_point(&parent, incarnation, &child, from).await;
            let _unwanted = answer.send(offsets);
        }
        ShardCommand::Settle { epoch, done } => {
            let cursors = Rc::clone(cursors);
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
            let (disk, data) = (partitions.disk(), partitions.data());
            let marked = if set {
                leftovers::mark(disk, data, &topic, incarnation).await
            } else {
                leftovers::unmark(disk, data, &topic, incarnation).await
            };
            let refused = |error: DiskError| {
                let code = if error.kind == DiskErrorKind::NoSpace {
                    ErrorCode::DiskFull
                } else {
                    ErrorCode::Internal
                };
                Refusal::new(code, format!("the deletion cannot be noted down: {error}"))
            };
            let _unwanted = answer.send(marked.map_err(refused));
        }
        ShardCommand::RemoveTopic { gone, done } => {
            remove(partitions, &gone).await;
            let _unwanted = done.send(());
        }
        ShardCommand::LinkStatus { parent, answer } => {
            let _unwanted = answer.send(cursors.link_status(parent.as_ref()));
        }
        ShardCommand::Drain => {}
    }
}

/// Brings metadata into force: topics that are gone are closed, new ones opened, cursors compared. Data of a life that
/// is over, which an earlier process did not come to remove, is removed with the leader's word before its successor
/// opens.
async fn apply(cursors: &Rc<Cursors>, partitions: &Rc<Partitions>, snapshot: Arc<MetaSnapshot>) {
    let shared = cursors.shared();
    let first = shared.metadata().version == 0;
    shared.set_metadata(Arc::clone(&snapshot));
    for (topic, incarnation) in partitions.open_topics() {
        if snapshot
            .topic(&topic)
            .is_none_or(|live| live.incarnation != incarnation)
        {
            cursors.settle_topic(&topic).await;
            partitions.close_topic(&topic).await;
        }
    }
    if first {
        for (topic, found) in leftovers::lives(partitions.disk(), partitions.data()).await {
            let live = snapshot
                .topic(&topic)
                .is_some_and(|live| live.incarnation == found);
            if !live {
                remove_if_deleted(shared, partitions, &topic, found).await;
            }
        }
    }
    for topic in snapshot.topics.values() {
        partitions.open_topic(topic).await;
    }
    cursors.owned_changed();
}

/// Data that the metadata does not know is removed only if a deletion of this very life was begun, and the metadata
/// leader says that it is over. Anything else is left alone, and named: the metadata may be the thing that is wrong.
async fn remove_if_deleted(shared: &Shared, partitions: &Partitions, topic: &TopicName, found: Incarnation) {
    if leftovers::is_marked(partitions.disk(), partitions.data(), topic, found).await {
        if let Ok(Some(gone)) = shared.confirm_topic_gone(topic, found).await {
            remove(partitions, &gone).await;
        }
        return;
    }
    tracing::error!(%topic, incarnation = %found, "the data directory has data of a topic that the metadata does not know: it is left alone; was the metadata lost or restored, or a file moved?");
}

async fn remove(partitions: &Partitions, gone: &TopicGone) {
    if let Err(error) = partitions.remove_topic(gone).await {
        tracing::warn!(%error, topic = %gone.topic(), "cannot remove a deleted topic's data; trying again at the next start");
    }
}

async fn measure_busy(counters: Arc<ShardCounters>) {
    let mut before = elapsed_since_boot();
    loop {
        glommio::timer::sleep(BUSY_EVERY).await;
        // glommio hands the figure out and begins a new one: it is of this interval alone.
        let (now, ran) = (
            elapsed_since_boot(),
            glommio::executor().executor_stats().total_runtime(),
        );
        let share = ran.as_secs_f64() / now.saturating_sub(before).as_secs_f64().max(1e-9);
        counters.busy_permille.set((share * 1e3) as u64);
        before = now;
    }
}
