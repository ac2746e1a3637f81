//! RESP, the protocol of Redis (redis.io/docs/latest/develop/reference/protocol-spec): commands out, replies in.

use std::io::Write;

use anyhow::{Context, bail};

/// A reply, borrowed from the bytes that it arrived in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// `+` or `$`.
    Text(&'a [u8]),
    /// `-`
    Error(&'a [u8]),
    /// `:`
    Number(i64),
    /// `*`
    Array(Vec<Value<'a>>),
    /// `$-1` or `*-1`.
    Nothing,
}

impl<'a> Value<'a> {
    /// The parts of an array; none of anything else.
    #[must_use]
    pub fn parts(&self) -> &[Value<'a>] {
        match self {
            Value::Array(parts) => parts,
            _ => &[],
        }
    }

    /// The bytes of a text.
    ///
    /// # Errors
    /// When it is no text.
    pub fn text(&self) -> anyhow::Result<&'a [u8]> {
        match self {
            Value::Text(text) => Ok(text),
            other => bail!("a text was expected of redis-server, not {other:?}"),
        }
    }
}

/// Adds a command to what is to be sent.
pub fn command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    let _infallible = write!(out, "*{}\r\n", arguments.len());
    for argument in arguments {
        let _infallible = write!(out, "${}\r\n", argument.len());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// The first reply among these bytes and its length; none if it has not arrived whole.
///
/// # Errors
/// When it is no RESP.
pub fn parse(bytes: &[u8]) -> anyhow::Result<Option<(Value<'_>, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let (kind, line, after) = match bytes.split_first() {
        Some((kind, _)) if end > 0 => (*kind, &bytes[1..end], end + 2),
        _ => bail!("redis-server sent an empty line"),
    };
    let number = || -> anyhow::Result<i64> {
        let text = std::str::from_utf8(line)?;
        text.parse()
            .with_context(|| format!("`{text}` of redis-server is no number"))
    };
    let value = match kind {
        b'+' => Value::Text(line),
        b'-' => Value::Error(line),
        b':' => Value::Number(number()?),
        b'$' | b'*' if number()? < 0 => Value::Nothing,
        b'$' => {
            let len = number()? as usize;
            return Ok(bytes
                .get(after..after + len)
                .filter(|_| bytes.len() >= after + len + 2)
                .map(|text| (Value::Text(text), after + len + 2)));
        }
        b'*' => {
            let (mut parts, mut at) = (Vec::new(), after);
            for _ in 0..number()? {
                let Some((part, len)) = parse(&bytes[at..])? else {
                    return Ok(None);
                };
                parts.push(part);
                at += len;
            }
            return Ok(Some((Value::Array(parts), at)));
        }
        other => bail!("redis-server sent a reply of kind {:?}", char::from(other)),
    };
    Ok(Some((value, after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_texts() {
        let mut out = Vec::new();
        command(&mut out, &[b"XADD", b"s", b"\r\n"]);
        assert_eq!(out, b"*3\r\n$4\r\nXADD\r\n$1\r\ns\r\n$2\r\n\r\n\r\n");
    }

    #[test]
    fn replies_are_read_whole_or_not_at_all() {
        let bytes = b"*3\r\n*2\r\n$3\r\n1-0\r\n:-7\r\n$-1\r\n-ERR no\r\n+OK\r\n";
        let (value, len) = parse(bytes).expect("RESP").expect("whole");
        let inner = Value::Array(vec![Value::Text(b"1-0"), Value::Number(-7)]);
        let expected = Value::Array(vec![inner, Value::Nothing, Value::Error(b"ERR no")]);
        assert_eq!((value, len), (expected, bytes.len() - 5));
        for cut in 0..len {
            assert_eq!(parse(&bytes[..cut]).expect("no error"), None, "{cut}");
        }
        assert!(parse(b"?\r\n").is_err() && parse(b"\r\n").is_err() && parse(b"$x\r\n").is_err());
    }
}
