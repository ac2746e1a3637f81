//! Streams the logs of a link through the decider, child partition by child partition.
//!
//! Memory: one slab of the child partition, and two of each parent partition, together at most about 64 MiB. Each
//! parent partition is read once for each child partition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tailwater_node::fanout::filter::Filter;
use tailwater_node::fanout::rekey::Rekey;
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::batch::header::{BatchHeader, BatchKind};
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Offset, PartitionId, TopicName, Writer};
use tailwater_wire::message::{LinkStatus, Place};
use tailwater_wire::meta::{Link, Topic};

use crate::clock;
use crate::verify::decider::{Advance, ChildItem, Decider, DroppedItem, Head, Tally};
use crate::verify::row::{
    DROPPED_RANGES_MAX, DroppedRange, Row, UNEXPECTED_RANGES_MAX, Unexpected, Unverifiable, stalled_for_good,
};
use crate::verify::stream::{ParentStream, Source, Wanted, content, corrupt, next_batch};

/// How long what is due is waited for, without a sign of progress.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A record that fell due less than this before the end counts as pending.
const GRACE: Duration = Duration::from_secs(1);
const SLAB_BYTES_MAX: u64 = 1 << 20;
const SLAB_BYTES_MIN: u64 = 64 << 10;
const MEMORY_BYTES: u64 = 64 << 20;
/// How long one read waits at the end of a child partition.
const POLL: Duration = Duration::from_millis(500);

/// Verifies a link over what its parent holds now. What is due is waited for, for
/// `patience` without a sign of progress. `progress` hears how many child records were compared.
///
/// # Errors
/// `UNKNOWN_LINK`, or any [`ClientError`]; what is found is no error but the row.
pub async fn verify(
    client: &Client,
    parent: &TopicName,
    child: &TopicName,
    patience: Duration,
    mut progress: impl FnMut(u64),
) -> Result<Row, ClientError> {
    let job = Job::prepare(client, parent, child).await?;
    let mut patience = Patience {
        whole: patience,
        waited: Duration::ZERO,
        started: None,
    };
    let mut total = Tally::default();
    let mut filtered = 0;
    let mut unverifiable = job.removed.clone();
    let mut unexpected_ranges = Vec::new();
    let mut dropped_ranges = Vec::new();
    for bucket in 0..job.child.spec.partitions {
        let mut work = Bucket::new(&job, PartitionId(bucket));
        work.run(&mut patience, &mut |tally| progress(total.records + tally))
            .await?;
        for pair in &work.pairs {
            total.add(pair.decider.tally());
            filtered += pair.stream.filtered;
        }
        unverifiable.append(&mut work.unverifiable());
        unexpected_ranges.extend(work.unexpected());
        unexpected_ranges.truncate(UNEXPECTED_RANGES_MAX);
        dropped_ranges.append(&mut work.dropped);
        dropped_ranges.truncate(DROPPED_RANGES_MAX);
    }
    let status = client.list_links(Some(parent)).await?;
    let same = status.iter().find(|status| status.link.epoch == job.link.epoch);
    let stalled = same.and_then(stalled_for_good);
    Ok(Row {
        parent: parent.to_string(),
        child: child.to_string(),
        epoch: job.link.epoch.to_string(),
        delay_ms: job.link.options.delay.millis,
        records: total.records,
        expected: total.expected,
        missing: total.missing,
        duplicate: total.duplicate,
        early: total.early,
        unexpected: total.unexpected,
        differing: total.differing,
        dropped: total.dropped,
        filtered,
        pending: total.pending,
        max_late_ms: total.max_late_ns / 1_000_000,
        unverifiable,
        dropped_ranges,
        unexpected_ranges,
        ok: total.is_ok() && stalled.is_none(),
        stalled,
    })
}

/// What is to be verified, as it stood at the start.
struct Job {
    client: Client,
    link: Link,
    parent: Topic,
    child: Topic,
    filter: Option<Arc<Filter>>,
    /// By parent partition, from the attach offset or the log's start to the high-water mark.
    sources: Vec<Source>,
    /// Cursor positions by parent partition: what lies below was copied once.
    positions: Vec<u64>,
    removed: Vec<Unverifiable>,
}

impl Job {
    async fn prepare(client: &Client, parent: &TopicName, child: &TopicName) -> Result<Job, ClientError> {
        let status = find_link(client, parent, child).await?;
        let link = status.link;
        let topics = client
            .describe_topics(Some(vec![parent.clone(), child.clone()]))
            .await?;
        let topic = |name: &TopicName| {
            let found = topics.iter().find(|topic| topic.spec.name == *name).cloned();
            found.ok_or_else(|| refused(ErrorCode::UnknownTopic, format!("topic {name}: it is gone")))
        };
        let (parent, child) = (topic(parent)?, topic(child)?);
        if parent.incarnation != link.parent_incarnation || child.incarnation != link.child_incarnation {
            let what = "the link is of an earlier life of its topics".to_owned();
            return Err(refused(ErrorCode::StaleIncarnation, what));
        }
        let filter = link.options.filter.as_deref().map(Filter::parse).transpose();
        let filter = filter.map_err(|error| refused(ErrorCode::InvalidFilter, error.to_string()))?;
        let mut job = Job {
            client: client.clone(),
            sources: Vec::new(),
            positions: vec![0; parent.spec.partitions as usize],
            removed: Vec::new(),
            filter: filter.map(Arc::new),
            link,
            parent,
            child,
        };
        for cursor in status.cursors {
            if let Some(position) = job.positions.get_mut(cursor.partition.0 as usize) {
                *position = cursor.position.0;
            }
        }
        for partition in 0..job.parent.spec.partitions {
            job.measure(PartitionId(partition)).await?;
        }
        Ok(job)
    }

    /// Takes the range of a parent partition.
    async fn measure(&mut self, partition: PartitionId) -> Result<(), ClientError> {
        let topic = &self.parent.spec.name;
        let found = self.client.find_offset(topic, partition, Place::Tail).await?;
        let attached_at = self.link.attach_offset(partition.0).0;
        let from = attached_at.max(found.log_start.0);
        if from > attached_at {
            self.removed.push(Unverifiable {
                partition: partition.0,
                child_partition: None,
                from: attached_at,
                to: from,
                why: "retention removed them from the parent",
            });
        }
        self.sources.push(Source {
            topic: topic.clone(),
            incarnation: self.parent.incarnation,
            partition,
            lineage: found.lineage,
            from,
            to: found.high_water_mark.0.max(from),
        });
        Ok(())
    }

    fn slab_bytes(&self) -> u32 {
        let slabs = 2 * self.sources.len() as u64 + 1;
        (MEMORY_BYTES / slabs).clamp(SLAB_BYTES_MIN, SLAB_BYTES_MAX) as u32
    }
}

/// A link with its progress.
///
/// # Errors
/// `UNKNOWN_LINK`, or any [`ClientError`].
pub async fn find_link(
    client: &Client,
    parent: &TopicName,
    child: &TopicName,
) -> Result<LinkStatus, ClientError> {
    let links = client.list_links(Some(parent)).await?;
    let found = links.into_iter().find(|status| status.link.child == *child);
    found.ok_or_else(|| {
        let what = format!("link {parent} -> {child}: {child} is not attached to {parent}");
        refused(ErrorCode::UnknownLink, what)
    })
}

fn refused(code: ErrorCode, what: String) -> ClientError {
    ClientError::Refused(Refusal::new(code, what))
}

/// How much longer to wait for what is due; shared by all child partitions, and full again after progress.
struct Patience {
    whole: Duration,
    waited: Duration,
    started: Option<Instant>,
}

impl Patience {
    fn left(&self) -> Duration {
        let running = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        self.whole.saturating_sub(self.waited + running)
    }

    fn begin(&mut self) {
        self.started.get_or_insert_with(Instant::now);
    }

    fn progressed(&mut self) {
        self.waited = Duration::ZERO;
        self.started = None;
    }

    fn end(&mut self) {
        if let Some(started) = self.started.take() {
            self.waited += started.elapsed();
        }
    }
}

/// One parent partition against the child partition at hand.
struct PairWork {
    stream: ParentStream,
    decider: Decider,
    /// Whether a batch of this pair was met.
    met: bool,
    /// Whether the parent was asked for its end after the slab at hand was read.
    asked: bool,
}

/// One child partition.
struct Bucket<'a> {
    job: &'a Job,
    bucket: PartitionId,
    /// By parent partition.
    pairs: Vec<PairWork>,
    child_log_start: u64,
    quarantined: bool,
    /// What the child's control batches say was dropped, the first few.
    dropped: Vec<DroppedRange>,
}

impl<'a> Bucket<'a> {
    fn new(job: &'a Job, bucket: PartitionId) -> Bucket<'a> {
        let delay_ns = job.link.options.delay.as_nanos();
        let pair = |source: &Source| {
            let wanted = Wanted {
                rekey: Rekey {
                    partitioner: job.child.spec.partitioner,
                    partitions: job.child.spec.partitions,
                    parent: source.partition,
                },
                bucket,
                filter: job.filter.clone(),
            };
            let attached_at = job.link.attach_offset(source.partition.0).0;
            PairWork {
                stream: ParentStream::new(job.client.clone(), source.clone(), wanted, job.slab_bytes()),
                decider: Decider::new(attached_at, source.from, source.to, delay_ns),
                met: false,
                asked: false,
            }
        };
        Bucket {
            job,
            bucket,
            pairs: job.sources.iter().map(pair).collect(),
            child_log_start: 0,
            quarantined: false,
            dropped: Vec::new(),
        }
    }

    async fn run(
        &mut self,
        patience: &mut Patience,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), ClientError> {
        let client = &self.job.client;
        let topic = &self.job.child.spec.name;
        let start = client.find_offset(topic, self.bucket, Place::Earliest).await?;
        let child = Source {
            topic: topic.clone(),
            incarnation: self.job.child.incarnation,
            partition: self.bucket,
            lineage: start.lineage,
            from: start.log_start.0,
            to: u64::MAX,
        };
        self.child_log_start = start.log_start.0;
        let mut next = child.from;
        let mut wait = Duration::ZERO;
        // What the child held at the start is read to its end; beyond it, only what is still missing is looked for.
        let mut goal = None;
        loop {
            let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
            let read = child.fetch(client, next, self.job.slab_bytes(), wait_ms).await;
            let (fetched, slab) = read?;
            self.quarantined |= !fetched.quarantined.is_empty();
            let before = self.compared();
            let (asked, slab_is_empty) = (next, slab.is_empty());
            self.take(&child, next, slab).await?;
            let after = self.compared();
            progress(after);
            next = next.max(fetched.next.0);
            let goal = *goal.get_or_insert(fetched.high_water_mark.0);
            if after > before {
                patience.progressed();
            }
            if next < goal {
                if slab_is_empty && next == asked {
                    return Err(corrupt(
                        &child,
                        next,
                        "the node has nothing below its high-water mark",
                    ));
                }
                continue;
            }
            patience.begin();
            let left = patience.left();
            if left.is_zero() || !self.is_due_within(left).await? {
                break;
            }
            wait = left.min(POLL);
        }
        patience.end();
        self.finish().await
    }

    fn compared(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.decider.tally().records).sum()
    }

    async fn take(&mut self, child: &Source, near: u64, mut slab: Bytes) -> Result<(), ClientError> {
        self.pairs.iter_mut().for_each(|pair| pair.asked = false);
        while let Some((header, bytes)) = next_batch(child, near, &mut slab)? {
            let Writer::Origin(origin) = header.writer else {
                continue;
            };
            let pair = self.pairs.get_mut(origin.partition.0 as usize);
            let Some(pair) = pair.filter(|_| origin.epoch == self.job.link.epoch) else {
                continue;
            };
            if !pair.met && self.child_log_start > 0 {
                pair.decider.child_starts_after(header.previous);
            }
            pair.met = true;
            if header.kind == BatchKind::Data {
                let parent = &self.job.sources[origin.partition.0 as usize];
                pair.compare(&self.job.client, parent, child, &header, &bytes)
                    .await?;
            } else if let Some(dropped) = notice(child, &header, &bytes)? {
                let (from, to) = (dropped.from.0, dropped.to.0);
                pair.dropped(from, to, dropped.records).await?;
                if self.dropped.len() < DROPPED_RANGES_MAX {
                    self.dropped.push(DroppedRange {
                        partition: origin.partition.0,
                        child_partition: self.bucket.0,
                        from,
                        to,
                        records: dropped.records,
                        filtered: dropped.filtered,
                    });
                }
            }
        }
        Ok(())
    }

    /// Whether something that the child lacks is due now, or will be in this time.
    async fn is_due_within(&mut self, time: Duration) -> Result<bool, ClientError> {
        let delay = self.job.link.options.delay;
        let until = clock::now_nanos().saturating_add(time.as_nanos() as u64);
        for pair in &mut self.pairs {
            let blind_to = pair.decider.blind_to();
            while let Some(item) = pair.stream.item().await? {
                if item.offset >= blind_to {
                    break;
                }
                pair.stream.advance();
            }
            let due = |commit_time: u64| commit_time.saturating_add(delay.as_nanos()) <= until;
            if pair
                .stream
                .item()
                .await?
                .is_some_and(|item| due(item.commit_time))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The child has said what it has to say.
    async fn finish(&mut self) -> Result<(), ClientError> {
        let held_back = self.job.link.options.delay.as_nanos() + GRACE.as_nanos() as u64;
        let overdue_before = clock::now_nanos().saturating_sub(held_back);
        for (pair, &position) in self.pairs.iter_mut().zip(&self.job.positions) {
            if !pair.met && self.child_log_start > 0 {
                pair.decider.child_starts_after(position);
            }
            while let Some(item) = pair.stream.item().await? {
                pair.decider.child_ended(item, overdue_before);
                pair.stream.advance();
            }
        }
        Ok(())
    }

    fn unexpected(&self) -> impl Iterator<Item = Unexpected> {
        let pairs = self.pairs.iter().zip(&self.job.sources);
        pairs.flat_map(|(pair, source)| {
            pair.decider.unexpected().iter().map(|range| Unexpected {
                partition: source.partition.0,
                child_partition: self.bucket.0,
                from: range.start,
                to: range.end,
            })
        })
    }

    fn unverifiable(&self) -> Vec<Unverifiable> {
        let mut ranges = Vec::new();
        for (pair, source) in self.pairs.iter().zip(&self.job.sources) {
            let range = |from, to, why| Unverifiable {
                partition: source.partition.0,
                child_partition: Some(self.bucket.0),
                from,
                to,
                why,
            };
            for &(from, to) in &pair.stream.gaps {
                ranges.push(range(
                    from,
                    to,
                    "the parent's log does not have them any more, or they are damaged",
                ));
            }
            let blind_to = pair.decider.blind_to().min(source.to);
            if self.child_log_start > 0 && blind_to > source.from {
                ranges.push(range(
                    source.from,
                    blind_to,
                    "retention removed their copies from the child",
                ));
            }
            if self.quarantined {
                let why = "copies are damaged in the child's log, and count as missing";
                ranges.push(range(source.from, source.to, why));
            }
        }
        ranges
    }
}

impl PairWork {
    async fn compare(
        &mut self,
        client: &Client,
        parent: &Source,
        child: &Source,
        header: &BatchHeader,
        bytes: &Bytes,
    ) -> Result<(), ClientError> {
        let items = child_items(parent, child, header, bytes)?;
        let top = items.iter().map(|item| item.parent_offset).max();
        if top.is_some_and(|top| top >= self.decider.parent_end()) && !self.asked {
            // The slab was read before: what the parent does not have now, it did not have when that was copied.
            let found = client
                .find_offset(&parent.topic, parent.partition, Place::Tail)
                .await?;
            if found.lineage != parent.lineage {
                let place = format!("topic {}: partition {}", parent.topic, parent.partition);
                let what = format!("{place}: its history was replaced while it was verified");
                return Err(refused(ErrorCode::StaleLineage, what));
            }
            self.decider.parent_reaches(found.high_water_mark.0);
            self.asked = true;
        }
        for item in &items {
            self.walk(|decider, head| decider.compare(head, item)).await?;
        }
        Ok(())
    }

    async fn dropped(&mut self, from: u64, to: u64, records: u64) -> Result<(), ClientError> {
        let item = DroppedItem { from, to, records };
        self.walk(|decider, head| decider.dropped(head, &item)).await
    }

    /// Moves the parent's stream on until the child's item has its place.
    async fn walk(
        &mut self,
        mut step: impl FnMut(&mut Decider, Head<'_>) -> Advance,
    ) -> Result<(), ClientError> {
        loop {
            let Some(head) = self.stream.peek() else {
                self.stream.fill().await?;
                continue;
            };
            let advance = step(&mut self.decider, head);
            if advance != Advance::Child {
                self.stream.advance();
            }
            if advance != Advance::Parent {
                return Ok(());
            }
        }
    }
}

/// What a control batch says was dropped, if it is such a one.
fn notice(child: &Source, header: &BatchHeader, bytes: &Bytes) -> Result<Option<Dropped>, ClientError> {
    let near = header.base_offset.0;
    let view = BatchView::parse(bytes).map_err(|error| corrupt(child, near, &error.to_string()))?;
    Ok(Dropped::of(&view))
}

fn child_items(
    parent: &Source,
    child: &Source,
    header: &BatchHeader,
    bytes: &Bytes,
) -> Result<Vec<ChildItem>, ClientError> {
    let near = header.base_offset.0;
    let view = BatchView::parse(bytes).map_err(|error| corrupt(child, near, &error.to_string()))?;
    let origin = view.body().and_then(|body| body.origin.as_ref());
    let origin = origin.ok_or_else(|| corrupt(child, near, "a copy that does not name its origin"))?;
    let released_at = origin.released_at.to_native();
    let foreign = origin.lineage.to_native() != parent.lineage.as_u64();
    let items = view.records().map(|record| ChildItem {
        parent_offset: record.origin.unwrap_or(Offset::ZERO).0,
        commit_time: header.commit_time.0,
        released_at,
        foreign,
        content: content(bytes, &record),
    });
    Ok(items.collect())
}
