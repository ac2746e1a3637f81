//! Keeps the owner's clock: reads the machine's clocks a few times a second, shows what is decided, stores readings. One
//! task of one shard; holds no policy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tailwater_storage::atomic_file::{self, ReplaceError};
use tailwater_storage::disk::device::Disk;

use crate::clock::order::{ClockOrder, ORDERS_MAX};
use crate::clock::owner_clock::{Event, OwnerClock, Told};
use crate::clock::reading::{self, Last};
use crate::clock::source::ClockSource;
use crate::clock::system::SystemClock;

/// How often the clocks are read.
const TICK: Duration = Duration::from_millis(250);
/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// See the module. Made by the thread that starts the node, run by shard 0.
#[derive(Debug)]
pub struct Keeper {
    decider: OwnerClock,
    clock: SystemClock,
    orders: flume::Receiver<ClockOrder>,
    file: PathBuf,
}

impl Keeper {
    /// The clock of a process that starts on a data directory, which is there and locked; and who keeps it.
    #[must_use]
    pub fn open(data: &Path, source: ClockSource) -> (SystemClock, Keeper) {
        let file = data.join(reading::FILE);
        let last = match std::fs::read(&file) {
            Ok(bytes) => reading::decode(Some(&bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Last::None,
            Err(_) => Last::Damaged("a file that cannot be read"),
        };
        remove_leftovers(data);
        let boot_id = match &source {
            ClockSource::System => std::fs::read_to_string(BOOT_ID)
                .unwrap_or_default()
                .trim()
                .to_owned(),
            ClockSource::Simulated(clock) => clock.boot_id(),
        };
        let (decider, told) = OwnerClock::start(source.reading(), boot_id, &last);
        told.iter().for_each(tell);
        let (order, orders) = flume::bounded(ORDERS_MAX);
        let clock = SystemClock::showing(&decider, source, order);
        let keeper = Keeper {
            decider,
            clock: clock.clone(),
            orders,
            file,
        };
        (clock, keeper)
    }

    /// Runs until the node stops.
    pub async fn run<D: Disk>(mut self, disk: D) {
        loop {
            let order = async { Ok(self.orders.recv_async().await) };
            match glommio::timer::timeout(TICK, order).await {
                Err(_) => {
                    let _logged = self.step(&disk, Event::Tick).await;
                }
                Ok(Ok(ClockOrder::Accept(answer))) => {
                    let stored = self.step(&disk, Event::Accept).await;
                    let _asker_gone = answer.send(stored.map_err(|error| chain(&error)));
                }
                Ok(Ok(ClockOrder::Stop(answer))) => {
                    let stored = self.step(&disk, Event::Stop).await;
                    let _asker_gone = answer.send(stored.map_err(|error| chain(&error)));
                    // What came in meanwhile would wait for ever: its answer goes with it.
                    self.orders.drain().for_each(drop);
                    return;
                }
                Ok(Err(_)) => return,
            }
        }
    }

    async fn step<D: Disk>(&mut self, disk: &D, event: Event) -> Result<(), ReplaceError> {
        let read = self.clock.reading();
        let outcome = self.decider.step(event, read);
        if outcome.changed {
            self.clock.show(&self.decider);
        }
        outcome.told.iter().for_each(tell);
        if !outcome.store {
            return Ok(());
        }
        // The boottime: no earlier process of this boot has used the number, and those of others were removed at the start.
        let content = reading::encode(&self.decider.stored(read.boot));
        let stored = atomic_file::replace(disk, &self.file, read.boot, &content).await;
        stored.inspect_err(|error| {
            tracing::warn!(
                error = chain(error),
                "the clock's reading is not stored; trying again in 10 s"
            );
        })
    }
}

/// Halves of replacements that a crash left behind.
fn remove_leftovers(data: &Path) {
    let entries = std::fs::read_dir(data)
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let half = format!("{}.tmp-", reading::FILE);
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&half)) {
        // One that stays is rubbish, and harms nothing.
        let _removed = std::fs::remove_file(entry.path());
    }
}

fn chain(error: &ReplaceError) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    format!("{error}: {}", source.unwrap_or_default())
}

fn tell(told: &Told) {
    let seconds = |nanos: &u64| nanos / 1_000_000_000;
    match told {
        Told::Ahead(nanos) => tracing::error!(
            ahead_s = seconds(nanos),
            "the wall clock is more than 1 h ahead of the owner's clock: delay links and retention by time are held; when the wall clock is right, run `tailwater clock accept`"
        ),
        Told::HeldBefore => tracing::error!(
            "the owner's clock was held when the node stopped, and still is: delay links and retention by time wait; when the wall clock is right, run `tailwater clock accept`"
        ),
        Told::Damaged => tracing::error!(
            "clock.json is damaged, so nothing vouches for the wall clock: delay links and retention by time are held; when the wall clock is right, run `tailwater clock accept`"
        ),
        Told::Behind(nanos) => tracing::warn!(
            behind_s = seconds(nanos),
            "the wall clock is behind the last reading of the owner's clock: what was committed since is due that much later; if the earlier time was false, run `tailwater partition reset-clock` for the partitions that were written to"
        ),
        Told::Accepted(nanos) => {
            tracing::warn!(ahead_s = seconds(nanos), "an operator accepted the wall clock")
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use tailwater_storage::disk::device::DiskErrorKind;
    use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk, OpKind};

    use super::*;

    #[test]
    fn an_accepted_clock_is_stored_before_it_is_told_and_a_full_disk_is_named() {
        let (source, simulated) = ClockSource::simulated(1);
        let (clock, mut keeper) = Keeper::open(Path::new("/nowhere"), source);
        let disk = MemoryDisk::new(1);
        block_on(disk.create_dir_all(Path::new("/nowhere"))).expect("a directory");
        block_on(keeper.step(&disk, Event::Tick)).expect("stored");
        simulated.step_wall(7_200_000_000_000);
        std::thread::sleep(Duration::from_millis(120));
        block_on(keeper.step(&disk, Event::Tick)).expect("stored");
        assert!(clock.is_held());
        assert!(clock.wall_offset() > 7_199_000_000_000);
        let stored = |disk: &MemoryDisk| {
            let survivor = disk.crash(CrashPlan::LoseAll);
            reading::decode(survivor.peek(Path::new("/nowhere/clock.json")).as_deref())
        };
        assert!(matches!(stored(&disk), Last::Known(stored) if stored.held));
        disk.fail_next(OpKind::WriteSmall, "/nowhere", DiskErrorKind::NoSpace, 1);
        let error = block_on(keeper.step(&disk, Event::Accept)).expect_err("a full disk");
        assert!(chain(&error).contains("could not be written"), "{error}");
        assert!(!clock.is_held() && clock.wall_offset().abs() < 1_000_000_000);
        block_on(keeper.step(&disk, Event::Accept)).expect("stored");
        assert!(matches!(stored(&disk), Last::Known(stored) if !stored.held));
    }
}
