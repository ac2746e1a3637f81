//! The command line: every command, flag and argument, checked as far as it can be without a server.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Offset, PartitionId, TopicName};
use tailwater_wire::limits::{DELAY_MILLIS_MAX, PARTITIONS_MAX};
use tailwater_wire::meta::{AttachFrom, Durability};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::time;

use crate::clock;
use crate::feed::replay::Speed;
use crate::output::Format;

/// A storage node for feeds that fan out, and its client.
#[derive(Debug, Parser)]
#[command(name = "tailwater", version, propagate_version = true, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 unreachable or timed out, \
    5 a verification found something, 130 interrupted, 143 ended by SIGTERM."
)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The node to ask.
    #[arg(
        long,
        global = true,
        env = "TAILWATER_SERVER",
        default_value = "127.0.0.1:7400"
    )]
    #[arg(value_name = "HOST:PORT", value_parser = server)]
    pub server: String,
    /// A file that holds the token to show to the node.
    #[arg(long, global = true, env = "TAILWATER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// How to print data [default: table; for `consume` without a terminal ndjson].
    #[arg(short, long, global = true, value_enum, value_name = "FORM")]
    pub output: Option<Format>,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node in the foreground; SIGTERM drains it.
    Serve(Serve),
    /// Start a node on a temporary directory, fan a tick feed out, and verify every link.
    ///
    /// Ctrl-C (exit 130) and SIGTERM (exit 143) end it early; the temporary directory is removed then as well.
    Demo(Demo),
    /// Make, list, describe and delete topics.
    #[command(subcommand)]
    Topic(Topic),
    /// Attach topics to topics, and see how far the copies are.
    #[command(subcommand)]
    Link(Link),
    /// Repair partitions.
    #[command(subcommand)]
    Partition(Partition),
    /// Show the node's clock, or vouch for the wall clock.
    #[command(args_conflicts_with_subcommands = true)]
    Clock {
        /// What to do [default: status].
        #[command(subcommand)]
        command: Option<Clock>,
    },
    /// Append a record for each line of standard input.
    Produce(Produce),
    /// Print the records of a topic.
    Consume(Consume),
    /// Look into a node's files without a node.
    #[command(subcommand)]
    Inspect(Inspect),
    /// Print a completion script for a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// `serve`. A flag wins over the configuration file.
#[derive(Debug, Args)]
pub struct Serve {
    /// The configuration file, TOML.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where topics and metadata are kept.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// How many shards; each takes a core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub shards: Option<u32>,
    /// Where clients connect to shard 0.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Where metrics and health are served.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<SocketAddr>,
}

/// `demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// A recorded feed, CSV or CSV.gz with the columns time_ms, symbol, kind, price_1e4, size [default: a built-in
    /// feed of 50,000 events].
    #[arg(long, value_name = "CSV")]
    pub input: Option<PathBuf>,
    /// A multiple of the recorded pace, or `max` [default: what takes about 10 seconds].
    #[arg(long, value_name = "X")]
    pub speed: Option<Speed>,
    /// Keep the node's data here instead of in a temporary directory; must be empty or absent.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Keep the temporary directory.
    #[arg(long)]
    pub keep: bool,
    /// How many nodes; one, in this version.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1))]
    pub nodes: u32,
}

/// `topic ...`.
#[derive(Debug, Subcommand)]
pub enum Topic {
    /// Make a topic.
    Create(TopicCreate),
    /// List all topics.
    List,
    /// Show a topic with its partitions.
    Describe {
        /// The topic.
        #[arg(value_parser = topic_name)]
        name: TopicName,
    },
    /// Delete a topic and its data.
    Delete {
        /// The topic.
        #[arg(value_parser = topic_name)]
        name: TopicName,
    },
}

/// `topic create`.
#[derive(Debug, Args)]
pub struct TopicCreate {
    /// Its name: `[a-z0-9][a-z0-9._-]*`, at most 128 characters.
    #[arg(value_parser = topic_name)]
    pub name: TopicName,
    /// How many partitions, 1 to 1,024.
    #[arg(long, value_name = "N", default_value = "1", value_parser = partitions)]
    pub partitions: u32,
    /// How long records are kept (`7d`) [default: for ever].
    #[arg(long, value_name = "T", value_parser = millis)]
    pub retention: Option<u64>,
    /// How many bytes of each partition are kept (`1GiB`) [default: all].
    #[arg(long, value_name = "B", value_parser = bytes)]
    pub retention_bytes: Option<u64>,
    /// When a produce is acknowledged: after its flush, or after its write.
    #[arg(long, value_name = "fsync|written", default_value = "fsync", value_parser = durability)]
    pub durability: Durability,
    /// How keys become partitions.
    #[arg(long, value_name = "murmur2|crc32c|identity", default_value = "murmur2")]
    pub partitioner: Partitioner,
}

/// `link ...`.
#[derive(Debug, Subcommand)]
pub enum Link {
    /// Copy a topic into another, now or after a delay.
    Attach(LinkAttach),
    /// End a link; returns when nothing is in flight any more.
    Detach {
        /// What names the link.
        #[command(flatten)]
        pair: Pair,
        /// First wait until the child has everything that is in the parent now.
        #[arg(long)]
        drain: bool,
    },
    /// List links: how far they are, and why they do not move.
    List {
        /// Only the links of this topic.
        #[arg(value_parser = topic_name)]
        parent: Option<TopicName>,
    },
    /// Prove from the logs that a child holds every record once, in order and not early.
    Verify(Pair),
}

/// A parent and a child.
#[derive(Debug, Clone, Args)]
pub struct Pair {
    /// The topic that is copied.
    #[arg(value_parser = topic_name)]
    pub parent: TopicName,
    /// The topic that receives the copies.
    #[arg(value_parser = topic_name)]
    pub child: TopicName,
}

/// `link attach`.
#[derive(Debug, Args)]
pub struct LinkAttach {
    /// What names the link.
    #[command(flatten)]
    pub pair: Pair,
    /// Hold every record back for this long (`2s`, `15m`, at most `1y`).
    #[arg(long, value_name = "T", default_value = "0s", value_parser = delay)]
    pub delay: u64,
    /// Where to start: tail, earliest, offset:N or time:T (RFC 3339, or `15m` for that long ago).
    #[arg(long, value_name = "PLACE", default_value = "tail", value_parser = attach_from)]
    pub from: AttachFrom,
    /// Copy only these records: `HEADER=VALUE`, `key^=PREFIX`, or `key=A|B|C`.
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Gather for a fixed time before each commit [default: only while a commit is in flight].
    #[arg(long, value_name = "T", value_parser = millis)]
    pub linger: Option<u64>,
    /// Allow a byte limit on the parent that retention may reach before the delay is over.
    #[arg(long)]
    pub allow_drop: bool,
}

/// `partition ...`.
#[derive(Debug, Subcommand)]
pub enum Partition {
    /// Recover a partition that was written to while the clock stood in a false future.
    ///
    /// Its records count as committed now at the latest, and new ones get the present time again.
    ResetClock {
        /// The topic.
        #[arg(value_parser = topic_name)]
        topic: TopicName,
        /// The partition.
        #[arg(short, long, value_name = "N", value_parser = partition)]
        partition: PartitionId,
    },
}

/// `clock ...`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum Clock {
    /// Show what the clock says, how far the wall clock is off, and whether anything is held because of it.
    Status,
    /// Say that the wall clock is right: delay links and retention by time go on.
    Accept,
}

/// `produce`.
#[derive(Debug, Args)]
pub struct Produce {
    /// The topic.
    #[arg(value_parser = topic_name)]
    pub topic: TopicName,
    /// What separates key and value in a line; a line without it has no key.
    #[arg(short = 'k', value_name = "SEP", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub key_separator: Option<String>,
    /// Append everything to this partition.
    #[arg(short, long, value_name = "N", value_parser = partition)]
    pub partition: Option<PartitionId>,
    /// At most so many records a second.
    #[arg(long, value_name = "R", value_parser = rate)]
    pub rate: Option<f64>,
    /// At most so many records a batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub batch: Option<u32>,
}

/// `consume`.
#[derive(Debug, Args)]
pub struct Consume {
    /// The topic.
    #[arg(value_parser = topic_name)]
    pub topic: TopicName,
    /// Only this partition.
    #[arg(short, long, value_name = "N", value_parser = partition)]
    pub partition: Option<PartitionId>,
    /// Where to start: earliest, tail, offset:N or time:T (RFC 3339, or `15m` for that long ago).
    #[arg(long, value_name = "PLACE", default_value = "earliest", value_parser = attach_from)]
    pub from: AttachFrom,
    /// Stop after so many records.
    #[arg(short = 'n', value_name = "COUNT")]
    pub count: Option<u64>,
    /// Go on at the end; without this, stop at what was the end at the start.
    #[arg(long)]
    pub follow: bool,
    /// How to print a record: %t topic, %p partition, %o offset, %k key, %s value, %T timestamp in milliseconds, %%,
    /// \n, \t. Nothing is added between records.
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "output", value_parser = Template::parse)]
    pub format: Option<Template>,
}

/// `inspect ...`.
#[derive(Debug, Subcommand)]
pub enum Inspect {
    /// The header, the batches and the damage of a segment.
    Segment {
        /// A file `topics/TOPIC/pNNNNN/NNN.log`.
        file: PathBuf,
    },
    /// A cursor's durable position.
    Cursor {
        /// A file `topics/TOPIC/pNNNNN/fanout-CHILD.offset`.
        file: PathBuf,
    },
    /// The batches that lie one after another in a file.
    Batch {
        /// The file.
        file: PathBuf,
    },
}

/// A parsed `-f` format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// In order.
    pub parts: Vec<Part>,
}

/// A part of a [`Template`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Printed as it is.
    Text(String),
    /// `%t`
    Topic,
    /// `%p`
    Partition,
    /// `%o`
    Offset,
    /// `%k`
    Key,
    /// `%s`
    Value,
    /// `%T`
    Timestamp,
}

impl Template {
    fn parse(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let part = match (
                c,
                if matches!(c, '%' | '\\') {
                    chars.next()
                } else {
                    None
                },
            ) {
                ('%', Some('t')) => Part::Topic,
                ('%', Some('p')) => Part::Partition,
                ('%', Some('o')) => Part::Offset,
                ('%', Some('k')) => Part::Key,
                ('%', Some('s')) => Part::Value,
                ('%', Some('T')) => Part::Timestamp,
                ('%', Some('%')) => {
                    plain.push('%');
                    continue;
                }
                ('\\', Some('n')) => {
                    plain.push('\n');
                    continue;
                }
                ('\\', Some('t')) => {
                    plain.push('\t');
                    continue;
                }
                ('\\', Some('\\')) => {
                    plain.push('\\');
                    continue;
                }
                ('%' | '\\', Some(other)) => {
                    return Err(format!(
                        "`{c}{other}` is none of %t %p %o %k %s %T %% \\n \\t \\\\"
                    ));
                }
                ('%' | '\\', None) => return Err(format!("nothing follows the last `{c}`")),
                _ => {
                    plain.push(c);
                    continue;
                }
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(part);
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Template { parts })
    }
}

fn server(text: &str) -> Result<String, String> {
    let wrong = || "a server is HOST:PORT".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok(text.to_owned())
}

fn topic_name(text: &str) -> Result<TopicName, String> {
    text.parse()
        .map_err(|error| format!("{error} ({})", ErrorCode::InvalidName.name()))
}

fn partitions(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(count) if (1..=PARTITIONS_MAX).contains(&count) => Ok(count),
        _ => Err(format!(
            "a topic has 1 to {PARTITIONS_MAX} partitions ({})",
            ErrorCode::InvalidPartitions.name()
        )),
    }
}

fn partition(text: &str) -> Result<PartitionId, String> {
    match text.parse::<u32>() {
        Ok(number) if number < PARTITIONS_MAX => Ok(PartitionId(number)),
        _ => Err(format!("partitions are numbered 0 to {}", PARTITIONS_MAX - 1)),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("a rate is a number of records a second, above 0".to_owned()),
    }
}

/// Milliseconds of a duration, rounded up: what is asked for is never less than what is done.
fn millis(text: &str) -> Result<u64, String> {
    let duration = time::parse_duration(text).map_err(|error| error.to_string())?;
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).map_err(|_| "a duration too long".to_owned())
}

/// A time: RFC 3339, or a duration before now. In nanoseconds since the epoch.
fn instant(text: &str) -> Result<u64, String> {
    let Ok(ago) = time::parse_duration(text) else {
        return time::parse_time(text).map_err(|error| error.to_string());
    };
    let ago = u64::try_from(ago.as_nanos()).ok();
    let nanos = ago.and_then(|ago| clock::now_nanos().checked_sub(ago));
    nanos.ok_or_else(|| "a time before 1970".to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    time::parse_size(text).map_err(|error| error.to_string())
}

fn delay(text: &str) -> Result<u64, String> {
    let delay_ms = millis(text)?;
    if delay_ms > DELAY_MILLIS_MAX {
        return Err(format!(
            "a delay is at most 1y ({})",
            ErrorCode::DelayTooLong.name()
        ));
    }
    Ok(delay_ms)
}

fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "fsync" => Ok(Durability::Fsync),
        "written" => Ok(Durability::Written),
        _ => Err("durability is fsync or written".to_owned()),
    }
}

fn attach_from(text: &str) -> Result<AttachFrom, String> {
    match text.split_once(':') {
        None if text == "tail" => Ok(AttachFrom::Tail),
        None if text == "earliest" => Ok(AttachFrom::Earliest),
        Some(("offset", number)) => number
            .parse()
            .map(|offset| AttachFrom::Offset(Offset(offset)))
            .map_err(|_| "an offset is a number from 0".to_owned()),
        Some(("time", when)) => instant(when).map(AttachFrom::Time),
        _ => Err("a place is tail, earliest, offset:N or time:T".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_comes_later_is_not_there() {
        for line in [
            "replay f.csv t",
            "publish c x",
            "subscribe a",
            "queue list",
            "position list",
            "cluster status",
            "node drain",
            "partition list",
            "doctor",
            "top",
            "man",
            "topic alter t",
            "serve --kafka 127.0.0.1:9092",
            "consume t --group g",
            "demo --nodes 3",
        ] {
            let error = parse(&format!("tailwater {line}")).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn wrong_values_are_refused_with_their_code() {
        for (line, code) in [
            ("topic create a..b", "INVALID_NAME"),
            ("topic create A", "INVALID_NAME"),
            ("topic create a --partitions 0", "INVALID_PARTITIONS"),
            ("topic create a --partitions 100000", "INVALID_PARTITIONS"),
            ("link attach a b --delay 2y", "DELAY_TOO_LONG"),
            ("link attach a b --from offset:-1", "offset"),
            ("link attach a b --from somewhere", "place"),
            ("consume t -f %q", "%q"),
            ("consume t -f x -o json", "cannot be used with"),
            ("produce t --rate 0", "rate"),
            ("produce t -p 1024", "1023"),
            ("topic list --server nowhere", "HOST:PORT"),
            ("topic list --server :1", "HOST:PORT"),
            ("topic list -o yaml", "yaml"),
        ] {
            let error = parse(&format!("tailwater {line}")).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(code), "{line}: {error}");
        }
    }

    #[test]
    fn formats_are_read_as_kcat_writes_them() {
        let template = Template::parse("%t[%p]@%o %k=%s%%\\t%T\\n").expect("valid");
        let text = |text: &str| Part::Text(text.to_owned());
        let want = [
            Part::Topic,
            text("["),
            Part::Partition,
            text("]@"),
            Part::Offset,
            text(" "),
            Part::Key,
            text("="),
            Part::Value,
            text("%\t"),
            Part::Timestamp,
            text("\n"),
        ];
        assert_eq!(template.parts, want);
        assert!(Template::parse("50%").is_err());
    }

    #[test]
    fn places_and_quantities_are_read() {
        assert_eq!(attach_from("offset:12"), Ok(AttachFrom::Offset(Offset(12))));
        assert_eq!(attach_from("tail"), Ok(AttachFrom::Tail));
        assert!(matches!(
            attach_from("time:2026-11-30T09:30:00Z"),
            Ok(AttachFrom::Time(_))
        ));
        assert!(matches!(attach_from("time:15m"), Ok(AttachFrom::Time(_))));
        assert_eq!(delay("2s"), Ok(2_000));
        assert_eq!(delay("1us"), Ok(1));
        assert_eq!(delay("1y"), Ok(DELAY_MILLIS_MAX));
        assert_eq!(bytes("64KiB"), Ok(65_536));
    }
}
