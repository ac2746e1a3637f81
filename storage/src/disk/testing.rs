//! An executor and an empty directory for one test.

use std::future::Future;
use std::path::PathBuf;

use crate::disk::executor::{ExecutorOptions, spawn};
use crate::disk::watchdog::{Watchdog, WatchdogOptions};

/// Runs a test's body on an executor of its own, with an empty directory on a filesystem that does direct I/O.
pub(crate) fn on_executor<F: Future<Output = ()> + 'static>(
    body: impl FnOnce(PathBuf) -> F + Send + 'static,
) {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let path = dir.path().to_path_buf();
    let watchdog = Watchdog::start(WatchdogOptions::default(), Box::new(|_, _| {})).expect("a watchdog");
    let options = ExecutorOptions {
        io_memory_bytes: 1 << 20,
        ..ExecutorOptions::default()
    };
    let executor = spawn(&options, &watchdog, move || body(path)).expect("an executor");
    if let Err(error) = executor.join() {
        panic!("{error}");
    }
}
