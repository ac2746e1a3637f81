//! I/O in a task of its own: it starts at once, outlives its caller, and is polled by its own waker only.
//!
//! Two traps of glommio 0.9.0 end here. A pending I/O future that is polled 32,765 times panics the executor, so no
//! caller may hold one inside a `select` or a `join`; and a dropped write may or may not reach the disk, so no caller
//! may be able to drop one. What callers hold is an [`Answer`], which may be polled and dropped at will.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// What a task will have returned. Dropping it leaves the task running.
pub(super) struct Answer<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

/// Who will say it. Dropped without a word, its answer never comes.
pub(super) struct Promise<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

/// A value to come, and where it will be.
pub(super) fn promise<T>() -> (Promise<T>, Answer<T>) {
    let slot = Rc::new(RefCell::new(Slot {
        value: None,
        waker: None,
    }));
    (Promise { slot: slot.clone() }, Answer { slot })
}

impl<T> Promise<T> {
    /// Says it, and wakes who waits.
    pub(super) fn keep(self, value: T) {
        let waker = {
            let mut slot = self.slot.borrow_mut();
            slot.value = Some(value);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Starts work on this shard, and says where its result will be.
pub(super) fn start<T: 'static>(work: impl Future<Output = T> + 'static) -> Answer<T> {
    let (promise, answer) = promise();
    glommio::spawn_local(async move { promise.keep(work.await) }).detach();
    answer
}

impl<T> Future for Answer<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.slot.borrow_mut();
        if let Some(value) = slot.value.take() {
            return Poll::Ready(value);
        }
        // One waker, replaced and never added to: a glommio waker's reference count is an i16.
        match &slot.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => slot.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}
