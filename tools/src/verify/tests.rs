//! Whole verifications against a node in memory whose child was cut by the fan-out's own code.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tailwater_node::fanout::batch::{ChildBatch, CutPlan, Cutter, Take};
use tailwater_node::fanout::filter::Filter;
use tailwater_node::fanout::rekey::Rekey;
use tailwater_wire::batch::builder::{BatchBuilder, OriginStamp};
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::batch::view::BatchIter;
use tailwater_wire::client::config::ClientConfig;
use tailwater_wire::client::handle::Client;
use tailwater_wire::ids::{
    CommitTime, Delay, Epoch, Lineage, Offset, OriginId, OwnerEpoch, PartitionId, TopicName, Writer,
};
use tailwater_wire::message::{CursorStatus, LinkStatus};
use tailwater_wire::meta::{Durability, Link, LinkOptions, Retention, Topic, TopicSpec};
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

use crate::clock;
use crate::verify::driver;
use crate::verify::row::Row;
use crate::verify::testing::{INCARNATION, LINEAGE, Log, World, serve};

const EPOCH: Epoch = Epoch([7; 8]);
const PARENTS: u32 = 3;
const CHILDREN: u32 = 4;
/// Records of each parent partition, in batches of [`BATCH`].
const RECORDS: u64 = 600;
const BATCH: u64 = 50;

/// A parent with its records, and a child with their copies.
struct Setting {
    world: World,
    options: LinkOptions,
    attached_at: u64,
    /// The history of the parent that the copies name.
    copied_from: Lineage,
}

fn name(text: &str) -> TopicName {
    text.parse().expect("a name")
}

fn topic(text: &str, partitions: u32, partitioner: Partitioner) -> Topic {
    Topic {
        spec: TopicSpec {
            name: name(text),
            partitions,
            partitioner,
            retention: Retention::default(),
            durability: Durability::Fsync,
        },
        incarnation: INCARNATION,
        owner_epochs: vec![OwnerEpoch(1); partitions as usize],
    }
}

fn record(partition: u32, n: u64) -> Record {
    Record {
        key: (!n.is_multiple_of(5)).then(|| Bytes::from(format!("key-{}", n % 37))),
        value: Bytes::from(format!("{partition}/{n}")),
        headers: vec![(
            "kind".to_owned(),
            Bytes::from(if n.is_multiple_of(3) { "trade" } else { "bid" }),
        )],
        timestamp: n as i64,
    }
}

impl Setting {
    fn new(options: LinkOptions, attached_at: u64) -> Setting {
        let long_ago = clock::now_nanos() - options.delay.as_nanos() - 3_600_000_000_000;
        Setting::at(options, attached_at, long_ago)
    }

    /// The parent's first batch is committed at `first_commit`, each next one a millisecond later.
    fn at(options: LinkOptions, attached_at: u64, first_commit: u64) -> Setting {
        let mut setting = Setting {
            world: World::default(),
            options,
            attached_at,
            copied_from: LINEAGE,
        };
        setting.world.topics = vec![
            topic("parent", PARENTS, Partitioner::Murmur2),
            topic("child", CHILDREN, Partitioner::Crc32c),
        ];
        for partition in 0..PARENTS {
            let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
            for n in 0..RECORDS {
                builder.push(&record(partition, n)).expect("fits");
                if (n + 1) % BATCH == 0 {
                    let batch = builder.finish(Writer::Anonymous, 0).expect("records");
                    let at = first_commit + n / BATCH * 1_000_000;
                    setting.world.log("parent", partition).append(&batch, at);
                }
            }
        }
        for partition in 0..PARENTS {
            setting.copy(partition, |_, _| true);
        }
        setting.world.links = vec![setting.status()];
        setting
    }

    /// Copies a parent partition as a cursor does, batch by batch; `keep` sees each child batch with its partition.
    fn copy(&mut self, partition: u32, mut keep: impl FnMut(u32, &ChildBatch) -> bool) {
        for (at, batches) in self.cut(partition) {
            for (bucket, batch) in batches {
                if keep(bucket, &batch) {
                    self.world
                        .log("child", bucket)
                        .append(&batch.bytes, at + self.options.delay.as_nanos() + 5_000_000);
                }
            }
        }
    }

    /// By parent batch: its commit time, and what it gives to each child partition.
    fn cut(&mut self, partition: u32) -> Vec<(u64, Vec<(u32, ChildBatch)>)> {
        let rekey = Rekey {
            partitioner: Partitioner::Crc32c,
            partitions: CHILDREN,
            parent: PartitionId(partition),
        };
        let filter = self
            .options
            .filter
            .as_deref()
            .map(|text| Filter::parse(text).expect("a filter"));
        let mut cutter = Cutter::new(rekey, 1 << 20);
        let mut watermarks = vec![Offset(self.attached_at); CHILDREN as usize];
        let mut all = Vec::new();
        for run in self.world.log("parent", partition).batches() {
            let batch = BatchIter::new(&run).next().expect("a batch").expect("sound");
            let header = batch.header();
            let from = header.base_offset.max(Offset(self.attached_at));
            let next = header.end_offset();
            if next <= from {
                continue;
            }
            let take = |bucket: u32| Take {
                bucket: PartitionId(bucket),
                from,
                previous: watermarks[bucket as usize],
            };
            let plan = CutPlan {
                origin: OriginId {
                    epoch: EPOCH,
                    partition: PartitionId(partition),
                },
                lineage: self.copied_from,
                released_at: header.commit_time.plus(self.options.delay),
                from,
                next,
                count_from: from,
                takes: (0..CHILDREN).map(take).collect(),
            };
            let cut = cutter
                .cut(std::slice::from_ref(&run), &plan, filter.as_ref())
                .expect("cut");
            let mut batches = Vec::new();
            for part in cut.parts {
                let bucket = part.take.bucket.0;
                for batch in part.batches {
                    watermarks[bucket as usize] = batch.end;
                    batches.push((bucket, batch));
                }
            }
            all.push((header.commit_time.0, batches));
        }
        all
    }

    fn status(&self) -> LinkStatus {
        let cursor = |partition| CursorStatus {
            partition: PartitionId(partition),
            epoch: EPOCH,
            position: Offset(RECORDS),
            parent_high_water_mark: Offset(RECORDS),
            due_lag_millis: 0,
            next_due: None,
            committed: 0,
            filtered: 0,
            dropped: 0,
            duplicates: 0,
            stalled: None,
        };
        LinkStatus {
            link: Link {
                parent: name("parent"),
                child: name("child"),
                epoch: EPOCH,
                parent_incarnation: INCARNATION,
                child_incarnation: INCARNATION,
                options: self.options.clone(),
                attach_offsets: vec![Offset(self.attached_at); PARENTS as usize],
                index: 1,
            },
            cursors: (0..PARENTS).map(cursor).collect(),
        }
    }

    fn child_logs(&mut self) -> Vec<&mut Log> {
        let logs = self.world.logs.iter_mut();
        logs.filter(|((topic, _), _)| topic == "child")
            .map(|(_, log)| log)
            .collect()
    }

    /// Verifies; time stands still for the machine but not for the waiting.
    fn verify(self) -> Row {
        self.verify_while(|_| {})
    }

    /// Verifies while `later` happens to the world, a second after the start.
    fn verify_while(self, later: impl FnOnce(&mut World) + Send + 'static) -> Row {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let world = Arc::new(Mutex::new(self.world));
            let server = serve(world.clone()).await.to_string();
            let client = Client::connect(ClientConfig::new(server))
                .await
                .expect("connected");
            let changed = world.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                later(&mut changed.lock().expect("unpoisoned"));
            });
            driver::verify(
                &client,
                &name("parent"),
                &name("child"),
                Duration::from_secs(3),
                |_| {},
            )
            .await
            .expect("verified")
        })
    }
}

fn delayed() -> LinkOptions {
    LinkOptions {
        delay: Delay { millis: 2_000 },
        ..LinkOptions::default()
    }
}

#[test]
fn a_whole_child_is_clean() {
    let row = Setting::new(delayed(), 0).verify();
    assert!(row.ok, "{row:?}");
    assert_eq!((row.records, row.expected), (1_800, 1_800));
    assert_eq!((row.delay_ms, row.max_late_ms, row.pending), (2_000, 5, 0));
    assert_eq!(row.epoch, EPOCH.to_string());
}

#[test]
fn a_filter_and_a_late_attach_leave_out_what_they_must() {
    let options = LinkOptions {
        filter: Some("kind=trade".to_owned()),
        ..LinkOptions::default()
    };
    // 120 is not a batch boundary: 480 records of each partition remain, a third of them trades.
    let row = Setting::new(options, 120).verify();
    assert!(row.ok, "{row:?}");
    assert_eq!((row.records, row.expected, row.filtered), (480, 480, 960));
}

#[test]
fn a_lost_child_batch_is_missing() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    setting.child_logs()[2].lose(3);
    let row = setting.verify();
    assert!(!row.ok);
    assert!(row.missing > 0 && row.records + row.missing == 1_800, "{row:?}");
    assert_eq!(
        (row.duplicate, row.unexpected, row.early, row.differing),
        (0, 0, 0, 0)
    );
}

#[test]
fn the_end_of_a_child_that_never_comes_is_missing() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    setting.world.logs.remove(&("child".to_owned(), 1));
    let row = setting.verify();
    assert!(!row.ok && row.missing > 300, "{row:?}");
    assert_eq!(row.records + row.missing, 1_800);
}

#[test]
fn a_batch_that_was_committed_twice_is_a_duplicate() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    let again = setting.cut(1)[4].1[0].clone();
    setting
        .world
        .log("child", again.0)
        .append(&again.1.bytes, clock::now_nanos());
    let row = setting.verify();
    assert!(!row.ok);
    assert_eq!((row.duplicate, row.missing), (u64::from(again.1.records), 0));
}

#[test]
fn records_that_came_early_are_counted() {
    let mut setting = Setting::new(delayed(), 0);
    // A gate that believes in a shorter delay than the link has.
    setting.world.links[0].link.options.delay = Delay { millis: 2_001 };
    let row = setting.verify();
    assert!(!row.ok);
    assert_eq!((row.early, row.missing), (1_800, 0));
}

#[test]
fn copies_of_another_epoch_and_records_of_others_are_passed_over() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    let mut builder = BatchBuilder::new(Partitioner::Crc32c, 1 << 20);
    builder.push(&record(9, 9)).expect("fits");
    let own = builder.finish(Writer::Random([1; 16]), 0).expect("a record");
    setting.child_logs()[0].append(&own, clock::now_nanos());
    let mut foreign = setting.cut(0)[0].1[0].1.bytes.to_vec();
    let mut header = tailwater_wire::batch::header::BatchHeader::decode(&foreign).expect("a batch");
    header.writer = Writer::Origin(OriginId {
        epoch: Epoch([1; 8]),
        partition: PartitionId(0),
    });
    header.encode(&mut foreign);
    setting.child_logs()[0].append(&foreign, clock::now_nanos());
    let row = setting.verify();
    assert!(row.ok, "{row:?}");
    assert_eq!(row.records, 1_800);
}

#[test]
fn what_retention_removed_is_unverifiable_and_no_finding() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    setting.world.log("parent", 0).retain_from(4);
    setting.world.log("child", 2).retain_from(5);
    let row = setting.verify();
    assert!(row.ok, "{row:?}");
    assert!(row.records == row.expected && row.expected < 1_600, "{row:?}");
    let parent = row
        .unverifiable
        .iter()
        .find(|range| range.child_partition.is_none());
    assert_eq!(
        parent.map(|range| (range.partition, range.from, range.to)),
        Some((0, 0, 200))
    );
    assert!(
        row.unverifiable
            .iter()
            .any(|range| range.child_partition == Some(2))
    );
}

#[test]
fn damage_in_the_parent_is_a_gap() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    setting.world.log("parent", 1).lose(3);
    let row = setting.verify();
    assert!(row.ok, "{row:?}");
    assert_eq!((row.records, row.expected), (1_750, 1_750));
    assert!(
        row.unverifiable
            .iter()
            .all(|range| (range.partition, range.from, range.to) == (1, 150, 200))
    );
}

#[test]
fn what_is_not_due_is_pending() {
    let day = LinkOptions {
        delay: Delay { millis: 86_400_000 },
        ..LinkOptions::default()
    };
    let mut setting = Setting::at(day, 0, clock::now_nanos() - 60_000_000_000);
    setting
        .child_logs()
        .into_iter()
        .for_each(|log| *log = Log::default());
    let row = setting.verify();
    assert!(row.ok, "{row:?}");
    assert_eq!((row.records, row.expected, row.pending), (0, 0, 1_800));
}

#[test]
fn what_is_due_is_waited_for() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    let late: Vec<(u32, Bytes)> = setting.child_logs()[3]
        .batches()
        .into_iter()
        .map(|batch| (3, batch))
        .collect();
    setting.world.logs.remove(&("child".to_owned(), 3));
    let row = setting.verify_while(move |world| {
        for (bucket, batch) in late {
            world
                .log("child", bucket)
                .append(&batch, CommitTime(clock::now_nanos()).0);
        }
    });
    assert!(row.ok, "{row:?}");
    assert_eq!(row.records, 1_800);
}

#[test]
fn copies_of_what_the_parent_no_longer_has_are_unexpected() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    setting.world.log("parent", 1).lose_from(7);
    let row = setting.verify();
    assert!(!row.ok, "{row:?}");
    assert_eq!((row.records, row.expected, row.unexpected), (1_550, 1_550, 250));
    assert_eq!((row.missing, row.duplicate, row.differing), (0, 0, 0));
    assert!(!row.unexpected_ranges.is_empty());
    for range in &row.unexpected_ranges {
        assert!(
            range.partition == 1 && range.from >= 350 && range.to <= 600,
            "{row:?}"
        );
    }
}

#[test]
fn copies_of_a_parent_that_lost_everything_are_unexpected() {
    let mut setting = Setting::new(LinkOptions::default(), 120);
    setting.world.log("parent", 2).lose_from(0);
    let row = setting.verify();
    assert!(!row.ok, "{row:?}");
    assert_eq!((row.expected, row.unexpected), (960, 480));
}

#[test]
fn what_is_committed_and_copied_meanwhile_is_no_finding() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    // A copy of partition 2 comes late, so that the verification still looks when partition 0 grows.
    let mut late = Vec::new();
    setting
        .child_logs()
        .into_iter()
        .for_each(|log| *log = Log::default());
    for partition in 0..PARENTS {
        setting.copy(partition, |bucket, batch| {
            let is_late = match partition {
                0 => batch.end > Offset(300),
                2 => bucket == 0 && batch.end == Offset(RECORDS),
                _ => false,
            };
            if is_late {
                late.push((bucket, batch.bytes.clone()));
            }
            !is_late
        });
    }
    assert!(late.len() > 6, "{}", late.len());
    let whole = setting.world.log("parent", 0).clone();
    setting.world.log("parent", 0).lose_from(6);
    let row = setting.verify_while(move |world| {
        *world.log("parent", 0) = whole;
        for (bucket, batch) in late {
            world.log("child", bucket).append(&batch, clock::now_nanos());
        }
    });
    assert_eq!(row.expected, 1_500);
    assert!(row.ok, "{row:?}");
}

// A `written` parent that crashed has a new history, and most of its records still.
#[test]
fn copies_from_another_history_of_the_parent_are_judged_by_what_they_hold() {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    setting
        .child_logs()
        .into_iter()
        .for_each(|log| *log = Log::default());
    setting.copied_from = Lineage([3; 8]);
    (0..PARENTS).for_each(|partition| setting.copy(partition, |_, _| true));
    let row = setting.verify();
    assert!(row.ok, "{row:?}");
    assert_eq!((row.records, row.missing, row.unexpected), (1_800, 0, 0));
}

/// A child whose copies of partition 1, from batch `at` on, are replaced by one notice for each child partition.
fn with_notices(at: usize, less: u64) -> Setting {
    let mut setting = Setting::new(LinkOptions::default(), 0);
    setting
        .child_logs()
        .into_iter()
        .for_each(|log| *log = Log::default());
    for partition in [0, 2] {
        setting.copy(partition, |_, _| true);
    }
    let cut = setting.cut(1);
    let mut watermarks = vec![Offset::ZERO; CHILDREN as usize];
    let mut lost = vec![0; CHILDREN as usize];
    for (n, (time, batches)) in cut.into_iter().enumerate() {
        for (bucket, batch) in batches {
            if n < at {
                setting.world.log("child", bucket).append(&batch.bytes, time);
                watermarks[bucket as usize] = batch.end;
            } else {
                lost[bucket as usize] += u64::from(batch.records);
            }
        }
    }
    for bucket in 0..CHILDREN {
        let dropped = Dropped {
            from: Offset(at as u64 * BATCH),
            to: Offset(RECORDS),
            records: lost[bucket as usize] - less,
            filtered: 0,
        };
        let origin = OriginId {
            epoch: EPOCH,
            partition: PartitionId(1),
        };
        let previous = watermarks[bucket as usize];
        let notice = dropped.batch(Partitioner::Crc32c, origin, previous, OriginStamp::default());
        setting.world.log("child", bucket).append(&notice, 1);
    }
    setting
}

#[test]
fn what_control_batches_count_is_dropped_and_not_missing() {
    let row = with_notices(5, 0).verify();
    assert!(row.ok, "{row:?}");
    assert_eq!((row.records, row.dropped, row.missing), (1_450, 350, 0));
    assert_eq!(
        row.records + row.dropped + row.filtered,
        u64::from(PARENTS) * RECORDS
    );
    assert_eq!(row.dropped_ranges.len(), CHILDREN as usize);
    let range = &row.dropped_ranges[0];
    assert_eq!((range.partition, range.from, range.to), (1, 250, 600));

    let row = with_notices(5, 1).verify();
    assert_eq!(
        (row.ok, row.missing, row.dropped),
        (false, u64::from(CHILDREN), 346)
    );
}

#[test]
fn counts_of_what_the_parent_lost_are_shown_and_not_checked() {
    let mut setting = with_notices(5, 1);
    setting.world.log("parent", 1).retain_from(12);
    let row = setting.verify();
    assert!(row.ok, "{row:?}");
    assert_eq!((row.dropped, row.expected), (346, 1_200));
    assert_eq!(row.unverifiable.len(), 1);
    assert_eq!((row.unverifiable[0].from, row.unverifiable[0].to), (0, 600));
}

#[test]
fn a_link_that_stands_still_for_good_is_not_ok() {
    for (why, ok) in [
        (
            "diverged: the parent's record 9 is not the one that was copied",
            false,
        ),
        ("position ahead: 9 is above the parent's end 5", false),
        ("unproved: the parent has a new history", false),
        ("child regressed: it acknowledged up to 9 and now says 5", false),
        ("child: BUSY", true),
    ] {
        let mut setting = Setting::new(LinkOptions::default(), 0);
        setting.world.links[0].cursors[1].stalled = Some(why.to_owned());
        let row = setting.verify();
        assert_eq!(row.ok, ok, "{row:?}");
        let want = (!ok).then(|| format!("partition 1: {why}"));
        assert_eq!(row.stalled, want);
    }
}
