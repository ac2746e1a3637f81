//! The committed bytes of frames and of every message, as `golden` has them of batches: one line of hex each.
//!
//! `TAILWATER_BLESS=1 cargo test -p tailwater-wire --test golden_messages` writes the file anew; see `golden.rs` for
//! when that is allowed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::decoder::FrameDecoder;
use tailwater_wire::frame::{self, FRAME_HEADER_BYTES, FrameKind};
use tailwater_wire::ids::{
    Delay, Epoch, Incarnation, Lineage, Offset, OwnerEpoch, PartitionId, TopicName, Writer,
};
use tailwater_wire::message::{
    AlterTopic, AttachRequest, BucketStatus, ClockRequest, ClockStatus, CursorStatus, DetachRequest,
    FetchRequest, Fetched, FindOffset, FoundOffset, Hello, LinkDetail, LinkStatus, OpenProducer,
    PartitionStatus, Place, ProduceRequest, Produced, ProducerKey, ProducerOpened, Reply, Request,
    ResetClock, Welcome,
};
use tailwater_wire::meta::{AttachFrom, Durability, Link, LinkOptions, Retention, Topic, TopicSpec};
use tailwater_wire::partitioner::Partitioner;

fn name(text: &str) -> TopicName {
    text.parse().expect("a name")
}

fn spec() -> TopicSpec {
    TopicSpec {
        name: name("ticks"),
        partitions: 4,
        partitioner: Partitioner::Crc32c,
        retention: Retention {
            millis: Some(604_800_000),
            bytes: None,
        },
        durability: Durability::Written,
    }
}

fn topic() -> Topic {
    Topic {
        spec: spec(),
        incarnation: Incarnation([1, 2, 3, 4, 5, 6, 7, 8]),
        owner_epochs: vec![OwnerEpoch(1), OwnerEpoch(300)],
    }
}

fn options(from: AttachFrom) -> LinkOptions {
    LinkOptions {
        delay: Delay { millis: 2_000 },
        from,
        filter: Some("kind=trade".to_owned()),
        linger_millis: Some(25),
        allow_drop: true,
    }
}

fn link() -> Link {
    Link {
        parent: name("ticks"),
        child: name("delayed"),
        epoch: Epoch([0x67, 0x95, 0x34, 0x71, 0xcc, 0x57, 0xa3, 0x2a]),
        parent_incarnation: Incarnation([1; 8]),
        child_incarnation: Incarnation([2; 8]),
        options: options(AttachFrom::Tail),
        attach_offsets: vec![Offset(0), Offset(98_332)],
        index: 77,
    }
}

fn requests() -> Vec<(&'static str, Request)> {
    let attach = |from| {
        Request::Attach(AttachRequest {
            request_id: [9; 16],
            parent: name("ticks"),
            child: name("delayed"),
            options: options(from),
        })
    };
    let open = |producer| {
        Request::OpenProducer(OpenProducer {
            topic: name("ticks"),
            incarnation: Incarnation([1; 8]),
            partition: PartitionId(3),
            producer,
        })
    };
    let find = |at| {
        Request::FindOffset(FindOffset {
            topic: name("ticks"),
            partition: PartitionId(1_023),
            at,
        })
    };
    let fetch = |incarnation, lineage| {
        Request::Fetch(FetchRequest {
            topic: name("ticks"),
            incarnation,
            lineage,
            partition: PartitionId(0),
            from: Offset(u64::MAX),
            bytes_max: 4 << 20,
            wait_millis: 1_000,
        })
    };
    vec![
        (
            "hello",
            Request::Hello(Hello {
                client: "kit/1".to_owned(),
                token: None,
            }),
        ),
        (
            "hello-token",
            Request::Hello(Hello {
                client: String::new(),
                token: Some("s".to_owned()),
            }),
        ),
        ("ping", Request::Ping),
        ("describe-topics-all", Request::DescribeTopics(None)),
        (
            "describe-topics",
            Request::DescribeTopics(Some(vec![name("a"), name("b.c")])),
        ),
        ("create-topic", Request::CreateTopic(spec())),
        ("delete-topic", Request::DeleteTopic(name("ticks"))),
        ("attach-tail", attach(AttachFrom::Tail)),
        ("attach-earliest", attach(AttachFrom::Earliest)),
        ("attach-offset", attach(AttachFrom::Offset(Offset(5)))),
        ("attach-time", attach(AttachFrom::Time(1 << 60))),
        (
            "detach",
            Request::Detach(DetachRequest {
                parent: name("ticks"),
                child: name("delayed"),
            }),
        ),
        ("list-links-all", Request::ListLinks(None)),
        ("list-links", Request::ListLinks(Some(name("ticks")))),
        (
            "produce",
            Request::Produce(ProduceRequest {
                topic: name("ticks"),
                incarnation: Incarnation([1; 8]),
                partition: PartitionId(3),
            }),
        ),
        ("open-producer-random", open(ProducerKey::Random([7; 16]))),
        ("open-producer-named", open(ProducerKey::Named("feed".to_owned()))),
        ("fetch", fetch(None, None)),
        (
            "fetch-positioned",
            fetch(Some(Incarnation([1; 8])), Some(Lineage([2; 8]))),
        ),
        ("find-offset-earliest", find(Place::Earliest)),
        ("find-offset-tail", find(Place::Tail)),
        ("find-offset-time", find(Place::Time(1 << 60))),
        (
            "alter-topic",
            Request::AlterTopic(AlterTopic {
                topic: name("ticks"),
                partitions: Some(8),
                retention: Some(Retention {
                    millis: None,
                    bytes: Some(1 << 30),
                }),
            }),
        ),
        ("list-partitions", Request::ListPartitions(Some(name("ticks")))),
        (
            "describe-link",
            Request::DescribeLink(DetachRequest {
                parent: name("ticks"),
                child: name("delayed"),
            }),
        ),
        ("clock-read", Request::Clock(ClockRequest::Read)),
        ("clock-accept", Request::Clock(ClockRequest::Accept)),
        (
            "reset-clock",
            Request::ResetClock(ResetClock {
                topic: name("ticks"),
                partition: PartitionId(2),
            }),
        ),
    ]
}

fn replies() -> Vec<(&'static str, Reply)> {
    let produced = |base_offset, commit_time, durability, duplicate| {
        Reply::Produced(Produced {
            base_offset,
            commit_time,
            durability,
            lineage: Lineage([2; 8]),
            duplicate,
        })
    };
    let opened = |writer| {
        Reply::ProducerOpened(ProducerOpened {
            writer,
            last_sequence: 1_000,
            lineage: Lineage([2; 8]),
        })
    };
    let cursor = CursorStatus {
        partition: PartitionId(2),
        epoch: link().epoch,
        position: Offset(10),
        parent_high_water_mark: Offset(300),
        due_lag_millis: 12,
        next_due: Some(1 << 60),
        committed: 1,
        filtered: 2,
        dropped: 3,
        duplicates: 4,
        stalled: Some("disk full".to_owned()),
    };
    let clock = ClockStatus {
        shard: 1,
        now: 1 << 60,
        wall: 1 << 61,
        held: true,
    };
    vec![
        (
            "welcome",
            Reply::Welcome(Welcome {
                node: 1,
                cluster: "0011".to_owned(),
                shard: 2,
                shard_ports: vec![7_400, 7_401],
                version: "0.1.0".to_owned(),
            }),
        ),
        ("pong", Reply::Pong),
        ("topics", Reply::Topics(vec![topic()])),
        ("topic-created", Reply::TopicCreated(topic())),
        ("topic-deleted", Reply::TopicDeleted),
        ("attached", Reply::Attached(link())),
        ("detached", Reply::Detached),
        (
            "links",
            Reply::Links(vec![LinkStatus {
                link: link(),
                cursors: vec![cursor.clone()],
            }]),
        ),
        (
            "produced",
            produced(Some(Offset(5)), Some(1 << 60), Durability::Fsync, false),
        ),
        (
            "produced-duplicate",
            produced(None, None, Durability::Written, true),
        ),
        ("producer-opened-random", opened(Writer::Random([7; 16]))),
        ("producer-opened-named", opened(Writer::Named([8; 16]))),
        (
            "fetched",
            Reply::Fetched(Fetched {
                incarnation: Incarnation([1; 8]),
                lineage: Lineage([2; 8]),
                log_start: Offset(1),
                high_water_mark: Offset(1_000),
                next: Offset(200),
                quarantined: vec![(Offset(10), Offset(20))],
            }),
        ),
        (
            "found-offset",
            Reply::FoundOffset(FoundOffset {
                offset: Offset(3),
                log_start: Offset(1),
                high_water_mark: Offset(1_000),
                incarnation: Incarnation([1; 8]),
                lineage: Lineage([2; 8]),
            }),
        ),
        ("topic-altered", Reply::TopicAltered(topic())),
        (
            "partitions",
            Reply::Partitions(vec![PartitionStatus {
                topic: name("ticks"),
                partition: PartitionId(2),
                shard: 1,
                log_start: Offset(1),
                high_water_mark: Offset(1_000),
                lineage: Some(Lineage([2; 8])),
                trouble: Some("latched".to_owned()),
            }]),
        ),
        (
            "link-detail",
            Reply::LinkDetail(LinkDetail {
                status: LinkStatus {
                    link: link(),
                    cursors: vec![cursor],
                },
                buckets: vec![vec![BucketStatus {
                    partition: PartitionId(1),
                    position: Offset(10),
                    committed: 5,
                    dropped: 6,
                    stalled: None,
                }]],
            }),
        ),
        ("clocks", Reply::Clocks(vec![clock])),
        ("clock-reset", Reply::ClockReset(clock)),
    ]
}

/// Whoever adds a variant comes by here: it needs a line in `requests` too.
fn request_variant(request: &Request) -> usize {
    match request {
        Request::Hello(_) => 0,
        Request::Ping => 1,
        Request::DescribeTopics(_) => 2,
        Request::CreateTopic(_) => 3,
        Request::DeleteTopic(_) => 4,
        Request::Attach(_) => 5,
        Request::Detach(_) => 6,
        Request::ListLinks(_) => 7,
        Request::Produce(_) => 8,
        Request::OpenProducer(_) => 9,
        Request::Fetch(_) => 10,
        Request::FindOffset(_) => 11,
        Request::AlterTopic(_) => 12,
        Request::ListPartitions(_) => 13,
        Request::DescribeLink(_) => 14,
        Request::Clock(_) => 15,
        Request::ResetClock(_) => 16,
    }
}

/// As `request_variant`, for `replies`.
fn reply_variant(reply: &Reply) -> usize {
    match reply {
        Reply::Welcome(_) => 0,
        Reply::Pong => 1,
        Reply::Topics(_) => 2,
        Reply::TopicCreated(_) => 3,
        Reply::TopicDeleted => 4,
        Reply::Attached(_) => 5,
        Reply::Detached => 6,
        Reply::Links(_) => 7,
        Reply::Produced(_) => 8,
        Reply::ProducerOpened(_) => 9,
        Reply::Fetched(_) => 10,
        Reply::FoundOffset(_) => 11,
        Reply::TopicAltered(_) => 12,
        Reply::Partitions(_) => 13,
        Reply::LinkDetail(_) => 14,
        Reply::Clocks(_) => 15,
        Reply::ClockReset(_) => 16,
    }
}

/// Meta bytes by name, each checked to read back as the message.
fn metas<M>(kind: FrameKind, prefix: &str, messages: &[(&str, M)], out: &mut BTreeMap<String, Vec<u8>>)
where
    M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    for (name, message) in messages {
        let meta = frame::encode(kind, 0, message, 0).split_off(FRAME_HEADER_BYTES);
        assert_eq!(frame::decode_meta::<M>(&meta).as_ref(), Ok(message), "{name}");
        let before = out.insert(format!("{prefix}/{name}"), meta);
        assert!(before.is_none(), "{name} twice");
    }
}

#[test]
fn every_message_has_its_committed_bytes() {
    let (requests, replies) = (requests(), replies());
    let mut seen: Vec<usize> = requests
        .iter()
        .map(|(_, request)| request_variant(request))
        .collect();
    seen.dedup();
    assert_eq!(
        seen,
        (0..17).collect::<Vec<_>>(),
        "every request, in the order of the enum"
    );
    let mut seen: Vec<usize> = replies.iter().map(|(_, reply)| reply_variant(reply)).collect();
    seen.dedup();
    assert_eq!(
        seen,
        (0..17).collect::<Vec<_>>(),
        "every reply, in the order of the enum"
    );

    let refusals: Vec<(&str, Refusal)> = ErrorCode::ALL
        .iter()
        .map(|&code| (code.name(), Refusal::new(code, "why")))
        .collect();
    let mut now = BTreeMap::new();
    metas(FrameKind::Request, "request", &requests, &mut now);
    metas(FrameKind::Reply, "reply", &replies, &mut now);
    metas(FrameKind::Refusal, "refusal", &refusals, &mut now);
    let frame = frame::encode(FrameKind::Request, 0x0102_0304_0506_0708, &requests[0].1, 640);
    let mut decoder = FrameDecoder::new();
    decoder.feed(&frame);
    decoder.feed(&[0; 640]);
    let read = decoder.next_frame().expect("sound").expect("whole");
    assert_eq!(read.header.correlation, 0x0102_0304_0506_0708);
    now.insert("frame/hello-and-640-bytes".to_owned(), frame);

    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/messages.hex");
    if std::env::var_os("TAILWATER_BLESS").is_some() {
        let mut text = String::new();
        for (name, bytes) in &now {
            writeln!(text, "{name} {}", hex(bytes)).expect("a string takes all");
        }
        std::fs::write(&path, text).expect("testdata can be written");
    }
    let text = std::fs::read_to_string(&path).expect("testdata is there");
    let committed: BTreeMap<&str, &str> = text
        .lines()
        .map(|line| line.split_once(' ').expect("a name and hex"))
        .collect();
    for (name, bytes) in &now {
        let bytes = hex(bytes);
        assert_eq!(committed.get(name.as_str()), Some(&bytes.as_str()), "{name}");
    }
    assert_eq!(committed.len(), now.len(), "none was left out");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        write!(out, "{byte:02x}").expect("a string takes all");
        out
    })
}
