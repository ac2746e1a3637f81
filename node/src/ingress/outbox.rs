//! What waits to be sent on one connection: frames in order, counted in bytes, sent many at a time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_lite::future::poll_once;

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::frame::{FrameKind, encode, try_encode};
use tailwater_wire::message::Reply;

use crate::ingress::socket::Writer;
use crate::signal::Signal;

/// Above so many unsent bytes no further request of the connection is read, until the client takes its answers.
const UNSENT_BYTES_MAX: usize = 16 << 20;
/// A client that takes nothing for so long is given up: its answers hold memory that others wait for.
const TAKES_WITHIN: Duration = Duration::from_secs(30);
/// Small pieces are gathered up to so many bytes for one send; a larger piece is sent as it lies.
const GATHER_BYTES: usize = 64 << 10;

/// The frames that wait to be sent on one connection. Shard-local.
#[derive(Default)]
pub struct Outbox {
    pieces: RefCell<VecDeque<Bytes>>,
    bytes: Cell<usize>,
    /// Bytes of answers that are being made.
    reserved: Cell<usize>,
    /// Nothing is taken any more: the connection is closing, or the client is gone.
    closed: Cell<bool>,
    changed: Signal,
}

impl Outbox {
    /// Queues an answer with its raw part.
    pub fn reply(&self, correlation: u64, reply: &Reply, payload: Vec<Bytes>) {
        let payload_len = payload.iter().map(Bytes::len).sum();
        match try_encode(FrameKind::Reply, correlation, reply, payload_len) {
            Ok(head) => self.push(Bytes::from(head), payload),
            Err(error) => {
                let what = format!("the answer cannot be sent: {error}; ask for less");
                self.refuse(correlation, &Refusal::new(ErrorCode::Internal, what));
            }
        }
    }

    /// Queues a refusal; correlation 0 is about the connection.
    pub fn refuse(&self, correlation: u64, refusal: &Refusal) {
        self.push(
            Bytes::from(encode(FrameKind::Refusal, correlation, refusal, 0)),
            Vec::new(),
        );
    }

    fn push(&self, head: Bytes, payload: Vec<Bytes>) {
        if self.closed.get() {
            return;
        }
        let mut pieces = self.pieces.borrow_mut();
        for piece in std::iter::once(head).chain(payload) {
            self.bytes.set(self.bytes.get() + piece.len());
            pieces.push_back(piece);
        }
        drop(pieces);
        self.changed.notify();
    }

    /// Takes no more; what is queued is still sent.
    pub fn close(&self) {
        self.closed.set(true);
        self.changed.notify();
    }

    /// Whether nothing is taken any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Waits until the client has taken enough of its answers to be given more.
    pub async fn room(&self) {
        self.changed
            .until(|| self.held() < UNSENT_BYTES_MAX || self.closed.get())
            .await;
    }

    /// Waits until an answer of so many bytes fits, and counts it: a client that asks and does not read holds no more
    /// than this. One answer is always let through.
    pub async fn reserve(&self, bytes: usize) {
        let fits = || self.held() == 0 || self.held() + bytes <= UNSENT_BYTES_MAX || self.closed.get();
        self.changed.until(fits).await;
        self.reserved.set(self.reserved.get() + bytes);
    }

    /// Takes back what was reserved: the answer is queued, or there is none.
    pub fn unreserve(&self, bytes: usize) {
        self.reserved.set(self.reserved.get() - bytes);
        self.changed.notify();
    }

    fn held(&self) -> usize {
        self.bytes.get() + self.reserved.get()
    }

    /// Sends what is queued, for as long as the connection lives. Coalesces: many small frames, one send.
    ///
    /// # Errors
    /// When the client is gone; the rest is dropped.
    pub async fn send_all(&self, writer: &mut Writer) -> io::Result<()> {
        let mut gathered = Vec::new();
        loop {
            self.changed
                .until(|| !self.pieces.borrow().is_empty() || self.closed.get())
                .await;
            while let Some(large) = self.gather(&mut gathered) {
                for bytes in [&gathered[..], &large[..]] {
                    if let Err(gone) = self.send(writer, bytes).await {
                        self.abandon();
                        return Err(gone);
                    }
                }
                gathered.clear();
            }
            if self.closed.get() && self.pieces.borrow().is_empty() {
                return Ok(());
            }
        }
    }

    async fn send(&self, writer: &mut Writer, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = match poll_once(writer.write(bytes)).await {
                Some(sent) => sent?,
                None => {
                    let write = async { Ok(writer.write(bytes).await) };
                    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
                    glommio::timer::timeout(TAKES_WITHIN, write)
                        .await
                        .map_err(late)??
                }
            };
            if sent == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[sent..];
            self.bytes.set(self.bytes.get() - sent);
            self.changed.notify();
        }
        Ok(())
    }

    /// Moves small pieces into `gathered`; returns the large one that ends it, or an empty one. `None` when there
    /// was nothing.
    fn gather(&self, gathered: &mut Vec<u8>) -> Option<Bytes> {
        let mut pieces = self.pieces.borrow_mut();
        while let Some(piece) = pieces.pop_front() {
            if piece.len() > GATHER_BYTES / 2 {
                return Some(piece);
            }
            gathered.extend_from_slice(&piece);
            if gathered.len() > GATHER_BYTES / 2 {
                return Some(Bytes::new());
            }
        }
        (!gathered.is_empty()).then(Bytes::new)
    }

    fn abandon(&self) {
        self.closed.set(true);
        self.pieces.borrow_mut().clear();
        self.bytes.set(0);
        self.changed.notify();
    }
}
