//! Counting what retention is about to take from a cursor, child partition by child partition (SPEC.md F9). Pure.
//!
//! What a child partition has acknowledged is not lost, and what was sent to it may or may not be: nobody knows before
//! it is asked again, which may be after a crash and after the records are gone. So everything above the acknowledged
//! position is counted, in gaps that end where a batch ends that may arrive. Once the child says where it stands, the
//! gaps above that place are what it lost, exactly. A batch in doubt is therefore not kept to be sent again: the
//! cursor would have to hold its bytes for as long as the child is silent, and a crash would lose them all the same.
//!
//! **Offsets that nobody can read.** A rotted batch, or one that was gone before the link was live, does not say which
//! child partitions its records were meant for. Each of its offsets counts for the child partition that a record
//! without a key would have gone to from there: a pure function of parent partition and offset, and of the single
//! offset, not of a range, because ranges are seen differently by reads that begin elsewhere.

use bytes::Bytes;
use tailwater_storage::gaps::{Gap, Gaps, Lost};
use tailwater_wire::batch::header::BatchKind;
use tailwater_wire::batch::view::{BatchError, BatchIter};
use tailwater_wire::ids::{Offset, PartitionId};
use tailwater_wire::mutant::{Mutant, planted};

use crate::fanout::filter::Filter;
use crate::fanout::rekey::Rekey;

/// Where one child partition stands when retention decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Everything below is in the child partition, or was never meant for it.
    pub position: Offset,
    /// Where its watermark may come to stand above that, by rising offset: the ends of what is on its way. `None` when
    /// the child partition has not been heard yet, so that it may be anywhere.
    pub ends: Option<Vec<Offset>>,
}

/// What retention is about to take from one cursor. Until the cursor hears what became of it, it reads nothing below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doomed {
    /// Everything below goes.
    pub to: Offset,
    /// By child partition.
    pub buckets: Vec<Standing>,
    /// What the filter holds back below was counted by the cursor already.
    pub counted_to: Offset,
}

impl Doomed {
    /// Of a cursor that does not run: everything from `position` on, wherever its children may stand.
    #[must_use]
    pub fn unheard(to: Offset, position: Offset, child_partitions: u32) -> Doomed {
        let standing = Standing { position, ends: None };
        Doomed {
            to,
            buckets: vec![standing; child_partitions as usize],
            counted_to: position,
        }
    }

    /// Whether every child partition has passed what goes.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.position >= self.to)
    }
}

/// What came out of a count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counted {
    /// The gaps, in any order.
    pub gaps: Vec<Gap>,
    /// Records that the filter holds back and the cursor has not counted.
    pub filtered: u64,
}

/// The count of one link over a range that goes; fed slab by slab.
#[derive(Debug)]
pub struct Count {
    rekey: Rekey,
    doomed: Doomed,
    tracks: Vec<Track>,
    /// Everything below was seen, or is not wanted.
    next: Offset,
    gaps: Vec<Gap>,
    filtered: u64,
}

/// The count of one child partition.
#[derive(Debug)]
struct Track {
    /// The gap that is being counted.
    gap: Gap,
    /// The ends that are still ahead, the nearest one last.
    ends: Option<Vec<Offset>>,
}

impl Count {
    /// Of what lies at or above `from`: below, it is in the ledger already, or not in the log any more.
    #[must_use]
    pub fn new(rekey: Rekey, doomed: Doomed, from: Offset) -> Count {
        let covered = from;
        let track = |(bucket, standing): (u32, &Standing)| {
            let from = standing.position.max(covered);
            let ends = standing.ends.as_ref().map(|ends| {
                let ahead = |end: &&Offset| **end > from && **end < doomed.to;
                let mut ends: Vec<Offset> = ends.iter().filter(ahead).copied().collect();
                ends.sort_unstable_by(|a, b| b.cmp(a));
                ends.dedup();
                ends
            });
            let gap = Gap {
                bucket: PartitionId(bucket),
                from,
                to: from,
                records: 0,
                filtered: 0,
            };
            Track { gap, ends }
        };
        let tracks: Vec<Track> = (0..).zip(&doomed.buckets).map(track).collect();
        let lowest = tracks.iter().map(|track| track.gap.from).min();
        Count {
            rekey,
            next: lowest.unwrap_or(doomed.to).min(doomed.to),
            doomed,
            tracks,
            gaps: Vec::new(),
            filtered: 0,
        }
    }

    /// Where to read on; the count is done when this is where the doomed range ends.
    #[must_use]
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Takes whole parent batches that were read up to `next`, the first of which may begin below [`Count::next`].
    ///
    /// # Errors
    /// A batch that cannot be read; the count is of no use then.
    pub fn slab(&mut self, runs: &[Bytes], next: Offset, filter: Option<&Filter>) -> Result<(), BatchError> {
        for batch in runs.iter().flat_map(|run| BatchIter::new(run)) {
            let batch = batch?;
            let header = batch.header();
            if batch.is_empty() || header.end_offset() <= self.next || self.next >= self.doomed.to {
                continue;
            }
            self.unreadable_to(header.base_offset);
            let skip = self.next.since(header.base_offset) as usize;
            let stop = self.doomed.to.since(header.base_offset).min(batch.len() as u64) as usize;
            // The system's own records are meant for nobody.
            let skip = if header.kind == BatchKind::Data {
                skip
            } else {
                stop
            };
            for record in (skip..stop).filter_map(|k| batch.record(k)) {
                let bucket = self.rekey.place(&record, header.partitioner).partition;
                let passes = filter.is_none_or(|filter| filter.passes(&record));
                if !passes && record.offset >= self.doomed.counted_to {
                    self.filtered += 1;
                }
                self.one(bucket, record.offset, passes);
            }
            self.next = header.end_offset().min(self.doomed.to);
        }
        self.unreadable_to(next);
        Ok(())
    }

    fn one(&mut self, bucket: PartitionId, offset: Offset, passes: bool) {
        let Some(track) = self.tracks.get_mut(bucket.0 as usize) else {
            return;
        };
        if offset < track.gap.from {
            return;
        }
        track.cut_to(offset, &mut self.gaps);
        track.gap.records += u64::from(passes);
        track.gap.filtered += u64::from(!passes);
        if track.ends.is_none() {
            track.cut(offset.plus(1), &mut self.gaps);
        }
    }

    /// Nothing can be read from `next` to here.
    fn unreadable_to(&mut self, offset: Offset) {
        let offset = offset.min(self.doomed.to);
        if offset <= self.next {
            return;
        }
        for track in &mut self.tracks {
            let mut from = self.next.max(track.gap.from);
            while from < offset {
                track.cut_to(from, &mut self.gaps);
                let end = track.ends.as_ref().and_then(|ends| ends.last().copied());
                let to = end.unwrap_or(offset).min(offset);
                track.gap.records += unreadable(&self.rekey, track.gap.bucket, from, to);
                from = to;
            }
            if track.ends.is_none() && track.gap.records > 0 {
                track.cut(offset, &mut self.gaps);
            }
        }
        self.next = offset;
    }

    /// Gives up reading up to `next`: what was not seen counts as what has rotted.
    pub fn pass(&mut self, next: Offset) {
        self.unreadable_to(next);
    }

    /// Ends the count.
    ///
    /// # Panics
    /// Before everything was read.
    #[must_use]
    pub fn finish(mut self) -> Counted {
        assert!(self.next >= self.doomed.to, "the whole range was read");
        for track in &mut self.tracks {
            if track.gap.from < self.doomed.to {
                track.cut_to(self.doomed.to, &mut self.gaps);
                track.cut(self.doomed.to, &mut self.gaps);
            }
        }
        Counted {
            gaps: self.gaps,
            filtered: self.filtered,
        }
    }
}

impl Track {
    /// Ends the gap at every end at or below `offset`.
    fn cut_to(&mut self, offset: Offset, gaps: &mut Vec<Gap>) {
        while let Some(end) = self
            .ends
            .as_mut()
            .and_then(|ends| ends.pop_if(|end| *end <= offset))
        {
            self.cut(end, gaps);
        }
    }

    fn cut(&mut self, end: Offset, gaps: &mut Vec<Gap>) {
        if end > self.gap.from {
            let whole = Gap { to: end, ..self.gap };
            if whole.records.max(whole.filtered) > 0 {
                gaps.push(whole);
            }
            self.gap = Gap {
                from: end,
                to: end,
                records: 0,
                filtered: 0,
                ..self.gap
            };
        }
    }
}

/// Takes what was counted into a ledger, and lets go of what is over. Gaps stay apart where a watermark may come to stand:
/// also where the log starts, and where it was accounted for before, which is as far as a bucket may yet be told to pass.
pub fn note(ledger: &mut Gaps, doomed: &Doomed, counted: Vec<Gap>, log_start: Offset) {
    let edges = [ledger.through, log_start];
    let counted = if planted(Mutant::ForgetDropped) {
        Vec::new()
    } else {
        counted
    };
    ledger.note(doomed.to, counted);
    for (bucket, standing) in (0..).map(PartitionId).zip(&doomed.buckets) {
        let ends = standing.ends.as_ref().map(|ends| {
            let mut ends: Vec<Offset> = ends.iter().copied().chain(edges).collect();
            ends.sort_unstable();
            ends
        });
        ledger.settle(bucket, standing.position, ends.as_deref());
    }
}

/// How many offsets of `[from, to)` count for a child partition when nobody can read them.
#[must_use]
pub fn unreadable(rekey: &Rekey, bucket: PartitionId, from: Offset, to: Offset) -> u64 {
    let (partitions, bucket) = (u64::from(rekey.partitions), u64::from(bucket.0));
    let below = |offset: Offset| {
        let spread = offset.0.saturating_add(u64::from(rekey.parent.0));
        spread / partitions + u64::from(spread % partitions > bucket)
    };
    below(to.max(from)) - below(from)
}

/// The ledger of a link that has none: it starts at `from` in a log that starts at `log_start`. What went before the link
/// was live, nobody has counted.
#[must_use]
pub fn first_ledger(from: Offset, log_start: Offset) -> Gaps {
    if from < log_start {
        Gaps::since(log_start)
    } else {
        Gaps::default()
    }
}

/// What a child partition has lost of the parent offsets `[from, to)`, all of which are gone, by a cursor's ledger.
#[must_use]
pub fn lost(ledger: &Gaps, rekey: &Rekey, bucket: PartitionId, from: Offset, to: Offset) -> Lost {
    let known = ledger.since.clamp(from, to);
    let mut lost = ledger.lost(bucket, known, to);
    if from < known {
        lost.records += unreadable(rekey, bucket, from, known);
        lost.from = Some(from);
    }
    lost
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tailwater_wire::batch::builder::BatchBuilder;
    use tailwater_wire::batch::header::BatchHeader;
    use tailwater_wire::ids::Writer;
    use tailwater_wire::partitioner::{Partitioner, keyless};
    use tailwater_wire::record::Record;

    use super::*;

    fn rekey(partitions: u32) -> Rekey {
        Rekey {
            partitioner: Partitioner::Identity,
            partitions,
            parent: PartitionId(2),
        }
    }

    /// A parent batch: keys are decimal numbers, `kind` headers tell odd from even.
    fn parent(base: u64, keys: &[u64]) -> Bytes {
        let mut builder = BatchBuilder::new(Partitioner::Identity, 1 << 20);
        for key in keys {
            let kind: &[u8] = if key % 2 == 0 { b"even" } else { b"odd" };
            let record = Record {
                key: Some(key.to_string().into()),
                headers: vec![("kind".into(), Bytes::copy_from_slice(kind))],
                ..Record::default()
            };
            builder.push(&record).expect("fits");
        }
        let mut bytes = builder.finish(Writer::Anonymous, 0).expect("records").to_vec();
        let header = BatchHeader {
            base_offset: Offset(base),
            ..BatchHeader::decode(&bytes).expect("sound")
        };
        header.encode(&mut bytes);
        bytes.into()
    }

    fn standing(position: u64, ends: Option<&[u64]>) -> Standing {
        Standing {
            position: Offset(position),
            ends: ends.map(|ends| ends.iter().copied().map(Offset).collect()),
        }
    }

    /// Counts what `runs` hold; each gap is `bucket: from..to records+filtered`.
    fn check(
        buckets: &[Standing],
        to: u64,
        through: u64,
        runs: &[Bytes],
        filter: Option<&str>,
        expected: &[&str],
    ) -> u64 {
        let doomed = Doomed {
            to: Offset(to),
            buckets: buckets.to_vec(),
            counted_to: Offset(through),
        };
        let mut ledger = Gaps::default();
        ledger.note(Offset(through), []);
        let filter = filter.map(|text| Filter::parse(text).expect("a filter"));
        let mut count = Count::new(rekey(buckets.len() as u32), doomed, ledger.through);
        for run in runs {
            let end = BatchHeader::decode(run).expect("sound").end_offset();
            count
                .slab(std::slice::from_ref(run), end, filter.as_ref())
                .expect("sound");
        }
        count.slab(&[], Offset(to), filter.as_ref()).expect("sound");
        let counted = count.finish();
        ledger.note(Offset(to), counted.gaps);
        let told = |gap: &Gap| {
            let (records, filtered) = (gap.records, gap.filtered);
            format!("{}: {}..{} {records}+{filtered}", gap.bucket, gap.from, gap.to)
        };
        assert_eq!(ledger.all().iter().map(told).collect::<Vec<_>>(), expected);
        counted.filtered
    }

    #[test]
    fn what_a_child_has_is_not_lost_and_what_is_on_its_way_may_be() {
        let runs = [parent(0, &[0, 1, 2, 0, 1, 2]), parent(6, &[0, 0, 1, 1])];
        let buckets = [
            standing(4, Some(&[7, 8])),
            standing(0, Some(&[])),
            standing(6, Some(&[])),
        ];
        check(
            &buckets,
            10,
            0,
            &runs,
            None,
            &["0: 4..7 1+0", "0: 7..8 1+0", "1: 0..10 4+0"],
        );
    }

    #[test]
    fn nothing_is_counted_twice_and_the_filters_share_stands_beside() {
        let runs = [parent(0, &[0, 1, 2, 3, 4, 5])];
        let all = [standing(0, Some(&[])), standing(0, Some(&[]))];
        let filtered = check(
            &all,
            5,
            2,
            &runs,
            Some("kind=odd"),
            &["0: 2..5 0+2", "1: 2..5 1+0"],
        );
        assert_eq!(filtered, 2, "of what the cursor had not counted");
    }

    #[test]
    fn a_child_that_was_not_heard_may_stand_anywhere() {
        let runs = [parent(0, &[0, 1, 0]), parent(3, &[0, 1])];
        let buckets = [standing(1, None), standing(0, Some(&[3]))];
        check(
            &buckets,
            5,
            0,
            &runs,
            None,
            &["0: 1..3 1+0", "0: 3..4 1+0", "1: 0..3 1+0", "1: 3..5 1+0"],
        );
    }

    #[test]
    fn what_cannot_be_read_counts_offset_by_offset_as_without_a_key() {
        let runs = [parent(0, &[0, 0, 0]), parent(9, &[1])];
        let buckets = [standing(3, Some(&[5])), standing(0, Some(&[])), standing(0, None)];
        // Offset 3 of partition 2 counts for child partition (3 + 2) mod 3.
        check(
            &buckets,
            12,
            0,
            &runs,
            None,
            &["0: 3..5 1+0", "0: 5..12 2+0", "1: 0..12 4+0", "2: 0..9 2+0"],
        );
    }

    proptest! {
        #[test]
        fn unreadable_offsets_are_shared_out_exactly(from in 0u64..100, length in 0u64..100, partitions in 1u32..9) {
            let (rekey, to) = (rekey(partitions), from + length);
            for bucket in (0..partitions).map(PartitionId) {
                let mine = |offset: &u64| keyless(rekey.parent, Offset(*offset), partitions) == bucket;
                let expected = (from..to).filter(mine).count() as u64;
                prop_assert_eq!(unreadable(&rekey, bucket, Offset(from), Offset(to)), expected);
                let mut ledger = Gaps::since(Offset(to));
                ledger.note(Offset(to + 5), []);
                prop_assert_eq!(lost(&ledger, &rekey, bucket, Offset(from), Offset(to + 5)).records, expected);
            }
        }
    }
}
