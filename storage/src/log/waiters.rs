//! Tasks that wait for an offset to be reached, woken in the order of what they wait for.
//!
//! Each waiter is one entry in an ordered map, so a release costs what it releases, however many go on waiting. A
//! waiter that is dropped takes its entry along.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tailwater_wire::ids::Offset;

use crate::error::CommitError;

/// How a wait ended.
type Outcome = Result<(), CommitError>;

#[derive(Default)]
struct Slot {
    outcome: Cell<Option<Outcome>>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Default)]
struct Queue {
    number: u64,
    waiting: BTreeMap<(Offset, u64), Rc<Slot>>,
}

/// The waiters of one frontier of one log.
#[derive(Clone, Default)]
pub(crate) struct Waiters {
    queue: Rc<RefCell<Queue>>,
}

impl Waiters {
    /// Waits from this call on, polled or not, until the frontier is at least `offset`. The caller has checked that
    /// it is not.
    pub(crate) fn wait(&self, offset: Offset) -> Wait {
        let mut queue = self.queue.borrow_mut();
        queue.number += 1;
        let key = (offset, queue.number);
        let slot = Rc::new(Slot::default());
        queue.waiting.insert(key, slot.clone());
        Wait::Queued(Queued {
            queue: self.queue.clone(),
            key,
            slot,
        })
    }

    /// The frontier is at `upto` now.
    pub(crate) fn reached(&self, upto: Offset) {
        loop {
            let first = {
                let waiting = &mut self.queue.borrow_mut().waiting;
                match waiting.first_entry() {
                    Some(entry) if entry.key().0 <= upto => entry.remove(),
                    _ => return,
                }
            };
            end(&first, Ok(()));
        }
    }

    /// Ends all waits with an error.
    pub(crate) fn fail(&self, error: &CommitError) {
        let all = std::mem::take(&mut self.queue.borrow_mut().waiting);
        for slot in all.into_values() {
            end(&slot, Err(error.clone()));
        }
    }
}

fn end(slot: &Slot, outcome: Outcome) {
    slot.outcome.set(Some(outcome));
    let waker = slot.waker.borrow_mut().take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// One wait.
pub(crate) enum Wait {
    /// It had ended before it began.
    Ended(Option<Outcome>),
    /// It is in the queue.
    Queued(Queued),
}

pub(crate) struct Queued {
    queue: Rc<RefCell<Queue>>,
    key: (Offset, u64),
    slot: Rc<Slot>,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.queue.borrow_mut().waiting.remove(&self.key);
    }
}

impl Future for Wait {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.get_mut() {
            Wait::Ended(outcome) => Poll::Ready(outcome.take().expect("polled after its end")),
            Wait::Queued(queued) => match queued.slot.outcome.take() {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    *queued.slot.waker.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn waiters_are_released_up_to_the_frontier() {
        let waiters = Waiters::default();
        let mut waits: Vec<_> = [5, 3, 3, 9].map(|o| waiters.wait(Offset(o))).into();
        let mut last = waits.pop().unwrap();
        assert!(block_on(poll_once(&mut last)).is_none());
        waiters.reached(Offset(4));
        let mut five = waits.remove(0);
        assert!(block_on(poll_once(&mut five)).is_none());
        for wait in waits {
            assert!(block_on(wait).is_ok(), "released before it was first polled");
        }
        waiters.reached(Offset(5));
        assert!(block_on(five).is_ok());
        waiters.fail(&CommitError::Closed);
        assert!(matches!(block_on(last), Err(CommitError::Closed)));
        drop(waiters.wait(Offset(7)));
        assert!(waiters.queue.borrow().waiting.is_empty(), "a dropped wait leaves");
    }
}
