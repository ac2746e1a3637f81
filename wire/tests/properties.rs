//! What holds for all bytes and all records: decoding never panics, what goes in comes out, damage is noticed.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use tailwater_wire::batch::builder::{BatchBuilder, OriginStamp};
use tailwater_wire::batch::header::{BatchHeader, HEADER_BYTES};
use tailwater_wire::batch::view::{BatchIter, BatchView};
use tailwater_wire::checksum::crc;
use tailwater_wire::code::Refusal;
use tailwater_wire::decoder::FrameDecoder;
use tailwater_wire::frame::{self, FrameKind};
use tailwater_wire::ids::{Epoch, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::message::{Hello, Reply, Request};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

fn bytes_up_to(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn records(max: usize) -> impl Strategy<Value = Vec<Record>> {
    let headers = vec(("[a-zé]{0,8}", bytes_up_to(12)), 0..3);
    let timestamp = prop_oneof![any::<i64>(), 1_000i64..2_000];
    let record = (
        proptest::option::of(bytes_up_to(20)),
        bytes_up_to(60),
        headers,
        timestamp,
    )
        .prop_map(|(key, value, headers, timestamp)| Record {
            key,
            value,
            headers,
            timestamp,
        });
    vec(record, 1..max)
}

fn build(records: &[Record]) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    for record in records {
        builder.push(record).expect("fits");
    }
    builder.finish(Writer::Random([1; 16]), 7).expect("not empty")
}

/// All records but the first of a parent batch, copied.
fn copy(parent: &Bytes) -> Option<Bytes> {
    let parent = BatchView::parse(parent).expect("sound");
    let mut builder = BatchBuilder::new(Partitioner::Crc32c, 1 << 20);
    for record in parent.records().skip(1) {
        builder.push_copy(&record, 9).expect("fits");
    }
    let origin = OriginId {
        epoch: Epoch([4; 8]),
        partition: PartitionId(2),
    };
    let stamp = OriginStamp {
        end: parent.header().end_offset(),
        ..OriginStamp::default()
    };
    builder.finish_copy(Writer::Origin(origin), Offset::ZERO, stamp)
}

/// Reads everything that a batch claims to have; for its panics.
fn read_all(bytes: &[u8]) {
    for view in BatchIter::new(bytes).flatten() {
        for record in view.records() {
            let _ = record.to_record();
        }
    }
}

/// Makes both checksums right again, so that the checks behind them are reached.
fn reseal(batch: &mut [u8]) {
    let body_len = u32::from_le_bytes(batch[8..12].try_into().expect("4 bytes")) as usize;
    if let Some(body) = batch.get(HEADER_BYTES..HEADER_BYTES.saturating_add(body_len)) {
        let body_crc = crc(body);
        batch[120..124].copy_from_slice(&body_crc.to_le_bytes());
    }
    let header_crc = crc(&batch[..124]);
    batch[124..128].copy_from_slice(&header_crc.to_le_bytes());
}

fn decode_frames(bytes: &[u8]) {
    let mut decoder = FrameDecoder::new();
    decoder.feed(bytes);
    while let Ok(Some(frame)) = decoder.next_frame() {
        let _ = frame::decode_meta::<Request>(&frame.meta);
        let _ = frame::decode_meta::<Reply>(&frame.meta);
        let _ = frame::decode_meta::<Refusal>(&frame.meta);
    }
}

proptest! {
    #[test]
    fn records_come_back_as_they_went_in(records in records(20)) {
        let batch = build(&records);
        let view = BatchView::parse(&batch).expect("sound");
        let read: Vec<Record> = view.records().map(|record| record.to_record()).collect();
        prop_assert_eq!(read, records.clone());
        for (record, view) in records.iter().zip(view.records()) {
            let hash = record.key.as_deref().map_or(0, |key| Partitioner::Murmur2.hash(key));
            prop_assert_eq!(view.key_hash, hash);
        }
        if let Some(child) = copy(&batch) {
            let view = BatchView::parse(&child).expect("sound");
            let read: Vec<Record> = view.records().map(|record| record.to_record()).collect();
            prop_assert_eq!(&read[..], &records[1..]);
            let origins: Vec<Offset> = view.records().filter_map(|record| record.origin).collect();
            prop_assert_eq!(origins, (1..records.len() as u64).map(Offset).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_flipped_byte_is_noticed(records in records(4), flip in 1u8..) {
        let batch = build(&records);
        let mut bad = batch.to_vec();
        for at in 0..bad.len() {
            bad[at] ^= flip;
            prop_assert!(BatchView::parse(&bad).is_err(), "byte {} of {}", at, bad.len());
            bad[at] ^= flip;
        }
        prop_assert!(BatchView::parse(&bad).is_ok());
        for end in 0..bad.len() {
            prop_assert!(BatchView::parse(&bad[..end]).is_err(), "cut at {}", end);
        }
    }

    #[test]
    fn damage_behind_right_checksums_never_panics(
        records in records(6),
        hits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        child in any::<bool>(),
    ) {
        let batch = build(&records);
        let batch = if child { copy(&batch).unwrap_or(batch) } else { batch };
        let mut bad = batch.to_vec();
        for (at, byte) in hits {
            let at = at.index(bad.len());
            bad[at] = byte;
        }
        reseal(&mut bad);
        read_all(&bad);
        let _ = BatchHeader::decode(&bad);
    }

    #[test]
    fn any_bytes_never_panic(bytes in vec(any::<u8>(), 0..400), body_len in 0u32..300, count in 0u32..9) {
        read_all(&bytes);
        decode_frames(&bytes);
        let _ = frame::decode_meta::<Request>(&bytes);
        let _ = frame::decode_meta::<Reply>(&bytes);
        let _ = frame::decode_meta::<Refusal>(&bytes);
        // Any bytes as a body, behind a header that is sound.
        let mut batch = build(&[Record::default()])[..HEADER_BYTES].to_vec();
        batch[8..12].copy_from_slice(&body_len.to_le_bytes());
        batch[12..16].copy_from_slice(&count.to_le_bytes());
        batch[64..72].copy_from_slice(&(7 + u64::from(count)).to_le_bytes());
        batch.extend_from_slice(&bytes);
        batch.resize(HEADER_BYTES + 448, 0);
        batch[HEADER_BYTES + body_len as usize..].fill(0);
        reseal(&mut batch);
        read_all(&batch);
    }

    #[test]
    fn damaged_frames_never_panic_and_never_pass(
        client in "[a-z]{0,40}",
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        step in 1usize..50,
    ) {
        let hello = Request::Hello(Hello { client, token: None });
        let sound = frame::encode(FrameKind::Request, 5, &hello, 0);
        let mut bad = sound.clone();
        let at = at.index(bad.len());
        bad[at] ^= flip;
        decode_frames(&bad);
        let mut decoder = FrameDecoder::new();
        decoder.feed(&bad);
        prop_assert!(!matches!(decoder.next_frame(), Ok(Some(_))), "byte {}", at);

        let mut decoder = FrameDecoder::new();
        let mut whole = 0;
        for piece in [&sound[..], &sound[..]].concat().chunks(step) {
            decoder.feed(piece);
            while let Some(frame) = decoder.next_frame().expect("sound") {
                prop_assert_eq!(frame::decode_meta::<Request>(&frame.meta), Ok(hello.clone()));
                whole += 1;
            }
        }
        prop_assert_eq!(whole, 2);
    }

    /// However the stream is cut, and wherever a frame is given up: the others come out whole, and of each one that was
    /// given up the correlation comes out once, unless its checksum is wrong.
    #[test]
    fn skipped_frames_leave_the_others_as_they_were(
        frames in vec((vec("[a-z]{1,9}", 0..40), 0usize..3_000, any::<bool>()), 1..8),
        step in 1usize..700,
        fed in any::<bool>(),
        damaged in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let damaged = damaged.map(|at| at.index(frames.len()) as u64);
        let mut stream = Vec::new();
        for (correlation, (names, payload_len, _)) in (0u64..).zip(&frames) {
            let names = names.iter().map(|name| name.parse().expect("a name")).collect();
            let mut head =
                frame::encode(FrameKind::Request, correlation, &Request::DescribeTopics(Some(names)), *payload_len);
            if damaged == Some(correlation) {
                *head.last_mut().expect("not empty") ^= 1;
            }
            stream.extend(head);
            stream.extend(std::iter::repeat_n(correlation as u8, *payload_len));
        }
        let mut decoder = FrameDecoder::new();
        let (mut whole, mut given_up, mut broken) = (Vec::new(), Vec::new(), false);
        'stream: for piece in stream.chunks(step) {
            match fed {
                true => decoder.feed(piece),
                false => decoder.space().extend_from_slice(piece),
            }
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => {
                        let number = frame.header.correlation;
                        prop_assert_eq!(frame.payload.len(), frames[number as usize].1);
                        prop_assert!(frame.payload.iter().all(|&byte| byte == number as u8));
                        whole.push(number);
                        continue;
                    }
                    Err(_) => {
                        // The one before may have ended in this very piece.
                        given_up.extend(decoder.skipped());
                        prop_assert!(decoder.next_frame().is_err(), "it stays broken");
                        broken = true;
                        break 'stream;
                    }
                    Ok(None) => {}
                }
                given_up.extend(decoder.skipped());
                let Some(announced) = decoder.announced() else { break };
                if !frames[announced.header.correlation as usize].2 {
                    break;
                }
                decoder.skip();
                given_up.extend(decoder.skipped());
            }
        }
        prop_assert_eq!(broken, damaged.is_some());
        prop_assert_eq!(decoder.is_inside_frame() && !broken, false);
        let mut seen = [whole.clone(), given_up.clone()].concat();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..damaged.unwrap_or(frames.len() as u64)).collect::<Vec<_>>());
        prop_assert!(given_up.iter().all(|&number| frames[number as usize].2));
    }
}

#[test]
fn a_keyed_record_costs_at_most_16_bytes_beyond_its_own() {
    let record = |n: u64| Record {
        key: Some(Bytes::from(format!("{:08}", n % 97))),
        value: Bytes::from(vec![b'x'; 92]),
        headers: Vec::new(),
        timestamp: n as i64 * 1_000,
    };
    let body_len = |count: u64| {
        let records: Vec<Record> = (0..count).map(record).collect();
        let batch = build(&records);
        u64::from(BatchHeader::decode(&batch).expect("sound").body_len)
    };
    let (one, thousand, two) = (body_len(1), body_len(1_000), body_len(2_000));
    assert_eq!(two - thousand, 1_000 * (100 + 16));
    let fixed = one - (100 + 16);
    assert!(fixed <= 128, "{fixed} bytes for each batch");
    assert_eq!(thousand, fixed + 1_000 * (100 + 16));
}
