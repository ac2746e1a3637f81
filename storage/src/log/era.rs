//! Recovering a log that was stamped in a false future: its era ends, and stamps come from the present clock again.
//!
//! The era ends where a new segment begins, and stands in that segment's header: with the rename that gives the segment
//! its name the era has ended, and before it has not. A crash leaves one or the other. Every later header repeats it, as
//! long as records of the era are left; a header with eras has a newer format version, so that a program that does not know
//! of them refuses the log instead of going on in the future.

use std::rc::Rc;

use tailwater_wire::ids::{CommitTime, Offset};

use crate::disk::device::Disk;
use crate::eras::{Era, TooManyEras};
use crate::error::CommitError;
use crate::log::PartitionLog;

/// Why an era did not end.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EndEraError {
    /// Another call is about to end it.
    #[error("the partition's clock is being reset already")]
    Busy,
    /// See there.
    #[error(transparent)]
    TooMany(#[from] TooManyEras),
    /// What was pending could not be committed, or the next segment could not be begun. When the outcome is unknown, the
    /// log is read-only until it is opened again, which tells.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl<D: Disk> PartitionLog<D> {
    /// Ends the era of a log that is stamped ahead of `now`: what it holds counts as committed at `now` at the latest, and
    /// what comes is stamped from the present clock. Durable when this returns. Says whether there was anything to end.
    ///
    /// What is pending is committed first; until the end appends are refused as busy.
    ///
    /// # Errors
    /// [`EndEraError`]; nothing has changed then, unless the outcome is unknown.
    pub async fn end_era(self: &Rc<Self>, now: CommitTime) -> Result<bool, EndEraError> {
        {
            let mut state = self.state.borrow_mut();
            state.latch.check().map_err(CommitError::OutcomeUnknown)?;
            if state.closed {
                return Err(CommitError::Closed.into());
            }
            if state.ending_era {
                return Err(EndEraError::Busy);
            }
            if state.last_commit_time <= now {
                return Ok(false);
            }
            state.eras.and(Era {
                below: state.next_offset,
                end: now,
            })?;
            state.ending_era = true;
        }
        let _appends_again = EndingEra(self);
        self.settle(now).await?;
        // Between the check that nothing is left and the roll there is no await: no round can have begun.
        if self.state.borrow().closed {
            return Err(CommitError::Closed.into());
        }
        self.roll_to_era(now).await?;
        let (below, floor) = (self.flushed(), self.last_commit_time());
        tracing::warn!(
            topic = %self.identity.topic, partition = %self.identity.partition,
            "records below {below} count as committed at {} ns at the latest; stamps go on from there", floor.0,
        );
        Ok(true)
    }

    /// When a batch counts as committed that begins at `offset` and is stamped `stamp`: its stamp, but for records of an
    /// era that has ended.
    pub fn counted(&self, offset: Offset, stamp: CommitTime) -> CommitTime {
        self.state.borrow().eras.counted(offset, stamp)
    }
}

/// Lets appends in again, whatever became of the attempt.
struct EndingEra<'a, D: Disk>(&'a PartitionLog<D>);

impl<D: Disk> Drop for EndingEra<'_, D> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().ending_era = false;
    }
}
