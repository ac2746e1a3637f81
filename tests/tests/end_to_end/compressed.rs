//! Long delays in compressed time: a node inside this program whose clocks run many times as fast as the machine's.
//!
//! TAILWATER_CLOCK_RATE (how many times), TAILWATER_CLOCK_PER_S (records a second of the machine) and
//! TAILWATER_CLOCK_SECONDS (how long records are produced) make a long run of it: 10, 20000 and 60 take seven minutes.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use tailwater_node::clock::source::ClockSource;
use tailwater_node::config::NodeConfig;
use tailwater_node::process::Node;
use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::{directory, take_machine};
use tailwater_tests::cluster::reading::{copies, link, log};
use tailwater_wire::client::config::ClientConfig;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::Delay;
use tailwater_wire::meta::{Durability, LinkOptions, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;

/// The delays, in minutes.
const MINUTES: [u64; 3] = [1, 15, 60];
/// What the node may be behind the machine's own pace, whatever the clock's.
const LATE_AT_MOST: Duration = Duration::from_secs(1);
const BURST_EVERY: Duration = Duration::from_millis(100);

/// A number from the environment.
fn setting<T: FromStr>(name: &str, default: T) -> T {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{name}={text}: not a number"))
}

async fn create(client: &Client, name: &str, partitions: u32) {
    let spec = TopicSpec {
        name: topic(name),
        partitions,
        partitioner: Partitioner::Murmur2,
        retention: Retention {
            millis: None,
            bytes: None,
        },
        durability: Durability::Fsync,
    };
    client.create_topic(spec).await.expect("a new topic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_of_a_minute_to_an_hour_come_in_time_and_in_order() {
    let _alone = take_machine().await;
    let (rate, per_s) = (
        setting("TAILWATER_CLOCK_RATE", 240u32),
        setting("TAILWATER_CLOCK_PER_S", 2_000u64),
    );
    let seconds = setting("TAILWATER_CLOCK_SECONDS", 5u64);
    let home = directory();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = NodeConfig {
        data: home.path().join("data"),
        listen: any,
        admin: any,
        clock: ClockSource::simulated(rate).0,
        ..NodeConfig::default()
    };
    let node = Node::start(config).expect("a node in this process");
    let config = ClientConfig::new(node.listen_addr().to_string());
    let client = Client::connect(config).await.expect("a client");
    let ticks = topic("ticks");
    create(&client, "ticks", 2).await;
    for minutes in MINUTES {
        let child = format!("late-{minutes}");
        create(&client, &child, 3).await;
        let options = LinkOptions {
            delay: Delay {
                millis: minutes * 60_000,
            },
            ..LinkOptions::default()
        };
        client
            .attach(&ticks, &topic(&child), options)
            .await
            .expect("attached");
    }
    let (started, mut produced) = (Instant::now(), 0);
    let burst = per_s * BURST_EVERY.as_millis() as u64 / 1_000;
    while produced < per_s * seconds {
        produce(&client, &ticks, LoadOptions::new(produced, burst)).await;
        produced += burst;
        let due = BURST_EVERY * u32::try_from(produced / burst).expect("few bursts");
        tokio::time::sleep(due.saturating_sub(started.elapsed())).await;
    }
    let reached = produced as f64 / started.elapsed().as_secs_f64();

    let parent = log(&client, &ticks).await;
    assert_eq!(parent.len(), produced);
    let deadline = Duration::from_secs(60 * 60) / rate + Duration::from_secs(60);
    for minutes in MINUTES {
        let child = topic(&format!("late-{minutes}"));
        let waiting = Instant::now();
        let status = loop {
            let status = link(&client, &ticks, &child).await.expect("attached");
            if status
                .cursors
                .iter()
                .zip(parent.ends())
                .all(|(c, end)| c.position.0 >= end)
            {
                break status;
            }
            assert!(waiting.elapsed() < deadline, "{status:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let (copied, span) = (
            copies(&client, &child).await,
            Span::of(&status.link, &parent.ends()),
        );
        // Never early, once each, in order.
        flawless(child.as_str(), &parent, &copied, &span);
        let mut late: Vec<u64> = copied
            .iter()
            .map(|copy| {
                let original = parent.at(copy.parent_partition, copy.parent_offset);
                let due = original.expect("a copy of a record").commit_time + span.delay_ns;
                (copy.stored.commit_time - due) / u64::from(rate)
            })
            .collect();
        late.sort_unstable();
        let at = |permille: usize| Duration::from_nanos(late[(late.len() - 1) * permille / 1_000]);
        eprintln!(
            "{minutes} min at {rate}x, {reached:.0} records/s: late by the machine's time: p50 {:?}, p99 {:?}, most {:?}",
            at(500),
            at(990),
            at(1_000)
        );
        assert!(at(990) < LATE_AT_MOST, "{minutes} min: p99 {:?}", at(990));
    }
    node.stop().expect("it drains");
}
