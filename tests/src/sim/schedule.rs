//! What happens when: a queue of events on a virtual clock, in one order for one seed.

use std::collections::BTreeMap;

use tailwater_wire::ids::CommitTime;

/// Events by time; those of the same time in the order in which they were added.
#[derive(Debug)]
pub(super) struct Schedule<E> {
    now: CommitTime,
    added: u64,
    queue: BTreeMap<(CommitTime, u64), E>,
}

impl<E> Schedule<E> {
    pub fn new(start: CommitTime) -> Schedule<E> {
        Schedule {
            now: start,
            added: 0,
            queue: BTreeMap::new(),
        }
    }

    pub fn now(&self) -> CommitTime {
        self.now
    }

    pub fn at(&mut self, time: CommitTime, event: E) {
        self.added += 1;
        self.queue.insert((time.max(self.now), self.added), event);
    }

    pub fn after_micros(&mut self, micros: u64, event: E) {
        self.at(CommitTime(self.now.0 + micros * 1_000), event);
    }

    /// Moves the clock to the next event.
    pub fn next(&mut self) -> Option<E> {
        let ((time, _), event) = self.queue.pop_first()?;
        self.now = time;
        Some(event)
    }
}
