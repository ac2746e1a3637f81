//! As much of HTTP as a scrape needs: one GET, the status and the body.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const WITHIN: Duration = Duration::from_secs(10);

/// Status and body of a page.
///
/// # Errors
/// When there is no server, no answer in time, or no HTTP.
pub async fn get(server: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let answer = async {
        let mut stream = TcpStream::connect(server).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        io::Result::Ok(answer)
    };
    let answer = timeout(WITHIN, answer)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let text = String::from_utf8_lossy(&answer);
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP: {text}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(no_http)?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(no_http)?;
    Ok((status, body.to_owned()))
}
