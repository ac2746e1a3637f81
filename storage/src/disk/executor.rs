//! Builds the glommio executor that a shard lives on: checked, sized, warmed up and watched.

use std::future::Future;
use std::time::Duration;

use glommio::{ExecutorJoinHandle, GlommioError, LocalExecutorBuilder, Placement, PoolPlacement};

use crate::disk::preflight::{self, PreflightError};
use crate::disk::watchdog::Watchdog;

/// Below 100 ms an executor goes to sleep with runnable tasks more often (see `watchdog`).
const PREEMPT_TIMER: Duration = Duration::from_millis(100);

/// Threads beside each executor for names and small files: a slow directory flush must not hold up the next.
const BLOCKING_THREADS: usize = 2;

/// What one executor needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Its thread's name, and its name in reports.
    pub name: String,
    /// The CPU it is pinned to; `None` lets it wander.
    pub core: Option<usize>,
    /// How long it spins before it sleeps: zero, or 50-100 us on a core of its own. Only a pinned one spins.
    pub spin_before_park: Duration,
    /// Memory for direct I/O to register with the kernel, in bytes; less is taken where RLIMIT_MEMLOCK demands it.
    pub io_memory_bytes: u64,
    /// How many executors the process runs in all: they share RLIMIT_MEMLOCK.
    pub executors: u64,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        Self {
            name: "shard".into(),
            core: None,
            spin_before_park: Duration::ZERO,
            io_memory_bytes: 10 << 20,
            executors: 1,
        }
    }
}

/// Why an executor did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The process is not fit for executors.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// glommio could not build it: no such core, no thread, no ring.
    #[error("executor {name} did not start: {reason}")]
    Build {
        /// Its name.
        name: String,
        /// glommio's words.
        reason: String,
    },
    /// A task of it panicked, or the thread ended early.
    #[error("executor {name} died: {reason}")]
    Died {
        /// Its name.
        name: String,
        /// The panic's message, or glommio's words.
        reason: String,
    },
}

/// A running executor on a thread of its own.
#[derive(Debug)]
pub struct RunningExecutor<T: Send + 'static> {
    name: String,
    handle: ExecutorJoinHandle<T>,
}

impl<T: Send + 'static> RunningExecutor<T> {
    /// Waits until its main future has ended.
    pub fn join(self) -> Result<T, ExecutorError> {
        let name = self.name;
        self.handle.join().map_err(|error| ExecutorError::Died {
            name,
            reason: reason(error),
        })
    }
}

/// Starts an executor and runs a future on it, which is made there and may be bound to it.
pub fn spawn<T, F, G>(
    options: &ExecutorOptions,
    watchdog: &Watchdog,
    main: G,
) -> Result<RunningExecutor<T>, ExecutorError>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
    G: FnOnce() -> F + Send + 'static,
{
    spawn_with(options, PREEMPT_TIMER, watchdog, main)
}

fn spawn_with<T, F, G>(
    options: &ExecutorOptions,
    preempt_timer: Duration,
    watchdog: &Watchdog,
    main: G,
) -> Result<RunningExecutor<T>, ExecutorError>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
    G: FnOnce() -> F + Send + 'static,
{
    let io_memory_bytes = preflight::check(options.executors, options.io_memory_bytes)?;
    tracing::info!(
        executor = options.name,
        core = options.core,
        io_memory_bytes,
        asked_bytes = options.io_memory_bytes,
        "I/O memory sized to RLIMIT_MEMLOCK"
    );
    let placement = options.core.map_or(Placement::Unbound, Placement::Fixed);
    let mut builder = LocalExecutorBuilder::new(placement)
        .name(&options.name)
        .io_memory(usize::try_from(io_memory_bytes).unwrap_or(usize::MAX))
        .preempt_timer(preempt_timer)
        // Unbound threads are made before the executor pins itself, so they stay off its core.
        .blocking_thread_pool_placement(PoolPlacement::Unbound(BLOCKING_THREADS));
    if !options.spin_before_park.is_zero() {
        builder = builder.spin_before_park(options.spin_before_park);
    }
    let (guard, pacemaker) = watchdog.watch(&options.name);
    let handle = builder.spawn(move || async move {
        let pacemaker = glommio::spawn_local(pacemaker);
        // The first sleep on an executor takes 5-13 ms; nobody waits for anything yet.
        glommio::timer::sleep(Duration::from_millis(1)).await;
        let result = main().await;
        drop(guard);
        pacemaker.await;
        result
    });
    match handle {
        Ok(handle) => Ok(RunningExecutor {
            name: options.name.clone(),
            handle,
        }),
        Err(error) => Err(ExecutorError::Build {
            name: options.name.clone(),
            reason: reason(error),
        }),
    }
}

fn reason(error: GlommioError<()>) -> String {
    use glommio::BuilderErrorKind::ThreadPanic;
    match error {
        GlommioError::BuilderError(ThreadPanic(panic)) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            text.or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "a panic".into())
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::disk::watchdog::WatchdogOptions;

    fn watchdog() -> Watchdog {
        Watchdog::start(WatchdogOptions::default(), Box::new(|_, _| {})).unwrap()
    }

    fn small() -> ExecutorOptions {
        ExecutorOptions {
            io_memory_bytes: 1 << 16,
            ..ExecutorOptions::default()
        }
    }

    #[test]
    fn a_panic_ends_the_executor_with_its_message() {
        let watchdog = watchdog();
        let executor = spawn(&small(), &watchdog, || async { panic!("a broken shard") }).unwrap();
        let error = executor.join().unwrap_err();
        assert_eq!(error.to_string(), "executor shard died: a broken shard");
        std::thread::sleep(Duration::from_millis(20));
        assert!(watchdog.reports().is_empty(), "a dead executor is not watched");
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        let options = ExecutorOptions {
            core: Some(100_000),
            ..small()
        };
        let started = spawn(&options, &watchdog(), || async {});
        let error = started.and_then(RunningExecutor::join).unwrap_err();
        assert!(error.to_string().contains("100000"), "{error}");
    }

    #[test]
    fn a_blocked_executor_is_counted_and_then_fatal_once() {
        let options = WatchdogOptions {
            fatal_after: Duration::from_millis(100),
            ..WatchdogOptions::default()
        };
        let (tell, told) = std::sync::mpsc::channel();
        let on_fatal = move |name: &str, waited| {
            let _ = tell.send((name.to_owned(), waited));
        };
        let watchdog = Arc::new(Watchdog::start(options, Box::new(on_fatal)).unwrap());
        let asked = watchdog.clone();
        let executor = spawn(&small(), &watchdog, move || async move {
            glommio::timer::sleep(Duration::from_millis(50)).await;
            std::thread::sleep(Duration::from_millis(300)); // what no shard may do
            glommio::timer::sleep(Duration::from_millis(50)).await;
            asked.reports()
        });
        let report = executor.unwrap().join().unwrap().remove(0);
        assert!(report.stalls >= 1 && report.stall_us_max >= 100_000, "{report:?}");
        let (name, waited) = told.recv().unwrap();
        assert!(
            name == "shard" && waited >= Duration::from_millis(100),
            "{name} {waited:?}"
        );
        assert!(told.try_recv().is_err(), "once");
    }

    // An executor of glommio 0.9.0 parks with runnable tasks in its queue when the preempt timer fires before the first of
    // them has run. At 100 us, with another thread on its core, that happens within a second or so.
    #[test]
    fn the_watchdog_revives_an_executor_that_sleeps_on_runnable_tasks() {
        let watchdog = watchdog();
        let ticks = Arc::new(AtomicU64::new(0));
        let (told, hogging) = (ticks.clone(), Arc::new(AtomicU64::new(1)));
        let until = Instant::now() + Duration::from_secs(4);
        let options = ExecutorOptions {
            core: Some(0),
            ..small()
        };
        let hog = hogging.clone();
        let executor = spawn_with(
            &options,
            Duration::from_micros(100),
            &watchdog,
            move || async move {
                // Started here, the thread inherits the executor's core.
                let hog = std::thread::spawn(move || while hog.load(Ordering::Relaxed) == 1 {});
                let timers: Vec<_> = (0..4)
                    .map(|_| {
                        let told = told.clone();
                        glommio::spawn_local(async move {
                            while Instant::now() < until {
                                glommio::timer::sleep(Duration::from_millis(1)).await;
                                told.fetch_add(1, Ordering::Relaxed);
                            }
                        })
                        .detach()
                    })
                    .collect();
                for timer in timers {
                    timer.await;
                }
                hogging.store(0, Ordering::Relaxed);
                hog.join().unwrap();
            },
        );
        let executor = executor.unwrap();
        let (mut seen, mut since) = (0, Instant::now());
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            let now = ticks.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            assert!(
                since.elapsed() < Duration::from_secs(2),
                "no tick for two seconds after {seen}"
            );
        }
        executor.join().unwrap();
    }
}
