//! Batches: what a producer sends, a disk keeps and a consumer reads.
//!
//! A batch that is accepted has right checksums and zeros for padding; its header is written as it was read; all its
//! records can be read, and a batch built of them, or of copies of them as fan-out makes them, holds the same.
//!
//! Mode: 1 the checksums are made right.

use tailwater_wire::batch::builder::{BatchBuilder, OriginStamp, frontier_batch};
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::batch::header::{BatchHeader, BatchKind, HEADER_BYTES};
use tailwater_wire::batch::view::{BatchError, BatchIter, BatchView};
use tailwater_wire::checksum::crc;
use tailwater_wire::ids::{Epoch, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::limits::BATCH_ALIGN;
use tailwater_wire::record::Record;

use crate::input::{join, mend_batches, split, u32_at};
use crate::memory;
use crate::target::Seed;

const MEND: u8 = 1;
/// A batch is read in place.
const PARSE_BYTES_MAX: usize = 4 << 10;

const COPIED_BY: OriginId = OriginId {
    epoch: Epoch([7; 8]),
    partition: PartitionId(1),
};

/// See the module.
pub fn check(input: &[u8]) {
    let (mode, bytes) = split(input);
    let mut bytes = bytes.to_vec();
    if mode & MEND != 0 {
        mend_batches(&mut bytes, None);
    }
    let mut at = 0;
    for parsed in BatchIter::new(&bytes) {
        let alone = memory::within(PARSE_BYTES_MAX, || BatchView::parse(&bytes[at..]));
        match (&parsed, alone) {
            (Ok(view), Ok(same)) => {
                assert_eq!((view.header(), view.bytes()), (same.header(), same.bytes()));
                check_batch(view);
                at += view.bytes().len();
            }
            (Err(error), Err(same)) => assert_eq!(*error, same),
            _ => panic!("one batch is read in two ways"),
        }
    }
}

fn check_batch(view: &BatchView<'_>) {
    let (header, bytes) = (view.header(), view.bytes());
    assert!(bytes.len() == header.batch_len() && bytes.len().is_multiple_of(BATCH_ALIGN));
    let mut again = [0; HEADER_BYTES];
    header.encode(&mut again);
    assert_eq!(again, bytes[..HEADER_BYTES], "the header as it was read");
    assert_eq!(
        u32_at(bytes, 124),
        crc(&bytes[..124]),
        "no wrong checksum is accepted"
    );
    let (body, padding) = bytes[HEADER_BYTES..].split_at(header.body_len as usize);
    assert!(
        view.is_empty() || header.body_crc == crc(body),
        "no wrong checksum is accepted"
    );
    assert!(padding.iter().all(|&byte| byte == 0));
    let short = BatchView::parse(&bytes[..bytes.len() - 1]).err();
    let cut = if bytes.len() > HEADER_BYTES {
        BatchError::Truncated(bytes.len())
    } else {
        BatchError::Header(tailwater_wire::batch::header::HeaderError::Short)
    };
    assert_eq!(short, Some(cut));
    let records: Vec<Record> = view.records().map(|record| record.to_record()).collect();
    assert_eq!(
        (records.len(), view.record(view.len()).is_none()),
        (view.len(), true)
    );
    let end = view
        .records()
        .last()
        .map_or(header.base_offset, |last| last.offset.plus(1));
    assert_eq!(end, header.end_offset());
    if let Some(dropped) = Dropped::of(view).filter(|dropped| dropped.from < dropped.to) {
        let built = dropped.batch(
            header.partitioner,
            COPIED_BY,
            dropped.from,
            OriginStamp::default(),
        );
        assert_eq!(
            Dropped::of(&BatchView::parse(&built).expect("built")),
            Some(dropped)
        );
    }
    if !view.is_empty() {
        check_built(header, &records);
        check_copied(view, &records);
    }
}

/// A producer that sends these records.
fn check_built(header: &BatchHeader, records: &[Record]) {
    let mut builder = BatchBuilder::new(header.partitioner, usize::MAX);
    for record in records {
        if builder.push(record).is_err() {
            return;
        }
    }
    let built = match (header.kind, header.writer) {
        (BatchKind::Control, _) => builder.finish_control(),
        (_, Writer::Origin(_)) => builder.finish(Writer::Anonymous, 0),
        (_, writer) => builder.finish(writer, header.previous),
    };
    let built = built.expect("not empty");
    let view = BatchView::parse(&built).expect("what is built is sound");
    assert!(
        view.records()
            .map(|record| record.to_record())
            .eq(records.iter().cloned())
    );
}

/// A cursor that copies them into a child.
fn check_copied(view: &BatchView<'_>, records: &[Record]) {
    let header = view.header();
    let mut builder = BatchBuilder::new(header.partitioner, usize::MAX);
    for record in view.records() {
        if builder.push_copy(&record, record.key_hash).is_err() {
            return;
        }
    }
    let stamp = OriginStamp {
        end: header.end_offset(),
        ..OriginStamp::default()
    };
    let built = builder.finish_copy(Writer::Origin(COPIED_BY), header.base_offset, stamp);
    let built = built.expect("not empty");
    let copy = BatchView::parse(&built).expect("what is copied is sound");
    assert!(
        copy.records()
            .map(|record| record.to_record())
            .eq(records.iter().cloned())
    );
    let origins = copy.records().filter_map(|record| record.origin);
    assert!(origins.eq(view.records().map(|record| record.offset)));
    assert_eq!(copy.header().sequence, Offset(header.end_offset().0).0);
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let golden: [(&'static str, &[u8]); 9] = [
        ("child", include_bytes!("../../wire/testdata/batch-child.bin")),
        ("control", include_bytes!("../../wire/testdata/batch-control.bin")),
        ("dropped", include_bytes!("../../wire/testdata/batch-dropped.bin")),
        (
            "frontier",
            include_bytes!("../../wire/testdata/batch-frontier.bin"),
        ),
        (
            "keyed-headers",
            include_bytes!("../../wire/testdata/batch-keyed-headers.bin"),
        ),
        ("keyless", include_bytes!("../../wire/testdata/batch-keyless.bin")),
        (
            "named-producer",
            include_bytes!("../../wire/testdata/batch-named-producer.bin"),
        ),
        ("stamped", include_bytes!("../../wire/testdata/batch-stamped.bin")),
        (
            "wide-timestamps",
            include_bytes!("../../wire/testdata/batch-wide-timestamps.bin"),
        ),
    ];
    let mut seeds: Vec<Seed> = golden.map(|(name, bytes)| (name, join(MEND, bytes))).into();
    let slab = [golden[3].1, golden[5].1, &frontier_batch()].concat();
    seeds.push(("slab-of-three", join(0, &slab)));
    seeds
}
