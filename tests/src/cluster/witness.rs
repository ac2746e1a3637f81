//! A client that wants nothing special: it produces and reads back, one record at a time, while something else goes
//! wrong, and finds out whether it was served all the while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tailwater_wire::client::config::ProducerOptions;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::TopicName;
use tailwater_wire::message::FetchRequest;
use tailwater_wire::meta::{Durability, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;
use tokio::task::JoinHandle;

use crate::cluster::load::record;
use crate::cluster::node::TestNode;

/// A pause between two rounds.
const PAUSE: Duration = Duration::from_millis(20);
/// Longer than this nobody is to wait, on a slow disk and a machine with other work; a client gives up after 10 s.
const SERVED_WITHIN: Duration = Duration::from_secs(8);

/// The witness, at work.
#[derive(Debug)]
pub struct Witness {
    stop: Arc<AtomicBool>,
    task: JoinHandle<(u64, Duration)>,
}

/// A topic with the defaults.
#[must_use]
pub fn spec(topic: &TopicName, partitions: u32) -> TopicSpec {
    TopicSpec {
        name: topic.clone(),
        partitions,
        partitioner: Partitioner::default(),
        retention: Retention::default(),
        durability: Durability::Fsync,
    }
}

impl Witness {
    /// Begins, on a topic and a connection of its own.
    pub async fn start(node: &TestNode) -> Witness {
        let client = node.client().await;
        let topic = crate::cluster::load::topic("witness");
        client
            .create_topic(spec(&topic, 1))
            .await
            .expect("a topic for the witness");
        let stop = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(rounds(client, topic, Arc::clone(&stop)));
        Witness { stop, task }
    }

    /// Ends, and judges. Returns how many rounds were served.
    ///
    /// # Panics
    /// When it was refused, waited too long, or had no round at all.
    pub async fn was_served(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let (rounds, longest) = self.task.await.expect("the witness was served");
        assert!(rounds > 0, "the witness had no round");
        assert!(longest < SERVED_WITHIN, "the witness waited {longest:?}");
        rounds
    }
}

async fn rounds(client: Client, topic: TopicName, stop: Arc<AtomicBool>) -> (u64, Duration) {
    let producer = client
        .producer(&topic, ProducerOptions::default())
        .await
        .expect("a producer");
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let delivery = producer
            .send(record(rounds, 100))
            .await
            .expect("a producer takes a record");
        let delivered = delivery.await.expect("an acknowledgement");
        let request = FetchRequest {
            topic: topic.clone(),
            incarnation: None,
            lineage: None,
            partition: delivered.partition,
            from: delivered.offset.expect("a first delivery knows its offset"),
            bytes_max: 1 << 20,
            wait_millis: 0,
        };
        let (_, slab) = client.fetch(request).await.expect("a slab");
        assert!(!slab.is_empty(), "an acknowledged record can be read");
        longest = longest.max(started.elapsed());
        rounds += 1;
        tokio::time::sleep(PAUSE).await;
    }
    (rounds, longest)
}
