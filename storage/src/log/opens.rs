//! Producers that were opened for the first time and are not on the disk yet; no I/O.
//!
//! A batch is refused when its producer is not known, whether it was let go or never was there (SPEC.md D9). So an
//! opened producer must outlive a crash, also before its first batch: the next round writes it down, as a frontier
//! batch that names it, and only then is the open answered.

use std::collections::{HashMap, VecDeque};

use tailwater_wire::ids::{CommitTime, Writer};

/// Opens that may wait for a round; one more is refused as busy.
pub(crate) const OPENS_WAITING_MAX: usize = 8_192;

/// See the module. `flushed <= taken <= asked`.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    waiting: VecDeque<(Writer, CommitTime)>,
    /// How many were asked for, and how many of these are in a round or behind it, and on the disk.
    asked: u64,
    taken: u64,
    flushed: u64,
    /// The number of each that is not on the disk.
    unproved: HashMap<Writer, u64>,
}

impl Opens {
    /// One more; returns its number.
    pub(crate) fn note(&mut self, writer: Writer, now: CommitTime) -> u64 {
        self.asked += 1;
        self.waiting.push_back((writer, now));
        self.unproved.insert(writer, self.asked);
        self.asked
    }

    /// Its number, as long as it is not on the disk.
    pub(crate) fn number_of(&self, writer: Writer) -> Option<u64> {
        self.unproved.get(&writer).copied()
    }

    /// How many wait for a round.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the first ones into a round; returns also the number of the last.
    pub(crate) fn take(&mut self, count: usize) -> (Vec<(Writer, CommitTime)>, u64) {
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        self.taken += taken.len() as u64;
        (taken, self.taken)
    }

    /// All up to a number are on the disk.
    pub(crate) fn flushed(&mut self, upto: u64) {
        assert!(upto <= self.taken && upto >= self.flushed);
        self.flushed = upto;
        self.unproved.retain(|_, number| *number > upto);
    }

    /// Forgets those that wait, of which nothing was written.
    pub(crate) fn take_back(&mut self) -> Vec<Writer> {
        assert!(self.taken == self.flushed, "between two rounds");
        self.asked = self.taken;
        self.unproved.clear();
        self.waiting.drain(..).map(|(writer, _)| writer).collect()
    }
}
