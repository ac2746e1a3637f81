//! The admin server's listener: so many connections at a time, each for so long, so that one that says nothing costs
//! the node nothing for long.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

/// Connections at a time; one more waits in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;
/// Within this time a connection has said something, or makes room for the next one: probes do not wait behind idle ones.
const SPEAKS_WITHIN: Duration = Duration::from_secs(2);
/// How long a connection lives at most. A scraper that keeps one open connects again.
const LIVES: Duration = Duration::from_secs(30);
/// How long to wait when the process is out of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// A bounded listener.
pub struct AdminListener {
    inner: TcpListener,
    places: Arc<Semaphore>,
}

/// A connection with an end.
pub struct AdminStream {
    inner: TcpStream,
    end: Pin<Box<Sleep>>,
    has_spoken: bool,
    _place: OwnedSemaphorePermit,
}

impl AdminListener {
    /// Around a listener that is bound already.
    #[must_use]
    pub fn new(inner: TcpListener) -> AdminListener {
        AdminListener {
            inner,
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        }
    }
}

impl axum::serve::Listener for AdminListener {
    type Io = AdminStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AdminStream, SocketAddr) {
        let places = Arc::clone(&self.places);
        let place = places
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        loop {
            match self.inner.accept().await {
                Ok((inner, from)) => {
                    return (
                        AdminStream {
                            inner,
                            end: Box::pin(sleep(SPEAKS_WITHIN)),
                            has_spoken: false,
                            _place: place,
                        },
                        from,
                    );
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an admin connection; trying again");
                    sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

impl AdminStream {
    fn alive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for AdminStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if !self.has_spoken && buf.filled().len() > before {
            self.has_spoken = true;
            self.end = Box::pin(sleep(LIVES));
        }
        read
    }
}

impl AsyncWrite for AdminStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.alive(cx)?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
