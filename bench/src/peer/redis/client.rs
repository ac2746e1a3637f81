//! Connections to redis-server: a lane that appends to streams, and a reader of all streams of a topic.

use std::rc::Rc;

use anyhow::{Context, bail};

use crate::load::Sender;
use crate::measure::for_a_while;
use crate::payload::Payload;
use crate::peer::pipe::{Answer, Answers, Incoming, Pipe};
use crate::peer::redis::resp::{Value, command, parse};
use crate::store::{From, Reader};

/// What a reply to XADD promises with `appendfsync always`: the append-only file was flushed before it was sent.
pub const DURABILITY: &str = "fsync";
/// Entries of one stream that one XREAD brings at most.
const READ_COUNT: &[u8] = b"1000";
/// Milliseconds that XREAD waits for entries.
const READ_BLOCK: &[u8] = b"20";

/// The stream that stands for one partition of a topic.
#[must_use]
pub fn stream(topic: &str, partition: u32) -> Vec<u8> {
    format!("{topic}:{partition}").into_bytes()
}

/// Sends one command and waits for its reply, on a connection of its own.
///
/// # Errors
/// When redis-server is not there, or refuses.
pub async fn ask(address: &str, arguments: &[&[u8]]) -> anyhow::Result<()> {
    let (pipe, mut incoming) = Pipe::connect(address).await?;
    pipe.push(|out| command(out, arguments));
    loop {
        if let Some((value, _)) = parse(incoming.unread())? {
            return refused(&value);
        }
        incoming.more().await?;
    }
}

fn refused(value: &Value<'_>) -> anyhow::Result<()> {
    match value {
        Value::Error(error) => bail!("redis-server: {}", String::from_utf8_lossy(error)),
        _ => Ok(()),
    }
}

/// A connection that appends to its streams in turn, without waiting for replies.
pub struct Lane {
    pipe: Pipe,
    answers: Rc<Answers>,
    streams: Vec<Vec<u8>>,
}

impl Lane {
    /// Connects.
    ///
    /// # Errors
    /// When redis-server is not there.
    pub async fn connect(address: &str, streams: Vec<Vec<u8>>) -> anyhow::Result<Lane> {
        let (pipe, incoming) = Pipe::connect(address).await?;
        let answers = Rc::new(Answers::default());
        tokio::task::spawn_local(count_replies(incoming, Rc::clone(&answers)));
        Ok(Lane {
            pipe,
            answers,
            streams,
        })
    }
}

impl Sender for Lane {
    type Ack = Answer;

    async fn send(&self, turn: u64, payload: Payload) -> anyhow::Result<Answer> {
        self.pipe.room().await?;
        let stream = &self.streams[turn as usize % self.streams.len()];
        self.pipe.push(|out| match &payload.key {
            Some(key) => command(out, &[b"XADD", stream, b"*", key, &payload.value]),
            None => command(out, &[b"XADD", stream, b"*", b"v", &payload.value]),
        });
        Ok(self.answers.ask(DURABILITY))
    }
}

/// Counts replies until the connection ends or one is a refusal.
async fn count_replies(mut incoming: Incoming, answers: Rc<Answers>) {
    let failed: anyhow::Result<()> = async {
        loop {
            let mut replies = 0;
            while let Some((value, len)) = parse(incoming.unread())? {
                refused(&value)?;
                incoming.advance(len);
                replies += 1;
            }
            answers.count(replies);
            incoming.more().await?;
        }
    }
    .await;
    if let Err(error) = failed {
        answers.fail(&format!("{error:#}"));
    }
}

/// A connection that reads all streams of a topic.
pub struct StreamReader {
    pipe: Pipe,
    incoming: Incoming,
    streams: Vec<Vec<u8>>,
    /// The last entry had of each stream.
    after: Vec<Vec<u8>>,
    asked: bool,
}

impl StreamReader {
    /// Connects, and finds out where to begin.
    ///
    /// # Errors
    /// When redis-server is not there.
    pub async fn connect(address: &str, streams: Vec<Vec<u8>>, from: From) -> anyhow::Result<StreamReader> {
        let (pipe, mut incoming) = Pipe::connect(address).await?;
        let mut after = vec![b"0-0".to_vec(); streams.len()];
        if from == From::Tail {
            // Asked for once: `$` in each XREAD would miss what arrives between two of them.
            for (stream, after) in streams.iter().zip(&mut after) {
                pipe.push(|out| command(out, &[b"XREVRANGE", stream, b"+", b"-", b"COUNT", b"1"]));
                loop {
                    if let Some((value, len)) = parse(incoming.unread())? {
                        if let Some(last) = value.parts().first().and_then(|entry| entry.parts().first()) {
                            *after = last.text()?.to_vec();
                        }
                        incoming.advance(len);
                        break;
                    }
                    incoming.more().await?;
                }
            }
        }
        Ok(StreamReader {
            pipe,
            incoming,
            streams,
            after,
            asked: false,
        })
    }

    fn ask(&mut self) {
        let mut arguments: Vec<&[u8]> =
            vec![b"XREAD", b"COUNT", READ_COUNT, b"BLOCK", READ_BLOCK, b"STREAMS"];
        arguments.extend(self.streams.iter().map(Vec::as_slice));
        arguments.extend(self.after.iter().map(Vec::as_slice));
        self.pipe.push(|out| command(out, &arguments));
        self.asked = true;
    }
}

impl StreamReader {
    /// Hands over the entries of an answer, if it has arrived whole.
    fn hand_over(&mut self, take: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<bool> {
        // Parsed only when it may be whole: an answer is up to megabytes, and comes in pieces.
        if !self.incoming.unread().ends_with(b"\r\n") {
            return Ok(false);
        }
        let Some((value, len)) = parse(self.incoming.unread())? else {
            return Ok(false);
        };
        refused(&value)?;
        for found in value.parts() {
            let [name, entries] = found.parts() else {
                bail!("an answer of XREAD is not a stream with its entries");
            };
            let name = name.text()?;
            let at = self.streams.iter().position(|stream| stream == name);
            let at = at.context("XREAD answered with a stream that was not asked for")?;
            for entry in entries.parts() {
                let [_, fields] = entry.parts() else {
                    bail!("an entry of XREAD has no id or no fields");
                };
                take(fields.parts().get(1).context("an entry has no value")?.text()?)?;
            }
            if let Some(last) = entries.parts().last().and_then(|entry| entry.parts().first()) {
                self.after[at] = last.text()?.to_vec();
            }
        }
        self.incoming.advance(len);
        Ok(true)
    }
}

impl Reader for StreamReader {
    async fn read(&mut self, take: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        if !self.asked {
            self.ask();
        }
        while !self.hand_over(take)? {
            match for_a_while(self.incoming.more()).await {
                Some(more) => more?,
                None => return Ok(()),
            }
        }
        self.asked = false;
        Ok(())
    }
}
