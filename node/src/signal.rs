//! A wake-up between tasks of one shard: level-triggered, for any number of waiters.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Set by one task, awaited by others of the same shard. Stays set until a waiter takes it.
#[derive(Debug, Default)]
pub struct Signal {
    set: Cell<bool>,
    waiters: RefCell<BTreeMap<u64, Waker>>,
    next: Cell<u64>,
}

/// One waiter's place: at most one waker, however often it is polled, and none when it is dropped.
struct Place<'a> {
    signal: &'a Signal,
    number: u64,
}

impl Place<'_> {
    fn park(&self, cx: &Context<'_>) {
        let mut waiters = self.signal.waiters.borrow_mut();
        let waker = waiters.entry(self.number).or_insert_with(|| cx.waker().clone());
        if !waker.will_wake(cx.waker()) {
            waker.clone_from(cx.waker());
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.signal.waiters.borrow_mut().remove(&self.number);
    }
}

impl Signal {
    /// Wakes everyone who waits; the next wait returns at once if nobody does.
    pub fn notify(&self) {
        self.set.set(true);
        for waker in self.waiters.take().into_values() {
            waker.wake();
        }
    }

    fn place(&self) -> Place<'_> {
        self.next.set(self.next.get() + 1);
        Place {
            signal: self,
            number: self.next.get(),
        }
    }

    /// Waits until it is set, and takes it. With several waiters one takes it and the others go on waiting; use
    /// [`Signal::until`] for conditions that several tasks watch.
    pub async fn wait(&self) {
        let place = self.place();
        poll_fn(|cx| {
            if self.set.replace(false) {
                return Poll::Ready(());
            }
            place.park(cx);
            Poll::Pending
        })
        .await;
    }

    /// Waits until a condition holds; it is looked at now and at each notification.
    pub async fn until(&self, condition: impl Fn() -> bool) {
        let place = self.place();
        poll_fn(|cx| {
            if condition() {
                return Poll::Ready(());
            }
            place.park(cx);
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::rc::Rc;

    use futures_lite::future::{block_on, poll_once, zip};

    use super::*;

    #[test]
    fn a_notification_is_not_lost_and_reaches_all_who_watch_a_condition() {
        let signal = Rc::new(Signal::default());
        signal.notify();
        block_on(signal.wait());
        let ready = Cell::new(false);
        let watch = || signal.until(|| ready.get());
        let set = async {
            ready.set(true);
            signal.notify();
        };
        block_on(zip(zip(watch(), watch()), set));
    }

    /// The incident: a connection was polled for every frame, and each poll left one more waker with the signal that it
    /// waits for to drain. glommio counts a task's references in 16 bits: after 32,767 frames the node ended with
    /// "Waker invariant broken".
    #[test]
    fn a_waiter_holds_one_waker_however_often_it_is_polled_and_none_when_it_is_gone() {
        let signal = Signal::default();
        {
            let mut wait = pin!(signal.until(|| false));
            for _ in 0..100_000 {
                assert!(block_on(poll_once(wait.as_mut())).is_none());
            }
            assert_eq!(signal.waiters.borrow().len(), 1);
        }
        assert!(signal.waiters.borrow().is_empty());
    }
}
