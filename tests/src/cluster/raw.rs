//! A connection without manners: any bytes out, whatever frames come back.

use std::net::SocketAddr;
use std::time::Duration;

use tailwater_wire::code::Refusal;
use tailwater_wire::decoder::{Frame, FrameDecoder};
use tailwater_wire::frame::{FrameKind, decode_meta, encode};
use tailwater_wire::message::{Hello, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A plain TCP connection to a node.
#[derive(Debug)]
pub struct RawConnection {
    stream: TcpStream,
    decoder: FrameDecoder,
}

/// The greeting that a client begins with, as bytes.
#[must_use]
pub fn hello() -> Vec<u8> {
    let hello = Hello {
        client: "a raw connection".to_owned(),
        token: None,
    };
    encode(FrameKind::Request, 1, &Request::Hello(hello), 0)
}

impl RawConnection {
    /// Connects, and says nothing.
    pub async fn open(server: SocketAddr) -> RawConnection {
        let stream = TcpStream::connect(server)
            .await
            .expect("the node takes connections");
        RawConnection {
            stream,
            decoder: FrameDecoder::new(),
        }
    }

    /// Connects and greets.
    ///
    /// # Panics
    /// When the node does not welcome it.
    pub async fn greeted(server: SocketAddr) -> RawConnection {
        let mut connection = RawConnection::open(server).await;
        connection.send(&hello()).await;
        let frame = connection.frame(Duration::from_secs(5)).await.expect("an answer");
        assert_eq!(frame.header.kind, FrameKind::Reply, "the node welcomes a client");
        connection
    }

    /// Sends bytes; a node that has closed already is no failure.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _closed = self.stream.write_all(bytes).await;
    }

    /// The next frame; none when the node closes the connection.
    ///
    /// # Panics
    /// When neither happens in time.
    pub async fn frame(&mut self, within: Duration) -> Option<Frame> {
        let next = timeout(within, self.next()).await;
        next.unwrap_or_else(|_| panic!("neither a frame nor an end within {within:?}"))
    }

    /// The next frame, if one comes in time.
    ///
    /// # Panics
    /// When the node closes the connection instead.
    pub async fn frame_within(&mut self, within: Duration) -> Option<Frame> {
        let next = timeout(within, self.next()).await.ok()?;
        Some(next.expect("a frame before the end"))
    }

    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("a node sends whole frames") {
                return Some(frame);
            }
            match self.stream.read_buf(self.decoder.space()).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The refusal that comes next.
    ///
    /// # Panics
    /// When something else comes.
    pub async fn refusal(&mut self, within: Duration) -> Refusal {
        let frame = self.frame(within).await.expect("a refusal before the end");
        assert_eq!(frame.header.kind, FrameKind::Refusal, "a refusal");
        decode_meta(&frame.meta).expect("a refusal that can be read")
    }

    /// The refusal that comes next, after which the node must close the connection.
    ///
    /// # Panics
    /// When something else comes, or the connection stays.
    pub async fn closed_with(&mut self, within: Duration) -> Refusal {
        let refusal = self.refusal(within).await;
        let more = self.frame(Duration::from_secs(5)).await;
        assert!(more.is_none(), "the node closes the connection after {refusal:?}");
        refusal
    }
}
