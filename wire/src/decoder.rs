//! Frames out of a byte stream, as it arrives: each frame's payload lies in one buffer and is not copied again.

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::{FRAME_HEADER_BYTES, FrameError, FrameHeader, header_crc};

/// What one read asks for, in bytes, while no large payload is under way.
const READ_BYTES: usize = 64 << 10;
/// Payloads up to this many bytes are copied out, so that a small one kept for long does not hold a read buffer.
const COPY_BYTES_MAX: usize = 4 << 10;

/// One whole frame; the meta's checksum was verified, the payload carries its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// The typed part, still encoded.
    pub meta: Bytes,
    /// The raw part.
    pub payload: Bytes,
}

/// What is known of the frame that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// Its header.
    pub header: FrameHeader,
    /// Whether the checksum over header and meta was verified. Until then the lengths are only a claim.
    pub verified: bool,
}

/// Cuts a byte stream into frames. Memory: one read buffer, or the one frame that is under way; nothing is set aside
/// for a payload before the checksum of the frame that announces it was verified. Who has no room for a frame skips it:
/// the rest of it is dropped as it arrives, and the stream goes on behind it.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
    /// The header of the frame that is under way, once it was read; its bytes are still in the buffer.
    header: Option<FrameHeader>,
    /// Whether the checksum of the frame that is under way was verified.
    checked: bool,
    /// What is dropped as it arrives. There is no header then, and the buffer holds nothing of that frame.
    skip: Option<Skip>,
    /// The correlation of a skipped frame that was not asked for yet.
    skipped: Option<u64>,
}

/// A frame of which nothing is kept.
#[derive(Debug)]
struct Skip {
    header: FrameHeader,
    /// The checksum so far, until it was compared.
    crc: Option<u32>,
    meta_left: usize,
    payload_left: usize,
    /// The checksum was wrong: nothing behind it can be read.
    damaged: bool,
}

impl FrameDecoder {
    /// With nothing read yet.
    #[must_use]
    pub fn new() -> FrameDecoder {
        FrameDecoder::default()
    }

    /// The buffer to read into, with room for the rest of the frame that is under way, or for a full read. Append
    /// only.
    pub fn space(&mut self) -> &mut BytesMut {
        let missing = match self.header {
            Some(header) if self.checked => frame_bytes(&header).saturating_sub(self.buffer.len()),
            _ => 0,
        };
        if missing > 0 {
            self.buffer.reserve(missing);
        } else if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
            self.buffer.reserve(READ_BYTES);
        }
        &mut self.buffer
    }

    /// Takes bytes that were read elsewhere. Those of a skipped frame need no buffer.
    pub fn feed(&mut self, bytes: &[u8]) {
        let passed = self.skip.as_mut().map_or(0, |skip| skip.pass(bytes));
        if passed < bytes.len() {
            self.space().extend_from_slice(&bytes[passed..]);
        }
    }

    /// Whether a frame has begun and not ended.
    #[must_use]
    pub fn is_inside_frame(&self) -> bool {
        self.is_skipping() || !self.buffer.is_empty()
    }

    /// Whether the frame that is under way is skipped.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.skip.as_ref().is_some_and(|skip| !skip.is_over())
    }

    /// What the frame that is under way announces; nothing before its header has arrived, and of a skipped one.
    #[must_use]
    pub fn announced(&self) -> Option<Announced> {
        let verified = self.checked;
        self.header.map(|header| Announced { header, verified })
    }

    /// Keeps nothing of the frame that [`FrameDecoder::announced`] tells of. Its checksum is still verified.
    pub fn skip(&mut self) {
        let Some(header) = self.header.take() else {
            return;
        };
        let (meta_len, payload_left) = (header.meta_len as usize, header.payload_len as usize);
        let mut skip = Skip {
            header,
            crc: None,
            meta_left: 0,
            payload_left,
            damaged: false,
        };
        if std::mem::take(&mut self.checked) {
            self.buffer.advance(FRAME_HEADER_BYTES + meta_len);
            self.skipped = Some(header.correlation);
        } else {
            skip.crc = Some(header_crc(&self.buffer));
            skip.meta_left = meta_len;
            self.buffer.advance(FRAME_HEADER_BYTES);
        }
        let passed = skip.pass(&self.buffer);
        self.buffer.advance(passed);
        self.skip = Some(skip);
        self.let_go();
    }

    /// The correlation of a skipped frame, once, as soon as its checksum was verified; its payload may still be on its
    /// way. To be asked for whenever [`FrameDecoder::next_frame`] has no frame or fails, and before the next one is skipped.
    pub fn skipped(&mut self) -> Option<u64> {
        self.skipped.take()
    }

    /// The next whole frame that is not skipped, if it has arrived.
    ///
    /// # Errors
    /// [`FrameError`]; the stream cannot be resynchronised then, and every further call fails too.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(skip) = &mut self.skip {
            // Read into the buffer by someone who does not feed.
            let passed = skip.pass(&self.buffer);
            self.buffer.advance(passed);
            if skip.damaged {
                return Err(FrameError::Checksum);
            }
            if skip.meta_left == 0 && skip.crc.take().is_some() {
                self.skipped = Some(skip.header.correlation);
            }
            if !skip.is_over() {
                return Ok(None);
            }
            self.skip = None;
        }
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(head) = self.buffer.first_chunk() else {
                    return Ok(None);
                };
                let header = FrameHeader::decode(head)?;
                self.header = Some(header);
                header
            }
        };
        let meta_end = FRAME_HEADER_BYTES + header.meta_len as usize;
        if !self.checked {
            let (Some(head), Some(meta)) = (
                self.buffer.first_chunk(),
                self.buffer.get(FRAME_HEADER_BYTES..meta_end),
            ) else {
                return Ok(None);
            };
            header.check(head, meta)?;
            self.checked = true;
        }
        if self.buffer.len() < frame_bytes(&header) {
            return Ok(None);
        }
        self.header = None;
        self.checked = false;
        self.buffer.advance(FRAME_HEADER_BYTES);
        let meta = self.buffer.split_to(header.meta_len as usize).freeze();
        let payload = self.buffer.split_to(header.payload_len as usize);
        let payload = if payload.len() <= COPY_BYTES_MAX {
            Bytes::copy_from_slice(&payload)
        } else {
            payload.freeze()
        };
        if frame_bytes(&header) > READ_BYTES {
            self.let_go();
        }
        Ok(Some(Frame {
            header,
            meta,
            payload,
        }))
    }

    /// Leaves the allocation of a large frame to that frame alone: an idle connection would hold it for as long as it
    /// lives. What follows the frame moves to a buffer of its own.
    fn let_go(&mut self) {
        self.buffer = BytesMut::from(&self.buffer[..]);
    }
}

impl Skip {
    /// Looks at bytes and forgets them. Returns how many belonged to the frame.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        if self.damaged {
            return bytes.len();
        }
        let meta = self.meta_left.min(bytes.len());
        self.meta_left -= meta;
        if let Some(crc) = &mut self.crc {
            *crc = crc32c::crc32c_append(*crc, &bytes[..meta]);
            if self.meta_left == 0 && *crc != self.header.crc {
                self.damaged = true;
                return bytes.len();
            }
        }
        let payload = self.payload_left.min(bytes.len() - meta);
        self.payload_left -= payload;
        meta + payload
    }

    fn is_over(&self) -> bool {
        self.meta_left == 0 && self.payload_left == 0
    }
}

fn frame_bytes(header: &FrameHeader) -> usize {
    FRAME_HEADER_BYTES + header.meta_len as usize + header.payload_len as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameKind, encode};
    use crate::message::Request;

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        for (correlation, len) in [(1, 0usize), (2, 5), (3, 100_000), (4, 0)] {
            out.extend(encode(FrameKind::Request, correlation, &Request::Ping, len));
            out.extend(std::iter::repeat_n(correlation as u8, len));
        }
        out
    }

    #[test]
    fn frames_come_out_the_same_however_the_stream_is_cut() {
        let stream = stream();
        for step in [1, 7, 24, 1_000, 65_536, stream.len()] {
            let mut decoder = FrameDecoder::new();
            let mut seen = Vec::new();
            for piece in stream.chunks(step) {
                decoder.feed(piece);
                while let Some(frame) = decoder.next_frame().expect("sound") {
                    assert!(frame.payload.iter().all(|&b| b == frame.header.correlation as u8));
                    seen.push((frame.header.correlation, frame.payload.len()));
                }
            }
            assert_eq!(seen, [(1, 0), (2, 5), (3, 100_000), (4, 0)], "step {step}");
            assert!(!decoder.is_inside_frame());
        }
    }

    #[test]
    fn room_for_a_payload_waits_for_the_checksum() {
        let mut bytes = encode(FrameKind::Request, 9, &Request::Ping, 8 << 20);
        let mut decoder = FrameDecoder::new();
        decoder.feed(&bytes);
        assert_eq!(decoder.next_frame(), Ok(None));
        assert!(decoder.space().capacity() >= 8 << 20);
        bytes[9] ^= 1;
        let mut decoder = FrameDecoder::new();
        decoder.feed(&bytes);
        assert_eq!(decoder.next_frame(), Err(FrameError::Checksum));
        assert!(decoder.space().capacity() < 1 << 20);
        assert_eq!(decoder.next_frame(), Err(FrameError::Checksum), "it stays broken");
    }

    #[test]
    fn a_skipped_frame_needs_no_memory_and_the_stream_goes_on_behind_it() {
        const PAYLOAD: usize = 8 << 20;
        let mut decoder = FrameDecoder::new();
        decoder.feed(&encode(FrameKind::Request, 9, &Request::Ping, PAYLOAD));
        assert_eq!(decoder.next_frame(), Ok(None));
        assert!(decoder.announced().is_some_and(|of| of.verified));
        decoder.skip();
        assert_eq!((decoder.skipped(), decoder.skipped()), (Some(9), None));
        assert_eq!(decoder.announced(), None);
        for _ in 0..PAYLOAD >> 16 {
            assert!(decoder.is_inside_frame());
            decoder.feed(&[1; 1 << 16]);
            assert_eq!(decoder.next_frame(), Ok(None));
            assert_eq!(decoder.buffer.capacity(), 0, "nothing is set aside for it");
        }
        assert!(!decoder.is_inside_frame());
        decoder.feed(&stream());
        let next = decoder.next_frame().expect("sound").expect("a frame");
        assert_eq!(next.header.correlation, 1);
    }

    #[test]
    fn an_idle_decoder_does_not_hold_the_large_frame_that_it_gave_out() {
        let mut decoder = FrameDecoder::new();
        decoder.feed(&encode(FrameKind::Request, 9, &Request::Ping, 1 << 20));
        assert_eq!(decoder.next_frame(), Ok(None));
        decoder.feed(&vec![1; 1 << 20]);
        assert!(decoder.next_frame().expect("sound").is_some());
        assert!(decoder.space().capacity() < 1 << 20);
    }
}
