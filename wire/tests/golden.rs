//! The committed bytes of every format: what this version writes, and what every later one must read.
//!
//! `TAILWATER_BLESS=1 cargo test -p tailwater-wire --test golden` writes the files anew. A file that is already
//! released must not change: a change of its bytes is a new format version, with files of its own.

use std::path::PathBuf;

use bytes::Bytes;
use tailwater_wire::batch::builder::{BatchBuilder, OriginStamp, frontier_batch};
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::batch::header::{BatchHeader, BatchKind, HEADER_BYTES};
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::{CommitTime, Epoch, Lineage, Offset, OriginId, OwnerEpoch, PartitionId, Writer};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

/// Compares with the committed file, or writes it; returns the committed bytes.
fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name);
    if std::env::var_os("TAILWATER_BLESS").is_some() {
        std::fs::write(&path, bytes).expect("testdata can be written");
    }
    let committed = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(
        committed == bytes,
        "{name} is not what is written now; the first difference is at byte {:?}",
        committed.iter().zip(bytes).position(|(a, b)| a != b)
    );
    committed
}

fn record(key: Option<&'static str>, value: &'static str, timestamp: i64) -> Record {
    Record {
        key: key.map(|key| Bytes::from_static(key.as_bytes())),
        value: Bytes::from_static(value.as_bytes()),
        headers: Vec::new(),
        timestamp,
    }
}

fn with_headers(mut record: Record) -> Record {
    record.headers = vec![
        ("kind".to_owned(), Bytes::from_static(b"trade")),
        ("".to_owned(), Bytes::new()),
        ("kind".to_owned(), Bytes::from_static(b"\x00\xff")),
    ];
    record
}

fn keyed() -> Vec<Record> {
    vec![
        with_headers(record(Some("AAPL"), "190.25", 1_381_325_400_000_000_000)),
        record(Some(""), "an empty key is a key", 1_381_325_400_000_000_001),
        record(Some("MSFT"), "", 1_381_325_404_294_967_295),
    ]
}

fn build(partitioner: Partitioner, writer: Writer, previous: u64, records: &[Record]) -> Bytes {
    let mut builder = BatchBuilder::new(partitioner, 1 << 20);
    for record in records {
        builder.push(record).expect("fits");
    }
    builder.finish(writer, previous).expect("not empty")
}

/// As an owner writes it: every field of the header has a value of its own.
fn stamp(batch: &[u8]) -> Bytes {
    let mut out = batch.to_vec();
    let mut header = BatchHeader::decode(batch).expect("sound");
    header.base_offset = Offset(0x0102_0304_0506_0708);
    header.commit_time = CommitTime(0x1112_1314_1516_1718);
    header.durable_through = Offset(0x0002_0304_0506_0708);
    header.segment_nonce = 0x2122_2324_2526_2728;
    header.lineage = Lineage([0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38]);
    header.owner_epoch = OwnerEpoch(0x4142_4344_4546_4748);
    header.encode(&mut out);
    Bytes::from(out)
}

fn origin() -> Writer {
    Writer::Origin(OriginId {
        epoch: "67953471cc57a32a".parse::<Epoch>().expect("hex"),
        partition: PartitionId(3),
    })
}

#[test]
fn batches() {
    let wide = [record(None, "then", -5), record(None, "now", i64::MAX)];
    let plain = [record(None, "a", 7), record(None, "b", 7), record(None, "", 9)];
    let crc = Partitioner::Crc32c;
    let cases: [(&str, Bytes, Vec<Record>); 5] = [
        (
            "batch-keyed-headers.bin",
            build(Partitioner::Murmur2, Writer::Anonymous, 0, &keyed()),
            keyed(),
        ),
        (
            "batch-keyless.bin",
            build(Partitioner::Murmur2, Writer::Random([0xab; 16]), 41, &plain),
            plain.to_vec(),
        ),
        (
            "batch-wide-timestamps.bin",
            build(crc, Writer::Random(std::array::from_fn(|i| i as u8)), 0, &wide),
            wide.to_vec(),
        ),
        (
            "batch-named-producer.bin",
            build(
                Partitioner::Identity,
                Writer::Named([0xcd; 16]),
                1 << 40,
                &keyed(),
            ),
            keyed(),
        ),
        ("batch-stamped.bin", stamped(), keyed()),
    ];
    for (name, bytes, records) in cases {
        let committed = golden(name, &bytes);
        let view = BatchView::parse(&committed).expect(name);
        assert_eq!(view.header().kind, BatchKind::Data);
        let read: Vec<Record> = view.records().map(|record| record.to_record()).collect();
        assert_eq!(read, records, "{name}");
    }
    let committed = golden("batch-stamped.bin", &stamped());
    let header = BatchHeader::decode(&committed).expect("sound");
    assert_eq!((header.previous, header.sequence), (100, 103));
    assert_eq!(header.segment_nonce, 0x2122_2324_2526_2728);
    assert_eq!(header.end_offset(), Offset(0x0102_0304_0506_070b));
}

fn stamped() -> Bytes {
    stamp(&build(
        Partitioner::Murmur2,
        Writer::Named([0xcd; 16]),
        100,
        &keyed(),
    ))
}

#[test]
fn a_child_batch_names_where_its_records_came_from() {
    let parent = stamped();
    let parent = BatchView::parse(&parent).expect("sound");
    let mut builder = BatchBuilder::new(Partitioner::Crc32c, 1 << 20);
    for k in [0, 2] {
        let record = parent.record(k).expect("three records");
        let hash = Partitioner::Crc32c.hash(record.key.expect("keyed"));
        builder.push_copy(&record, hash).expect("fits");
    }
    let base = parent.header().base_offset;
    let stamp = OriginStamp {
        end: base.plus(4),
        released_at: 0x5152_5354_5556_5758,
        lineage: parent.header().lineage.as_u64(),
        parent_crc: parent.header().body_crc,
        parent_commit_time: parent.header().commit_time.0,
    };
    let bytes = builder.finish_copy(origin(), base, stamp).expect("not empty");
    let committed = golden("batch-child.bin", &bytes);
    let view = BatchView::parse(&committed).expect("sound");
    assert_eq!(view.header().writer, origin());
    assert_eq!(
        (view.header().previous, view.header().sequence),
        (base.0, base.0 + 4)
    );
    let offsets: Vec<Offset> = view.records().filter_map(|record| record.origin).collect();
    assert_eq!(offsets, [base, base.plus(2)]);
    let origin = view
        .body()
        .and_then(|body| body.origin.as_ref())
        .expect("an origin");
    assert_eq!(origin.released_at, stamp.released_at);
    assert_eq!(origin.parent_crc, stamp.parent_crc);
    let copies: Vec<Record> = view.records().map(|record| record.to_record()).collect();
    assert_eq!(copies, [keyed()[0].clone(), keyed()[2].clone()]);
}

#[test]
fn the_systems_own_batches() {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    builder.push(&record(Some("dropped"), "{}", 1)).expect("fits");
    let bytes = builder.finish_control().expect("not empty");
    let committed = golden("batch-control.bin", &bytes);
    let view = BatchView::parse(&committed).expect("sound");
    assert_eq!((view.header().kind, view.len()), (BatchKind::Control, 1));

    let dropped = Dropped {
        from: Offset(100),
        to: Offset(250),
        records: 37,
        filtered: 12,
    };
    let stamp = OriginStamp {
        released_at: 0x5152_5354_5556_5758,
        lineage: 0x3132_3334_3536_3738,
        ..OriginStamp::default()
    };
    let Writer::Origin(id) = origin() else {
        unreachable!("an origin")
    };
    let notice = dropped.batch(Partitioner::Murmur2, id, Offset(90), stamp);
    let committed = golden("batch-dropped.bin", &notice);
    let view = BatchView::parse(&committed).expect("sound");
    assert_eq!((view.header().kind, view.len()), (BatchKind::Control, 1));
    assert_eq!((view.header().previous, view.header().sequence), (90, 250));
    assert_eq!(Dropped::of(&view), Some(dropped));

    let committed = golden("batch-frontier.bin", &frontier_batch());
    let view = BatchView::parse(&committed).expect("sound");
    assert_eq!((view.header().kind, view.len()), (BatchKind::Frontier, 0));
    assert_eq!(committed.len(), HEADER_BYTES);
}
