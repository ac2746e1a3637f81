//! The segments of one log: the sealed ones with what is known of each, and the active one.
//!
//! Only the oldest go and only the active one grows, so what is here is always one run of offsets. Open files and
//! indexes of sealed segments are kept for a few segments at a time; what a scan found rotten is kept for all.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use tailwater_wire::ids::{CommitTime, Offset};

use crate::eras::Eras;
use crate::retention::SealedSegment;
use crate::segment::appender::Active;
use crate::segment::index::{IndexEntry, IndexedSegment, SparseIndex};
use crate::segment::recovery::{Hole, Plan};

/// Sealed segments whose file and index are kept open.
const LOADED_MAX: usize = 16;

/// A sealed segment: wholly flushed, never written again.
#[derive(Debug, Clone)]
pub(crate) struct Sealed<F> {
    pub(crate) base: Offset,
    /// The next segment's base.
    pub(crate) end: Offset,
    pub(crate) path: PathBuf,
    pub(crate) nonce: u64,
    pub(crate) data_start: u64,
    /// The file's length.
    pub(crate) bytes: u64,
    /// Of its last record, or of the last one before it if it has none.
    pub(crate) last_commit_time: CommitTime,
    /// File and index, while loaded.
    pub(crate) loaded: Option<Loaded<F>>,
    /// What has rotted, once something was found.
    pub(crate) holes: Rc<[Hole]>,
    /// Whether its index file is still to be written.
    pub(crate) index_unsaved: bool,
}

/// What reading a sealed segment takes.
#[derive(Debug, Clone)]
pub(crate) struct Loaded<F> {
    pub(crate) file: F,
    pub(crate) index: Rc<SparseIndex>,
}

impl<F> Sealed<F> {
    /// How its index file names it.
    pub(crate) fn indexed(&self) -> IndexedSegment {
        IndexedSegment {
            nonce: self.nonce,
            bytes: self.bytes,
            base: self.base,
            end: self.end,
            last_commit_time: self.last_commit_time,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Segments<F> {
    /// By offset, without gaps; the last one ends where the active one begins.
    pub(crate) sealed: VecDeque<Sealed<F>>,
    pub(crate) active: Active<F>,
    /// Behind the last chunk of the active segment that is known to be written.
    pub(crate) written_end: u64,
    /// Of the active segment, up to `written_end`.
    pub(crate) index: Rc<SparseIndex>,
    /// What has rotted in the active segment.
    pub(crate) holes: Rc<[Hole]>,
    /// Which sealed segments are loaded, the one loaded last at the back.
    loaded: VecDeque<Offset>,
}

impl<F: Clone> Segments<F> {
    pub(crate) fn new(
        sealed: VecDeque<Sealed<F>>,
        active: Active<F>,
        index: SparseIndex,
        holes: Vec<Hole>,
    ) -> Self {
        let loaded = sealed
            .iter()
            .filter(|s| s.loaded.is_some())
            .map(|s| s.base)
            .collect();
        Segments {
            sealed,
            written_end: active.position,
            active,
            index: Rc::new(index),
            holes: holes.into(),
            loaded,
        }
    }

    pub(crate) fn log_start(&self) -> Offset {
        self.sealed
            .front()
            .map_or(self.active.header.base_offset, |first| first.base)
    }

    /// Bytes of all files, the active one up to what was written.
    pub(crate) fn bytes(&self) -> u64 {
        self.sealed.iter().map(|s| s.bytes).sum::<u64>() + self.active.position
    }

    /// The place in `sealed` of the segment that holds an offset below the active segment's base.
    pub(crate) fn sealed_at(&self, offset: Offset) -> Option<usize> {
        let at = self.sealed.partition_point(|s| s.end <= offset);
        (at < self.sealed.len() && self.sealed[at].base <= offset).then_some(at)
    }

    /// The sealed segment with this base, if it is still there.
    pub(crate) fn sealed_mut(&mut self, base: Offset) -> Option<&mut Sealed<F>> {
        let at = self.sealed_at(base)?;
        Some(&mut self.sealed[at]).filter(|s| s.base == base)
    }

    /// Keeps a sealed segment's file and index, and lets go of those that were loaded longest ago.
    pub(crate) fn load(&mut self, base: Offset, loaded: Loaded<F>) {
        let Some(segment) = self.sealed_mut(base) else {
            return;
        };
        if segment.loaded.replace(loaded).is_none() {
            self.loaded.push_back(base);
        }
        self.unload_surplus();
    }

    fn unload_surplus(&mut self) {
        while self.loaded.len() > LOADED_MAX {
            let Some(oldest) = self.loaded.pop_front() else {
                return;
            };
            if let Some(segment) = self.sealed_mut(oldest) {
                if segment.index_unsaved {
                    // The index exists in memory alone: it can be made again, at the price of a scan.
                    segment.index_unsaved = false;
                }
                segment.loaded = None;
            }
        }
    }

    /// The active segment ends here, wholly flushed, and another one takes its place. A segment without records leaves
    /// no trace: the new one has its base, and its name.
    pub(crate) fn roll(&mut self, next: Active<F>, last_commit_time: CommitTime, index_interval_bytes: u32) {
        let next_position = next.position;
        let old = std::mem::replace(&mut self.active, next);
        let end = self.active.header.base_offset;
        let index = std::mem::replace(&mut self.index, Rc::new(SparseIndex::new(index_interval_bytes)));
        let holes = std::mem::replace(&mut self.holes, Rc::from([]));
        self.written_end = next_position;
        assert!(old.header.base_offset <= end);
        if old.header.base_offset < end {
            self.sealed.push_back(Sealed {
                base: old.header.base_offset,
                end,
                nonce: old.header.nonce,
                data_start: old.header.data_start(),
                bytes: old.capacity,
                last_commit_time,
                loaded: Some(Loaded {
                    file: old.file,
                    index,
                }),
                holes,
                path: old.path,
                index_unsaved: true,
            });
            self.loaded.push_back(old.header.base_offset);
            self.unload_surplus();
        }
    }

    /// An era has ended: the commit times of everything in it change to what they count as.
    pub(crate) fn recount(&mut self, eras: &Eras) {
        for segment in &mut self.sealed {
            segment.last_commit_time = eras.counted_below(segment.end, segment.last_commit_time);
            if let Some(loaded) = &mut segment.loaded {
                loaded.index = Rc::new(SparseIndex::clone(&loaded.index).counted(eras));
            }
        }
        self.index = Rc::new(SparseIndex::clone(&self.index).counted(eras));
    }

    /// What retention judges.
    pub(crate) fn for_retention(&self) -> Vec<SealedSegment> {
        let judged = |s: &Sealed<F>| SealedSegment {
            base: s.base,
            end: s.end,
            bytes: s.bytes,
            last_commit_time: s.last_commit_time,
        };
        self.sealed.iter().map(judged).collect()
    }

    /// The oldest segment is gone.
    pub(crate) fn remove_oldest(&mut self) -> Option<Sealed<F>> {
        let removed = self.sealed.pop_front()?;
        self.loaded.retain(|&base| base != removed.base);
        Some(removed)
    }
}

/// The index of what a plan keeps, or of a part of it.
pub(crate) fn index_of(kept: &[crate::segment::scan::Found], interval_bytes: u32) -> SparseIndex {
    let mut index = SparseIndex::new(interval_bytes);
    for batch in kept {
        index.note(IndexEntry {
            offset: batch.header.base_offset,
            position: batch.position,
            commit_time: batch.header.commit_time,
        });
    }
    index
}

/// The last commit time of what a plan keeps below D.
pub(crate) fn last_proved_commit_time(plan: &Plan, floor: CommitTime) -> CommitTime {
    let proved = plan.kept[..plan.kept_proved].iter().map(|f| f.header.commit_time);
    proved.max().unwrap_or(floor).max(floor)
}
