//! The signals that ask a process to end: SIGTERM, and Ctrl-C's SIGINT.

use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Failure;
use crate::output;

/// From its making on, neither signal ends the process by itself, also when this is gone again.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens, on the runtime that it is made on.
    ///
    /// # Errors
    /// When the machine does not allow it.
    pub fn new() -> Result<Signals, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::local("signals", error, "IO"));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for either, and says how a command ends that did not finish because of it.
    pub async fn next(&mut self) -> Failure {
        tokio::select! {
            _ = self.terminate.recv() => Failure::terminated(),
            _ = self.interrupt.recv() => Failure::interrupted(),
        }
    }

    /// Runs work that a signal ends at once.
    ///
    /// # Errors
    /// That a signal came first.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        tokio::select! {
            done = work => Ok(done),
            failure = self.next() => Err(failure),
        }
    }

    /// Runs work that sends records. The first signal calls `stop`, after which the work sends nothing more and ends when
    /// what was sent is acknowledged; how the command then ends comes with what the work came to.
    ///
    /// # Errors
    /// That a second signal came before the work had ended.
    pub async fn finish<T>(
        &mut self,
        work: impl Future<Output = T>,
        stop: impl Fn(),
    ) -> Result<(T, Option<Failure>), Failure> {
        tokio::pin!(work);
        let mut ended = None;
        loop {
            tokio::select! {
                done = &mut work => return Ok((done, ended)),
                failure = self.next() => {
                    if ended.is_some() {
                        return Err(failure);
                    }
                    ended = Some(failure);
                    stop();
                    output::note("stopping: waiting for what was sent; a second Ctrl-C ends at once");
                }
            }
        }
    }

    /// Waits for Ctrl-C alone.
    pub async fn interrupt(&mut self) {
        self.interrupt.recv().await;
    }
}
