//! Gap ledgers: what is accepted is written again to the byte, can be asked for any range, and stays a ledger that
//! reads back through what a cursor does with it.

use tailwater_storage::gap_file::{GapFile, decode, encode};
use tailwater_storage::gaps::{Gap, Gaps, Lost};
use tailwater_wire::ids::{Epoch, Offset, PartitionId};

use crate::memory;
use crate::target::Seed;

/// What a gap takes as JSON, as a value and as JSON again, for each byte of the file.
const BYTES_FOR_EACH: usize = 64;
const BYTES_BESIDE: usize = 64 << 10;

/// See the module.
pub fn check(input: &[u8]) {
    let most = BYTES_BESIDE + BYTES_FOR_EACH * input.len();
    let GapFile::Present { epoch, gaps } = memory::within(most, || decode(input)) else {
        return;
    };
    assert_eq!(encode(epoch, &gaps).as_bytes(), input);
    for gap in gaps.all() {
        let lost = gaps.lost(gap.bucket, Offset::ZERO, gaps.through);
        assert!(lost.records >= gap.records && !lost.at_most);
        let half = Offset(gap.from.0 + gap.to.since(gap.from) / 2);
        // Where the ends of batches on their way are known, a watermark stands at an end of a gap.
        let no_ends = [None];
        check_moves(epoch, &gaps, gap.bucket, half, &no_ends);
        for watermark in [gap.from, gap.to] {
            let ends = [None, Some(&[][..]), Some(&[gaps.through][..])];
            check_moves(epoch, &gaps, gap.bucket, watermark, &ends);
        }
    }
    let mut bounded = gaps.clone();
    bounded.bound(2);
    check_sums(&gaps, &bounded);
    reads_back(epoch, &bounded);
}

fn check_moves(
    epoch: Epoch,
    gaps: &Gaps,
    bucket: PartitionId,
    watermark: Offset,
    all_ends: &[Option<&[Offset]>],
) {
    let above = gaps.lost(bucket, watermark, gaps.through);
    for &ends in all_ends {
        let mut settled = gaps.clone();
        settled.settle(bucket, watermark, ends);
        reads_back(epoch, &settled);
        assert_eq!(
            counts(settled.lost(bucket, watermark, gaps.through)),
            counts(above)
        );
    }
    let mut noted = gaps.clone();
    if let Some(to) = noted.through.0.checked_add(3) {
        let gap = Gap {
            bucket,
            from: noted.through,
            to: Offset(to),
            records: 2,
            filtered: 1,
        };
        noted.note(Offset(to), [gap]);
        reads_back(epoch, &noted);
    }
}

fn check_sums(gaps: &Gaps, bounded: &Gaps) {
    for gap in gaps.all() {
        let all = |of: &Gaps| counts(of.lost(gap.bucket, Offset::ZERO, of.through));
        assert_eq!(
            all(gaps),
            all(bounded),
            "putting neighbours together loses nothing"
        );
    }
}

fn counts(lost: Lost) -> (u64, u64) {
    (lost.records, lost.filtered)
}

fn reads_back(epoch: Epoch, gaps: &Gaps) {
    let read = decode(encode(epoch, gaps).as_bytes());
    let gaps = gaps.clone();
    assert_eq!(read, GapFile::Present { epoch, gaps });
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let epoch: Epoch = "67953471cc57a32a".parse().expect("hex");
    let gap = |bucket, from, to, records, filtered| Gap {
        bucket: PartitionId(bucket),
        from: Offset(from),
        to: Offset(to),
        records,
        filtered,
    };
    let file = |since, through, gaps| {
        let gaps = Gaps::from_parts(Offset(since), Offset(through), gaps).expect("in order");
        encode(epoch, &gaps).into()
    };
    vec![
        ("no-gaps", file(7, 98_332, vec![])),
        (
            "two-partitions",
            file(
                7,
                98_332,
                vec![gap(3, 100, 250, 37, 12), gap(4, 100, 98_332, 1, 0)],
            ),
        ),
        (
            "neighbours",
            file(
                0,
                400,
                vec![
                    gap(0, 0, 100, 100, 0),
                    gap(0, 100, 300, 7, 9),
                    gap(0, 350, 400, 0, 50),
                ],
            ),
        ),
        (
            "greatest",
            file(u64::MAX, u64::MAX, vec![gap(u32::MAX, 0, u64::MAX, u64::MAX, 0)]),
        ),
    ]
}
