//! The admin server: what monitoring relies on is there, by name, with its help, and counts what was done.

use std::collections::BTreeSet;

use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::drained;

/// Those of the names that others script against whose subject is there.
const REQUIRED: [&str; 16] = [
    "log_append_seconds",
    "log_fsync_seconds",
    "log_bytes_total",
    "log_corrupt_batches_total",
    "partition_latched",
    "fanout_lag_messages",
    "fanout_due_lag_seconds",
    "fanout_committed_records_total",
    "fanout_duplicate_records_dropped_total",
    "fanout_dropped_records_total",
    "fanout_filtered_records_total",
    "fanout_stalled",
    "fanout_anchor_total",
    "metastore_leader",
    "metastore_term",
    "shard_stall_seconds",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_required_metric_is_there_with_its_help_and_counts() {
    let _shared = share_machine().await;
    let node = TestNode::start().await;
    assert_eq!(node.get("/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(node.get("/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(node.get("/no-such-page").await.0, 404);
    let (cli, client) = (node.cli(), node.client().await);
    for line in [
        "topic create ticks --partitions 4",
        "topic create copy",
        "link attach ticks copy --filter key=k0001|k0002",
    ] {
        cli.run(line).await.succeeded();
    }
    const RECORDS: u64 = 10_090;
    produce(&client, &topic("ticks"), LoadOptions::new(0, RECORDS)).await;
    drained(&client, &topic("ticks"), &topic("copy")).await;
    let (status, text) = node.get("/metrics").await;
    assert_eq!(status, 200);
    let names: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    for name in REQUIRED.iter().chain(&["shard_busy_ratio"]) {
        let name = format!("tailwater_{name}");
        let histogram = format!("{name}_count");
        assert!(
            names.contains(name.as_str()) || names.contains(histogram.as_str()),
            "no {name} in\n{text}"
        );
        assert!(text.contains(&format!("# HELP {name} ")), "no help for {name}");
        assert!(text.contains(&format!("# TYPE {name} ")), "no type for {name}");
    }
    let strange: Vec<&&str> = names
        .iter()
        .filter(|name| !name.starts_with("tailwater_"))
        .collect();
    assert!(strange.is_empty(), "{strange:?}");

    let value = |series: &str| -> f64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no {series} in\n{text}"))
    };
    let link = "{parent=\"ticks\",child=\"copy\"}";
    // Ten records of each key.
    assert_eq!(value("tailwater_fanout_committed_records_total"), 20.0);
    assert_eq!(
        value("tailwater_fanout_filtered_records_total"),
        RECORDS as f64 - 20.0
    );
    assert_eq!(value(&format!("tailwater_fanout_lag_messages{link}")), 0.0);
    assert_eq!(value(&format!("tailwater_fanout_stalled{link}")), 0.0);
    assert_eq!(value("tailwater_metastore_leader"), 1.0);
    assert_eq!(value("tailwater_partition_latched"), 0.0);
    assert!(value("tailwater_log_bytes_total") > RECORDS as f64 * 100.0);
    assert!(value("tailwater_log_fsync_seconds_count") >= 4.0);
    assert!(value("tailwater_log_append_seconds_count") >= value("tailwater_log_fsync_seconds_count") / 10.0);
    assert!(value("tailwater_log_fsync_seconds_sum") > 0.0);

    // Counters do not step back between two scrapes, and histograms do not count twice.
    let (_, again) = node.get("/metrics").await;
    let count = |text: &str| {
        text.lines()
            .find(|line| line.starts_with("tailwater_log_append_seconds_count"))
            .map(str::to_owned)
    };
    assert_eq!(count(&text), count(&again));
}
