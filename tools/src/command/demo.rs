//! `demo`: a node in this process, a tick feed fanned out three ways, every link verified, and one table of it.
//!
//! Produce times are from when a record was due, or at the greatest speed was handed to the client, until its
//! acknowledgement.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use tailwater_node::config::NodeConfig;
use tailwater_wire::client::config::{ClientConfig, ProducerOptions};
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::{Delay, TopicName};
use tailwater_wire::meta::{Durability, LinkOptions, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;
use tempfile::TempDir;

use crate::cli::{Demo, Global};
use crate::command::context::{bar, runtime};
use crate::command::link::{say_ranges, verify_table};
use crate::command::node;
use crate::command::signals::Signals;
use crate::error::Failure;
use crate::feed::player::{CHUNK_RECORDS, Item, Player, read_ahead};
use crate::feed::replay::{Pace, Speed, speed_to_fit};
use crate::feed::source::Source;
use crate::output::{self, Format, Out};
use crate::verify::driver::{self, PATIENCE};
use crate::verify::row::Row;

/// About how long a replay takes unless a speed was asked for.
const REPLAY: Duration = Duration::from_secs(10);
/// How often the links' bars are moved.
const LOOK: Duration = Duration::from_millis(200);
/// How long a producer's batch tops up while another is in flight.
const LINGER: Duration = Duration::from_millis(1);

const PARENT: &str = "ticks";
const PARENT_PARTITIONS: u32 = 4;
/// Child, partitions, delay in milliseconds, filter.
const CHILDREN: [(&str, u32, u64, Option<&str>); 3] = [
    ("analytics", 8, 0, None),
    ("trades", 4, 0, Some("kind=trade")),
    ("delayed", 4, 2_000, None),
];

/// What the demo came to.
#[derive(Debug, Serialize)]
struct Report {
    /// Acknowledged events.
    produced: u64,
    /// From the first event to the last acknowledgement.
    elapsed_ms: u64,
    produce_p50_us: u64,
    produce_p99_us: u64,
    fsync_p50_us: u64,
    links: Vec<Row>,
}

/// Runs it.
///
/// # Errors
/// Exit 5 when a link is not as it must be; that a signal ended it; or what kept the demo from its end.
pub fn run(global: &Global, args: &Demo) -> Result<(), Failure> {
    node::start_log("warn,openraft=error");
    let source = Source::survey(args.input.as_deref())?;
    // Before there is anything to clean up: a signal that comes while the node starts is not lost.
    let runtime = runtime()?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let home = Home::choose(args)?;
    let ephemeral = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let node = node::start(NodeConfig {
        data: home.path().to_owned(),
        listen: ephemeral,
        admin: ephemeral,
        ..NodeConfig::default()
    })?;
    let server = node.listen_addr().to_string();
    let played = runtime.block_on(async {
        tokio::select! {
            report = play(server, source, args.speed) => report,
            failure = signals.next() => Err(failure),
        }
    });
    runtime.shutdown_background();
    let fsync_p50_us = node.fsync_p50_us();
    let stopped = node.stop().map_err(|error| node::stop_failure(&error));
    home.leave();
    let mut report = played?;
    stopped?;
    report.fsync_p50_us = fsync_p50_us;
    print(Format::for_document(global.output), &report)
}

fn print(format: Format, report: &Report) -> Result<(), Failure> {
    let mut out = Out::new();
    out.one(format, report, |report| verify_table(&report.links))?;
    report.links.iter().for_each(say_ranges);
    output::note(&format!(
        "{} events in {:.1} s; acknowledged in {} us (p50), {} us (p99); a flush takes {} us (p50)",
        report.produced,
        report.elapsed_ms as f64 / 1_000.0,
        report.produce_p50_us,
        report.produce_p99_us,
        report.fsync_p50_us
    ));
    if report.links.iter().all(|row| row.ok && row.pending == 0) {
        Ok(())
    } else {
        Err(Failure::found())
    }
}

/// Where the node's data goes, and whether it stays.
enum Home {
    Given(PathBuf),
    Temporary(TempDir),
    Kept(PathBuf),
}

impl Home {
    fn choose(args: &Demo) -> Result<Home, Failure> {
        if let Some(data) = &args.data {
            let mut entries = match std::fs::read_dir(data) {
                Ok(entries) => entries,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Ok(Home::Given(data.clone()));
                }
                Err(error) => return Err(Failure::local(format!("--data {}", data.display()), error, "IO")),
            };
            if entries.next().is_some() {
                let why = "the directory is not empty, and the demo makes its own topics";
                return Err(Failure::usage(format!("--data {}", data.display()), why));
            }
            return Ok(Home::Given(data.clone()));
        }
        let folder = tempfile::Builder::new().prefix("tailwater-demo-").tempdir();
        let folder = folder.map_err(|error| {
            Failure::local("temporary directory", error, "IO").hint("TMPDIR or --data chooses another place")
        })?;
        Ok(if args.keep {
            Home::Kept(folder.keep())
        } else {
            Home::Temporary(folder)
        })
    }

    fn path(&self) -> &Path {
        match self {
            Home::Given(path) | Home::Kept(path) => path,
            Home::Temporary(folder) => folder.path(),
        }
    }

    /// Removes the data, or says where it is.
    fn leave(self) {
        match self {
            Home::Given(path) | Home::Kept(path) => {
                output::note(&format!("the data is in {}", path.display()))
            }
            Home::Temporary(folder) => {
                let path = folder.path().display().to_string();
                if let Err(error) = folder.close() {
                    output::note(&format!("{path} could not be removed: {error}"));
                }
            }
        }
    }
}

async fn play(server: String, source: Source, speed: Option<Speed>) -> Result<Report, Failure> {
    let client = Client::connect(ClientConfig::new(server)).await?;
    set_up(&client).await?;
    let speed = speed.unwrap_or_else(|| speed_to_fit(source.span_ms(), REPLAY));
    let bars = Bars::new(&source);
    let watched = client.clone();
    let replay = replay(&client, source, Pace::new(speed), &bars.produced);
    let mut report = tokio::select! {
        report = replay => report?,
        failure = watch(&watched, &bars) => return Err(failure),
    };
    let parent = name(PARENT)?;
    for (child, ..) in CHILDREN {
        let child = name(child)?;
        let verified = driver::verify(&client, &parent, &child, PATIENCE, |_| {});
        let row = tokio::select! {
            row = verified => row?,
            failure = watch(&watched, &bars) => return Err(failure),
        };
        report.links.push(row);
    }
    bars.clear();
    Ok(report)
}

fn name(text: &str) -> Result<TopicName, Failure> {
    text.parse().map_err(|error| Failure::usage(text, error))
}

async fn set_up(client: &Client) -> Result<(), Failure> {
    let topic = async |topic: &str, partitions| -> Result<(), Failure> {
        let spec = TopicSpec {
            name: name(topic)?,
            partitions,
            partitioner: Partitioner::default(),
            retention: Retention::default(),
            durability: Durability::Fsync,
        };
        client.create_topic(spec).await?;
        Ok(())
    };
    topic(PARENT, PARENT_PARTITIONS).await?;
    for (child, partitions, delay_ms, filter) in CHILDREN {
        topic(child, partitions).await?;
        let options = LinkOptions {
            delay: Delay { millis: delay_ms },
            filter: filter.map(str::to_owned),
            ..LinkOptions::default()
        };
        client.attach(&name(PARENT)?, &name(child)?, options).await?;
    }
    Ok(())
}

/// Sends every event at its time, and waits until all are acknowledged.
async fn replay(client: &Client, source: Source, pace: Pace, bar: &ProgressBar) -> Result<Report, Failure> {
    let options = ProducerOptions {
        linger: LINGER,
        ..ProducerOptions::default()
    };
    let producer = client.producer(&name(PARENT)?, options).await?;
    let items = source.events()?.map(|event| {
        let event = event.map_err(|error| Failure::local("feed", error, "FEED"))?;
        Ok(Item {
            time_ns: event.time_ms.saturating_mul(1_000_000),
            line: 0,
            record: event.to_record(),
        })
    });
    let player = Player::new();
    let moved = |produced| bar.set_position(produced);
    let played = player
        .play(&producer, read_ahead(items, CHUNK_RECORDS), pace, moved)
        .await?;
    if let Some(failure) = played.failure {
        return Err(failure);
    }
    Ok(Report {
        produced: played.produced,
        elapsed_ms: played.elapsed.as_millis() as u64,
        produce_p50_us: played.response.value_at_quantile(0.5),
        produce_p99_us: played.response.value_at_quantile(0.99),
        fsync_p50_us: 0,
        links: Vec::new(),
    })
}

/// Live progress: what was produced, and what each link has copied.
struct Bars {
    all: MultiProgress,
    produced: ProgressBar,
    links: Vec<(&'static str, ProgressBar)>,
}

impl Bars {
    fn new(source: &Source) -> Bars {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        let produced = all.add(bar(source.count(), PARENT));
        let link = |(child, _, _, filter): (&'static str, u32, u64, Option<&str>)| {
            let len = if filter.is_some() {
                source.trades()
            } else {
                source.count()
            };
            (child, all.add(bar(len, child)))
        };
        let links = CHILDREN.map(link).into_iter().collect();
        Bars { all, produced, links }
    }

    fn clear(&self) {
        // A terminal that went away has nothing left to clear.
        let _ = self.all.clear();
    }
}

/// Moves the links' bars for as long as it is polled; ends only when the node cannot be asked.
async fn watch(client: &Client, bars: &Bars) -> Failure {
    loop {
        match client.list_links(None).await {
            Ok(links) => {
                for (child, bar) in &bars.links {
                    let link = links.iter().find(|status| status.link.child.as_str() == *child);
                    let committed = link.map_or(0, |status| status.cursors.iter().map(|c| c.committed).sum());
                    bar.set_position(committed);
                }
            }
            Err(error) => return error.into(),
        }
        tokio::time::sleep(LOOK).await;
    }
}
