//! The Prometheus exposition: copies the shards' plain counters into a recorder when `/metrics` is asked for.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

use metrics::{Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use tailwater_storage::disk::watchdog::Watchdog;

use crate::clock::system::SystemClock;
use crate::telemetry::counters::{Histogram, ShardCounters};
use crate::telemetry::links::{self, LinkTotals};

static METADATA: Metadata<'static> = Metadata::new("tailwater", Level::INFO, None);

/// Bounds of the exported latency histograms, in seconds: 10 us to 10 s.
const SECONDS_BOUNDS: [f64; 19] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.000_75, 0.001, 0.002, 0.003, 0.005,
    0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 10.0,
];

/// One number out of a shard's counters.
type Pick = fn(&ShardCounters) -> u64;

/// Those that are histograms.
const HISTOGRAMS: [&str; 4] = [
    "log_append_seconds",
    "log_fsync_seconds",
    "log_roll_seconds",
    "fanout_reconcile_seconds",
];

/// Name and help text of every metric, without the `tailwater_` prefix; those of single links are in `links`.
const HELP: &[(&str, &str)] = &[
    (
        "log_append_seconds",
        "From a batch's arrival to its acknowledgement.",
    ),
    (
        "log_fsync_seconds",
        "One flush, shared by all partitions of a commit round.",
    ),
    (
        "log_roll_seconds",
        "What a partition's commits wait for a new segment; other partitions do not.",
    ),
    ("log_batches_total", "Batches appended."),
    ("log_records_total", "Records appended."),
    ("log_bytes_total", "Bytes written to logs, padding included."),
    (
        "log_corrupt_batches_total",
        "Batches found damaged, on receipt or on disk.",
    ),
    (
        "partition_latched",
        "Partitions that are read-only after a failed write or flush.",
    ),
    ("client_connections", "Open client connections."),
    (
        "client_connections_refused_total",
        "Client connections refused because of connections_max.",
    ),
    ("client_refusals_total", "Requests answered with a refusal."),
    (
        "fanout_committed_records_total",
        "Child records committed by cursors.",
    ),
    (
        "fanout_duplicate_records_dropped_total",
        "Child records sent again and not appended again.",
    ),
    (
        "fanout_dropped_records_total",
        "Parent records that retention removed before they were copied.",
    ),
    (
        "fanout_filtered_records_total",
        "Parent records that a link's filter held back.",
    ),
    ("fanout_cursors", "Cursors that run."),
    (
        "fanout_positions_stored_total",
        "Positions stored in cursor files.",
    ),
    (
        "fanout_busy_seconds_total",
        "Time that a shard has spent in the tasks of cursors.",
    ),
    (
        "fanout_slab_bytes",
        "Memory that slabs in flight hold of fanout.memory_bytes, per shard, as of the last second.",
    ),
    (
        "fanout_reconcile_seconds",
        "Comparing the cursors that run with those that should, once a second and at every change.",
    ),
    (
        "fanout_anchor_total",
        "Decisions on where a cursor starts, by verdict.",
    ),
    (
        "clock_held",
        "1 while delay links and retention by time wait for `clock accept`.",
    ),
    (
        "clock_wall_offset_seconds",
        "How far the wall clock is ahead of the owner's clock.",
    ),
    ("metastore_leader", "1 when this node leads the metastore."),
    ("metastore_term", "The metastore's current term."),
    (
        "metastore_applied_index",
        "The last metadata command applied here.",
    ),
    (
        "shard_stall_seconds",
        "The longest time that a shard did not run, since the start; counted over 5 ms.",
    ),
    (
        "shard_stalls_total",
        "How often a shard did not run for over 5 ms.",
    ),
    (
        "shard_busy_ratio",
        "Share of the time that a shard was not parked, over the last few seconds.",
    ),
];

/// The metastore's part of a scrape.
#[derive(Debug, Clone, Copy, Default)]
pub struct MetastoreFacts {
    /// Whether this node leads.
    pub leader: bool,
    /// The current term.
    pub term: u64,
    /// The last command applied.
    pub applied: u64,
}

/// Turns counters into text. One per process.
pub struct Exporter {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    shards: Vec<Arc<ShardCounters>>,
    watchdog: Arc<Watchdog>,
    clock: Option<SystemClock>,
    seen: Mutex<Seen>,
}

/// What earlier scrapes have already counted into the recorder's histograms.
#[derive(Default)]
struct Seen([Vec<u64>; HISTOGRAMS.len()]);

impl Exporter {
    /// An exporter over the counters of all shards.
    #[must_use]
    pub fn new(shards: Vec<Arc<ShardCounters>>, watchdog: Arc<Watchdog>) -> Exporter {
        let builder = HISTOGRAMS
            .iter()
            .try_fold(PrometheusBuilder::new(), |builder, name| {
                let matcher = Matcher::Full(format!("tailwater_{name}"));
                builder.set_buckets_for_metric(matcher, &SECONDS_BOUNDS)
            })
            .expect("the bounds are not empty");
        let recorder = builder.build_recorder();
        for (name, help) in HELP {
            let is_histogram = HISTOGRAMS.contains(name);
            let name = format!("tailwater_{name}").into();
            if is_histogram {
                recorder.describe_histogram(name, None, (*help).into());
            } else if name.as_str().ends_with("_total") {
                recorder.describe_counter(name, None, (*help).into());
            } else {
                recorder.describe_gauge(name, None, (*help).into());
            }
        }
        Exporter {
            handle: recorder.handle(),
            recorder,
            shards,
            watchdog,
            clock: None,
            seen: Mutex::default(),
        }
    }

    /// Shows the owner's clock as well.
    #[must_use]
    pub fn with_clock(mut self, clock: SystemClock) -> Exporter {
        self.clock = Some(clock);
        self
    }

    /// Everything as text, now.
    #[must_use]
    pub fn render(&self, links: &LinkTotals, metastore: MetastoreFacts) -> String {
        let sum = |pick: Pick| self.shards.iter().map(|shard| pick(shard)).sum::<u64>();
        self.counter("log_batches_total", &[], sum(|s| s.batches.get()));
        self.counter("log_records_total", &[], sum(|s| s.records.get()));
        self.counter("log_bytes_total", &[], sum(|s| s.log_bytes.get()));
        self.counter("log_corrupt_batches_total", &[], sum(|s| s.corrupt_batches.get()));
        self.gauge("partition_latched", &[], sum(|s| s.latched.get()) as f64);
        self.gauge("client_connections", &[], sum(|s| s.connections.get()) as f64);
        self.counter(
            "client_connections_refused_total",
            &[],
            sum(|s| s.connections_refused.get()),
        );
        self.counter("client_refusals_total", &[], sum(|s| s.refusals.get()));
        self.counter(
            "fanout_committed_records_total",
            &[],
            sum(|s| s.fanout_committed.get()),
        );
        self.counter(
            "fanout_duplicate_records_dropped_total",
            &[],
            sum(|s| s.fanout_duplicates.get()),
        );
        self.counter(
            "fanout_dropped_records_total",
            &[],
            sum(|s| s.fanout_dropped.get()),
        );
        self.counter(
            "fanout_filtered_records_total",
            &[],
            sum(|s| s.fanout_filtered.get()),
        );
        self.counter(
            "fanout_positions_stored_total",
            &[],
            sum(|s| s.fanout_positions.get()),
        );
        let verdicts: [(&str, Pick); 4] = [
            ("resumed", |s| s.anchor_resumed.get()),
            ("started", |s| s.anchor_started.get()),
            ("deferred", |s| s.anchor_deferred.get()),
            ("stale", |s| s.anchor_stale.get()),
        ];
        for (verdict, pick) in verdicts {
            self.counter("fanout_anchor_total", &[("verdict", verdict)], sum(pick));
        }
        for (number, shard) in self.shards.iter().enumerate() {
            let label = [("shard", number.to_string())];
            let label = [(label[0].0, label[0].1.as_str())];
            self.gauge("shard_busy_ratio", &label, shard.busy_permille.get() as f64 / 1e3);
            self.gauge("fanout_cursors", &label, shard.fanout_cursors.get() as f64);
            self.gauge("fanout_slab_bytes", &label, shard.slab_bytes.get() as f64);
        }
        for report in self.watchdog.reports() {
            let label = [("shard", report.name.as_str())];
            self.counter("shard_stalls_total", &label, report.stalls);
            self.gauge("shard_stall_seconds", &label, report.stall_us_max as f64 / 1e6);
        }
        if let Some(clock) = &self.clock {
            self.gauge("clock_held", &[], f64::from(u8::from(clock.is_held())));
            self.gauge("clock_wall_offset_seconds", &[], clock.wall_offset() as f64 / 1e9);
        }
        self.gauge("metastore_leader", &[], f64::from(u8::from(metastore.leader)));
        self.gauge("metastore_term", &[], metastore.term as f64);
        self.gauge("metastore_applied_index", &[], metastore.applied as f64);
        self.histograms();
        self.handle.run_upkeep();
        let mut text = self.handle.render();
        self.seconds(&mut text);
        let mut busy_ns = BTreeMap::new();
        for shard in &self.shards {
            shard.links.add_to(&mut busy_ns);
        }
        links::render(&mut text, links, &busy_ns);
        text
    }

    /// The recorder's counters are whole numbers; what counts seconds is written beside it.
    fn seconds(&self, text: &mut String) {
        let name = "fanout_busy_seconds_total";
        let help = HELP
            .iter()
            .find(|(of, _)| *of == name)
            .map_or("", |(_, help)| help);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "# HELP tailwater_{name} {help}\n# TYPE tailwater_{name} counter"
        );
        for (number, shard) in self.shards.iter().enumerate() {
            let seconds = shard.fanout_busy_ns.get() as f64 / 1e9;
            let _ = writeln!(text, "tailwater_{name}{{shard=\"{number}\"}} {seconds}");
        }
        text.push('\n');
    }

    /// The recorder's histograms take single values: hand it what each bucket gained, at the bucket's upper bound.
    fn histograms(&self) {
        let mut seen = self
            .seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let picks: [fn(&ShardCounters) -> &Histogram; 4] =
            [|s| &s.append, |s| &s.fsync, |s| &s.roll, |s| &s.reconcile];
        for ((name, pick), seen) in HISTOGRAMS.iter().zip(picks).zip(&mut seen.0) {
            let key = key(name, &[]);
            let histogram = self.recorder.register_histogram(&key, &METADATA);
            let mut now: Vec<u64> = Vec::new();
            for shard in &self.shards {
                let counts = pick(shard).counts();
                now.resize(counts.len().max(now.len()), 0);
                now.iter_mut().zip(&counts).for_each(|(sum, count)| *sum += count);
            }
            for (index, &count) in now.iter().enumerate() {
                let gained = count - seen.get(index).copied().unwrap_or(0).min(count);
                if gained > 0 {
                    histogram.record_many(Histogram::upper_ns(index) as f64 / 1e9, gained as usize);
                }
            }
            *seen = now;
        }
    }

    fn counter(&self, name: &str, labels: &[(&'static str, &str)], value: u64) {
        self.recorder
            .register_counter(&key(name, labels), &METADATA)
            .absolute(value);
    }

    fn gauge(&self, name: &str, labels: &[(&'static str, &str)], value: f64) {
        self.recorder
            .register_gauge(&key(name, labels), &METADATA)
            .set(value);
    }
}

fn key(name: &str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels
        .iter()
        .map(|&(name, value)| Label::new(name, value.to_owned()))
        .collect();
    Key::from_parts(format!("tailwater_{name}"), labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_shows_counters_and_histograms_once() {
        let shard = Arc::new(ShardCounters::default());
        let watchdog = Watchdog::start(Default::default(), Box::new(|_, _| {})).expect("a thread");
        let exporter = Exporter::new(vec![Arc::clone(&shard)], Arc::new(watchdog));
        shard.records.add(7);
        shard.fsync.record(150_000);
        shard.fanout_busy_ns.add(1_500_000_000);
        shard.fanout_cursors.set(3);
        let _first = exporter.render(&LinkTotals::default(), MetastoreFacts::default());
        let text = exporter.render(
            &LinkTotals::default(),
            MetastoreFacts {
                leader: true,
                term: 3,
                applied: 9,
            },
        );
        for line in [
            "tailwater_log_records_total 7",
            "tailwater_log_fsync_seconds_count 1",
            "tailwater_log_fsync_seconds_bucket{le=\"0.0001\"} 0",
            "tailwater_log_fsync_seconds_bucket{le=\"0.0002\"} 1",
            "tailwater_metastore_leader 1",
            "tailwater_metastore_term 3",
            "tailwater_fanout_anchor_total{verdict=\"resumed\"} 0",
            "tailwater_fanout_busy_seconds_total{shard=\"0\"} 1.5",
            "tailwater_fanout_cursors{shard=\"0\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(text.contains("# HELP tailwater_log_fsync_seconds One flush"));
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let series = line.split(['{', ' ']).next().unwrap_or_default();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| series.strip_suffix(part))
                .unwrap_or(series);
            assert!(text.contains(&format!("# HELP {family} ")), "no help for {line}");
        }
    }
}
