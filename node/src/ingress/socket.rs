//! Client sockets: the one file of the ingress that knows which driver they run on. Today glommio's `TcpStream`; a
//! shard-wide epoll may take its place behind these same types (DESIGN.md section 8).
#![allow(unsafe_code)] // one descriptor changes hands, see `Listener::new`

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::ready;
use std::time::Duration;

use futures_lite::io::{AsyncRead, AsyncWriteExt, ReadHalf, WriteHalf};
use glommio::net::{TcpListener, TcpStream};

use tailwater_wire::decoder::FrameDecoder;

/// Bytes that one read takes at most.
const SCRATCH_BYTES: usize = 256 << 10;

/// A socket that clients connect to.
pub struct Listener {
    inner: TcpListener,
    scratch: Rc<RefCell<Vec<u8>>>,
}

impl Listener {
    /// Takes over a socket of the standard library, on the shard's own thread.
    // glommio's own bind sets SO_REUSEPORT: a second node on the same port would silently take half of the connections.
    // The standard library's does not.
    #[must_use]
    pub fn new(listener: std::net::TcpListener) -> Listener {
        let descriptor = listener.into_raw_fd();
        // SAFETY: the descriptor is open, is a listening TCP socket, and `into_raw_fd` gave up its ownership.
        let inner = unsafe { TcpListener::from_raw_fd(descriptor) };
        Listener {
            inner,
            scratch: Rc::new(RefCell::new(vec![0; SCRATCH_BYTES])),
        }
    }

    /// The next client.
    ///
    /// # Errors
    /// As the operating system says; for want of descriptors it is worth trying again later.
    pub async fn accept(&self) -> io::Result<(Reader, Writer)> {
        let stream = self.inner.accept().await.map_err(io::Error::from)?;
        stream.set_nodelay(true).map_err(io::Error::from)?;
        let (reader, writer) = futures_lite::io::split(stream);
        Ok((
            Reader {
                inner: reader,
                scratch: Rc::clone(&self.scratch),
            },
            Writer { inner: writer },
        ))
    }
}

/// The receiving half of a client's socket.
pub struct Reader {
    inner: ReadHalf<TcpStream>,
    scratch: Rc<RefCell<Vec<u8>>>,
}

impl Reader {
    /// Reads what has arrived into a decoder; 0 bytes mean that the client will send no more. The buffer that the
    /// kernel copies into is the shard's, not the connection's: an idle connection holds none.
    ///
    /// # Errors
    /// As the operating system says.
    pub async fn read_into(&mut self, decoder: &mut FrameDecoder) -> io::Result<usize> {
        poll_fn(|cx| {
            let mut scratch = self.scratch.borrow_mut();
            let read = ready!(Pin::new(&mut self.inner).poll_read(cx, &mut scratch))?;
            decoder.feed(&scratch[..read]);
            std::task::Poll::Ready(Ok(read))
        })
        .await
    }

    /// Reads and forgets until the client closes or the time is over. Closing a socket with unread bytes resets it,
    /// and the reset would overtake the refusal that was just sent.
    pub async fn discard(&mut self, within: Duration) {
        let all = async {
            loop {
                let mut nothing = FrameDecoder::new();
                if !matches!(self.read_into(&mut nothing).await, Ok(1..)) {
                    return Ok(());
                }
            }
        };
        let _over_or_not = glommio::timer::timeout(within, all).await;
    }
}

/// The sending half of a client's socket.
pub struct Writer {
    inner: WriteHalf<TcpStream>,
}

impl Writer {
    /// Sends some of it, and says how much. Nothing is sent when the future is dropped before it is ready.
    ///
    /// # Errors
    /// As the operating system says.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes).await
    }

    /// Says that nothing more will be sent.
    pub async fn finish(&mut self) {
        let _gone_already = self.inner.close().await;
    }
}
