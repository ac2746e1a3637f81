//! A bound on memory, per shard: for slabs in flight (SPEC.md F15), which wait until there is room, and for batches that
//! wait for their flush, which are refused.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use send_wrapper::SendWrapper;

/// The shard's budget. A reader waits until a whole slab fits, so nobody reads what it could not keep. Those who wait
/// are served in the order in which they came, and what is given back wakes only those whom it serves: thousands of
/// cursors may wait.
pub struct Budget {
    limit_bytes: usize,
    used_bytes: Cell<usize>,
    waiting: RefCell<VecDeque<Rc<Waiting>>>,
}

/// One who waits for room.
struct Waiting {
    bytes: usize,
    /// Set when the bytes were taken in its name.
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A place in the queue; leaves it, or gives back what it was granted, unless that became a charge.
struct Place {
    budget: Rc<Budget>,
    waiting: Rc<Waiting>,
}

/// Bytes taken from the budget; given back when dropped.
pub struct Charge {
    budget: Rc<Budget>,
    bytes: usize,
}

impl Budget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Rc<Budget> {
        Rc::new(Budget {
            limit_bytes,
            used_bytes: Cell::new(0),
            waiting: RefCell::default(),
        })
    }

    /// Takes so many bytes, when they are to be had. More than the whole budget is granted when nothing else is out.
    pub async fn take(self: &Rc<Budget>, bytes: usize) -> Charge {
        if self.waiting.borrow().is_empty()
            && let Some(charge) = self.try_take(bytes)
        {
            return charge;
        }
        let waiting = Rc::new(Waiting {
            bytes,
            granted: Cell::new(false),
            waker: RefCell::default(),
        });
        self.waiting.borrow_mut().push_back(Rc::clone(&waiting));
        let place = Place {
            budget: Rc::clone(self),
            waiting,
        };
        poll_fn(|cx| {
            if place.waiting.granted.get() {
                return Poll::Ready(());
            }
            let mut waker = place.waiting.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
        place.waiting.granted.set(false);
        Charge {
            budget: Rc::clone(self),
            bytes,
        }
    }

    /// Takes so many bytes, if they are to be had now.
    #[must_use]
    pub fn try_take(self: &Rc<Budget>, bytes: usize) -> Option<Charge> {
        self.fits(bytes).then(|| self.charge(bytes))
    }

    /// Bytes that are out.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.get()
    }

    fn fits(&self, bytes: usize) -> bool {
        self.used_bytes.get() == 0 || self.used_bytes.get() + bytes <= self.limit_bytes
    }

    fn charge(self: &Rc<Budget>, bytes: usize) -> Charge {
        self.used_bytes.set(self.used_bytes.get() + bytes);
        Charge {
            budget: Rc::clone(self),
            bytes,
        }
    }

    fn give_back(&self, bytes: usize) {
        self.used_bytes.set(self.used_bytes.get() - bytes);
        self.serve();
    }

    /// Grants those who wait what they wait for, the first first, as far as there is room.
    fn serve(&self) {
        loop {
            let served = {
                let mut waiting = self.waiting.borrow_mut();
                match waiting.front() {
                    Some(first) if self.fits(first.bytes) => waiting.pop_front(),
                    _ => None,
                }
            };
            let Some(served) = served else { return };
            self.used_bytes.set(self.used_bytes.get() + served.bytes);
            served.granted.set(true);
            let waker = served.waker.borrow_mut().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Counts a batch for as long as any reference to its bytes lives. They stay on this shard.
    #[must_use]
    pub fn hold(self: &Rc<Budget>, bytes: Bytes) -> Bytes {
        let charge = self.charge(bytes.len());
        Bytes::from_owner(Held {
            bytes,
            _charge: SendWrapper::new(charge),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.waiting.granted.get() {
            self.budget.give_back(self.waiting.bytes);
            return;
        }
        let mut waiting = self.budget.waiting.borrow_mut();
        let place = waiting.iter().position(|other| Rc::ptr_eq(other, &self.waiting));
        if let Some(place) = place {
            waiting.remove(place);
            drop(waiting);
            // It may have stood before those for whom there is room.
            self.budget.serve();
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

struct Held {
    bytes: Bytes,
    _charge: SendWrapper<Charge>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn what_is_held_counts_until_its_last_reference_goes() {
        let budget = Budget::new(100);
        let held = budget.hold(Bytes::from_static(&[0; 60]));
        let part = held.slice(10..20);
        assert!(block_on(poll_once(budget.take(50))).is_none(), "it does not fit");
        assert!(budget.try_take(41).is_none() && budget.try_take(40).is_some());
        drop(held);
        assert_eq!(budget.used_bytes(), 60, "a part of it is still there");
        drop(part);
        let charge = block_on(budget.take(50));
        assert_eq!(budget.used_bytes(), 50);
        drop(charge);
        let large = block_on(poll_once(budget.take(1_000))).expect("alone, anything is granted");
        assert_eq!(budget.used_bytes(), 1_000);
        drop(large);
    }

    #[test]
    fn those_who_wait_are_served_in_their_order_and_only_they_are_woken() {
        let budget = Budget::new(100);
        let out = budget.try_take(90).expect("room");
        let mut first = pin!(budget.take(80));
        let mut second = pin!(budget.take(10));
        let mut third = pin!(budget.take(20));
        assert!(block_on(poll_once(first.as_mut())).is_none());
        assert!(
            block_on(poll_once(second.as_mut())).is_none(),
            "it would fit, and does not pass the first"
        );
        assert!(block_on(poll_once(third.as_mut())).is_none());
        drop(out);
        let first = block_on(poll_once(first.as_mut())).expect("served");
        let second = block_on(poll_once(second.as_mut())).expect("served too: both fit");
        assert!(block_on(poll_once(third.as_mut())).is_none());
        assert_eq!(budget.used_bytes(), 90);
        drop((first, second));
        assert_eq!(budget.used_bytes(), 20, "taken in the third one's name");
    }

    #[test]
    fn one_who_stops_waiting_holds_nobody_up_and_keeps_nothing() {
        let budget = Budget::new(100);
        let out = budget.try_take(60).expect("room");
        let mut behind = pin!(budget.take(40));
        {
            let mut large = pin!(budget.take(70));
            assert!(block_on(poll_once(large.as_mut())).is_none());
            assert!(block_on(poll_once(behind.as_mut())).is_none());
        }
        drop(block_on(poll_once(behind.as_mut())).expect("nobody stands before it"));
        {
            let mut granted = pin!(budget.take(70));
            assert!(block_on(poll_once(granted.as_mut())).is_none());
            drop(out);
            assert_eq!(budget.used_bytes(), 70);
        }
        assert_eq!(budget.used_bytes(), 0, "given back by one who never took it");
    }
}
