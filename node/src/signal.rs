//! A wake-up between tasks of one shard: level-triggered, for any number of waiters.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Set by one task, awaited by others of the same shard. Stays set until a waiter takes it.
#[derive(Debug, Default)]
pub struct Signal {
    set: Cell<bool>,
    waiters: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Wakes everyone who waits; the next wait returns at once if nobody does.
    pub fn notify(&self) {
        self.set.set(true);
        for waker in self.waiters.take() {
            waker.wake();
        }
    }

    /// Waits until it is set, and takes it. With several waiters one takes it and the others go on waiting; use
    /// [`Signal::until`] for conditions that several tasks watch.
    pub async fn wait(&self) {
        poll_fn(|cx| {
            if self.set.replace(false) {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits until a condition holds; it is looked at now and at each notification.
    pub async fn until(&self, condition: impl Fn() -> bool) {
        poll_fn(|cx| {
            if condition() {
                return Poll::Ready(());
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use futures_lite::future::{block_on, zip};

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
}
