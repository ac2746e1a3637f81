//! Slabs cut into child batches: who gets what, in which chain, and what is counted.

use super::*;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::{Epoch, OwnerEpoch};
use tailwater_wire::record::Record;

const LINEAGE: Lineage = Lineage([5; 8]);

/// A parent batch as its owner stamped it: keys are decimal numbers, `kind` headers tell odd from even.
fn parent(base: u64, keys: &[u64]) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Identity, BATCH_BYTES_MAX);
    for key in keys {
        let kind: &[u8] = if key % 2 == 0 { b"even" } else { b"odd" };
        let record = Record {
            key: Some(key.to_string().into()),
            value: Bytes::from(vec![b'v'; 100]),
            headers: vec![("kind".into(), Bytes::copy_from_slice(kind))],
            timestamp: *key as i64,
        };
        builder.push(&record).expect("fits");
    }
    let mut bytes = builder.finish(Writer::Anonymous, 0).expect("records").to_vec();
    let header = BatchHeader {
        base_offset: Offset(base),
        commit_time: CommitTime(1_000 + base),
        owner_epoch: OwnerEpoch(1),
        ..BatchHeader::decode(&bytes).expect("sound")
    };
    header.encode(&mut bytes);
    bytes.into()
}

fn rekey() -> Rekey {
    Rekey {
        partitioner: Partitioner::Identity,
        partitions: 3,
        parent: PartitionId(2),
    }
}

fn plan(from: u64, next: u64, takes: &[(u32, u64, u64)]) -> CutPlan {
    let take = |&(bucket, from, previous): &(u32, u64, u64)| Take {
        bucket: PartitionId(bucket),
        from: Offset(from),
        previous: Offset(previous),
    };
    CutPlan {
        origin: OriginId {
            epoch: Epoch([9; 8]),
            partition: PartitionId(2),
        },
        lineage: LINEAGE,
        released_at: CommitTime(5_077),
        from: Offset(from),
        next: Offset(next),
        count_from: Offset(from),
        takes: takes.iter().map(take).collect(),
    }
}

/// `bucket: previous->end offset,offset,...` for each batch, in order.
fn told(cut: &Cut) -> Vec<String> {
    let mut lines = Vec::new();
    for part in &cut.parts {
        for batch in &part.batches {
            let view = BatchView::parse(&batch.bytes).expect("sound");
            let header = view.header();
            assert_eq!(
                (header.previous, header.sequence),
                (batch.previous.0, batch.end.0)
            );
            if batch.dropped > 0 {
                let dropped = Dropped::of(&view).expect("a notice");
                assert_eq!((dropped.to, dropped.records), (batch.end, batch.dropped));
                let (bucket, previous, end) = (part.take.bucket, batch.previous, batch.end);
                lines.push(format!("{bucket}: {previous}->{end} lost {}", batch.dropped));
                continue;
            }
            assert_eq!(header.record_count, batch.records);
            let offsets: Vec<_> = view
                .records()
                .map(|record| record.origin.expect("a copy").to_string())
                .collect();
            lines.push(format!(
                "{}: {}->{} {}",
                part.take.bucket,
                batch.previous,
                batch.end,
                offsets.join(",")
            ));
        }
    }
    lines
}

fn check(runs: &[Bytes], plan: &CutPlan, filter: Option<&str>, expected: &[&str]) -> Cut {
    let filter = filter.map(|text| Filter::parse(text).expect("a filter"));
    let mut cutter = Cutter::new(rekey(), BATCH_BYTES_MAX);
    let cut = cutter.cut(runs, plan, filter.as_ref()).expect("sound");
    assert_eq!(told(&cut), expected);
    let again = cutter.cut(runs, plan, filter.as_ref()).expect("sound");
    assert_eq!(again, cut, "a builder that was used before builds the same");
    cut
}

#[test]
fn each_bucket_gets_its_records_and_the_slabs_end() {
    let runs = [
        parent(10, &[0, 1, 2, 3]),
        Bytes::from([parent(14, &[3]), parent(15, &[4, 1])].concat()),
    ];
    let cut = check(
        &runs,
        &plan(10, 17, &[(0, 10, 4), (1, 10, 10), (2, 10, 0)]),
        None,
        &["0: 4->17 10,13,14", "1: 10->17 11,15,16", "2: 0->17 12"],
    );
    assert_eq!(cut.filtered, 0);
    let view = BatchView::parse(&cut.parts[2].batches[0].bytes).expect("sound");
    let origin = view.body().and_then(|body| body.origin.as_ref()).expect("a copy");
    let last = BatchHeader::decode(&runs[1][parent(14, &[3]).len()..]).expect("sound");
    assert_eq!(origin.parent_crc.to_native(), last.body_crc);
    assert_eq!(origin.parent_commit_time.to_native(), 1_015);
    assert_eq!(origin.lineage.to_native(), LINEAGE.as_u64());
    assert_eq!(origin.released_at.to_native(), 5_077);
    assert_eq!(view.header().writer, Writer::Origin(plan(0, 1, &[]).origin));
    let record = view.record(0).expect("one");
    assert_eq!(
        (record.key, record.key_hash, record.timestamp),
        (Some(&b"2"[..]), 2, 2)
    );
    assert_eq!(record.headers.clone().next(), Some(("kind", &b"even"[..])));
}

#[test]
fn a_bucket_begins_at_its_own_place_and_others_are_left_out() {
    check(
        &[parent(0, &[0, 1, 2, 0, 1, 2, 0])],
        &plan(2, 7, &[(0, 4, 4), (1, 2, 1)]),
        None,
        &["0: 4->7 6", "1: 1->7 4"],
    );
}

#[test]
fn what_has_rotted_is_told_to_whom_it_counts_for_and_the_filtered_are_counted_once() {
    let runs = [parent(0, &[0, 1, 2, 3]), parent(6, &[4, 5, 6])];
    let filter = Some("kind=odd");
    let everybody = [(0, 0, 0), (1, 0, 0), (2, 0, 0)];
    let cut = check(
        &runs,
        &plan(0, 10, &everybody),
        filter,
        &[
            "0: 0->4 3",
            "0: 4->6 lost 1",
            "1: 0->4 1",
            "1: 4->6 lost 1",
            "2: 0->9 7",
            "2: 9->10 lost 1",
        ],
    );
    assert_eq!(cut.filtered, 4);
    let again = CutPlan {
        count_from: Offset(7),
        ..plan(0, 9, &[(2, 0, 0)])
    };
    let cut = check(&runs, &again, filter, &["2: 0->9 7"]);
    assert_eq!(cut.filtered, 1);
}

#[test]
fn what_is_too_much_for_one_batch_makes_a_chain() {
    let keys = vec![0; 40];
    let cut = Cutter::new(rekey(), 2_000)
        .cut(
            &[parent(0, &keys), parent(40, &[1, 1])],
            &plan(0, 42, &[(0, 0, 0)]),
            None,
        )
        .expect("sound");
    let batches = &cut.parts[0].batches;
    assert!(batches.len() > 2, "{}", batches.len());
    for pair in batches.windows(2) {
        assert_eq!(pair[0].end, pair[1].previous);
        assert!(pair[0].bytes.len() <= 2_000);
    }
    assert_eq!(batches[0].end, Offset(u64::from(batches[0].records)));
    assert_eq!(batches.last().map(|batch| batch.end), Some(Offset(42)));
    assert_eq!(batches.iter().map(|batch| batch.records).sum::<u32>(), 40);
}

#[test]
fn offsets_that_lie_far_apart_go_into_batches_of_their_own() {
    let far = 1 << 33;
    check(
        &[parent(0, &[0]), parent(far, &[0])],
        &plan(0, far + 1, &[(0, 0, 0)]),
        None,
        &[
            "0: 0->1 0",
            "0: 1->8589934592 lost 2863311531",
            "0: 8589934592->8589934593 8589934592",
        ],
    );
}

#[test]
fn a_slab_that_holds_nothing_leaves_nothing() {
    check(&[], &plan(5, 5, &[]), None, &[]);
    let cut = check(
        &[],
        &plan(5, 9, &[(0, 5, 5), (2, 8, 5)]),
        None,
        &["0: 5->9 lost 1"],
    );
    assert_eq!(cut.parts.len(), 2);
}

#[test]
fn damage_is_an_error_and_spends_nothing() {
    let mut bytes = parent(3, &[0, 0]).to_vec();
    let last = bytes.len() - 70;
    bytes[last] ^= 1;
    let runs = [parent(0, &[0, 1, 2]), bytes.into()];
    let mut cutter = Cutter::new(rekey(), BATCH_BYTES_MAX);
    let plan = plan(0, 5, &[(0, 0, 0)]);
    assert!(matches!(cutter.cut(&runs, &plan, None), Err(CutError::Parent(_))));
    let cut = cutter.cut(&runs[..1], &plan, None).expect("sound");
    assert_eq!(told(&cut), ["0: 0->3 0", "0: 3->5 lost 1"]);
}
