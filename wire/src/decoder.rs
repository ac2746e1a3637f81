//! Frames out of a byte stream, as it arrives: each frame's payload lies in one buffer and is not copied again.

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::{FRAME_HEADER_BYTES, FrameError, FrameHeader};

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

/// Cuts a byte stream into frames. Memory: one read buffer, or the one frame that is under way; nothing is set aside
/// for a payload before the checksum of the frame that announces it was verified.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
    /// The header of the frame that is under way, once it was read; its bytes are still in the buffer.
    header: Option<FrameHeader>,
    /// Whether the checksum of the frame that is under way was verified.
    checked: bool,
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

    /// Takes bytes that were read elsewhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether a frame has begun and not ended.
    #[must_use]
    pub fn is_inside_frame(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// The next whole frame, if it has arrived.
    ///
    /// # Errors
    /// [`FrameError`]; the stream cannot be resynchronised then, and every further call fails too.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
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
        Ok(Some(Frame {
            header,
            meta,
            payload,
        }))
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
}
