//! Client frames: a byte stream from anybody, cut into frames and read as messages.
//!
//! However the stream is cut, and whichever frames are skipped, the same frames come out in the same order; each is, byte
//! for byte, a part of the stream with a right checksum; and memory follows what has come, not what is claimed.
//!
//! Mode: 1 the checksums are made right; 2 every other frame is skipped; the rest is the length of the pieces.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tailwater_wire::checksum::crc;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::decoder::{Frame, FrameDecoder};
use tailwater_wire::frame::{self, FRAME_HEADER_BYTES, FrameError, FrameKind};
use tailwater_wire::message::{Reply, Request};

use crate::input::{join, split, u32_at};
use crate::memory;
use crate::target::Seed;

const MEND: u8 = 1;
const SKIP: u8 = 2;

/// What one read and one copy out may take beside what has come.
const BUFFERS_BYTES: usize = 256 << 10;
/// What serde sets aside at most for a sequence that is announced, and what postcard's messages grow to for each byte.
const ANNOUNCED_BYTES: usize = 2 << 20;
const BYTES_FOR_EACH: usize = 512;

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Frame(Frame),
    Skipped(u64),
}

impl Event {
    fn correlation(&self) -> u64 {
        match self {
            Event::Frame(frame) => frame.header.correlation,
            Event::Skipped(correlation) => *correlation,
        }
    }
}

#[derive(Debug, Default)]
struct Outcome {
    events: Vec<Event>,
    error: Option<FrameError>,
    /// Bytes of the largest frame whose checksum was verified, arrived or not.
    verified: usize,
}

/// See the module.
pub fn check(input: &[u8]) {
    let (mode, stream) = split(input);
    let mut stream = stream.to_vec();
    if mode & MEND != 0 {
        mend(&mut stream);
    }
    let whole = read_within(&stream, stream.len().max(1), false);
    let pieces = read_within(&stream, 1 + usize::from(mode >> 2), false);
    assert_eq!((&whole.events, whole.error), (&pieces.events, pieces.error));
    let mut at = 0;
    for event in &whole.events {
        let Event::Frame(frame) = event else {
            unreachable!("none was skipped")
        };
        at += check_frame(frame, &stream[at..]);
    }
    if mode & SKIP != 0 {
        check_skipping(&whole, &read_within(&stream, 1 + usize::from(mode >> 2), true));
    }
}

fn check_skipping(whole: &Outcome, skipping: &Outcome) {
    assert_eq!(whole.error, skipping.error);
    let order = |outcome: &Outcome| outcome.events.iter().map(Event::correlation).collect::<Vec<_>>();
    let (mut all, told) = (order(whole), order(skipping));
    if told.len() > all.len() {
        // A skipped frame is told when its checksum is right, before all of it has come.
        all.push(told[told.len() - 1]);
    }
    assert_eq!(all, told, "each frame is given out or told once, in order");
    for (whole, skipping) in whole.events.iter().zip(&skipping.events) {
        assert!(matches!(skipping, Event::Skipped(_)) || whole == skipping);
    }
}

fn read_within(stream: &[u8], piece: usize, skips: bool) -> Outcome {
    let (outcome, held) = memory::peak(|| read(stream, piece, skips));
    let most = BUFFERS_BYTES + 4 * stream.len() + 2 * outcome.verified;
    assert!(held <= most, "{held} bytes for a stream of {}", stream.len());
    outcome
}

/// As a connection does it: whole frames first, then a look at what is under way.
fn read(stream: &[u8], piece: usize, skips: bool) -> Outcome {
    let (mut decoder, mut outcome) = (FrameDecoder::new(), Outcome::default());
    for piece in stream.chunks(piece) {
        decoder.feed(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => outcome.events.push(Event::Frame(frame)),
                Ok(None) => break,
                Err(error) => {
                    outcome.events.extend(decoder.skipped().map(Event::Skipped));
                    assert_eq!(decoder.next_frame(), Err(error), "it stays broken");
                    outcome.error = Some(error);
                    return outcome;
                }
            }
        }
        outcome.events.extend(decoder.skipped().map(Event::Skipped));
        if let Some(announced) = decoder.announced() {
            let header = announced.header;
            if announced.verified {
                let bytes = FRAME_HEADER_BYTES + header.meta_len as usize + header.payload_len as usize;
                outcome.verified = outcome.verified.max(bytes);
            }
            if skips && header.correlation % 2 == 1 {
                decoder.skip();
                assert_eq!(decoder.announced(), None);
                outcome.events.extend(decoder.skipped().map(Event::Skipped));
            }
        }
    }
    outcome
}

/// Returns how many bytes of the stream the frame was.
fn check_frame(frame: &Frame, stream: &[u8]) -> usize {
    let header = &frame.header;
    let meta_end = FRAME_HEADER_BYTES + header.meta_len as usize;
    let end = meta_end + header.payload_len as usize;
    assert_eq!(frame.meta, stream[FRAME_HEADER_BYTES..meta_end]);
    assert_eq!(frame.payload, stream[meta_end..end]);
    assert_eq!(header.crc, sum(stream, meta_end), "no wrong checksum is accepted");
    match header.kind {
        FrameKind::Request => check_message::<Request>(frame),
        FrameKind::Reply => check_message::<Reply>(frame),
        FrameKind::Refusal => check_message::<Refusal>(frame),
    }
    end
}

fn check_message<M: Serialize + DeserializeOwned + PartialEq + Debug>(frame: &Frame) {
    let most = ANNOUNCED_BYTES + BYTES_FOR_EACH * frame.meta.len();
    let read = memory::within(most, || frame::decode_meta::<M>(&frame.meta));
    let Ok(message) = read else { return };
    let (kind, correlation) = (frame.header.kind, frame.header.correlation);
    let written = frame::try_encode(kind, correlation, &message, frame.payload.len());
    let written = written.expect("what was read within the limits can be written");
    let again = frame::decode_meta::<M>(&written[FRAME_HEADER_BYTES..]);
    assert_eq!(again.as_ref(), Ok(&message));
}

fn sum(frame: &[u8], meta_end: usize) -> u32 {
    crc(&[&frame[..20], &frame[FRAME_HEADER_BYTES..meta_end]].concat())
}

fn mend(stream: &mut [u8]) {
    let mut rest = stream;
    while rest.len() >= FRAME_HEADER_BYTES {
        let meta_end = FRAME_HEADER_BYTES.saturating_add(u32_at(rest, 4) as usize);
        let end = meta_end.saturating_add(u32_at(rest, 16) as usize);
        if meta_end <= rest.len() {
            let sum = sum(rest, meta_end);
            rest[20..24].copy_from_slice(&sum.to_le_bytes());
        }
        let len = rest.len();
        rest = &mut rest[end.min(len)..];
    }
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let one = |correlation: u64, request: &Request, payload: &[u8]| {
        let mut bytes = frame::encode(FrameKind::Request, correlation, request, payload.len());
        bytes.extend_from_slice(payload);
        bytes
    };
    let ping = one(1, &Request::Ping, b"");
    let pieces = |bytes: u8| (bytes - 1) << 2;
    let stream = [
        &ping[..],
        &one(3, &Request::Ping, b"a payload"),
        &one(4, &Request::Ping, b""),
    ]
    .concat();
    let refusal = Refusal::new(ErrorCode::InvalidFilter, "no filter".to_owned());
    let large = frame::encode(FrameKind::Request, 5, &Request::Ping, 8 << 20);
    let mut seeds = vec![
        ("ping", join(pieces(1), &ping)),
        ("three-in-pieces-of-7-skipping", join(pieces(7) | SKIP, &stream)),
        ("large-payload-announced", join(pieces(20) | SKIP, &large)),
        (
            "refusal",
            join(MEND, &frame::encode(FrameKind::Refusal, 1, &refusal, 0)),
        ),
        (
            "wrong-checksum",
            join(0, &[&ping[..20], &[0; 4], &ping[24..]].concat()),
        ),
    ];
    // Metas as they were frozen: one frame of each.
    let golden = include_str!("../../wire/testdata/messages.hex");
    seeds.extend(golden.lines().filter_map(|line| {
        let (name, hex) = line.split_once(' ')?;
        let kind = match name.split_once('/')?.0 {
            "request" => FrameKind::Request,
            "reply" => FrameKind::Reply,
            _ => return None,
        };
        Some((name, join(MEND, &unchecked(kind, &unhex(hex)?))))
    }));
    seeds
}

/// A frame without its checksum.
fn unchecked(kind: FrameKind, meta: &[u8]) -> Vec<u8> {
    let mut bytes = frame::encode(kind, 1, &(), 0);
    bytes[4..8].copy_from_slice(&(meta.len() as u32).to_le_bytes());
    bytes.extend_from_slice(meta);
    bytes
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}
