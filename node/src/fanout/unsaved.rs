//! Cursors whose file lags behind their position, in the order in which they began to lag (SPEC.md F5: the oldest
//! first). Nothing here but those: an idle cursor costs the one who stores positions nothing.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::signal::Signal;

/// Shard-local. Whoever pushes sees to it that nobody is in here twice: so the queue is no longer than there are
/// cursors.
pub struct Unsaved<T> {
    queue: RefCell<VecDeque<Rc<T>>>,
    added: Signal,
}

impl<T> Default for Unsaved<T> {
    fn default() -> Unsaved<T> {
        Unsaved {
            queue: RefCell::default(),
            added: Signal::default(),
        }
    }
}

impl<T> Unsaved<T> {
    /// One begins to lag. One whose position could not be stored comes again, behind the others.
    pub fn push(&self, who: Rc<T>) {
        self.queue.borrow_mut().push_back(who);
        self.added.notify();
    }

    /// Waits for one, and takes the one that has lagged longest.
    pub async fn next(&self) -> Rc<T> {
        loop {
            let first = self.queue.borrow_mut().pop_front();
            match first {
                Some(first) => return first,
                None => self.added.wait().await,
            }
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.borrow().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_lite::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn the_one_that_lags_longest_comes_first_and_an_empty_queue_wakes_nobody() {
        let unsaved = Unsaved::default();
        {
            let mut next = pin!(unsaved.next());
            assert!(block_on(poll_once(next.as_mut())).is_none());
            unsaved.push(Rc::new(1));
            assert_eq!(block_on(poll_once(next.as_mut())).as_deref(), Some(&1));
        }
        (2..5).for_each(|who| unsaved.push(Rc::new(who)));
        let taken: Vec<_> = (0..3).map(|_| *block_on(unsaved.next())).collect();
        assert_eq!(taken, [2, 3, 4]);
        assert!(unsaved.is_empty());
        assert!(block_on(poll_once(pin!(unsaved.next()))).is_none());
    }
}
