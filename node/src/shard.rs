//! One shard, composed: its disk, partitions, cursors and clients on one core, and its end of the mesh.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};

use tailwater_storage::disk::device::{Disk, DiskErrorKind};
use tailwater_storage::disk::flush_watch::FailedFlushes;
use tailwater_storage::disk::uring::UringDisk;
use tailwater_storage::layout;

use crate::budget::Budget;
use crate::clock::keeper::Keeper;
use crate::clock::system::{SystemClock, elapsed_since_boot};
use crate::commands::Commands;
use crate::config::NodeConfig;
use crate::control::request::{ControlRequest, ShardCommand};
use crate::fanout::accounting;
use crate::fanout::cursors::Cursors;
use crate::fanout::shared::Shared;
use crate::ingress::dispatch::{Dispatch, Identity};
use crate::ingress::listener::{Limit, accept_loop};
use crate::ingress::local::Local;
use crate::ingress::neighbors;
use crate::ingress::socket::Listener;
use crate::partition::group;
use crate::partition::leftovers;
use crate::partition::owner::Partitions;
use crate::router::mesh::{Mesh, MeshEnd};
use crate::telemetry::counters::ShardCounters;

/// How long a shard that ends waits for clients to take their last answers, in milliseconds.
const LAST_ANSWERS_WITHIN_MS: u32 = 2_000;
/// How often the shard measures how busy it is.
const BUSY_EVERY: Duration = Duration::from_secs(2);

/// What a shard is started with. Crosses from the starting thread to the shard's.
pub struct ShardSetup {
    /// The node's settings.
    pub config: NodeConfig,
    /// Who the node is.
    pub identity: Identity,
    /// Its end of the mesh, which also says which shard it is.
    pub mesh: MeshEnd,
    /// Where clients come in.
    pub listener: std::net::TcpListener,
    /// The owner's clock, which all shards share.
    pub clock: SystemClock,
    /// Who keeps it; shard 0 alone has one.
    pub keeper: Option<Keeper>,
    /// Failed flushes on the data directory's device, counted by all shards together.
    pub failed_flushes: FailedFlushes,
    /// The counters of all shards; it writes its own.
    pub counters: Vec<Arc<ShardCounters>>,
    /// Commands of the control thread.
    pub commands: flume::Receiver<ShardCommand>,
    /// The control thread's request queue.
    pub control: flume::Sender<ControlRequest>,
    /// Told once: that it runs, or why it does not start.
    pub started: flume::Sender<Result<(), String>>,
}

/// Runs a shard until it is told to end.
pub async fn run(setup: ShardSetup) {
    let ShardSetup {
        config,
        identity,
        mesh,
        listener,
        clock,
        keeper,
        failed_flushes,
        counters: all_counters,
        commands,
        control,
        started,
    } = setup;
    let mesh = Mesh::new(mesh);
    let placement = mesh.placement();
    let counters = Arc::clone(&all_counters[placement.shard as usize]);
    let disk = match open_disk(&config, placement.shard == 0, failed_flushes).await {
        Ok(disk) => disk,
        Err(why) => {
            let _starter_gone = started.send(Err(why));
            return;
        }
    };
    let rng = Rc::new(Cell::new(SmallRng::from_os_rng()));
    let random: Rc<dyn Fn() -> u64> = Rc::new(move || {
        let mut own = rng.replace(SmallRng::seed_from_u64(0));
        let drawn = own.random();
        rng.set(own);
        drawn
    });
    if let Some(keeper) = keeper {
        glommio::spawn_local(keeper.run(disk.clone())).detach();
    }
    let (data, log) = (config.data.clone(), config.log.clone());
    let partitions = Rc::new(Partitions::new(
        placement,
        disk,
        data,
        log,
        clock.clone(),
        random,
        Arc::clone(&counters),
    ));
    let budget = Budget::new(config.fanout.memory_bytes);
    let shared = Rc::new(Shared::new(
        Rc::clone(&partitions),
        budget,
        Rc::clone(&mesh),
        control.clone(),
    ));
    let cursors = Rc::new(Cursors::new(shared, config.fanout.clone()));
    let local = Rc::new(Local::new(Rc::clone(&partitions), Rc::clone(&cursors)));
    let receiving = Budget::new(config.receive_bytes_max);
    let dispatch = Dispatch::new(identity, Rc::clone(&local), Rc::clone(&mesh), control, receiving);
    let dispatch = Rc::new(dispatch);
    let owner = Rc::clone(&local);
    let letters = mesh.run(move |request, answer| neighbors::handle(&owner, request, answer));
    glommio::spawn_local(letters).detach();
    glommio::spawn_local(group::commit_loop(Rc::clone(&partitions))).detach();
    glommio::spawn_local(group::upkeep_loop(Rc::clone(&partitions))).detach();
    glommio::spawn_local(accounting::retention_loop(Rc::clone(&cursors))).detach();
    glommio::spawn_local(Rc::clone(&cursors).reconcile_loop()).detach();
    glommio::spawn_local(Rc::clone(&cursors).store_loop()).detach();
    glommio::spawn_local(measure_busy(Arc::clone(&counters))).detach();
    let _starter_gone = started.send(Ok(()));

    let limit = Limit::new(config.connections_max, all_counters);
    let mut listener = Some((Listener::new(listener), limit));
    let executor = Commands::new(local, cursors);
    while let Ok(command) = commands.recv_async().await {
        match command {
            ShardCommand::End => break,
            // Clients come in when the partitions of all shards are open, not before.
            ShardCommand::Serve => {
                if let Some((listener, limit)) = listener.take() {
                    glommio::spawn_local(accept_loop(listener, Rc::clone(&dispatch), limit)).detach();
                }
            }
            command => executor.execute(command).await,
        }
    }
    // What was accepted has been settled by now; its answers go out, and the connections end by themselves.
    for _ in 0..LAST_ANSWERS_WITHIN_MS {
        if counters.connections.get() == 0 {
            return;
        }
        glommio::timer::sleep(Duration::from_millis(1)).await;
    }
    tracing::warn!("clients did not take their last answers in time");
}

async fn open_disk(
    config: &NodeConfig,
    first: bool,
    failed_flushes: FailedFlushes,
) -> Result<UringDisk, String> {
    let self_test = UringDisk::start(&config.data, failed_flushes).await;
    let disk = self_test.map_err(|error| match error.kind {
        DiskErrorKind::NoSpace => format!("the disk is full: {error}; a start needs about 1 MiB of it"),
        _ => format!("the disk cannot be used: {error}"),
    })?;
    let topics = disk.create_dir_all(&layout::topics_dir(&config.data)).await;
    topics.map_err(|error| error.to_string())?;
    if first {
        leftovers::remove_deleted(&disk, &config.data).await;
    }
    Ok(disk)
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
