//! A node in miniature for tests of the client: logs in memory, deduplication, and faults on demand.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tailwater_wire::batch::header::{BatchHeader, HEADER_BYTES};
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::decoder::{Frame, FrameDecoder};
use tailwater_wire::frame::{self, FrameKind};
use tailwater_wire::ids::{
    CommitTime, Incarnation, Lineage, Offset, OwnerEpoch, PartitionId, TopicName, Writer,
};
use tailwater_wire::message::{
    FetchRequest, Fetched, FoundOffset, Place, Produced, ProducerKey, ProducerOpened, Reply, Request, Welcome,
};
use tailwater_wire::meta::{Durability, Topic, TopicSpec};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::placement::shard_of;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What to do instead of answering the next request of a kind.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Do it, then close without an answer.
    DropAfter,
    /// Close without doing it.
    DropBefore,
    /// Answer with the first half of a frame, and keep the connection.
    HalfFrame,
    /// Answer with other bytes.
    Garbage,
    /// Answer with a reply that fits another request.
    WrongReply,
    /// Refuse.
    Refuse(ErrorCode),
}

/// One partition.
#[derive(Default)]
pub struct Partition {
    pub batches: Vec<(BatchHeader, Bytes)>,
    pub end: u64,
    pub log_start: u64,
    pub quarantined: Vec<(Offset, Offset)>,
    last: HashMap<Writer, u64>,
}

#[derive(Default)]
pub struct State {
    pub partitions: Vec<Partition>,
    /// For the next produce requests.
    pub produce_faults: VecDeque<Fault>,
    /// For the next other requests, but not the greeting.
    pub faults: VecDeque<Fault>,
    pub refuse_hello: Option<ErrorCode>,
    /// A produce request in so many is dropped after it was done.
    pub drop_every: usize,
    pub connections: usize,
    pub produces: usize,
    pub produce_bytes: usize,
    pub duplicates: usize,
    pub fetches: usize,
    pub hello: String,
    pub lineage: [u8; 8],
    /// The ports that the node says its shards have; without any, the one that it was started with.
    pub ports: Vec<u16>,
    /// Shards answer `NOT_OWNER` for partitions that are not theirs, instead of forwarding.
    pub refuses_strangers: bool,
    pub cluster: String,
    /// Requests for partitions, by the port that they came in at.
    pub arrivals: Vec<(u16, u32)>,
    /// Connections that are open, by port.
    pub open: HashMap<u16, usize>,
}

/// A running one; it ends with its runtime.
#[derive(Clone)]
pub struct Fake {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// Produce requests wait while this is true.
    hold: watch::Sender<bool>,
    /// Ends the listeners and connections of a port.
    doors: Arc<Mutex<HashMap<u16, watch::Sender<bool>>>>,
}

impl Fake {
    pub async fn start(partitions: usize) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let state = State {
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            lineage: LINEAGE.0,
            cluster: "c".to_owned(),
            ..State::default()
        };
        let fake = Fake {
            address: listener.local_addr().expect("bound"),
            state: Arc::new(Mutex::new(state)),
            hold: watch::channel(false).0,
            doors: Arc::default(),
        };
        fake.listen(listener);
        fake
    }

    /// A node with so many shards, each with a port of its own.
    pub async fn with_shards(partitions: usize, shards: usize) -> Fake {
        let fake = Fake::start(partitions).await;
        let mut ports = vec![fake.address.port()];
        while ports.len() < shards {
            ports.push(fake.open_door(0).await);
        }
        fake.state().ports = ports;
        fake
    }

    /// Listens on a port, 0 for any; returns which.
    pub async fn open_door(&self, port: u16) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        self.listen(listener);
        port
    }

    /// Ends everything on a port; further connects are refused.
    pub async fn close_door(&self, port: u16) {
        let door = self.doors.lock().expect("whole").remove(&port);
        door.expect("it was open").send_replace(true);
        let closed = || async {
            let refused = TcpStream::connect(("127.0.0.1", port)).await.is_err();
            refused && self.state().open.get(&port).copied().unwrap_or(0) == 0
        };
        while !closed().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The process ends and begins anew with other shards: every connection breaks.
    pub async fn restart(&self, ports: Vec<u16>) {
        let old: Vec<u16> = self.doors.lock().expect("whole").keys().copied().collect();
        for port in old {
            self.close_door(port).await;
        }
        self.state().ports.clone_from(&ports);
        for port in ports {
            self.open_door(port).await;
        }
    }

    fn listen(&self, listener: TcpListener) {
        let port = listener.local_addr().expect("bound").port();
        let (door, mut closed) = watch::channel(false);
        self.doors.lock().expect("whole").insert(port, door);
        let serving = self.clone();
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted.expect("a stream").0,
                    _ = closed.changed() => return,
                };
                let (one, mut closed) = (serving.clone(), closed.clone());
                *one.state().open.entry(port).or_default() += 1;
                tokio::spawn(async move {
                    tokio::select! {
                        _ = one.clone().serve(stream, port) => {}
                        _ = closed.changed() => {}
                    }
                    *one.state().open.entry(port).or_default() -= 1;
                });
            }
        });
    }

    /// Where the requests for a partition came in, one after another, without repeats.
    pub fn ways_of(&self, partition: u32) -> Vec<u16> {
        let state = self.state();
        let of = state.arrivals.iter().filter(|(_, at)| *at == partition);
        let mut ports: Vec<u16> = of.map(|(port, _)| *port).collect();
        ports.dedup();
        ports
    }

    fn ports(&self) -> Vec<u16> {
        let ports = self.state().ports.clone();
        if ports.is_empty() {
            return vec![self.address.port()];
        }
        ports
    }

    /// The port of the shard that owns a partition.
    pub fn owner_of(&self, partition: u32) -> u16 {
        let ports = self.ports();
        ports[shard_of(INCARNATION, PartitionId(partition), ports.len() as u32) as usize]
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }

    pub fn hold(&self, hold: bool) {
        self.hold.send_replace(hold);
    }

    /// All values in a partition's log, in order.
    pub fn values(&self, partition: usize) -> Vec<Bytes> {
        let state = self.state();
        let batches = state.partitions[partition].batches.iter();
        let records = batches.flat_map(|(_, bytes)| {
            let view = BatchView::parse(bytes).expect("sound");
            let values: Vec<Bytes> = view.records().map(|r| Bytes::copy_from_slice(r.value)).collect();
            values
        });
        records.collect()
    }

    /// Appends a batch as an owner does.
    pub fn append(&self, partition: usize, batch: &[u8]) -> Offset {
        let mut state = self.state();
        let log = &mut state.partitions[partition];
        let mut header = BatchHeader::decode(batch).expect("sound");
        header.base_offset = Offset(log.end);
        header.commit_time = CommitTime(1_000 + log.end);
        let mut bytes = BytesMut::from(batch);
        header.encode(&mut bytes[..HEADER_BYTES]);
        log.end += u64::from(header.record_count);
        log.batches.push((header.clone(), bytes.freeze()));
        header.base_offset
    }

    async fn serve(self, mut stream: TcpStream, port: u16) -> Option<()> {
        self.state().connections += 1;
        let mut decoder = FrameDecoder::new();
        loop {
            while let Some(frame) = decoder.next_frame().ok()? {
                self.answer(frame, &mut stream, port).await?;
            }
            if stream.read_buf(decoder.space()).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// `None` ends the connection.
    async fn answer(&self, frame: Frame, stream: &mut TcpStream, port: u16) -> Option<()> {
        let correlation = frame.header.correlation;
        let request: Request = frame::decode_meta(&frame.meta).ok()?;
        let fault = self.fault_for(&request, frame.payload.len());
        let stranger = self.arrived(&request, port);
        if matches!(request, Request::Produce(_)) {
            let mut hold = self.hold.subscribe();
            hold.wait_for(|hold| !hold).await.ok()?;
        }
        let bytes = match fault {
            Some(Fault::DropBefore) => return None,
            Some(Fault::DropAfter) => {
                self.handle(request, &frame.payload, port).await.ok();
                return None;
            }
            Some(Fault::HalfFrame) => {
                let mut bytes = frame::encode(FrameKind::Reply, correlation, &Reply::Pong, 0);
                bytes.truncate(bytes.len() - 1);
                bytes
            }
            Some(Fault::Garbage) => b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            Some(Fault::WrongReply) => frame::encode(FrameKind::Reply, correlation, &Reply::Detached, 0),
            Some(Fault::Refuse(code)) => refusal(correlation, code),
            None if stranger => refusal(correlation, ErrorCode::NotOwner),
            None => match self.handle(request, &frame.payload, port).await {
                Ok((reply, payload)) => {
                    let mut bytes = frame::encode(FrameKind::Reply, correlation, &reply, payload.len());
                    bytes.extend_from_slice(&payload);
                    bytes
                }
                Err(code) => refusal(correlation, code),
            },
        };
        stream.write_all(&bytes).await.ok()
    }

    /// Notes where a request came in; whether that shard will have nothing to do with it.
    fn arrived(&self, request: &Request, port: u16) -> bool {
        let partition = match request {
            Request::Produce(request) => request.partition,
            Request::OpenProducer(request) => request.partition,
            Request::Fetch(request) => request.partition,
            Request::FindOffset(request) => request.partition,
            _ => return false,
        };
        let owner = self.owner_of(partition.0);
        let mut state = self.state();
        state.arrivals.push((port, partition.0));
        state.refuses_strangers && owner != port
    }

    fn fault_for(&self, request: &Request, payload_len: usize) -> Option<Fault> {
        let mut state = self.state();
        match request {
            Request::Produce(_) => {
                state.produces += 1;
                state.produce_bytes += payload_len;
                if state.drop_every > 0 && state.produces.is_multiple_of(state.drop_every) {
                    return Some(Fault::DropAfter);
                }
                state.produce_faults.pop_front()
            }
            Request::Hello(hello) => {
                state.hello.clone_from(&hello.client);
                state.refuse_hello.map(Fault::Refuse)
            }
            _ => state.faults.pop_front(),
        }
    }

    async fn handle(&self, request: Request, payload: &[u8], port: u16) -> Result<(Reply, Bytes), ErrorCode> {
        let none = Bytes::new();
        match request {
            Request::Hello(_) => {
                let ports = self.ports();
                let welcome = Welcome {
                    node: 1,
                    cluster: self.state().cluster.clone(),
                    shard: ports.iter().position(|at| *at == port).unwrap_or(0) as u32,
                    shard_ports: ports,
                    version: "0".to_owned(),
                };
                Ok((Reply::Welcome(welcome), none))
            }
            Request::Ping => Ok((Reply::Pong, none)),
            Request::DescribeTopics(names) => {
                let known = topic_name();
                if names.is_some_and(|names| names != [known]) {
                    return Err(ErrorCode::UnknownTopic);
                }
                let partitions = self.state().partitions.len() as u32;
                Ok((Reply::Topics(vec![topic(partitions)]), none))
            }
            Request::OpenProducer(open) => {
                let writer = match open.producer {
                    ProducerKey::Random(id) => Writer::Random(id),
                    ProducerKey::Named(name) => Writer::Named([name.len() as u8; 16]),
                };
                let state = self.state();
                let log = &state.partitions[open.partition.0 as usize];
                let opened = ProducerOpened {
                    writer,
                    last_sequence: log.last.get(&writer).copied().unwrap_or(0),
                    lineage: LINEAGE,
                };
                Ok((Reply::ProducerOpened(opened), none))
            }
            Request::Produce(produce) => {
                let partition = produce.partition.0 as usize;
                let produced = self.produce(partition, payload)?;
                Ok((Reply::Produced(produced), none))
            }
            Request::Fetch(fetch) => self.fetch(&fetch).await,
            Request::FindOffset(find) => {
                let state = self.state();
                let log = &state.partitions[find.partition.0 as usize];
                let found = FoundOffset {
                    offset: Offset(match find.at {
                        Place::Earliest => log.log_start,
                        Place::Tail => log.end,
                        Place::Time(at) => at.saturating_sub(1_000),
                    }),
                    log_start: Offset(log.log_start),
                    high_water_mark: Offset(log.end),
                    incarnation: INCARNATION,
                    lineage: LINEAGE,
                };
                Ok((Reply::FoundOffset(found), none))
            }
            _ => Err(ErrorCode::InvalidRequest),
        }
    }

    fn produce(&self, partition: usize, batch: &[u8]) -> Result<Produced, ErrorCode> {
        let view = BatchView::parse(batch).map_err(|_| ErrorCode::CorruptBatch)?;
        let header = view.header();
        let mut duplicate = false;
        if header.writer != Writer::Anonymous {
            let mut state = self.state();
            let last = &mut state.partitions[partition].last;
            let last = last.entry(header.writer).or_default();
            duplicate = header.sequence <= *last;
            if !duplicate && header.previous != *last {
                return Err(ErrorCode::OutOfOrderSequence);
            }
            *last = header.sequence.max(*last);
            state.duplicates += usize::from(duplicate);
        }
        let base = (!duplicate).then(|| self.append(partition, batch));
        Ok(Produced {
            base_offset: base,
            commit_time: base.map(|base| 1_000 + base.0),
            durability: Durability::Fsync,
            lineage: LINEAGE,
            duplicate,
        })
    }

    async fn fetch(&self, fetch: &FetchRequest) -> Result<(Reply, Bytes), ErrorCode> {
        self.state().fetches += 1;
        let give_up = tokio::time::Instant::now() + Duration::from_millis(u64::from(fetch.wait_millis));
        loop {
            {
                let state = self.state();
                let log = &state.partitions[fetch.partition.0 as usize];
                if fetch.from.0 < log.log_start {
                    return Err(ErrorCode::PositionBehind);
                }
                if fetch.from.0 > log.end {
                    return Err(ErrorCode::PositionAhead);
                }
                if log.end > fetch.from.0 || tokio::time::Instant::now() >= give_up {
                    return Ok(log.read(fetch, Lineage(state.lineage)));
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Partition {
    fn read(&self, fetch: &FetchRequest, lineage: Lineage) -> (Reply, Bytes) {
        let mut out = BytesMut::new();
        let mut next = fetch.from;
        for (header, bytes) in &self.batches {
            let bad = self
                .quarantined
                .iter()
                .any(|(from, to)| (*from..*to).contains(&header.base_offset));
            if header.end_offset() <= fetch.from {
                continue;
            }
            if out.len() + bytes.len() > fetch.bytes_max as usize && !out.is_empty() {
                break;
            }
            next = header.end_offset();
            if !bad {
                out.extend_from_slice(bytes);
            }
        }
        let fetched = Fetched {
            incarnation: INCARNATION,
            lineage,
            log_start: Offset(self.log_start),
            high_water_mark: Offset(self.end),
            next,
            quarantined: self.quarantined.clone(),
        };
        (Reply::Fetched(fetched), out.freeze())
    }
}

fn refusal(correlation: u64, code: ErrorCode) -> Vec<u8> {
    frame::encode(
        FrameKind::Refusal,
        correlation,
        &Refusal::new(code, "the fake says no"),
        0,
    )
}

pub const INCARNATION: Incarnation = Incarnation([1; 8]);
pub const LINEAGE: Lineage = Lineage([2; 8]);

pub fn topic_name() -> TopicName {
    "ticks".parse().expect("a name")
}

pub fn topic(partitions: u32) -> Topic {
    Topic {
        spec: TopicSpec {
            name: topic_name(),
            partitions,
            partitioner: Partitioner::Murmur2,
            retention: tailwater_wire::meta::Retention::default(),
            durability: Durability::Fsync,
        },
        incarnation: INCARNATION,
        owner_epochs: vec![OwnerEpoch(1); partitions as usize],
    }
}
