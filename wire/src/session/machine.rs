//! The state machine of a session: where its connection is, and what each request waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::batch::header::BatchHeader;
use crate::code::{ErrorCode, Refusal, Retry};
use crate::decoder::Frame;
use crate::frame::{self, FrameKind};
use crate::ids::Writer;
use crate::limits::REQUESTS_IN_FLIGHT_MAX;
use crate::message::{Reply, Request, Welcome};
use crate::session::action::{Action, Event, Failure, Outcome, SessionConfig, Submission};

/// The first pause before reconnecting; each failure doubles it.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// The longest pause before reconnecting.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Down { retry_at: Duration },
    Connecting { until: Duration },
    Greeting { until: Duration, correlation: u64 },
    Ready,
}

#[derive(Debug)]
struct Pending {
    submission: Submission,
    repeatable: bool,
    deadline: Duration,
    /// How often it was sent, and when last.
    sends: u32,
    sent_at: Duration,
}

/// The state machine of a session; see [`crate::session`].
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    link: Link,
    next_correlation: u64,
    /// To be sent, in order.
    queue: VecDeque<Pending>,
    /// By correlation, so in the order they were sent. With `abandoned`, at most [`REQUESTS_IN_FLIGHT_MAX`].
    in_flight: BTreeMap<u64, Pending>,
    /// Timed out here, still owed by the node.
    abandoned: BTreeSet<u64>,
    /// Failures since an answer was last had.
    failures: u32,
    /// Why the last connection ended or attempt failed.
    last_error: String,
    /// When a frame last arrived.
    heard_at: Duration,
    /// No deadline of a request is earlier.
    deadline_floor: Option<Duration>,
    jitter: u64,
}

impl Session {
    /// A session that has not connected yet, and begins to with the first step.
    #[must_use]
    pub fn new(config: SessionConfig) -> Session {
        Session {
            jitter: config.seed | 1,
            config,
            link: Link::Down {
                retry_at: Duration::ZERO,
            },
            next_correlation: 1,
            queue: VecDeque::new(),
            in_flight: BTreeMap::new(),
            abandoned: BTreeSet::new(),
            failures: 0,
            last_error: "not connected yet".to_owned(),
            heard_at: Duration::ZERO,
            deadline_floor: None,
        }
    }

    /// Whether another request may be submitted now.
    #[must_use]
    pub fn accepts(&self) -> bool {
        self.queue.len() < REQUESTS_IN_FLIGHT_MAX
    }

    /// Whether no request is unanswered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }

    /// When to come back with [`Event::Tick`], if nothing else happens before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let link = match self.link {
            Link::Down { retry_at } => (!self.queue.is_empty()).then_some(retry_at),
            Link::Connecting { until } | Link::Greeting { until, .. } => Some(until),
            Link::Ready => None,
        };
        link.into_iter().chain(self.deadline_floor).min()
    }

    /// Begins to connect though nothing is to be sent yet.
    pub fn start(&mut self, now: Duration) -> Vec<Action> {
        let mut out = Vec::new();
        self.connect(now, &mut out);
        out
    }

    /// Takes an event and says what to do, in order.
    pub fn step(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let mut out = Vec::new();
        match event {
            Event::Submit(submission) => self.submit(submission, now),
            Event::Connected => self.greet(now, &mut out),
            Event::ConnectFailed(why) => self.broken(Failure::Unreachable(why), now, &mut out),
            Event::Frame(frame) => self.frame(frame, now, &mut out),
            Event::Broken(why) => self.broken(Failure::Unreachable(why), now, &mut out),
            Event::Garbage(why) => self.broken(Failure::Protocol(why), now, &mut out),
            Event::Tick => self.tick(now, &mut out),
        }
        self.advance(now, &mut out);
        out
    }

    fn submit(&mut self, submission: Submission, now: Duration) {
        debug_assert!(self.accepts());
        let deadline = now.saturating_add(submission.timeout);
        self.deadline_floor = Some(self.deadline_floor.map_or(deadline, |floor| floor.min(deadline)));
        self.queue.push_back(Pending {
            repeatable: is_repeatable(&submission.request, &submission.payload),
            submission,
            deadline,
            sends: 0,
            sent_at: now,
        });
    }

    fn connect(&mut self, now: Duration, out: &mut Vec<Action>) {
        self.link = Link::Connecting {
            until: now.saturating_add(self.config.connect_timeout),
        };
        out.push(Action::Connect);
    }

    fn greet(&mut self, now: Duration, out: &mut Vec<Action>) {
        let Link::Connecting { until } = self.link else {
            return;
        };
        let correlation = self.take_correlation();
        self.link = Link::Greeting { until, correlation };
        self.heard_at = now;
        let hello = Request::Hello(self.config.hello.clone());
        match frame::try_encode(FrameKind::Request, correlation, &hello, 0) {
            Ok(head) => out.push(Action::Send {
                head: head.into(),
                payload: Bytes::new(),
            }),
            Err(error) => self.broken(Failure::Protocol(error.to_string()), now, out),
        }
    }

    /// Connects when there is something to send, and sends what the window has room for.
    fn advance(&mut self, now: Duration, out: &mut Vec<Action>) {
        match self.link {
            Link::Down { retry_at } if now >= retry_at && !self.queue.is_empty() => self.connect(now, out),
            Link::Ready => {
                while self.in_flight.len() + self.abandoned.len() < REQUESTS_IN_FLIGHT_MAX {
                    let Some(pending) = self.queue.pop_front() else {
                        break;
                    };
                    self.send(pending, now, out);
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, mut pending: Pending, now: Duration, out: &mut Vec<Action>) {
        let correlation = self.take_correlation();
        let Submission { request, payload, .. } = &pending.submission;
        match frame::try_encode(FrameKind::Request, correlation, request, payload.len()) {
            Ok(head) => {
                out.push(Action::Send {
                    head: head.into(),
                    payload: payload.clone(),
                });
                pending.sends += 1;
                pending.sent_at = now;
                self.in_flight.insert(correlation, pending);
            }
            Err(error) => {
                let refusal = Refusal::new(ErrorCode::InvalidRequest, error.to_string());
                out.push(pending.complete(Err(Failure::Refused(refusal))));
            }
        }
    }

    fn frame(&mut self, frame: Frame, now: Duration, out: &mut Vec<Action>) {
        self.heard_at = now;
        let correlation = frame.header.correlation;
        let answer = match frame.header.kind {
            FrameKind::Reply => frame::decode_meta::<Reply>(&frame.meta).map(Ok),
            FrameKind::Refusal => frame::decode_meta::<Refusal>(&frame.meta).map(Err),
            FrameKind::Request => {
                let why = "the node sent a request, and only clients do".to_owned();
                return self.broken(Failure::Protocol(why), now, out);
            }
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.broken(Failure::Protocol(error.to_string()), now, out),
        };
        match (self.link, answer) {
            (_, Err(refusal)) if correlation == 0 => self.broken(Failure::Refused(refusal), now, out),
            (
                Link::Greeting {
                    correlation: hello, ..
                },
                answer,
            ) if correlation == hello => match answer {
                Ok(Reply::Welcome(welcome)) if self.is_another(&welcome) => {
                    let why = format!(
                        "another node, {} of {}, answers there",
                        welcome.node, welcome.cluster
                    );
                    self.broken(Failure::Unreachable(why), now, out);
                }
                Ok(Reply::Welcome(welcome)) => {
                    self.link = Link::Ready;
                    out.push(Action::Up(welcome));
                }
                Ok(_) => {
                    let why = "the node did not answer the greeting with a welcome".to_owned();
                    self.broken(Failure::Protocol(why), now, out);
                }
                Err(refusal) => self.broken(Failure::Refused(refusal), now, out),
            },
            (Link::Ready, answer) => {
                if let Some(pending) = self.in_flight.remove(&correlation) {
                    self.failures = 0;
                    let result = answer.map(|reply| (reply, frame.payload));
                    out.push(pending.complete(result.map_err(Failure::Refused)));
                } else if !self.abandoned.remove(&correlation) {
                    let why = format!("the node answered request {correlation}, which is not open");
                    self.broken(Failure::Protocol(why), now, out);
                }
            }
            _ => {
                let why = "the node answered before it was greeted".to_owned();
                self.broken(Failure::Protocol(why), now, out);
            }
        }
    }

    /// Ends the connection or the attempt at one, and decides for each unanswered request.
    fn broken(&mut self, why: Failure, now: Duration, out: &mut Vec<Action>) {
        if matches!(self.link, Link::Down { .. }) {
            return;
        }
        let was_ready = self.link == Link::Ready;
        self.failures = self.failures.saturating_add(1);
        self.link = Link::Down {
            retry_at: now.saturating_add(self.backoff()),
        };
        self.last_error = why.to_string();
        self.abandoned.clear();
        out.push(Action::Close);
        // The other side is there and will never answer, however often it is asked.
        let hopeless = match &why {
            Failure::Protocol(_) => true,
            Failure::Refused(refusal) => refusal.code.retry() == Retry::Never,
            _ => false,
        };
        for (_, pending) in std::mem::take(&mut self.in_flight).into_iter().rev() {
            match &why {
                _ if pending.repeatable && !hopeless => self.queue.push_front(pending),
                Failure::Protocol(_) => out.push(pending.complete(Err(why.clone()))),
                Failure::Refused(_) if pending.repeatable && !pending.is_produce() => {
                    out.push(pending.complete(Err(why.clone())));
                }
                _ => out.push(pending.complete(Err(Failure::OutcomeUnknown(self.last_error.clone())))),
            }
        }
        if was_ready {
            return;
        }
        if self.config.beside.is_some() {
            // Said first, so that whoever gets a request back knows already that this way is closed.
            out.push(Action::Down(why.clone()));
            self.hand_back(&why, out);
        } else {
            if hopeless {
                for pending in std::mem::take(&mut self.queue) {
                    out.push(pending.complete(Err(why.clone())));
                }
            }
            out.push(Action::Down(why));
        }
    }

    /// Whether it is not the node that this session is to reach.
    fn is_another(&self, welcome: &Welcome) -> bool {
        let beside = self.config.beside.as_ref();
        beside.is_some_and(|known| known.node != welcome.node || known.cluster != welcome.cluster)
    }

    /// Ends what waits for the connection: the caller has another way.
    fn hand_back(&mut self, why: &Failure, out: &mut Vec<Action>) {
        for pending in std::mem::take(&mut self.queue) {
            let failure = match pending.sends {
                0 => Failure::Unreachable(why.to_string()),
                _ => Failure::OutcomeUnknown(why.to_string()),
            };
            out.push(pending.complete(Err(failure)));
        }
        self.deadline_floor = None;
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Action>) {
        if let Link::Connecting { until } | Link::Greeting { until, .. } = self.link
            && now >= until
        {
            let limit = humantime::format_duration(self.config.connect_timeout);
            self.broken(
                Failure::Unreachable(format!("no answer within {limit}")),
                now,
                out,
            );
        }
        if self.deadline_floor.is_none_or(|floor| now < floor) {
            return;
        }
        let expired: Vec<u64> = self
            .in_flight
            .iter()
            .filter(|(_, pending)| now >= pending.deadline)
            .map(|(&correlation, _)| correlation)
            .collect();
        let mut silent = false;
        for correlation in expired {
            let pending = self.in_flight.remove(&correlation).expect("listed a moment ago");
            silent |= self.heard_at <= pending.sent_at;
            self.abandoned.insert(correlation);
            let timeout = pending.submission.timeout;
            out.push(pending.complete(Err(Failure::TimedOut(timeout))));
        }
        let connected = self.link == Link::Ready;
        let (late, waiting) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition::<VecDeque<_>, _>(|pending| now >= pending.deadline);
        self.queue = waiting;
        for pending in late {
            let failure = if pending.sends > 0 {
                Failure::TimedOut(pending.submission.timeout)
            } else if connected {
                Failure::Unreachable("the node does not answer the requests before this one".to_owned())
            } else {
                Failure::Unreachable(self.last_error.clone())
            };
            out.push(pending.complete(Err(failure)));
        }
        let open = self.queue.iter().chain(self.in_flight.values());
        self.deadline_floor = open.map(|pending| pending.deadline).min();
        if silent && connected {
            // Not a frame since the request went out: the connection is dead, or the node is.
            self.broken(Failure::Unreachable("the node fell silent".to_owned()), now, out);
        }
    }

    fn take_correlation(&mut self) -> u64 {
        let correlation = self.next_correlation;
        self.next_correlation += 1;
        correlation
    }

    /// Doubling, with up to a quarter taken off at random.
    fn backoff(&mut self) -> Duration {
        let full = BACKOFF_MIN
            .saturating_mul(1 << (self.failures - 1).min(16))
            .min(BACKOFF_MAX);
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        full - full / 4 * (self.jitter % 256) as u32 / 256
    }
}

impl Pending {
    fn complete(self, result: Result<(Reply, Bytes), Failure>) -> Action {
        Action::Complete {
            ticket: self.submission.ticket,
            outcome: Outcome {
                result,
                resent: self.sends > 1,
            },
        }
    }

    fn is_produce(&self) -> bool {
        matches!(self.submission.request, Request::Produce(_))
    }
}

/// Whether doing a request twice is harmless, or noticed by the node.
pub(crate) fn is_repeatable(request: &Request, payload: &[u8]) -> bool {
    match request {
        Request::Produce(_) => {
            BatchHeader::decode(payload).is_ok_and(|header| header.writer != Writer::Anonymous)
        }
        Request::CreateTopic(_) | Request::DeleteTopic(_) | Request::Detach(_) => false,
        Request::Hello(_)
        | Request::Ping
        | Request::DescribeTopics(_)
        | Request::Attach(_)
        | Request::ListLinks(_)
        | Request::OpenProducer(_)
        | Request::Fetch(_)
        | Request::FindOffset(_)
        | Request::AlterTopic(_)
        | Request::ListPartitions(_)
        | Request::DescribeLink(_)
        | Request::Clock(_)
        | Request::ResetClock(_) => true,
    }
}
