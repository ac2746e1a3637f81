//! The latch of SPEC.md D5: open until the first failed write or flush, and never open again.
//!
//! A plain value without a clock, a file or an opinion about recovery. A log has one, and a shard's shared flush
//! has one; whoever holds a latched one must stop writing and reopen through recovery, which makes a new latch.

use crate::disk::device::DiskError;

/// The step at which a latch closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LatchStep {
    /// A write failed or was short.
    Write,
    /// The flush that should have covered the writes failed.
    Flush,
    /// Preparing a segment, or making it known (rename, directory sync), failed.
    Prepare,
    /// Cutting or zeroing what follows a torn flush failed.
    Cut,
}

impl LatchStep {
    /// The step as a word for messages and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Prepare => "prepare",
            Self::Cut => "cut",
        }
    }
}

/// Why a latch is closed. `Display` gives the sentence that a refused caller is told.
#[derive(Debug, Clone, thiserror::Error)]
#[error("read-only since a failed {}: {reason}", at.as_str())]
pub struct Latched {
    /// The step that failed.
    pub at: LatchStep,
    /// The first failure, never a later one.
    #[source]
    pub reason: DiskError,
}

/// Open, or closed for good by the first failure.
#[derive(Debug, Clone, Default)]
pub struct Latch {
    /// Written once: the first failure wins, because those that follow are often only its consequence.
    latched: Option<Latched>,
}

impl Latch {
    /// An open latch.
    pub const fn new() -> Self {
        Self { latched: None }
    }

    /// Closes the latch. Returns whether this failure was the first (the one to log and to count).
    pub fn close(&mut self, at: LatchStep, reason: DiskError) -> bool {
        if self.latched.is_some() {
            return false;
        }
        self.latched = Some(Latched { at, reason });
        true
    }

    /// Passes a result through, closing the latch if it is a failure.
    pub fn watch<T>(&mut self, at: LatchStep, result: Result<T, DiskError>) -> Result<T, DiskError> {
        if let Err(reason) = &result {
            self.close(at, reason.clone());
        }
        result
    }

    /// `Ok` while open, else the first failure: to be asked before every write.
    pub fn check(&self) -> Result<(), Latched> {
        match &self.latched {
            None => Ok(()),
            Some(latched) => Err(latched.clone()),
        }
    }

    /// The first failure, if there was one.
    pub fn latched(&self) -> Option<&Latched> {
        self.latched.as_ref()
    }

    /// Whether nothing has failed yet.
    pub fn is_open(&self) -> bool {
        self.latched.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::device::DiskErrorKind;

    fn failure(detail: &str) -> DiskError {
        DiskError {
            op: "flush",
            path: "a.log".into(),
            kind: DiskErrorKind::Io,
            detail: detail.into(),
        }
    }

    #[test]
    fn the_first_failure_wins_and_stays() {
        let mut latch = Latch::new();
        assert!(latch.check().is_ok());
        assert!(latch.close(LatchStep::Flush, failure("EIO")));
        assert!(!latch.close(LatchStep::Write, failure("later")));
        let told = latch.check().unwrap_err();
        assert_eq!((told.at, told.reason.detail.as_str()), (LatchStep::Flush, "EIO"));
        assert_eq!(
            told.to_string(),
            "read-only since a failed flush: flush a.log: EIO"
        );
    }

    #[test]
    fn a_success_after_the_failure_does_not_reopen_it() {
        let mut latch = Latch::new();
        assert!(
            latch
                .watch(LatchStep::Flush, Err::<(), _>(failure("EIO")))
                .is_err()
        );
        // What the kernel does: the retried flush reports success although the data is gone.
        assert!(latch.watch(LatchStep::Flush, Ok(())).is_ok());
        assert!(!latch.is_open());
        assert_eq!(latch.latched().map(|l| l.at), Some(LatchStep::Flush));
    }
}
