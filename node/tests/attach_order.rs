//! The order in which an attach asks the shards: what is over is stopped everywhere, then the parent's ends are read, then
//! the link comes into force (SPEC.md F6). The shards are queues that the test answers.

use std::sync::Arc;
use std::time::Duration;

use tailwater_node::control::request::{Answer, ControlRequest, ShardCommand};
use tailwater_node::control::service::{Bounds, Control};
use tailwater_node::control::space::Space;
use tailwater_node::metastore::command::{Attach, Command, Outcome};
use tailwater_node::metastore::handle::{Metastore, Options};
use tailwater_node::metastore::state::FIRST_OWNER_EPOCH;
use tailwater_node::telemetry::exporter::Exporter;
use tailwater_storage::disk::watchdog::{Watchdog, WatchdogOptions};
use tailwater_wire::ids::{Epoch, Incarnation, Offset, PartitionId, TopicName};
use tailwater_wire::message::{AttachRequest, Reply, Request};
use tailwater_wire::meta::{Durability, LinkOptions, MetaSnapshot, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;

const LIFE: Incarnation = Incarnation([1; 8]);
const SHARDS: u32 = 2;
/// Longer than a change may take.
const NEVER: Duration = Duration::from_secs(60);

fn name(text: &str) -> TopicName {
    text.parse().expect("a topic name")
}

fn create(topic: &str) -> Command {
    Command::CreateTopic {
        spec: TopicSpec {
            name: name(topic),
            partitions: SHARDS,
            partitioner: Partitioner::Murmur2,
            retention: Retention::default(),
            durability: Durability::Fsync,
        },
        incarnation: LIFE,
    }
}

/// A link that was attached and detached in the metadata, which no shard has heard of: as it is when the shards were slow and
/// the detach was answered `PENDING`. Returns its metadata's version.
async fn detached_unheard(metastore: &Metastore) -> u64 {
    for topic in ["ticks", "copy"] {
        metastore.propose(create(topic)).await.expect("created");
    }
    let epoch = Epoch([1; 8]);
    let attach = Attach {
        request_id: [1; 16],
        parent: name("ticks"),
        child: name("copy"),
        options: LinkOptions::default(),
        epoch,
        attach_offsets: vec![Offset(0); SHARDS as usize],
        parent_incarnation: LIFE,
        child_incarnation: LIFE,
        owner_epochs: vec![FIRST_OWNER_EPOCH; SHARDS as usize],
    };
    let attached = metastore.propose(Command::Attach(attach)).await;
    assert!(matches!(attached, Ok(Outcome::Attached(_))), "{attached:?}");
    let (parent, child) = (name("ticks"), name("copy"));
    let detach = Command::Detach { parent, child, epoch };
    metastore.propose(detach).await.expect("detached");
    metastore.snapshot().version
}

async fn next(shard: &flume::Receiver<ShardCommand>) -> ShardCommand {
    let command = tokio::time::timeout(NEVER, shard.recv_async()).await;
    command.expect("a command").expect("the service lives")
}

/// The next command, which has to bring metadata.
async fn metadata(shard: &flume::Receiver<ShardCommand>) -> (Arc<MetaSnapshot>, Answer<()>) {
    match next(shard).await {
        ShardCommand::Metadata { snapshot, done } => (snapshot, done),
        ShardCommand::AttachPoint { .. } => panic!("an end is read before the shard knows what is over"),
        _ => panic!("another command"),
    }
}

#[test]
fn no_end_is_read_before_every_shard_has_in_force_that_the_pair_was_detached() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let metastore = Metastore::open(dir.path(), 1, Options::default()).await;
        let metastore = metastore.expect("opens");
        let detached = detached_unheard(&metastore).await;
        let (commands, shards): (Vec<_>, Vec<_>) = (0..SHARDS).map(|_| flume::bounded(16)).unzip();
        let watchdog = Watchdog::start(WatchdogOptions::default(), Box::new(|_, _| {})).expect("a thread");
        let exporter = Exporter::new(Vec::new(), Arc::new(watchdog));
        let bounds = Bounds {
            partitions_max: None,
            space: Space::new(dir.path()),
            segment_bytes_first: 1 << 16,
        };
        let control = Arc::new(Control::new(metastore, commands, exporter, bounds));
        let (requests, received) = flume::bounded(1);
        let service = tokio::spawn(Arc::clone(&control).run(received));
        let (answer, answered) = flume::bounded(1);
        let request = Request::Attach(AttachRequest {
            request_id: [2; 16],
            parent: name("ticks"),
            child: name("copy"),
            options: LinkOptions::default(),
        });
        let asked = requests.send_async(ControlRequest::Client { request, answer });
        asked.await.expect("the service lives");

        // Every shard hears that nothing links the pair any more, and one of them is slow to stop its cursors.
        let mut stopped = Vec::new();
        for shard in &shards {
            let (snapshot, done) = metadata(shard).await;
            assert!(snapshot.version >= detached && snapshot.links.is_empty());
            stopped.push(done);
        }
        let slow = stopped.pop().expect("two shards");
        stopped.iter().for_each(|done| done.send(()).expect("awaited"));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(shards.iter().all(flume::Receiver::is_empty), "it waits for all");
        slow.send(()).expect("awaited");

        // Only now the ends are read.
        let mut points = Vec::new();
        for (number, shard) in (0u32..).zip(&shards) {
            let ShardCommand::AttachPoint {
                incarnation, answer, ..
            } = next(shard).await
            else {
                panic!("the ends are read next")
            };
            assert_eq!(incarnation, LIFE);
            points.push(Offset(10 + u64::from(number)));
            let mine = vec![(PartitionId(number), points[number as usize])];
            answer.send(Ok(mine)).expect("awaited");
        }
        for shard in &shards {
            let (snapshot, done) = metadata(shard).await;
            let link = snapshot
                .link(&name("ticks"), &name("copy"))
                .expect("the new link");
            assert_eq!(link.attach_offsets, points);
            assert!(answered.is_empty(), "in force nowhere yet, or not everywhere");
            done.send(()).expect("awaited");
        }
        match answered.recv_async().await.expect("an answer") {
            Ok(Reply::Attached(link)) => assert_eq!(link.attach_offsets, points),
            other => panic!("attached, not {other:?}"),
        }
        control.metastore().shutdown().await;
        service.abort();
    });
}
