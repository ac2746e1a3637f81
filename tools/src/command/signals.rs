//! The signals that ask a process to end: SIGTERM, and Ctrl-C's SIGINT.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Failure;

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

    /// Waits for Ctrl-C alone.
    pub async fn interrupt(&mut self) {
        self.interrupt.recv().await;
    }
}
