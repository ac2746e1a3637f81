//! The course of the owner's clock where every shard reads it, without a lock: one writer, any number of readers.
//!
//! A ring of slots. The writer fills the one after the current one, then makes that current. A reader copies the current
//! slot and looks whether meanwhile so many changes were made that it may have been written to: with a few changes a second
//! and a copy of six words that takes a reader that slept in between.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::clock::course::{Course, Piece};

/// Changes that may happen while a reader copies.
const SLOTS: usize = 8;

type Slot = [AtomicU64; 6];

/// See the module.
#[derive(Debug, Default)]
pub struct Published {
    /// Changes so far.
    version: AtomicU64,
    slots: [Slot; SLOTS],
}

impl Published {
    /// With a course.
    #[must_use]
    pub fn new(course: Course) -> Published {
        let published = Published::default();
        published.fill(0, course);
        published
    }

    /// The course now.
    #[must_use]
    pub fn course(&self) -> Course {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let slot = &self.slots[version as usize % SLOTS];
            let words: [u64; 6] = std::array::from_fn(|n| slot[n].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) - version < SLOTS as u64 - 1 {
                let piece = |at: usize| Piece {
                    boot: words[at],
                    owner: words[at + 1],
                    slew: words[at + 2] as i64,
                };
                return Course {
                    before: piece(0),
                    after: piece(3),
                };
            }
        }
    }

    /// Changes it. Called by one thread at a time.
    pub fn set(&self, course: Course) {
        let next = self.version.load(Ordering::Relaxed) + 1;
        // What a reader sees of the new words it can only see with the version before them.
        fence(Ordering::Release);
        self.fill(next, course);
        self.version.store(next, Ordering::Release);
    }

    fn fill(&self, version: u64, course: Course) {
        let words = [course.before, course.after].map(|p| [p.boot, p.owner, p.slew as u64]);
        for (word, value) in self.slots[version as usize % SLOTS]
            .iter()
            .zip(words.as_flattened())
        {
            word.store(*value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn readers_see_whole_courses_in_order() {
        let course = |n: u64| {
            Course::straight(Piece {
                boot: n,
                owner: 3 * n,
                slew: -(n as i64),
            })
        };
        let published = Arc::new(Published::new(course(0)));
        let reader = Arc::clone(&published);
        let reading = std::thread::spawn(move || {
            let mut last = 0;
            while last < 100_000 {
                let seen = reader.course();
                assert_eq!(seen, course(seen.after.boot));
                assert!(seen.after.boot >= last);
                last = seen.after.boot;
            }
        });
        (1..=100_000).for_each(|n| published.set(course(n)));
        reading.join().expect("no torn course");
    }
}
