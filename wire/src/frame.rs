//! Frames: how a message and its raw bytes travel over a byte stream.
//!
//! ```text
//!  0  magic "TW"            u16 |  8  correlation        u64
//!  2  protocol version       u8 | 16  payload length     u32
//!  3  kind                   u8 | 20  crc32c of bytes 0..20, then of the meta   u32
//!  4  meta length           u32 | 24  meta (postcard), then the payload (batches, each with its own checksums)
//! ```
//!
//! All numbers are little-endian. A frame whose header is wrong cannot be skipped: the connection is closed after an
//! error frame that says why.

use crate::checksum::crc;
use crate::limits::{FRAME_META_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX};

/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 24;
/// The first two bytes of every frame.
pub const FRAME_MAGIC: [u8; 2] = *b"TW";
/// The protocol version of this code.
pub const PROTOCOL_VERSION: u8 = 1;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// A [`crate::message::Request`], from the client.
    Request = 1,
    /// A [`crate::message::Reply`] with the request's correlation.
    Reply = 2,
    /// A [`crate::code::Refusal`] with the request's correlation; 0 when it is about the connection, which then closes.
    Refusal = 3,
}

/// A decoded frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it holds.
    pub kind: FrameKind,
    /// Chosen by the client, returned with the answer.
    pub correlation: u64,
    /// Bytes of the typed part.
    pub meta_len: u32,
    /// Bytes of the raw part.
    pub payload_len: u32,
    /// Checksum over header and meta.
    pub crc: u32,
}

/// Why a frame cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not this protocol at all.
    #[error("these bytes are not Tailwater's protocol")]
    NotAFrame,
    /// A protocol version that this side does not know.
    #[error("protocol version {0} is not known here; this side speaks {PROTOCOL_VERSION}")]
    UnsupportedVersion(u8),
    /// An unknown kind of frame.
    #[error("unknown kind of frame {0}")]
    UnknownKind(u8),
    /// A length over the limit.
    #[error("the frame claims {0} bytes, more than allowed")]
    TooLarge(u64),
    /// The checksum is wrong.
    #[error("the frame's checksum is wrong")]
    Checksum,
    /// The meta is no message.
    #[error("the message cannot be read")]
    Message,
}

impl FrameHeader {
    /// Reads a frame header; the checksum waits for [`FrameHeader::check`].
    ///
    /// # Errors
    /// [`FrameError`]; the stream cannot be resynchronised then.
    pub fn decode(h: &[u8; FRAME_HEADER_BYTES]) -> Result<FrameHeader, FrameError> {
        if h[..2] != FRAME_MAGIC {
            return Err(FrameError::NotAFrame);
        }
        if h[2] != PROTOCOL_VERSION {
            return Err(FrameError::UnsupportedVersion(h[2]));
        }
        let kind = match h[3] {
            1 => FrameKind::Request,
            2 => FrameKind::Reply,
            3 => FrameKind::Refusal,
            other => return Err(FrameError::UnknownKind(other)),
        };
        let u32_at = |at: usize| u32::from_le_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
        let header = FrameHeader {
            kind,
            meta_len: u32_at(4),
            correlation: u64::from_le_bytes(std::array::from_fn(|i| h[8 + i])),
            payload_len: u32_at(16),
            crc: u32_at(20),
        };
        if header.meta_len as usize > FRAME_META_BYTES_MAX {
            return Err(FrameError::TooLarge(u64::from(header.meta_len)));
        }
        if header.payload_len as usize > FRAME_PAYLOAD_BYTES_MAX {
            return Err(FrameError::TooLarge(u64::from(header.payload_len)));
        }
        Ok(header)
    }

    /// Checks the checksum over header and meta.
    ///
    /// # Errors
    /// [`FrameError::Checksum`].
    pub fn check(&self, header: &[u8; FRAME_HEADER_BYTES], meta: &[u8]) -> Result<(), FrameError> {
        let expected = crc32c::crc32c_append(header_crc(header), meta);
        if expected == self.crc {
            Ok(())
        } else {
            Err(FrameError::Checksum)
        }
    }
}

/// The checksum of a header alone, to go on with the meta.
pub(crate) fn header_crc(header: &[u8]) -> u32 {
    crc(&header[..20])
}

/// A frame's header and meta as bytes; a payload of `payload_len` bytes is to follow them.
///
/// # Panics
/// When a message of our own is over a limit: the caller has bounded it.
#[must_use]
pub fn encode<M: serde::Serialize>(
    kind: FrameKind,
    correlation: u64,
    message: &M,
    payload_len: usize,
) -> Vec<u8> {
    try_encode(kind, correlation, message, payload_len).expect("messages of ours are within the limits")
}

/// As [`encode`], for messages that an application has filled.
///
/// # Errors
/// [`FrameError::TooLarge`] when the message or the payload is over its limit.
pub fn try_encode<M: serde::Serialize>(
    kind: FrameKind,
    correlation: u64,
    message: &M,
    payload_len: usize,
) -> Result<Vec<u8>, FrameError> {
    let mut out =
        postcard::to_extend(message, vec![0; FRAME_HEADER_BYTES]).map_err(|_| FrameError::Message)?;
    let meta_len = out.len() - FRAME_HEADER_BYTES;
    if meta_len > FRAME_META_BYTES_MAX {
        return Err(FrameError::TooLarge(meta_len as u64));
    }
    if payload_len > FRAME_PAYLOAD_BYTES_MAX {
        return Err(FrameError::TooLarge(payload_len as u64));
    }
    out[..2].copy_from_slice(&FRAME_MAGIC);
    out[2] = PROTOCOL_VERSION;
    out[3] = kind as u8;
    out[4..8].copy_from_slice(&(meta_len as u32).to_le_bytes());
    out[8..16].copy_from_slice(&correlation.to_le_bytes());
    out[16..20].copy_from_slice(&(payload_len as u32).to_le_bytes());
    let checksum = crc32c::crc32c_append(header_crc(&out), &out[FRAME_HEADER_BYTES..]);
    out[20..24].copy_from_slice(&checksum.to_le_bytes());
    Ok(out)
}

/// Reads a message from a frame's meta; all of it must be used.
///
/// # Errors
/// [`FrameError::Message`] for any bytes that are not exactly one message.
pub fn decode_meta<'a, M: serde::Deserialize<'a>>(meta: &'a [u8]) -> Result<M, FrameError> {
    match postcard::take_from_bytes(meta) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Message),
    }
}
