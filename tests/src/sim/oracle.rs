//! The oracle: what must be true of the two logs once everything has arrived.
//!
//! For the link that is alive: every parent record from the attach point that passes the filter is in the child
//! exactly once, in its partition, as it was, or is counted there as dropped: for each child partition, what is delivered,
//! filtered and dropped adds up to what was produced, and so it does within the range of each notice. For every link that
//! ever was: each child partition is whole below its watermark, in order, and never early. And nothing of a dead epoch was
//! appended by a partition that knew.

use std::collections::{BTreeMap, BTreeSet};

use tailwater_wire::ids::{Offset, OriginId, PartitionId};
use tailwater_wire::meta::Link;
use tailwater_wire::partitioner::keyless;
use tailwater_wire::record::Record;

use super::child::Appended;
use super::runner::Runner;
use super::world::World;

impl World {
    /// Looks at everything, and notes what is wrong.
    pub fn audit(&mut self) {
        let mut wrong = Vec::new();
        let links = self.meta.links.clone();
        let mut delivered = 0;
        for link in &links {
            for partition in 0..self.scenario.parent_partitions {
                delivered += self.audit_link(link, partition, &mut wrong);
            }
        }
        let appended: u64 = self
            .children
            .iter()
            .flat_map(|child| child.durable())
            .map(|batch| batch.records.len() as u64)
            .sum();
        if appended != delivered {
            wrong.push(format!(
                "{appended} records in the child, {delivered} of a link that was"
            ));
        }
        self.audit_epochs(&mut wrong);
        self.audit_counters(&mut wrong);
        self.trace.note(&[16, appended]);
        self.failures.extend(wrong);
    }

    /// One origin, over all child partitions. Returns the records found.
    fn audit_link(&self, link: &Link, partition: u32, wrong: &mut Vec<String>) -> u64 {
        let origin = OriginId {
            epoch: link.epoch,
            partition: PartitionId(partition),
        };
        let alive = self.meta.link().map(|link| link.epoch) == Some(link.epoch);
        let attach = link.attach_offset(partition);
        let parent = &self.parents[partition as usize];
        let mut found = 0;
        for child in &self.children {
            let name = format!("{origin:?} in child partition {}", child.partition);
            let batches: Vec<&Appended> = child
                .durable()
                .iter()
                .filter(|batch| batch.origin == origin)
                .collect();
            let watermark = batches.last().map_or(attach, |batch| batch.batch.end);
            let whole_to = if alive {
                parent.high_water_mark()
            } else {
                watermark
            };
            let expected: BTreeMap<Offset, &Record> = parent
                .records()
                .filter(|(offset, _, record)| {
                    *offset >= attach
                        && *offset < whole_to
                        && passes(self.scenario.filter, record)
                        && self.place(partition, *offset, record) == child.partition
                })
                .map(|(offset, _, record)| (offset, record))
                .collect();
            let mut seen = BTreeSet::new();
            let mut last = None;
            for (offset, record) in batches.iter().flat_map(|batch| &batch.records) {
                found += 1;
                if last >= Some(*offset) {
                    wrong.push(format!("{name}: {offset} after {last:?}"));
                }
                last = Some(*offset);
                if !seen.insert(*offset) {
                    wrong.push(format!("{name}: {offset} twice"));
                }
                match expected.get(offset) {
                    None => wrong.push(format!("{name}: {offset} does not belong there")),
                    Some(original) if *original != record => {
                        wrong.push(format!("{name}: {offset} is not what it was"));
                    }
                    Some(_) => {}
                }
            }
            let lost: Vec<Offset> = expected.keys().filter(|at| !seen.contains(at)).copied().collect();
            self.audit_notices(
                (&name, link),
                (partition, child.partition),
                &batches,
                &lost,
                wrong,
            );
            self.audit_times(&name, partition, &batches, wrong);
        }
        found
    }

    fn audit_times(&self, name: &str, partition: u32, batches: &[&Appended], wrong: &mut Vec<String>) {
        let committed: BTreeMap<Offset, _> = self.parents[partition as usize]
            .records()
            .map(|(offset, committed, _)| (offset, committed))
            .collect();
        for batch in batches {
            for (offset, _) in &batch.records {
                let due = committed.get(offset).map(|time| time.plus(self.scenario.delay));
                if due > Some(batch.released_at) || due > Some(batch.appended_at) {
                    wrong.push(format!("{name}: {offset} is early"));
                }
            }
        }
        for pair in batches.windows(2) {
            if pair[1].batch.previous != pair[0].batch.end {
                wrong.push(format!(
                    "{name}: a batch follows {}, not {}",
                    pair[1].batch.previous, pair[0].batch.end
                ));
            }
        }
    }

    /// Nothing of an epoch that was gone, as far as the partition knew, is in its log.
    fn audit_epochs(&self, wrong: &mut Vec<String>) {
        for child in &self.children {
            for batch in &child.log {
                let snapshot = &self.meta.snapshots[batch.view as usize];
                if snapshot
                    .link_by_epoch(&self.meta.child, batch.origin.epoch)
                    .is_none()
                {
                    wrong.push(format!(
                        "child partition {}: a batch of the dead {:?} at {}",
                        child.partition, batch.origin, batch.base
                    ));
                }
            }
        }
    }

    /// The cursor's own count of what it filtered: exact, if it was the only one of its epoch and so read everything.
    fn audit_counters(&self, wrong: &mut Vec<String>) {
        for runner in self
            .runners
            .iter()
            .filter(|runner| !runner.dead && !runner.zombie)
        {
            let parent = &self.parents[runner.partition as usize];
            let Some(from) = runner.first_read else { continue };
            let held_back = parent
                .records()
                .filter(|(offset, _, record)| *offset >= from && !passes(self.scenario.filter, record))
                .count() as u64;
            let probe = runner.cursor.probe();
            let same = |other: &&Runner| {
                other.partition == runner.partition && other.identity.epoch == runner.identity.epoch
            };
            let exact = !self.scenario.retention && self.runners.iter().filter(same).count() == 1;
            // With retention some are counted before the first read.
            let over = !self.scenario.retention && probe.filtered > held_back;
            if exact && probe.filtered != held_back || over {
                wrong.push(format!(
                    "partition {}: {} counted as filtered, {held_back} are",
                    runner.partition, probe.filtered
                ));
            }
            self.audit_ledger(runner, wrong);
        }
    }

    /// Where nothing fails and one cursor does it all: what was produced since the attach is committed, filtered or
    /// dropped.
    fn audit_ledger(&self, runner: &Runner, wrong: &mut Vec<String>) {
        let scenario = &self.scenario;
        let calm = scenario.loss + scenario.duplication + scenario.chaos_millis == 0;
        let Some(link) = self.meta.link().filter(|_| calm) else {
            return;
        };
        let attach = link.attach_offset(runner.partition);
        let high_water_mark = self.parents[runner.partition as usize].high_water_mark();
        let probe = runner.cursor.probe();
        let accounted = probe.committed + probe.filtered + probe.dropped;
        let produced = high_water_mark.since(attach);
        if accounted != produced || probe.duplicates > 0 {
            wrong.push(format!(
                "partition {}: {probe:?} for {produced} produced",
                runner.partition
            ));
        }
    }

    /// `lost` are the records that a child partition should have and has not: each lies in the range of one notice, and
    /// each notice counts those in its range. What was gone before anybody could count it is counted offset by offset.
    fn audit_notices(
        &self,
        (name, link): (&str, &Link),
        (partition, bucket): (u32, PartitionId),
        batches: &[&Appended],
        lost: &[Offset],
        wrong: &mut Vec<String>,
    ) {
        let parent = &self.parents[partition as usize];
        let partitions = self.scenario.child_partitions;
        let since = self.node.uncounted.get(&(link.epoch, parent.partition));
        let since = since.copied().unwrap_or_default();
        let mut told = BTreeSet::new();
        for notice in batches.iter().filter_map(|batch| batch.dropped) {
            let inside = notice.from.max(since).min(notice.to)..notice.to;
            let before = lost.iter().filter(|at| (notice.from..notice.to).contains(at));
            told.extend(before.copied());
            let known = lost.iter().filter(|at| inside.contains(at)).count() as u64;
            let uncounted = (notice.from.0..inside.start.0)
                .filter(|&at| keyless(parent.partition, Offset(at), partitions) == bucket)
                .count() as u64;
            let filtered = parent
                .records()
                .filter(|(at, _, record)| {
                    inside.contains(at)
                        && !passes(self.scenario.filter, record)
                        && self.place(partition, *at, record) == bucket
                })
                .count() as u64;
            if (notice.records, notice.filtered) != (known + uncounted, filtered) {
                wrong.push(format!(
                    "{name}: {notice:?}, and {known} + {uncounted} are lost, {filtered} filtered (uncounted below {since})"
                ));
            }
        }
        for offset in lost.iter().filter(|at| !told.contains(at) && **at >= since) {
            wrong.push(format!("{name}: {offset} is missing, and no notice says so"));
        }
    }

    /// Where a record belongs, worked out anew.
    fn place(&self, partition: u32, offset: Offset, record: &Record) -> PartitionId {
        let partitions = self.scenario.child_partitions;
        let by = self.scenario.child_partitioner;
        record.key.as_deref().map_or_else(
            || keyless(PartitionId(partition), offset, partitions),
            |key| by.partition(by.hash(key), partitions),
        )
    }
}

/// The filters of the scenarios, read a second time.
fn passes(filter: Option<&str>, record: &Record) -> bool {
    let key = record.key.as_deref();
    match filter {
        Some("kind=trade") => record
            .headers
            .iter()
            .any(|(name, value)| name == "kind" && value.as_ref() == b"trade"),
        Some("key^=1") => key.is_some_and(|key| key.first() == Some(&b'1')),
        Some("key=3|4|5") => key.is_some_and(|key| matches!(key, b"3" | b"4" | b"5")),
        _ => true,
    }
}
