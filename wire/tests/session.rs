//! The client session, stepped through virtual time: what becomes of each request when connections come and go.

use std::time::Duration;

use bytes::Bytes;
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::decoder::{Frame, FrameDecoder};
use tailwater_wire::frame::{self, FrameKind};
use tailwater_wire::ids::{Incarnation, PartitionId, Writer};
use tailwater_wire::limits::REQUESTS_IN_FLIGHT_MAX;
use tailwater_wire::message::{Hello, ProduceRequest, Reply, Request, Welcome};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;
use tailwater_wire::session::action::{Action, Event, Failure, NodeName, Outcome, SessionConfig, Submission};
use tailwater_wire::session::machine::Session;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A session, the time, and what it did.
struct Run {
    session: Session,
    now: Duration,
    /// Frames sent on the current connection, oldest first.
    sent: Vec<(u64, Request)>,
    done: Vec<(u64, Outcome)>,
    connects: u32,
    downs: Vec<Failure>,
}

impl Run {
    fn new() -> Run {
        Run::with(None)
    }

    fn with(beside: Option<NodeName>) -> Run {
        let session = Session::new(SessionConfig {
            hello: Hello {
                client: "test".to_owned(),
                token: None,
            },
            connect_timeout: Duration::from_secs(5),
            seed: 7,
            beside,
        });
        let mut run = Run {
            session,
            now: Duration::ZERO,
            sent: Vec::new(),
            done: Vec::new(),
            connects: 0,
            downs: Vec::new(),
        };
        let actions = run.session.start(run.now);
        run.note(actions);
        run
    }

    /// One that has been welcomed.
    fn ready() -> Run {
        let mut run = Run::new();
        run.welcome();
        run
    }

    fn step(&mut self, event: Event) {
        let actions = self.session.step(event, self.now);
        self.note(actions);
    }

    fn note(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Connect => self.connects += 1,
                Action::Send { head, payload } => {
                    let mut decoder = FrameDecoder::new();
                    decoder.feed(&head);
                    decoder.feed(&payload);
                    let frame = decoder.next_frame().expect("sound").expect("whole");
                    let request = frame::decode_meta(&frame.meta).expect("a request");
                    self.sent.push((frame.header.correlation, request));
                }
                Action::Close => self.sent.clear(),
                Action::Up(_) => {}
                Action::Down(why) => self.downs.push(why),
                Action::Complete { ticket, outcome } => self.done.push((ticket, outcome)),
            }
        }
    }

    fn welcome(&mut self) {
        self.step(Event::Connected);
        let (correlation, hello) = self.sent.pop().expect("a greeting");
        assert!(matches!(hello, Request::Hello(_)));
        let welcome = Welcome {
            node: 1,
            cluster: "c".to_owned(),
            shard: 0,
            shard_ports: vec![7400],
            version: "0".to_owned(),
        };
        self.reply(correlation, &Reply::Welcome(welcome));
    }

    /// Lets the pause end, and comes back with a welcomed connection.
    fn reconnect(&mut self) {
        let before = self.connects;
        self.now = self
            .session
            .wake_at()
            .expect("something to wait for")
            .max(self.now);
        self.step(Event::Tick);
        assert_eq!(self.connects, before + 1, "it tries again");
        self.welcome();
    }

    fn submit(&mut self, ticket: u64, request: Request, payload: Bytes) {
        self.step(Event::Submit(Submission {
            ticket,
            request,
            payload,
            timeout: TIMEOUT,
        }));
    }

    fn reply(&mut self, correlation: u64, reply: &Reply) {
        self.arrive(frame::encode(FrameKind::Reply, correlation, reply, 0));
    }

    fn refuse(&mut self, correlation: u64, code: ErrorCode) {
        let refusal = Refusal::new(code, "so");
        self.arrive(frame::encode(FrameKind::Refusal, correlation, &refusal, 0));
    }

    fn arrive(&mut self, bytes: Vec<u8>) {
        self.step(Event::Frame(one_frame(&bytes)));
    }

    fn tickets_sent(&self) -> usize {
        self.sent.len()
    }

    #[track_caller]
    fn failure(&self, ticket: u64) -> &Failure {
        let (_, outcome) = self
            .done
            .iter()
            .find(|(done, _)| *done == ticket)
            .expect("it has ended");
        outcome.result.as_ref().expect_err("it has failed")
    }
}

fn one_frame(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::new();
    decoder.feed(bytes);
    decoder.next_frame().expect("sound").expect("whole")
}

fn produce(writer: Writer) -> (Request, Bytes) {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    builder.push(&Record::default()).expect("fits");
    let request = ProduceRequest {
        topic: "ticks".parse().expect("a name"),
        incarnation: Incarnation([1; 8]),
        partition: PartitionId(0),
    };
    (
        Request::Produce(request),
        builder.finish(writer, 0).expect("not empty"),
    )
}

#[test]
fn a_break_repeats_what_may_be_repeated_in_order_and_nothing_else() {
    let mut run = Run::ready();
    let (idempotent, batch) = produce(Writer::Random([3; 16]));
    let (anonymous, loose) = produce(Writer::Anonymous);
    run.submit(1, Request::Ping, Bytes::new());
    run.submit(2, anonymous, loose);
    run.submit(3, idempotent.clone(), batch);
    run.submit(
        4,
        Request::DeleteTopic("ticks".parse().expect("a name")),
        Bytes::new(),
    );
    assert_eq!(run.tickets_sent(), 4);
    run.step(Event::Broken("reset".to_owned()));
    for ticket in [2, 4] {
        assert!(matches!(run.failure(ticket), Failure::OutcomeUnknown(_)));
    }
    assert_eq!(run.done.len(), 2);
    run.reconnect();
    let requests: Vec<&Request> = run.sent.iter().map(|(_, request)| request).collect();
    assert_eq!(
        requests,
        [&Request::Ping, &idempotent],
        "in order, without the anonymous batch"
    );
    run.reply(run.sent[0].0, &Reply::Pong);
    let (ticket, outcome) = run.done.last().expect("answered");
    assert!(*ticket == 1 && outcome.result.is_ok() && outcome.resent);
}

#[test]
fn what_was_never_sent_waits_for_the_next_connection_whatever_it_is() {
    let mut run = Run::ready();
    run.step(Event::Broken("reset".to_owned()));
    let (anonymous, loose) = produce(Writer::Anonymous);
    run.submit(1, anonymous.clone(), loose);
    assert!(run.sent.is_empty());
    run.reconnect();
    assert_eq!(run.sent[0].1, anonymous);
    assert!(run.done.is_empty());
}

#[test]
fn the_window_bounds_what_is_unanswered() {
    let mut run = Run::ready();
    let total = REQUESTS_IN_FLIGHT_MAX + 10;
    for ticket in 0..total as u64 {
        assert!(run.session.accepts());
        run.submit(ticket, Request::Ping, Bytes::new());
    }
    assert_eq!(run.tickets_sent(), REQUESTS_IN_FLIGHT_MAX);
    run.reply(run.sent[100].0, &Reply::Pong);
    assert_eq!(run.tickets_sent(), REQUESTS_IN_FLIGHT_MAX + 1);
    assert_eq!(run.done[0].0, 100, "answers may come in any order");
    while run.session.accepts() {
        run.submit(9_999, Request::Ping, Bytes::new());
    }
    assert!(run.tickets_sent() <= REQUESTS_IN_FLIGHT_MAX + 1);
}

#[test]
fn silence_ends_the_request_and_the_connection_but_a_slow_one_among_others_only_itself() {
    let mut run = Run::ready();
    run.submit(1, Request::Ping, Bytes::new());
    run.now = Duration::from_secs(6);
    run.submit(2, Request::Ping, Bytes::new());
    let (first, second) = (run.sent[0].0, run.sent[1].0);
    run.now = Duration::from_secs(7);
    run.reply(second, &Reply::Pong);
    run.now = run.session.wake_at().expect("a deadline");
    assert_eq!(run.now, TIMEOUT);
    run.step(Event::Tick);
    assert_eq!(run.failure(1), &Failure::TimedOut(TIMEOUT));
    assert!(
        !run.sent.is_empty(),
        "the connection is kept: it was heard of since"
    );
    run.reply(first, &Reply::Pong);
    assert_eq!(run.done.len(), 2, "the late answer is dropped");

    run.submit(3, Request::Ping, Bytes::new());
    run.now += TIMEOUT;
    run.step(Event::Tick);
    assert_eq!(run.failure(3), &Failure::TimedOut(TIMEOUT));
    assert!(run.sent.is_empty(), "not a frame since it was sent: closed");
}

#[test]
fn without_a_node_a_request_ends_as_unreachable_and_pauses_grow() {
    let mut run = Run::ready();
    run.step(Event::Broken("reset".to_owned()));
    run.submit(1, Request::Ping, Bytes::new());
    let mut pauses = Vec::new();
    while run.done.is_empty() {
        let at = run.session.wake_at().expect("a retry or the deadline");
        pauses.push(at - run.now);
        run.now = at;
        let before = run.connects;
        run.step(Event::Tick);
        if run.connects > before {
            run.step(Event::ConnectFailed("refused".to_owned()));
        }
    }
    assert_eq!(run.failure(1), &Failure::Unreachable("refused".to_owned()));
    assert_eq!(run.now, TIMEOUT);
    assert!((10..40).contains(&pauses.len()), "{} attempts", pauses.len());
    assert!(pauses.iter().max() <= Some(&Duration::from_secs(1)));
    assert_eq!(run.session.wake_at(), None, "with nothing to send it rests");
}

#[test]
fn garbage_fails_what_was_asked_and_does_not_ask_again() {
    let (idempotent, batch) = produce(Writer::Random([3; 16]));
    for case in 0..4 {
        let mut run = Run::ready();
        run.submit(1, idempotent.clone(), batch.clone());
        let correlation = run.sent[0].0;
        match case {
            0 => run.step(Event::Garbage("not a frame".to_owned())),
            1 => run.arrive(frame::encode(FrameKind::Reply, correlation, &999u32, 0)),
            2 => run.arrive(frame::encode(FrameKind::Request, correlation, &Request::Ping, 0)),
            _ => run.reply(77, &Reply::Pong),
        }
        assert!(
            matches!(run.failure(1), Failure::Protocol(_)),
            "case {case}: {:?}",
            run.done
        );
        assert!(run.session.is_idle());
    }
}

#[test]
fn a_refusal_of_the_greeting_for_good_fails_what_waits_a_passing_one_does_not() {
    for (code, ends) in [
        (ErrorCode::UnsupportedVersion, true),
        (ErrorCode::Draining, false),
    ] {
        let mut run = Run::new();
        run.submit(1, Request::Ping, Bytes::new());
        run.step(Event::Connected);
        run.refuse(run.sent[0].0, code);
        assert_eq!(run.done.len(), usize::from(ends), "{code:?}");
        assert_eq!(run.downs.len(), 1);
        if ends {
            assert_eq!(run.failure(1), &Failure::Refused(Refusal::new(code, "so")));
        }
    }
}

#[test]
fn a_refusal_of_the_connection_is_no_definite_answer_to_a_batch() {
    let mut run = Run::ready();
    let (idempotent, batch) = produce(Writer::Random([3; 16]));
    run.submit(1, idempotent, batch);
    run.submit(2, Request::Ping, Bytes::new());
    run.refuse(0, ErrorCode::BadFrame);
    assert!(matches!(run.failure(1), Failure::OutcomeUnknown(_)));
    assert!(matches!(run.failure(2), Failure::Refused(_)));
}

#[test]
fn a_message_over_the_limit_is_refused_here_and_hurts_nobody_else() {
    let mut run = Run::ready();
    let name = "a".repeat(128).parse().expect("a name");
    let request = Request::DescribeTopics(Some(vec![name; 40_000]));
    run.submit(1, request, Bytes::new());
    run.submit(2, Request::Ping, Bytes::new());
    assert!(matches!(run.failure(1), Failure::Refused(refusal) if refusal.code == ErrorCode::InvalidRequest));
    assert_eq!(run.tickets_sent(), 1);
}

#[test]
fn a_greeting_without_an_answer_is_given_up() {
    let mut run = Run::new();
    run.step(Event::Connected);
    run.now = run.session.wake_at().expect("the connect timeout");
    assert_eq!(run.now, Duration::from_secs(5));
    run.step(Event::Tick);
    assert!(matches!(run.downs[..], [Failure::Unreachable(_)]));
}

/// A session to one more shard of node 1 of the cluster "c", or of another one.
fn beside(cluster: &str) -> Run {
    Run::with(Some(NodeName {
        node: 1,
        cluster: cluster.to_owned(),
    }))
}

#[test]
fn a_shard_that_cannot_be_reached_gives_its_requests_back() {
    let mut run = beside("c");
    run.submit(1, Request::Ping, Bytes::new());
    run.step(Event::ConnectFailed("refused".to_owned()));
    assert_eq!(run.downs.len(), 1);
    assert_eq!(run.failure(1), &Failure::Unreachable("refused".to_owned()));

    let mut run = beside("c");
    run.welcome();
    let (idempotent, batch) = produce(Writer::Random([3; 16]));
    run.submit(1, idempotent.clone(), batch.clone());
    run.step(Event::Broken("reset".to_owned()));
    // One reset is no reason yet: it is tried again, and what comes meanwhile waits for that.
    run.submit(2, idempotent, batch);
    assert!(run.done.is_empty() && run.downs.is_empty());
    run.now = run.session.wake_at().expect("a pause");
    run.step(Event::Tick);
    run.step(Event::ConnectFailed("refused".to_owned()));
    assert_eq!(run.failure(1), &Failure::OutcomeUnknown("refused".to_owned()));
    assert_eq!(run.failure(2), &Failure::Unreachable("refused".to_owned()));
    assert!(run.session.is_idle() && run.session.wake_at().is_none());
}

#[test]
fn another_node_at_a_shard_s_port_is_sent_nothing() {
    let mut run = beside("another");
    run.submit(1, Request::Ping, Bytes::new());
    run.welcome();
    assert!(matches!(run.failure(1), Failure::Unreachable(why) if why.contains("another node")));
    assert_eq!((run.tickets_sent(), run.downs.len()), (0, 1));
}
