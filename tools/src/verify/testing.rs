//! A node in memory for tests: logs of batches, one link, and the requests that a verification makes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::decoder::{Frame, FrameDecoder};
use tailwater_wire::frame::{FrameKind, decode_meta, encode};
use tailwater_wire::ids::{CommitTime, Incarnation, Lineage, Offset, PartitionId};
use tailwater_wire::message::{
    FetchRequest, Fetched, FoundOffset, LinkStatus, Place, Reply, Request, Welcome,
};
use tailwater_wire::meta::Topic;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The history of every partition here.
pub const LINEAGE: Lineage = Lineage([9; 8]);
/// The life of every topic here.
pub const INCARNATION: Incarnation = Incarnation([8; 8]);

/// One partition's log.
#[derive(Debug, Clone, Default)]
pub struct Log {
    batches: Vec<(Offset, Bytes)>,
    start: Offset,
    end: Offset,
}

impl Log {
    /// Appends a batch as an owner does, and returns its first offset.
    pub fn append(&mut self, batch: &[u8], commit_time: u64) -> Offset {
        let mut bytes = batch.to_vec();
        let mut header = BatchHeader::decode(&bytes).expect("a batch");
        let base = self.end;
        header.base_offset = base;
        header.commit_time = CommitTime(commit_time);
        header.encode(&mut bytes);
        self.end = header.end_offset();
        self.batches.push((base, bytes.into()));
        base
    }

    /// Removes a batch, as damage does; its offsets stay.
    pub fn lose(&mut self, index: usize) {
        self.batches.remove(index);
    }

    /// Removes a batch and what follows it, as the loss of a segment does; their offsets are free again.
    pub fn lose_from(&mut self, index: usize) {
        self.end = self.batches.get(index).map_or(self.end, |&(base, _)| base);
        self.batches.truncate(index);
    }

    /// Removes everything below a batch, as retention does.
    pub fn retain_from(&mut self, index: usize) {
        self.batches.drain(..index);
        self.start = self.batches.first().map_or(self.end, |&(base, _)| base);
    }

    /// The batches, as they lie in the log.
    pub fn batches(&self) -> Vec<Bytes> {
        self.batches.iter().map(|(_, bytes)| bytes.clone()).collect()
    }

    fn fetch(&self, request: &FetchRequest) -> (Fetched, Bytes) {
        let mut payload = Vec::new();
        let mut next = request.from;
        for (base, bytes) in &self.batches {
            let end = BatchHeader::decode(bytes).expect("a batch").end_offset();
            if end <= request.from {
                continue;
            }
            if !payload.is_empty() && payload.len() + bytes.len() > request.bytes_max as usize {
                break;
            }
            assert!(*base <= end);
            payload.extend_from_slice(bytes);
            next = end;
        }
        if payload.is_empty() {
            next = self.end;
        }
        let fetched = Fetched {
            incarnation: INCARNATION,
            lineage: LINEAGE,
            log_start: self.start,
            high_water_mark: self.end,
            next,
            quarantined: Vec::new(),
        };
        (fetched, payload.into())
    }

    fn find(&self, at: Place) -> FoundOffset {
        FoundOffset {
            offset: if at == Place::Earliest {
                self.start
            } else {
                self.end
            },
            log_start: self.start,
            high_water_mark: self.end,
            incarnation: INCARNATION,
            lineage: LINEAGE,
        }
    }
}

/// What the node has; tests change it while it runs.
#[derive(Debug, Default)]
pub struct World {
    /// By name.
    pub topics: Vec<Topic>,
    /// By topic and partition.
    pub logs: BTreeMap<(String, u32), Log>,
    /// With their progress.
    pub links: Vec<LinkStatus>,
}

impl World {
    /// A partition's log.
    pub fn log(&mut self, topic: &str, partition: u32) -> &mut Log {
        self.logs.entry((topic.to_owned(), partition)).or_default()
    }
}

/// Serves a world on a port of its own, for as long as the runtime lives.
pub async fn serve(world: Arc<Mutex<World>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(connection(socket, world.clone()));
        }
    });
    address
}

async fn connection(mut socket: TcpStream, world: Arc<Mutex<World>>) {
    let mut decoder = FrameDecoder::new();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = socket.read(&mut buffer).await {
        decoder.feed(&buffer[..n]);
        while let Some(frame) = decoder.next_frame().expect("frames") {
            let answer = answer(&frame, &world).await;
            if socket.write_all(&answer).await.is_err() {
                return;
            }
        }
    }
}

async fn answer(frame: &Frame, world: &Mutex<World>) -> Vec<u8> {
    let request: Request = decode_meta(&frame.meta).expect("a request");
    let correlation = frame.header.correlation;
    if let Request::Fetch(fetch) = &request {
        let key = (fetch.topic.to_string(), fetch.partition.0);
        let at_end = |world: &World| world.logs.get(&key).is_none_or(|log| fetch.from >= log.end);
        let waits = at_end(&world.lock().expect("unpoisoned"));
        if waits {
            tokio::time::sleep(Duration::from_millis(u64::from(fetch.wait_millis))).await;
        }
    }
    let mut world = world.lock().expect("unpoisoned");
    match reply(&request, &mut world) {
        Ok((reply, payload)) => {
            let mut bytes = encode(FrameKind::Reply, correlation, &reply, payload.len());
            bytes.extend_from_slice(&payload);
            bytes
        }
        Err(refusal) => encode(FrameKind::Refusal, correlation, &refusal, 0),
    }
}

fn reply(request: &Request, world: &mut World) -> Result<(Reply, Bytes), Refusal> {
    let mut payload = Bytes::new();
    let reply = match request {
        Request::Hello(_) => Reply::Welcome(Welcome {
            node: 1,
            cluster: "test".to_owned(),
            shard: 0,
            shard_ports: Vec::new(),
            version: "0".to_owned(),
        }),
        Request::Ping => Reply::Pong,
        Request::DescribeTopics(_) => Reply::Topics(world.topics.clone()),
        Request::ListLinks(_) => Reply::Links(world.links.clone()),
        Request::FindOffset(find) => {
            Reply::FoundOffset(world.log(find.topic.as_str(), find.partition.0).find(find.at))
        }
        Request::Fetch(fetch) => {
            let PartitionId(partition) = fetch.partition;
            let (fetched, bytes) = world.log(fetch.topic.as_str(), partition).fetch(fetch);
            payload = bytes;
            Reply::Fetched(fetched)
        }
        other => {
            let what = format!("this node only reads: {other:?}");
            return Err(Refusal::new(ErrorCode::InvalidRequest, what));
        }
    };
    Ok((reply, payload))
}
