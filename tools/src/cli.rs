//! The command line: every command, flag and argument, checked as far as it can be without a server.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand};
use tailwater_wire::ids::{PartitionId, TopicName};
use tailwater_wire::meta::{AttachFrom, Durability};
use tailwater_wire::partitioner::Partitioner;

use crate::cli::template::Template;
use crate::cli::values::{
    Limit, attach_from, bytes, bytes_or_off, count, delay, durability, millis, millis_or_off, partition,
    partitions, rate, server, topic_name,
};
use crate::feed::replay::Speed;
use crate::feed::times::Unit;
use crate::output::Format;

pub mod template;
pub mod values;
#[cfg(test)]
mod tests;

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
    /// Make, list, describe, change and delete topics.
    #[command(subcommand)]
    Topic(Topic),
    /// Attach topics to topics, and see how far the copies are.
    #[command(subcommand)]
    Link(Link),
    /// Show the node's clock, or vouch for the wall clock.
    #[command(args_conflicts_with_subcommands = true)]
    Clock {
        /// What to do [default: status].
        #[command(subcommand)]
        command: Option<Clock>,
    },
    /// Append a record for each line of standard input.
    ///
    /// Ctrl-C (exit 130) and SIGTERM (exit 143) stop the reading; what was sent until then is waited for, and the summary
    /// is printed. A second signal ends at once.
    Produce(Produce),
    /// Print the records of a topic, merged over its partitions by commit time.
    ///
    /// Every partition is in order of its offsets. Between partitions, records come in order of their commit times, and at
    /// the same time in order of their partitions. Without --follow this holds for everything that was committed when the
    /// command began.
    ///
    /// With --follow a partition that is silent is not waited for without end: a record that is known to be committed is
    /// printed at the latest 50 ms later, unless another partition is known to have records that did not arrive yet. What a
    /// silent partition brings after that is printed when it comes, with the earlier commit time that it has.
    ///
    /// Memory: about two reads for each partition, of 64 KiB to 1 MiB. Records that are damaged or were removed while they
    /// were read are named on standard error as `gap: ...`.
    Consume(Consume),
    /// Send a recorded feed at the pace that it was recorded at, a multiple of it, or as fast as possible.
    ///
    /// FILE is CSV, plain or gzipped, and `-` is standard input. Each line becomes a record, whose value is the line and
    /// whose timestamp is the line's time. Memory does not depend on the file's size.
    ///
    /// The pace is open-loop: a line is due at its recorded distance from the first one, and a line that was sent late does
    /// not move those behind it. How late lines were is in the summary: if that is much, the node or the machine cannot keep
    /// up at this speed. A wait of more than 10 s is said on standard error, the first time.
    ///
    /// Ctrl-C stops reading, waits until what was sent is acknowledged, prints the summary and exits with 130, and so does
    /// SIGTERM with 143; a second signal ends at once. Standard output is empty but with -o json or -o ndjson: `{sent, produced, failed, elapsed_ms,
    /// records_per_s, late_p50_ms, late_p99_ms, late_max_ms, response_p50_us, response_p99_us}`, where the response counts
    /// from the time that a line was due at.
    Replay(Replay),
    /// See where partitions are, and repair their clocks.
    #[command(subcommand)]
    Partition(Partition),
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024), allow_hyphen_values = true)]
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
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub speed: Option<Speed>,
    /// Keep the node's data here instead of in a temporary directory; must be empty or absent.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Keep the temporary directory.
    #[arg(long)]
    pub keep: bool,
    /// How many nodes; one, in this version.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1), allow_hyphen_values = true)]
    pub nodes: u32,
}

/// `topic ...`.
#[derive(Debug, Subcommand)]
pub enum Topic {
    /// Make a topic.
    ///
    /// Each partition takes its first segment's size on disk at once (1 MiB, unless log.segment_bytes_first says another),
    /// so 1,024 empty partitions take about 1.1 GB.
    ///
    /// --retention and --retention-bytes remove whole segments, the oldest first, and never the one that is written to.
    /// --retention-bytes is so an upper bound: a partition may hold less than it, by up to a segment.
    Create(TopicCreate),
    /// List all topics.
    List,
    /// Show a topic with its partitions.
    Describe {
        /// The topic.
        #[arg(value_parser = topic_name)]
        name: TopicName,
    },
    /// Change how long a topic keeps its records, or add partitions.
    ///
    /// What is not named stays as it is. The change is in force on every shard when the command returns.
    ///
    /// Partitions can only be added, and not while the topic is the child of a link (TOPIC_IN_USE): the keys of new records
    /// may then go to other partitions than before, so order by key does not reach across the change. A new partition
    /// of a parent is copied from its first record on.
    ///
    /// A producer that is running goes on with the partitions it began with, and uses added ones when it is opened again.
    /// Until then old and new producers may send one key to two partitions, and its records have no order between these:
    /// where that counts, stop all producers, add the partitions, and start them again.
    ///
    /// A parent of a link with a delay keeps its records for at least the delay and one hour, and without a byte limit
    /// unless the link was attached with --allow-drop (RETENTION_BELOW_FLOOR).
    #[command(
        after_help = "Examples:\n  tailwater topic alter orders --retention 7d --retention-bytes off\n  \
        tailwater topic alter orders --partitions 16"
    )]
    Alter(TopicAlter),
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
    #[arg(long, value_name = "N", default_value = "1", value_parser = partitions, allow_hyphen_values = true)]
    pub partitions: u32,
    /// How long records are kept (`7d`) [default: for ever].
    #[arg(long, value_name = "T", value_parser = millis, allow_hyphen_values = true)]
    pub retention: Option<u64>,
    /// How many bytes of each partition are kept at most (`1GiB`) [default: all].
    #[arg(long, value_name = "B", value_parser = bytes, allow_hyphen_values = true)]
    pub retention_bytes: Option<u64>,
    /// When a produce is acknowledged: after its flush, or after its write.
    #[arg(long, value_name = "fsync|written", default_value = "fsync", value_parser = durability)]
    pub durability: Durability,
    /// How keys become partitions.
    #[arg(long, value_name = "murmur2|crc32c|identity", default_value = "murmur2")]
    pub partitioner: Partitioner,
}

/// `topic alter`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("change").required(true).multiple(true)
    .args(["partitions", "retention", "retention_bytes"])))]
pub struct TopicAlter {
    /// The topic.
    #[arg(value_parser = topic_name)]
    pub name: TopicName,
    /// The new number of partitions, not less than now and at most 1,024.
    #[arg(long, value_name = "N", value_parser = partitions, allow_hyphen_values = true)]
    pub partitions: Option<u32>,
    /// How long records are kept from now on (`7d`); `off` keeps them for ever.
    #[arg(long, value_name = "T|off", value_parser = millis_or_off, allow_hyphen_values = true)]
    pub retention: Option<Limit>,
    /// How many bytes of each partition are kept at most from now on (`1GiB`); `off` keeps all.
    #[arg(long, value_name = "B|off", value_parser = bytes_or_off, allow_hyphen_values = true)]
    pub retention_bytes: Option<Limit>,
}

/// `partition ...`.
#[derive(Debug, Subcommand)]
pub enum Partition {
    /// List partitions: the shard that owns each, its ends, and why it cannot be served, if so.
    List {
        /// Only the partitions of this topic.
        #[arg(value_parser = topic_name)]
        topic: Option<TopicName>,
    },
    /// Recover a partition that was written to while the clock stood in a false future.
    ///
    /// Its records count as committed now at the latest, and new ones get the present time again.
    ResetClock {
        /// The topic.
        #[arg(value_parser = topic_name)]
        topic: TopicName,
        /// The partition.
        #[arg(short, long, value_name = "N", value_parser = partition, allow_hyphen_values = true)]
        partition: PartitionId,
    },
}

/// `link ...`.
#[derive(Debug, Subcommand)]
pub enum Link {
    /// Copy a topic into another, now or after a delay.
    Attach(LinkAttach),
    /// End a link; returns when nothing is in flight any more.
    ///
    /// Without --drain the copying stops at once: what the child does not have by then, it never gets, also not from a later
    /// attach at the tail.
    ///
    /// With --drain the ends of the parent's partitions are read first, and the link is ended when the child has everything
    /// below them. What is produced meanwhile is not waited for, though some of it may be copied as well. A link with a
    /// delay is waited for until the last of these records is due, so for up to the whole delay. A link that is stalled
    /// is waited for, and the reason is said once on standard error: Ctrl-C leaves the link as it is, attached. What is
    /// waited for is said there as well, when it takes more than 2 s.
    Detach {
        /// What names the link.
        #[command(flatten)]
        pair: Pair,
        /// First wait until the child has everything that is in the parent now.
        #[arg(long)]
        drain: bool,
    },
    /// List links: how far they are, and why they do not move.
    ///
    /// CURSOR is the sum of the positions over the parent's partitions, LAG the records of the parent that were not passed
    /// yet, PENDING those of them that a delay holds back, DUE LAG the time that the oldest record which is due has waited
    /// for. STATE is `current` (nothing left), `waiting` (for what is not due), `behind`, `starting`, or `stalled` with the
    /// reason. DROPPED counts records that retention or damage took before they were copied, FILTERED those that the filter
    /// held back, COMMITTED those that were copied.
    ///
    /// COMMITTED, DROPPED and FILTERED count since the link's cursors started, which they do with the node: after a restart
    /// they begin at 0 again. `link verify` counts from the logs, and what was dropped is stated in control batches of the
    /// child, which stay.
    ///
    /// With a CHILD or --partitions each cursor is shown, and each partition of the child as that cursor sees it.
    List(LinkList),
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

/// `link list`.
#[derive(Debug, Args)]
pub struct LinkList {
    /// Only the links of this topic.
    #[arg(value_parser = topic_name)]
    pub parent: Option<TopicName>,
    /// Only the link to this topic, in detail.
    #[arg(value_parser = topic_name)]
    pub child: Option<TopicName>,
    /// Every cursor, and every child partition of each.
    #[arg(long)]
    pub partitions: bool,
}

/// `link attach`.
#[derive(Debug, Args)]
pub struct LinkAttach {
    /// What names the link.
    #[command(flatten)]
    pub pair: Pair,
    /// Hold every record back for this long (`2s`, `15m`, at most `1y`).
    #[arg(long, value_name = "T", default_value = "0s", value_parser = delay, allow_hyphen_values = true)]
    pub delay: u64,
    /// Where to start: tail, earliest, offset:N or time:T (RFC 3339, or `15m` for that long ago).
    #[arg(long, value_name = "PLACE", default_value = "tail", value_parser = attach_from, allow_hyphen_values = true)]
    pub from: AttachFrom,
    /// Copy only these records: `HEADER=VALUE`, `key^=PREFIX`, or `key=A|B|C`.
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Gather for a fixed time before each commit [default: only while a commit is in flight].
    #[arg(long, value_name = "T", value_parser = millis, allow_hyphen_values = true)]
    pub linger: Option<u64>,
    /// Allow a byte limit on the parent that retention may reach before the delay is over.
    #[arg(long)]
    pub allow_drop: bool,
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
    #[arg(short, long, value_name = "N", value_parser = partition, allow_hyphen_values = true)]
    pub partition: Option<PartitionId>,
    /// At most so many records a second.
    #[arg(long, value_name = "R", value_parser = rate, allow_hyphen_values = true)]
    pub rate: Option<f64>,
    /// At most so many records a batch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), allow_hyphen_values = true)]
    pub batch: Option<u32>,
}

/// `consume`.
#[derive(Debug, Args)]
pub struct Consume {
    /// The topic.
    #[arg(value_parser = topic_name)]
    pub topic: TopicName,
    /// Only this partition.
    #[arg(short, long, value_name = "N", value_parser = partition, allow_hyphen_values = true)]
    pub partition: Option<PartitionId>,
    /// Where to start: earliest, tail, offset:N or time:T (RFC 3339, or `15m` for that long ago). An offset beyond the
    /// end of a partition is an error (POSITION_AHEAD); with --follow it is waited for.
    #[arg(long, value_name = "PLACE", default_value = "earliest", value_parser = attach_from, allow_hyphen_values = true)]
    pub from: AttachFrom,
    /// Stop after so many records.
    #[arg(short = 'n', value_name = "COUNT", value_parser = count, allow_hyphen_values = true)]
    pub count: Option<u64>,
    /// Go on at the end; without this, stop at what was the end at the start.
    #[arg(long)]
    pub follow: bool,
    /// How to print a record: %t topic, %p partition, %o offset, %k key, %s value, %T timestamp in milliseconds, %h
    /// headers as NAME=VALUE with commas between, %%, \n, \t, \\. Nothing is added between records.
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "output", value_parser = Template::parse)]
    pub format: Option<Template>,
}

/// `replay`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tailwater replay ticks.csv.gz ticks --key symbol\n  \
    tailwater replay ticks.csv ticks --speed max --key 2 --no-header\n  \
    zstd -dc ticks.csv.zst | tailwater replay - ticks --speed 10 --time when --time-unit us"
)]
pub struct Replay {
    /// The feed: CSV or CSV.gz, or `-` for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The topic.
    #[arg(value_parser = topic_name)]
    pub topic: TopicName,
    /// A multiple of the recorded pace, or `max` to send without waiting.
    #[arg(long, value_name = "X|max", default_value = "1", allow_hyphen_values = true)]
    pub speed: Speed,
    /// The column of the key, by its name in the first line or by its number from 1 [default: records have no key].
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// The column of the time, likewise [default: the first one called time, timestamp or ts, also with an end of _ns,
    /// _us, _ms or _s].
    #[arg(long, value_name = "COLUMN")]
    pub time: Option<String>,
    /// What the times are: a number of these since the epoch, or RFC 3339 [default: as the column's name ends, or else
    /// as the size of the first time says].
    #[arg(long, value_name = "UNIT", value_enum)]
    pub time_unit: Option<Unit>,
    /// Put this column into a header of the record as well, under its name; can be repeated. Filters of links see headers.
    #[arg(long, value_name = "COLUMN")]
    pub record_header: Vec<String>,
    /// The first line is an event, and columns are named by number.
    #[arg(long)]
    pub no_header: bool,
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
