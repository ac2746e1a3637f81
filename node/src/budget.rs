//! A bound on memory, per shard: for slabs in flight (SPEC.md F15), which wait until there is room, and for batches that
//! wait for their flush, which are refused.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use send_wrapper::SendWrapper;

use crate::signal::Signal;

/// The shard's budget. A reader waits until a whole slab fits, so nobody reads what it could not keep; those who
/// wait are woken together and the first to run goes first, so no cursor is passed over for long.
pub struct Budget {
    limit_bytes: usize,
    used_bytes: Cell<usize>,
    released: Signal,
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
            released: Signal::default(),
        })
    }

    /// Takes so many bytes, when they are to be had. More than the whole budget is granted when nothing else is out.
    pub async fn take(self: &Rc<Budget>, bytes: usize) -> Charge {
        self.released
            .until(|| self.used_bytes.get() == 0 || self.used_bytes.get() + bytes <= self.limit_bytes)
            .await;
        self.charge(bytes)
    }

    /// Takes so many bytes, if they are to be had now.
    #[must_use]
    pub fn try_take(self: &Rc<Budget>, bytes: usize) -> Option<Charge> {
        let fits = self.used_bytes.get() == 0 || self.used_bytes.get() + bytes <= self.limit_bytes;
        fits.then(|| self.charge(bytes))
    }

    /// Bytes that are out.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.get()
    }

    fn charge(self: &Rc<Budget>, bytes: usize) -> Charge {
        self.used_bytes.set(self.used_bytes.get() + bytes);
        Charge {
            budget: Rc::clone(self),
            bytes,
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

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget
            .used_bytes
            .set(self.budget.used_bytes.get() - self.bytes);
        self.budget.released.notify();
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
}
