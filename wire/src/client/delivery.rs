//! What becomes of a record that was sent: a future, shared by all records of a batch.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::client::error::ClientError;
use crate::ids::{CommitTime, Offset, PartitionId};
use crate::message::Produced;
use crate::meta::Durability;

/// A committed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Where.
    pub partition: PartitionId,
    /// Its offset; unknown for a repeat whose original lies too far back.
    pub offset: Option<Offset>,
    /// When the owner committed it; unknown likewise.
    pub commit_time: Option<CommitTime>,
    /// What the acknowledgement promises.
    pub durability: Durability,
    /// Whether a retry found it committed already.
    pub duplicate: bool,
}

/// Resolves when a record is committed or has failed. Dropping it does not take the record back.
#[derive(Debug)]
pub struct Delivery {
    outcome: Arc<BatchOutcome>,
    /// The record's place in the batch.
    index: u32,
    /// Where this future's waker is kept.
    waker: Option<usize>,
}

impl Delivery {
    pub(crate) fn new(outcome: Arc<BatchOutcome>, index: u32) -> Delivery {
        Delivery {
            outcome,
            index,
            waker: None,
        }
    }
}

impl Future for Delivery {
    type Output = Result<Delivered, ClientError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut waker = self.waker;
        let result = self.outcome.poll(&mut waker, cx);
        self.waker = waker;
        result.map(|result| {
            let produced = result?;
            Ok(Delivered {
                partition: self.outcome.partition,
                offset: produced
                    .base_offset
                    .and_then(|base| base.0.checked_add(u64::from(self.index)))
                    .map(Offset),
                commit_time: produced.commit_time.map(CommitTime),
                durability: produced.durability,
                duplicate: produced.duplicate,
            })
        })
    }
}

/// How a batch ended, for all its records.
#[derive(Debug)]
pub(crate) struct BatchOutcome {
    partition: PartitionId,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<Produced, ClientError>>,
    /// One for each future that was polled.
    wakers: Vec<Waker>,
}

impl BatchOutcome {
    pub(crate) fn new(partition: PartitionId) -> BatchOutcome {
        BatchOutcome {
            partition,
            state: Mutex::default(),
        }
    }

    /// Ends it; only the first call counts.
    pub(crate) fn settle(&self, result: Result<Produced, ClientError>) {
        let mut state = self.lock();
        state.result.get_or_insert(result);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> Result<(), ClientError> {
        let mut waker = None;
        std::future::poll_fn(|cx| self.poll(&mut waker, cx)).await?;
        Ok(())
    }

    fn poll(&self, waker: &mut Option<usize>, cx: &mut Context<'_>) -> Poll<Result<Produced, ClientError>> {
        let mut state = self.lock();
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        match *waker {
            Some(at) => state.wakers[at].clone_from(cx.waker()),
            None => {
                *waker = Some(state.wakers.len());
                state.wakers.push(cx.waker().clone());
            }
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole at every point where a holder could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
