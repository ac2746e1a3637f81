//! What tail readers do to a producer.

use std::time::{Duration, Instant};

use tailwater_tests::cluster::by_hand::Bounds;
use tailwater_tests::cluster::load::{record, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_wire::client::config::{ConsumerOptions, ProducerOptions};
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::TopicName;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::figures::{Rounds, becomes, lone_records};

const READERS: usize = 10;
const ROUNDS: usize = 5;
/// Lone records of one figure.
const RECORDS: u64 = 1_500;
const PAUSE: Duration = Duration::from_millis(3);
/// How long a reader may take to see a record.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// Readers at the end of a topic, each on a connection of its own; dropped, they end.
struct Readers {
    tasks: JoinSet<()>,
    batches: Vec<watch::Receiver<u64>>,
}

impl Readers {
    /// Returns when each has read a record.
    async fn start(node: &TestNode, client: &Client, of: &TopicName) -> Readers {
        let (mut tasks, mut batches) = (JoinSet::new(), Vec::new());
        for _ in 0..READERS {
            let own = node.client().await;
            let consumer = own.consumer(of, ConsumerOptions::default()).await;
            let mut consumer = consumer.expect("a consumer");
            let (read, batch) = watch::channel(0);
            batches.push(batch);
            tasks.spawn(async move {
                while consumer.next().await.expect("readable").is_some() {
                    read.send_modify(|batches| *batches += 1);
                }
                drop(own);
            });
        }
        let mut readers = Readers { tasks, batches };
        let producer = client
            .producer(of, ProducerOptions::default())
            .await
            .expect("a producer");
        let began = Instant::now();
        // A consumer without a fetch on its way may begin after any one record: it gets another.
        while readers.read_by_all() == 0 {
            assert!(began.elapsed() < SEEN_WITHIN, "a reader that reads nothing");
            let delivery = producer.send(record(0, 100)).await.expect("taken");
            delivery.await.expect("acknowledged");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        readers.none_ended();
        readers
    }

    /// Batches that the slowest has read.
    fn read_by_all(&self) -> u64 {
        let batches = self.batches.iter().map(|batches| *batches.borrow());
        batches.min().unwrap_or(0)
    }

    fn none_ended(&mut self) {
        let ended = self.tasks.try_join_next();
        assert!(ended.is_none(), "a reader ended: {ended:?}");
    }
}

/// Lone records without and with ten tail readers, in turns.
pub async fn tail_readers(bounds: &mut Bounds) {
    let node = TestNode::start_with("shards = 1").await;
    let client = node.client().await;
    node.cli().run("topic create ticks").await.succeeded();
    let ticks = topic("ticks");
    lone_records(&client, &ticks, RECORDS, PAUSE).await;
    let mut rounds = Rounds::of(format!("{READERS} tail readers"));
    for _ in 0..ROUNDS {
        becomes(&node, "client_connections", 1).await;
        let without = lone_records(&client, &ticks, RECORDS, PAUSE).await;
        let mut readers = Readers::start(&node, &client, &ticks).await;
        becomes(&node, "client_connections", 1 + READERS).await;
        let before = readers.read_by_all();
        let with = lone_records(&client, &ticks, RECORDS, PAUSE).await;
        readers.none_ended();
        // Readers that fall behind read several batches at once: whether they kept up shows what the figure is of.
        let read = readers.read_by_all() - before;
        assert!(read > 0, "the readers read nothing");
        readers.tasks.shutdown().await;
        println!(
            "{}; the slowest reader read {read} batches",
            rounds.add(without, with)
        );
    }
    println!("{}", rounds.medians());
    let ratio = rounds.p99_ratio();
    bounds.hold(
        ratio <= 1.3,
        "median p99 with readers at most 1.3 x without",
        format!("{ratio:.2}"),
    );
}
