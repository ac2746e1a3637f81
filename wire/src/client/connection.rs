//! The driver of one session: a task that owns the socket, performs what the session says, and holds no policy.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, pending};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::config::ClientConfig;
use crate::client::error::ClientError;
use crate::decoder::FrameDecoder;
use crate::message::{Reply, Request, Welcome};
use crate::session::action::{Action, Event, Failure, NodeName, Outcome, SessionConfig, Submission, Ticket};
use crate::session::machine::Session;

/// Requests on their way to the driver; more wait in `submit`.
const COMMANDS_MAX: usize = 64;
/// Buffers that one write takes.
const WRITE_SLICES: usize = 64;
/// When a driver wakes that has nothing to wait for, after its start.
const IDLE: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Who is told what becomes of a connection.
pub(crate) trait Observer: Send + Sync {
    /// It was welcomed.
    fn up(&self, welcome: &Welcome);
    /// It cannot be had.
    fn down(&self);
}

/// Where an outcome goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// To one caller that waits for it.
    One(oneshot::Sender<Outcome>),
    /// To a task that waits for many, with its own number for this one.
    Many(u64, mpsc::UnboundedSender<(u64, Outcome)>),
}

impl Sink {
    fn send(self, outcome: Outcome) {
        // Nobody is listening any more: then nobody misses it.
        match self {
            Sink::One(sender) => drop(sender.send(outcome)),
            Sink::Many(tag, sender) => drop(sender.send((tag, outcome))),
        }
    }
}

struct Command {
    request: Request,
    payload: Bytes,
    timeout: Duration,
    sink: Sink,
}

/// One connection to one shard, kept alive by its clones. It reconnects by itself when there is something to send.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    server: Arc<str>,
    /// Whether there is another way: see [`SessionConfig::beside`].
    is_beside: bool,
    commands: mpsc::Sender<Command>,
}

impl Connection {
    /// Connects and greets; fails if the first attempt does.
    pub(crate) async fn open(
        config: &ClientConfig,
        observer: Arc<dyn Observer>,
    ) -> Result<(Connection, Welcome), ClientError> {
        let (first, greeted) = oneshot::channel();
        let connection =
            Connection::spawn(config, config.server.as_str().into(), None, observer, Some(first));
        match greeted.await {
            Ok(Ok(welcome)) => Ok((connection, welcome)),
            Ok(Err(failure)) => Err(ClientError::of(failure, &connection.server, "connect")),
            Err(_) => Err(ClientError::Closed { what: "the client" }),
        }
    }

    /// Begins to connect to another shard of a known node; the observer is told whether it can be reached.
    pub(crate) fn beside(
        config: &ClientConfig,
        server: String,
        node: NodeName,
        observer: Arc<dyn Observer>,
    ) -> Connection {
        Connection::spawn(config, server.into(), Some(node), observer, None)
    }

    fn spawn(
        config: &ClientConfig,
        server: Arc<str>,
        beside: Option<NodeName>,
        observer: Arc<dyn Observer>,
        first: Option<oneshot::Sender<Result<Welcome, Failure>>>,
    ) -> Connection {
        let is_beside = beside.is_some();
        let session = Session::new(SessionConfig {
            hello: config.hello(),
            connect_timeout: config.connect_timeout,
            seed: rand::random(),
            beside,
        });
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let driver = Driver {
            server: server.clone(),
            session,
            started: Instant::now(),
            commands: receiver,
            sinks: HashMap::new(),
            next_ticket: 1,
            io: Io::Closed,
            first,
            observer,
        };
        tokio::spawn(driver.run());
        Connection {
            server,
            is_beside,
            commands,
        }
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Whether its requests can go over the first connection as well.
    pub(crate) fn is_beside(&self) -> bool {
        self.is_beside
    }

    pub(crate) fn is_same(&self, other: &Connection) -> bool {
        self.commands.same_channel(&other.commands)
    }

    /// Hands a request over; the outcome goes to the sink. Waits while too many are on their way.
    pub(crate) async fn submit(
        &self,
        request: Request,
        payload: Bytes,
        limit: Duration,
        sink: Sink,
    ) -> Result<(), Failure> {
        let command = Command {
            request,
            payload,
            timeout: limit,
            sink,
        };
        match timeout(limit, self.commands.send(command)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Failure::Unreachable("the client is closed".to_owned())),
            Err(_) => Err(Failure::Unreachable("too many requests are waiting".to_owned())),
        }
    }

    /// One round trip.
    pub(crate) async fn call(
        &self,
        request: Request,
        payload: Bytes,
        limit: Duration,
    ) -> Result<(Reply, Bytes), ClientError> {
        let what = name_of(&request);
        let of = |failure| ClientError::of(failure, &self.server, what);
        let (sender, receiver) = oneshot::channel();
        self.submit(request, payload, limit, Sink::One(sender))
            .await
            .map_err(of)?;
        let outcome = receiver
            .await
            .map_err(|_| ClientError::Closed { what: "the client" })?;
        outcome.result.map_err(of)
    }
}

/// A request in words, for errors.
pub(crate) fn name_of(request: &Request) -> &'static str {
    match request {
        Request::Hello(_) => "greet",
        Request::Ping => "ping",
        Request::DescribeTopics(_) => "describe topics",
        Request::CreateTopic(_) => "create topic",
        Request::DeleteTopic(_) => "delete topic",
        Request::Attach(_) => "attach",
        Request::Detach(_) => "detach",
        Request::ListLinks(_) => "list links",
        Request::Produce(_) => "produce",
        Request::OpenProducer(_) => "open producer",
        Request::Fetch(_) => "fetch",
        Request::FindOffset(_) => "find offset",
        Request::AlterTopic(_) => "alter topic",
        Request::ListPartitions(_) => "list partitions",
        Request::DescribeLink(_) => "describe link",
        Request::Clock(_) => "clock",
        Request::ResetClock(_) => "reset clock",
    }
}

struct Driver {
    server: Arc<str>,
    session: Session,
    started: Instant,
    commands: mpsc::Receiver<Command>,
    sinks: HashMap<Ticket, Sink>,
    next_ticket: Ticket,
    io: Io,
    /// Who waits for the first handshake.
    first: Option<oneshot::Sender<Result<Welcome, Failure>>>,
    observer: Arc<dyn Observer>,
}

/// The socket, as far as there is one.
enum Io {
    Closed,
    Connecting(Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>),
    Open(Box<Open>),
}

struct Open {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    decoder: FrameDecoder,
    /// Bounded by the session's window.
    out: VecDeque<Bytes>,
}

enum IoEvent {
    Session(Event),
    Read,
}

impl Driver {
    async fn run(mut self) {
        let wake = sleep_until(self.started + IDLE);
        tokio::pin!(wake);
        let actions = self.session.start(self.now());
        self.perform(actions);
        let mut open = true;
        while open || !self.session.is_idle() {
            if self.first.as_ref().is_some_and(oneshot::Sender::is_closed) {
                return;
            }
            let until = self.started + self.session.wake_at().unwrap_or(IDLE);
            if until != wake.deadline() {
                wake.as_mut().reset(until);
            }
            tokio::select! {
                command = self.commands.recv(), if open && self.session.accepts() => match command {
                    Some(command) => self.submit(command),
                    None => open = false,
                },
                event = self.io.next() => match event {
                    IoEvent::Session(event) => self.step(event),
                    IoEvent::Read => self.read(),
                },
                () = &mut wake => self.step(Event::Tick),
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn step(&mut self, event: Event) {
        let now = self.now();
        let actions = self.session.step(event, now);
        self.perform(actions);
    }

    /// Takes a command and all that are waiting behind it, so that they leave in one write.
    fn submit(&mut self, first: Command) {
        let mut next = Some(first);
        while let Some(command) = next {
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            self.sinks.insert(ticket, command.sink);
            self.step(Event::Submit(Submission {
                ticket,
                request: command.request,
                payload: command.payload,
                timeout: command.timeout,
            }));
            next = match self.session.accepts() {
                true => self.commands.try_recv().ok(),
                false => None,
            };
        }
    }

    fn read(&mut self) {
        while let Io::Open(open) = &mut self.io {
            match open.decoder.next_frame() {
                Ok(Some(frame)) => self.step(Event::Frame(frame)),
                Ok(None) => return,
                Err(error) => self.step(Event::Garbage(error.to_string())),
            }
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Connect => {
                    let server = self.server.clone();
                    self.io = Io::Connecting(Box::pin(async move { TcpStream::connect(&*server).await }));
                }
                Action::Send { head, payload } => {
                    if let Io::Open(open) = &mut self.io {
                        open.out.push_back(head);
                        if !payload.is_empty() {
                            open.out.push_back(payload);
                        }
                    }
                }
                Action::Close => self.io = Io::Closed,
                Action::Up(welcome) => {
                    tracing::debug!(server = %self.server, node = welcome.node, "connected");
                    self.observer.up(&welcome);
                    if let Some(first) = self.first.take() {
                        drop(first.send(Ok(welcome)));
                    }
                }
                Action::Down(failure) => {
                    tracing::debug!(server = %self.server, %failure, "not connected");
                    self.observer.down();
                    if let Some(first) = self.first.take() {
                        drop(first.send(Err(failure)));
                    }
                }
                Action::Complete { ticket, outcome } => {
                    if let Some(sink) = self.sinks.remove(&ticket) {
                        sink.send(outcome);
                    }
                }
            }
        }
    }
}

impl Io {
    /// Waits for the socket; may be dropped at any await without losing bytes.
    async fn next(&mut self) -> IoEvent {
        match self {
            Io::Closed => pending().await,
            Io::Connecting(connecting) => {
                let stream = connecting.await.and_then(|stream| {
                    stream.set_nodelay(true)?;
                    Ok(stream)
                });
                IoEvent::Session(match stream {
                    Ok(stream) => {
                        *self = Io::Open(Box::new(Open::new(stream)));
                        Event::Connected
                    }
                    Err(error) => {
                        *self = Io::Closed;
                        Event::ConnectFailed(error.to_string())
                    }
                })
            }
            Io::Open(open) => open.next().await,
        }
    }
}

impl Open {
    fn new(stream: TcpStream) -> Open {
        let (reader, writer) = stream.into_split();
        Open {
            reader,
            writer,
            decoder: FrameDecoder::new(),
            out: VecDeque::new(),
        }
    }

    async fn next(&mut self) -> IoEvent {
        loop {
            let writing = !self.out.is_empty();
            tokio::select! {
                read = self.reader.read_buf(self.decoder.space()) => return match read {
                    Ok(0) if self.decoder.is_inside_frame() => {
                        broken("the node closed the connection inside a frame")
                    }
                    Ok(0) => broken("the node closed the connection"),
                    Ok(_) => IoEvent::Read,
                    Err(error) => broken(&error.to_string()),
                },
                written = write_some(&mut self.writer, &self.out), if writing => match written {
                    Ok(written) => consume(&mut self.out, written),
                    Err(error) => return broken(&error.to_string()),
                },
            }
        }
    }
}

fn broken(why: &str) -> IoEvent {
    IoEvent::Session(Event::Broken(why.to_owned()))
}

async fn write_some(writer: &mut OwnedWriteHalf, out: &VecDeque<Bytes>) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
    let count = out.len().min(WRITE_SLICES);
    for (slice, bytes) in slices.iter_mut().zip(out) {
        *slice = IoSlice::new(bytes);
    }
    match writer.write_vectored(&slices[..count]).await {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        other => other,
    }
}

fn consume(out: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = out.front_mut() {
        if written < front.len() {
            front.advance(written);
            return;
        }
        written -= front.len();
        out.pop_front();
    }
}
