//! Connections to nats-server: requests to JetStream, a lane that publishes to streams, and a reader of streams.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::load::Sender;
use crate::measure::for_a_while;
use crate::payload::Payload;
use crate::peer::nats::protocol::{Incoming as Sent, connect, parse, publish, subscribe};
use crate::peer::pipe::{Answer, Answers, Incoming, Pipe};
use crate::store::{From, Reader};

/// How long a request to JetStream may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Where answers to requests go; one on each connection.
const ANSWERS: &str = "_INBOX.bench.answers";

/// A connection for requests, which waits for each answer.
pub struct Session {
    pipe: Pipe,
    incoming: Incoming,
    /// Answers of an earlier request that was given up would be taken for this one's.
    asked: u64,
}

impl Session {
    /// Connects, and waits until the server answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn connect(address: &str) -> anyhow::Result<Session> {
        let (pipe, mut incoming) = Pipe::connect(address).await?;
        pipe.push(connect);
        loop {
            while let Some((sent, len)) = parse(incoming.unread())? {
                let is_ready = sent == Sent::Pong;
                incoming.advance(len);
                if is_ready {
                    let asked = 0;
                    return Ok(Session {
                        pipe,
                        incoming,
                        asked,
                    });
                }
            }
            timeout(ANSWER_WITHIN, incoming.more())
                .await
                .context("nats-server does not greet")??;
        }
    }

    /// Asks JetStream, as `STREAM.CREATE.name`.
    ///
    /// # Errors
    /// When it refuses, or does not answer.
    pub async fn ask(&mut self, what: &str, body: &Value) -> anyhow::Result<Value> {
        self.asked += 1;
        let (subject, inbox) = (format!("$JS.API.{what}"), format!("{ANSWERS}.{}", self.asked));
        let body = body.to_string();
        let number = u32::try_from(self.asked).context("too many requests")?;
        self.pipe.push(|out| {
            subscribe(out, &inbox, number);
            publish(out, &subject, &inbox, [body.as_bytes(), b""]);
        });
        let answer = async {
            loop {
                while let Some((sent, len)) = parse(self.incoming.unread())? {
                    let answer = match sent {
                        Sent::Message { subject, payload, .. } if subject == inbox => {
                            Some(serde_json::from_slice::<Value>(payload)?)
                        }
                        Sent::Ping => {
                            self.pipe.push(|out| out.extend_from_slice(b"PONG\r\n"));
                            None
                        }
                        _ => None,
                    };
                    self.incoming.advance(len);
                    if let Some(answer) = answer {
                        return anyhow::Ok(answer);
                    }
                }
                self.incoming.more().await?;
            }
        };
        let answer = timeout(ANSWER_WITHIN, answer)
            .await
            .with_context(|| format!("nats-server did not answer {what}"))??;
        if let Some(error) = answer.get("error") {
            bail!("nats-server: {what}: {error}");
        }
        Ok(answer)
    }
}

/// What a lane knows of one of its streams.
struct Target {
    subject: String,
    inbox: String,
    answers: Rc<Answers>,
}

/// A connection that publishes to its streams in turn, without waiting for acknowledgements.
pub struct Lane {
    pipe: Rc<Pipe>,
    targets: Vec<Target>,
    durability: &'static str,
}

impl Lane {
    /// Connects.
    ///
    /// # Errors
    /// When nats-server is not there.
    pub async fn connect(
        address: &str,
        name: &str,
        subjects: Vec<String>,
        durability: &'static str,
    ) -> anyhow::Result<Lane> {
        let Session { pipe, incoming, .. } = Session::connect(address).await?;
        let pipe = Rc::new(pipe);
        let mut targets = Vec::new();
        for (number, subject) in subjects.into_iter().enumerate() {
            let inbox = format!("_INBOX.{name}.{number}");
            targets.push(Target {
                subject,
                inbox,
                answers: Rc::default(),
            });
        }
        pipe.push(|out| subscribe(out, &format!("_INBOX.{name}.*"), 1));
        let answers = targets.iter().map(|target| Rc::clone(&target.answers)).collect();
        tokio::task::spawn_local(count_acks(incoming, answers, Rc::downgrade(&pipe)));
        Ok(Lane {
            pipe,
            targets,
            durability,
        })
    }
}

impl Sender for Lane {
    type Ack = Answer;

    async fn send(&self, turn: u64, payload: Payload) -> anyhow::Result<Answer> {
        self.pipe.room().await?;
        let target = &self.targets[turn as usize % self.targets.len()];
        let key = payload.key.unwrap_or_default();
        self.pipe
            .push(|out| publish(out, &target.subject, &target.inbox, [&payload.value, &key]));
        Ok(target.answers.ask(self.durability))
    }
}

/// Counts acknowledgements by stream until the connection ends or one is a refusal.
async fn count_acks(mut incoming: Incoming, answers: Vec<Rc<Answers>>, pipe: std::rc::Weak<Pipe>) {
    let failed: anyhow::Result<()> = async {
        loop {
            while let Some((sent, len)) = parse(incoming.unread())? {
                match sent {
                    Sent::Message { subject, payload, .. } => {
                        let number = subject
                            .rsplit_once('.')
                            .map(|(_, number)| number.parse::<usize>());
                        let number = number.context("an acknowledgement of nobody's")??;
                        // An acknowledgement is JSON that names its stream; a refusal has an error in it.
                        if payload.windows(7).any(|part| part == b"\"error\"") {
                            bail!("nats-server: {}", String::from_utf8_lossy(payload));
                        }
                        answers
                            .get(number)
                            .context("an acknowledgement of nobody's")?
                            .count(1);
                    }
                    Sent::Ping => {
                        let Some(pipe) = pipe.upgrade() else { return Ok(()) };
                        pipe.push(|out| out.extend_from_slice(b"PONG\r\n"));
                    }
                    Sent::Pong | Sent::Other => {}
                }
                incoming.advance(len);
            }
            incoming.more().await?;
        }
    }
    .await;
    if let Err(error) = failed {
        let why = format!("{error:#}");
        answers.iter().for_each(|answers| answers.fail(&why));
    }
}

thread_local! {
    /// Consumers have an inbox of their own each: two on one subject would get each other's records.
    static INBOXES: Cell<u64> = const { Cell::new(0) };
}

/// A connection that streams push to.
pub struct PushReader {
    pipe: Pipe,
    incoming: Incoming,
}

impl PushReader {
    /// Connects, and makes a consumer of each stream that pushes here, in order and without acknowledgements.
    ///
    /// # Errors
    /// When nats-server refuses.
    pub async fn connect(address: &str, streams: &[String], from: From) -> anyhow::Result<PushReader> {
        let session = Session::connect(address).await?;
        let number = INBOXES.get() + 1;
        INBOXES.set(number);
        let inbox = format!("_INBOX.push.{number}");
        // Beside those of requests, which count up from 1.
        session.pipe.push(|out| subscribe(out, &inbox, u32::MAX));
        let policy = match from {
            From::Earliest => "all",
            From::Tail => "new",
        };
        let Session { pipe, incoming, .. } = session;
        // Asked on another connection: records arrive on this one as soon as there is a consumer.
        let mut session = Session::connect(address).await?;
        for stream in streams {
            let config = json!({
                "stream_name": stream,
                "config": {
                    "deliver_subject": inbox, "deliver_policy": policy, "ack_policy": "none",
                    "max_deliver": 1, "replay_policy": "instant", "mem_storage": true, "num_replicas": 1,
                },
            });
            session.ask(&format!("CONSUMER.CREATE.{stream}"), &config).await?;
        }
        Ok(PushReader { pipe, incoming })
    }
}

impl Reader for PushReader {
    async fn read(&mut self, take: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        while let Some((sent, len)) = parse(self.incoming.unread())? {
            match sent {
                Sent::Message { payload, .. } => take(payload)?,
                Sent::Ping => self.pipe.push(|out| out.extend_from_slice(b"PONG\r\n")),
                Sent::Pong | Sent::Other => {}
            }
            self.incoming.advance(len);
        }
        match for_a_while(self.incoming.more()).await {
            Some(more) => more,
            None => Ok(()),
        }
    }
}
