//! The client protocol of NATS (docs.nats.io/reference/reference-protocols/nats-protocol), as far as JetStream needs it.

use std::io::Write;

use anyhow::{Context, bail};

/// What the server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// A message of a subscription.
    Message {
        /// What it was published to.
        subject: &'a str,
        /// Where an answer goes.
        reply: Option<&'a str>,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// It wants a `PONG`.
    Ping,
    /// The answer to `PING`.
    Pong,
    /// What needs no answer: `INFO` and `+OK`.
    Other,
}

/// The first thing among these bytes and its length; none if it has not arrived whole.
///
/// # Errors
/// When it is none, or an error of the server.
pub fn parse(bytes: &[u8]) -> anyhow::Result<Option<(Incoming<'_>, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let line = std::str::from_utf8(&bytes[..end]).context("nats-server sent a line that is no text")?;
    let after = end + 2;
    let mut words = line.split_ascii_whitespace();
    match words.next().unwrap_or_default() {
        "MSG" => {
            let rest: Vec<&str> = words.collect();
            let (subject, reply, length) = match rest[..] {
                [subject, _, length] => (subject, None, length),
                [subject, _, reply, length] => (subject, Some(reply), length),
                _ => bail!("nats-server sent `{line}`"),
            };
            let length: usize = length
                .parse()
                .with_context(|| format!("nats-server sent `{line}`"))?;
            Ok(bytes
                .get(after..after + length)
                .filter(|_| bytes.len() >= after + length + 2)
                .map(|payload| {
                    let message = Incoming::Message {
                        subject,
                        reply,
                        payload,
                    };
                    (message, after + length + 2)
                }))
        }
        "PING" => Ok(Some((Incoming::Ping, after))),
        "PONG" => Ok(Some((Incoming::Pong, after))),
        "INFO" | "+OK" => Ok(Some((Incoming::Other, after))),
        _ => bail!("nats-server: {line}"),
    }
}

/// Begins a session. Without headers, so that all that comes is `MSG`.
pub fn connect(out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":false,\"lang\":\"rust\",\
          \"name\":\"tailwater-bench\",\"version\":\"0\",\"protocol\":1}\r\nPING\r\n",
    );
}

/// Subscribes under a number.
pub fn subscribe(out: &mut Vec<u8>, subject: &str, number: u32) {
    let _infallible = write!(out, "SUB {subject} {number}\r\n");
}

/// Publishes the parts as one message.
pub fn publish(out: &mut Vec<u8>, subject: &str, reply: &str, parts: [&[u8]; 2]) {
    let bytes = parts[0].len() + parts[1].len();
    let _infallible = write!(out, "PUB {subject} {reply} {bytes}\r\n");
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_whole_or_not_at_all() {
        let bytes = b"MSG a.b 3 re.ply 4\r\n\r\n\r\n\r\nPING\r\n";
        let (message, len) = parse(bytes).expect("NATS").expect("whole");
        let expected = Incoming::Message {
            subject: "a.b",
            reply: Some("re.ply"),
            payload: b"\r\n\r\n",
        };
        assert_eq!((message, len), (expected, bytes.len() - 6));
        for cut in 0..len {
            assert_eq!(parse(&bytes[..cut]).expect("no error"), None, "{cut}");
        }
        assert_eq!(parse(&bytes[len..]).expect("NATS"), Some((Incoming::Ping, 6)));
        assert!(parse(b"-ERR 'no'\r\n").is_err() && parse(b"MSG a\r\n").is_err());
    }

    #[test]
    fn a_message_is_published_with_its_length() {
        let mut out = Vec::new();
        publish(&mut out, "s", "_INBOX.1", [b"key", b"value"]);
        assert_eq!(out, b"PUB s _INBOX.1 8\r\nkeyvalue\r\n");
    }
}
