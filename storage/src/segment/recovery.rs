//! Deciding what a segment's bytes are worth after a crash: pure, over what a scan found.
//!
//! Let D be the highest frontier that anything in the segment proves: its header's `proved_through`, or a valid batch's
//! `durable_through`. A hole below D was durable once: it rotted, is quarantined, and what follows stays readable. A
//! hole at or above D is a flush that did not come to its end: the log is cut there, even if later batches are whole,
//! because none of them can have been acknowledged (the flush that covers them covers the hole). A hole across D is
//! both: `[hole, D)` is quarantined and the log goes on at D, as offsets below D were handed out and are never reused.
//!
//! ```text
//!   proved    | hole | proved   D unproved | hole | whole
//!   kept        quar.  kept       copied     cut    dropped
//! ```
//!
//! What lies between D and the cut was read back, and that proves nothing: a page or a drive's cache may have served it.
//! It is copied into a *new* segment whose base is D and which is flushed before it gets its name. The old segment then
//! ends at D, because a segment ends where the next one begins; whatever else is in it is never read again. So nothing
//! has to be zeroed or cut, and a write of the dead process that arrives late can hurt nothing. Only a segment in which
//! everything is proved, with nothing but zeros behind, is appended to.

use std::ops::Range;

use tailwater_wire::batch::header::BatchKind;
use tailwater_wire::ids::Offset;
use tailwater_wire::mutant::{Mutant, planted};

use crate::disk::device::BLOCK;
use crate::segment::scan::{Found, Scan};

/// A range of offsets that cannot be served, in a segment that goes on behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// The offsets.
    pub offsets: Range<Offset>,
    /// Where the first batch behind it begins in the file; `None` when none follows in this segment.
    pub resume: Option<u64>,
}

/// How the log goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is proved: append to the same segment at this position.
    Continue {
        /// A block's beginning.
        position: u64,
    },
    /// Begin a new segment at D, with the unproved batches copied into it.
    Rewrite,
}

/// What is to be done with a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// D.
    pub proved_through: Offset,
    /// The batches that stay in the log, by offset and by position; no frontier batches.
    pub kept: Vec<Found>,
    /// How many of `kept` lie below D.
    pub kept_proved: usize,
    /// What is quarantined, all of it below D.
    pub holes: Vec<Hole>,
    /// The offset that the next record gets.
    pub next_offset: Offset,
    /// Whole batches with records that are not in `kept`.
    pub dropped: u64,
    /// How the log goes on.
    pub verdict: Verdict,
}

/// A batch that begins below D and ends above it: no owner writes that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Straddles;

/// Judges the active segment, which begins at `base` and whose header proves `header_proved`; `data_start` is where
/// its first chunk lies.
///
/// # Errors
/// [`Straddles`], when sound batches contradict each other.
pub fn plan(base: Offset, header_proved: Offset, data_start: u64, scan: &Scan) -> Result<Plan, Straddles> {
    let stated = scan.found.iter().map(|f| f.header.durable_through);
    let proved_through = stated.max().unwrap_or(base).max(header_proved).max(base);
    let (kept, holes, next_offset) = walk(base, proved_through, None, &scan.found);
    if kept
        .iter()
        .any(|f| f.header.base_offset < proved_through && f.header.end_offset() > proved_through)
    {
        return Err(Straddles);
    }
    let with_records = scan.found.iter().filter(|f| f.header.kind != BatchKind::Frontier);
    let dropped = (with_records.count() - kept.len()) as u64;
    let kept_proved = kept.partition_point(|f| f.header.base_offset < proved_through);
    let end = scan.found_end().max(data_start);
    let clean = kept_proved == kept.len() && dropped == 0 && scan.junk_end <= end;
    let verdict = if clean {
        Verdict::Continue {
            position: end.next_multiple_of(BLOCK as u64),
        }
    } else {
        Verdict::Rewrite
    };
    Ok(Plan {
        proved_through,
        kept,
        kept_proved,
        holes,
        next_offset,
        dropped,
        verdict,
    })
}

/// The holes of a segment of which `[base, end)` is proved: a sealed one, or the active one up to its flushed end.
#[must_use]
pub fn holes(base: Offset, end: Offset, scan: &Scan) -> Vec<Hole> {
    walk(base, end, Some(end), &scan.found).1
}

/// The batches of a segment of which `[base, end)` is proved.
#[must_use]
pub fn kept_of(base: Offset, end: Offset, scan: &Scan) -> Vec<Found> {
    walk(base, end, Some(end), &scan.found).0
}

fn walk(
    base: Offset,
    proved: Offset,
    end: Option<Offset>,
    found: &[Found],
) -> (Vec<Found>, Vec<Hole>, Offset) {
    let mut kept: Vec<Found> = Vec::with_capacity(found.len());
    let mut holes = Vec::new();
    let mut next = base;
    for batch in in_order(found) {
        let start = batch.header.base_offset;
        if end.is_some_and(|end| start >= end) {
            break;
        }
        if start < next {
            continue;
        }
        if start > next {
            if next >= proved || planted(Mutant::CutAfterDamage) {
                return (kept, holes, next);
            }
            holes.push(Hole {
                offsets: next..start.min(proved),
                resume: (start <= proved).then_some(batch.position),
            });
            if start > proved {
                return (kept, holes, proved);
            }
        }
        next = batch.header.end_offset();
        kept.push(batch.clone());
    }
    if next < proved {
        holes.push(Hole {
            offsets: next..proved,
            resume: None,
        });
        next = proved;
    }
    (kept, holes, next)
}

/// The longest series of batches whose offsets rise with their positions. In a sound segment that is all of them; a
/// batch that a drive wrote to a wrong place must not outweigh those around it.
fn in_order(found: &[Found]) -> Vec<&Found> {
    let batches: Vec<&Found> = found
        .iter()
        .filter(|f| f.header.kind != BatchKind::Frontier)
        .collect();
    let base = |at: usize| batches[at].header.base_offset;
    if batches.is_sorted_by(|a, b| a.header.base_offset < b.header.base_offset) {
        return batches;
    }
    // tails[k]: the batch with the lowest offset that ends a rising series of k + 1; before[i]: the one that i follows.
    let mut tails: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(batches.len());
    for (at, batch) in batches.iter().enumerate() {
        let len = tails.partition_point(|&tail| base(tail) < batch.header.base_offset);
        before.push(len.checked_sub(1).map(|k| tails[k]));
        match tails.get_mut(len) {
            Some(tail) => *tail = at,
            None => tails.push(at),
        }
    }
    let mut series: Vec<&Found> = std::iter::successors(tails.last().copied(), |&at| before[at])
        .map(|at| batches[at])
        .collect();
    series.reverse();
    series
}

#[cfg(test)]
pub(crate) mod testing {
    //! Stamped batches for tests of scanning and recovery.

    use bytes::Bytes;
    use tailwater_wire::batch::builder::BatchBuilder;
    use tailwater_wire::batch::header::BatchHeader;
    use tailwater_wire::ids::{Offset, Writer};
    use tailwater_wire::partitioner::Partitioner;
    use tailwater_wire::record::Record;

    pub(crate) fn stamped(bytes: &[u8], base: u64, durable: u64, nonce: u64) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let mut header = BatchHeader::decode(&bytes).unwrap();
        header.base_offset = Offset(base);
        header.durable_through = Offset(durable);
        header.segment_nonce = nonce;
        header.encode(&mut bytes);
        bytes
    }

    pub(crate) fn batch(base: u64, records: u64, durable: u64, nonce: u64) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
        for n in 0..records {
            let value = Bytes::from(format!("value {}", base + n));
            builder
                .push(&Record {
                    value,
                    ..Record::default()
                })
                .unwrap();
        }
        stamped(
            &builder.finish(Writer::Anonymous, 0).unwrap(),
            base,
            durable,
            nonce,
        )
    }

    pub(crate) fn batch_of_value(base: u64, value: &[u8], nonce: u64) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
        let value = Bytes::copy_from_slice(value);
        builder
            .push(&Record {
                value,
                ..Record::default()
            })
            .unwrap();
        stamped(&builder.finish(Writer::Anonymous, 0).unwrap(), base, 0, nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_wire::batch::header::BatchHeader;
    use tailwater_wire::partitioner::Partitioner;

    /// A batch of records `[base, end)` that states `durable`; `end == base` is a frontier.
    type Spec = (u64, u64, u64);

    fn scan(specs: &[Spec]) -> Scan {
        let found = specs.iter().zip(1u64..).map(|(&(base, end, durable), block)| {
            let (kind, body) = if end == base {
                (BatchKind::Frontier, &b""[..])
            } else {
                (BatchKind::Data, &b"body"[..])
            };
            let mut header = BatchHeader::unstamped(kind, Partitioner::Murmur2, (end - base) as u32, body);
            header.base_offset = Offset(base);
            header.durable_through = Offset(durable);
            Found {
                position: block * BLOCK as u64,
                header,
                origin: None,
            }
        });
        Scan {
            found: found.collect(),
            ..Scan::default()
        }
    }

    /// `kept` and `holes` as offsets; the verdict's position in blocks, or `None` for a rewrite.
    fn check(
        name: &str,
        proved: u64,
        specs: &[Spec],
        kept: &[u64],
        holes: &[Range<u64>],
        (d, next, dropped, go_on): (u64, u64, u64, Option<u64>),
    ) {
        let plan = plan(Offset(0), Offset(proved), BLOCK as u64, &scan(specs)).expect(name);
        let bases: Vec<u64> = plan.kept.iter().map(|f| f.header.base_offset.0).collect();
        assert_eq!(bases, kept, "{name}: kept");
        let ranges: Vec<Range<u64>> = plan
            .holes
            .iter()
            .map(|h| h.offsets.start.0..h.offsets.end.0)
            .collect();
        assert_eq!(ranges, holes, "{name}: holes");
        assert_eq!(plan.proved_through.0, d, "{name}: D");
        assert_eq!(plan.next_offset.0, next, "{name}: next offset");
        assert_eq!(plan.dropped, dropped, "{name}: dropped");
        let position = match plan.verdict {
            Verdict::Continue { position } => Some(position / BLOCK as u64),
            Verdict::Rewrite => None,
        };
        assert_eq!(position, go_on, "{name}: verdict");
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn the_rule_of_d() {
        check("nothing", 0, &[], &[], &[], (0, 0, 0, Some(1)));
        check(
            "clean close",
            0,
            &[(0, 2, 0), (2, 5, 2), (5, 5, 5)],
            &[0, 2],
            &[],
            (5, 5, 0, Some(4)),
        );
        check(
            "no frontier",
            0,
            &[(0, 2, 0), (2, 5, 2)],
            &[0, 2],
            &[],
            (2, 5, 0, None),
        );
        check(
            "rot below",
            0,
            &[(0, 2, 0), (4, 5, 4), (5, 5, 5)],
            &[0, 4],
            &[2..4],
            (5, 5, 0, Some(4)),
        );
        check(
            "rot at the start",
            0,
            &[(2, 4, 2), (4, 4, 4)],
            &[2],
            &[0..2],
            (4, 4, 0, Some(3)),
        );
        check(
            "torn above, whole batches behind it",
            0,
            &[(0, 2, 0), (4, 5, 2), (5, 9, 2)],
            &[0],
            &[],
            (2, 2, 2, None),
        );
        check(
            "torn later",
            0,
            &[(0, 2, 0), (2, 4, 2), (6, 7, 2)],
            &[0, 2],
            &[],
            (2, 4, 1, None),
        );
        check(
            "straddling",
            0,
            &[(0, 2, 0), (9, 10, 5)],
            &[0],
            &[2..5],
            (5, 5, 1, None),
        );
        check(
            "hole up to D exactly",
            0,
            &[(0, 2, 0), (5, 9, 5)],
            &[0, 5],
            &[2..5],
            (5, 9, 0, None),
        );
        check(
            "all rotted, proved by the header",
            7,
            &[],
            &[],
            &[0..7],
            (7, 7, 0, Some(1)),
        );
        check(
            "copied and proved",
            5,
            &[(0, 2, 0), (2, 5, 0)],
            &[0, 2],
            &[],
            (5, 5, 0, Some(3)),
        );
        check(
            "rot and tear",
            0,
            &[(0, 1, 0), (2, 3, 2), (3, 4, 3), (6, 7, 3)],
            &[0, 2, 3],
            &[1..2],
            (3, 4, 1, None),
        );
        check(
            "frontier of a lost batch",
            0,
            &[(0, 2, 0), (4, 4, 4)],
            &[0],
            &[2..4],
            (4, 4, 0, Some(3)),
        );
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn a_misplaced_batch_does_not_outweigh_those_around_it() {
        let early = [(0, 1, 0), (5, 6, 5), (2, 3, 2), (3, 4, 3), (4, 5, 4), (6, 6, 6)];
        check(
            "too early",
            0,
            &early,
            &[0, 2, 3, 4],
            &[1..2, 5..6],
            (6, 6, 1, None),
        );
        let late = [(0, 1, 0), (2, 3, 2), (3, 4, 3), (1, 2, 1), (5, 6, 5), (6, 6, 6)];
        check(
            "too late",
            0,
            &late,
            &[0, 2, 3, 5],
            &[1..2, 4..5],
            (6, 6, 1, None),
        );
        let twice = [(0, 1, 0), (1, 2, 1), (1, 2, 1), (2, 2, 2)];
        check("twice", 0, &twice, &[0, 1], &[], (2, 2, 1, None));
    }

    #[test]
    fn junk_behind_the_last_batch_is_not_appended_over() {
        let mut scan = scan(&[(0, 2, 0), (2, 2, 2)]);
        let verdict = |scan: &Scan| plan(Offset(0), Offset(0), BLOCK as u64, scan).unwrap().verdict;
        assert!(matches!(verdict(&scan), Verdict::Continue { .. }));
        scan.junk_end = scan.found_end() + 64;
        assert_eq!(verdict(&scan), Verdict::Rewrite);
    }

    #[test]
    fn a_frontier_inside_a_batch_is_a_contradiction() {
        let scan = scan(&[(0, 4, 0), (4, 4, 3)]);
        assert_eq!(plan(Offset(0), Offset(0), BLOCK as u64, &scan), Err(Straddles));
    }

    #[test]
    fn holes_of_a_sealed_segment_end_where_it_ends() {
        let scan = scan(&[(0, 2, 0), (3, 5, 3), (5, 9, 3)]);
        let found = holes(Offset(0), Offset(5), &scan);
        assert_eq!(
            found,
            [Hole {
                offsets: Offset(2)..Offset(3),
                resume: Some(2 * BLOCK as u64)
            }]
        );
        let rotted_end = holes(Offset(0), Offset(7), &self::scan(&[(0, 2, 0)]));
        assert_eq!(
            rotted_end,
            [Hole {
                offsets: Offset(2)..Offset(7),
                resume: None
            }]
        );
    }
}
