//! Power cuts at every step of a scripted run, and what must be left after each.
//!
//! The script appends to two partitions that share their flushes, rolls, prepares, replaces a cursor file, applies
//! retention, proves and closes. The power is cut before, inside and after every operation that it makes on the disk;
//! what was volatile is then lost, kept, or drawn from a seed, and the logs are opened again. The oracle knows what was
//! submitted and what was acknowledged. It is itself tested on a disk that skips flushes, where it must find losses.

#[path = "common/lying.rs"]
mod lying;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use futures_lite::future::{block_on, poll_once};
use tailwater_storage::atomic_file::replace;
use tailwater_storage::disk::device::Disk;
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk, When};
use tailwater_storage::error::RecoveryReport;
use tailwater_storage::log::PartitionLog;
use tailwater_storage::log::options::{LogIdentity, LogOptions};
use tailwater_storage::log::round::commit_round;
use tailwater_storage::proof::Accounted;
use tailwater_storage::slab::ReadLimits;
use tailwater_storage::tail_cache::TailCache;
use tailwater_wire::batch::builder::BatchBuilder;
use tailwater_wire::batch::view::{BatchIter, BatchView};
use tailwater_wire::ids::{CommitTime, Incarnation, Offset, PartitionId, Writer};
use tailwater_wire::message::ProducerKey;
use tailwater_wire::meta::Retention;
use tailwater_wire::partitioner::Partitioner;
use tailwater_wire::record::Record;

use crate::lying::{Lying, SKIP_DIR_SYNC, SKIP_SYNC};

const PARTITIONS: usize = 2;
const STEPS: u64 = 72;
const PRODUCER: [u8; 16] = [9; 16];
const CURSOR: &str = "/topics/ticks/p00000/fanout-child.offset";

type Log<D> = Rc<PartitionLog<D>>;

/// What the outside world knows of a run.
#[derive(Debug, Clone, Default)]
struct Model {
    /// By partition: records handed to the log.
    submitted: [u64; PARTITIONS],
    /// By partition: records acknowledged.
    acknowledged: [u64; PARTITIONS],
    /// By partition: the commit times of acknowledged batches, by the offset after them.
    commit_times: [Vec<(u64, CommitTime)>; PARTITIONS],
    /// By partition: retention may have removed what lies below.
    removed: [u64; PARTITIONS],
    /// Partitions whose producer was opened, and the open was answered.
    opened: usize,
    /// The cursor position that was acknowledged, and the one last asked for.
    cursor: (Option<u64>, Option<u64>),
}

fn numbers(seed: u64) -> Rc<dyn Fn() -> u64> {
    let next = Cell::new(seed);
    Rc::new(move || {
        next.set(
            next.get()
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407),
        );
        next.get() ^ (next.get() >> 29)
    })
}

fn dir(partition: usize) -> PathBuf {
    format!("/topics/ticks/p0000{partition}").into()
}

async fn open<D: Disk>(disk: &D, partition: usize, seed: u64) -> Result<(Log<D>, RecoveryReport), String> {
    let identity = LogIdentity {
        topic: "ticks".parse().unwrap(),
        incarnation: Incarnation(*b"incarnat"),
        partition: PartitionId(partition as u32),
    };
    let options = LogOptions {
        segment_bytes_first: 16 << 10,
        segment_bytes_max: 32 << 10,
        index_interval_bytes: 4 << 10,
        tail_cache: TailCache::shared(0),
        ..LogOptions::default()
    };
    // The clock of a restart is behind: commit times must not be.
    let now = CommitTime::from_millis(1);
    PartitionLog::open(
        disk.clone(),
        dir(partition),
        identity,
        options,
        now,
        numbers(seed),
    )
    .await
    .map_err(|error| format!("partition {partition} does not open: {error}"))
}

/// Records numbered from `first` on; the value tells the number.
fn batch(first: u64, count: u64, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
    for n in first..first + count {
        let mut value = n.to_le_bytes().to_vec();
        value.resize(8 + bytes, n as u8);
        let record = Record {
            value: value.into(),
            ..Record::default()
        };
        builder.push(&record).unwrap();
    }
    builder.finish(Writer::Random(PRODUCER), first).unwrap()
}

fn append<D: Disk>(
    log: &Log<D>,
    first: u64,
    count: u64,
    bytes: usize,
    now: CommitTime,
) -> Option<(Offset, CommitTime)> {
    let bytes = batch(first, count, bytes);
    let view = BatchView::parse(&bytes).unwrap();
    let appended = log.append(bytes.clone(), &view, now, None).ok()?;
    Some((appended.end, appended.commit_time?))
}

/// The scripted run; ends early when the disk fails.
async fn script<D: Disk>(disk: &D, model: &mut Model) -> Option<()> {
    let mut logs = Vec::new();
    for partition in 0..PARTITIONS {
        logs.push(open(disk, partition, 100 + partition as u64).await.ok()?.0);
    }
    for log in &logs {
        let now = CommitTime::from_millis(900);
        let (_, known) = log.open_producer(&ProducerKey::Random(PRODUCER), now).ok()?;
        commit_round(disk, &logs, now).await;
        known.await.ok()?;
        model.opened += 1;
    }
    for step in 0..STEPS {
        let now = CommitTime::from_millis(1_000 + step * 10 - (step % 5) * 20);
        let mut waits = Vec::new();
        for (partition, log) in logs.iter().enumerate() {
            let batches = [1, 2, 0, 1, 3][(step as usize + 2 * partition) % 5];
            for n in 0..batches {
                let (count, bytes) = (1 + (step + n) % 3, [20, 100, 700, 40][(step + n) as usize % 4]);
                let (end, at) = append(log, model.submitted[partition], count, bytes, now)?;
                model.submitted[partition] += count;
                waits.push((partition, end, at, Box::pin(log.committed(end))));
            }
        }
        if step % 3 == 0 {
            for log in logs.iter().filter(|log| log.needs_preparation()) {
                log.prepare_next().await.ok()?;
            }
        }
        while logs.iter().any(|log| log.needs_round()) {
            commit_round(disk, &logs, now).await;
        }
        for (partition, end, at, mut wait) in waits {
            if poll_once(&mut wait).await?.is_ok() {
                model.acknowledged[partition] = end.0;
                model.commit_times[partition].push((end.0, at));
            }
        }
        if step % 6 == 5 {
            let position = model.acknowledged[0];
            model.cursor.1 = Some(position);
            let json = format!("{{\"next_offset\":{position}}}");
            replace(disk, Path::new(CURSOR), step, json.as_bytes())
                .await
                .ok()?;
            model.cursor.0 = Some(position);
        }
        if step % 11 == 10 {
            logs.iter().for_each(|log| log.push_frontier());
            commit_round(disk, &logs, now).await;
        }
        if step % 16 == 15 {
            let retention = Retention {
                millis: None,
                bytes: Some(60 << 10),
            };
            // Whatever happens to the removal, all but the active segment may be gone now.
            model.removed[1] = logs[1].flushed().0;
            if let Some(end) = logs[1].expired(now, retention) {
                logs[1].remove_expired(&Accounted::by_ledgers(end)).await.ok()?;
            }
            model.removed[1] = logs[1].log_start().0;
        }
        if step == STEPS / 2 {
            let closing = logs.remove(0);
            closing.close(now).await.ok()?;
            drop(closing);
            logs.insert(0, open(disk, 0, 500).await.ok()?.0);
        }
    }
    for log in &logs {
        log.close(CommitTime::from_millis(9_000)).await.ok()?;
    }
    Some(())
}

/// Everything in a log: the number that each value tells, and the commit time.
async fn content<D: Disk>(log: &Log<D>) -> Result<Vec<(u64, u64, CommitTime)>, String> {
    let mut out = Vec::new();
    let mut from = log.log_start();
    while from < log.high_water_mark() {
        let slab = log
            .read(from, ReadLimits::default())
            .await
            .map_err(|e| e.to_string())?;
        if !slab.quarantined.is_empty() || slab.next_offset <= from {
            return Err(format!("a hole at {:?}", slab.quarantined));
        }
        for view in slab.runs.iter().flat_map(|run| BatchIter::new(run)) {
            let view = view.map_err(|e| e.to_string())?;
            for record in view.records() {
                let number = u64::from_le_bytes(record.value[..8].try_into().unwrap());
                out.push((record.offset.0, number, view.header().commit_time));
            }
        }
        from = slab.next_offset;
    }
    Ok(out)
}

/// The oracle: opens what a power cut left and says what is wrong with it.
async fn judge<D: Disk>(disk: &D, model: &Model, seed: u64) -> Result<Vec<Log<D>>, String> {
    let mut logs = Vec::new();
    for partition in 0..PARTITIONS {
        let (log, report) = open(disk, partition, seed).await?;
        let fail = |what: String| Err(format!("partition {partition}: {what} ({report:?})"));
        let (end, acknowledged) = (log.high_water_mark().0, model.acknowledged[partition]);
        if end < acknowledged || end > model.submitted[partition] || log.next_offset().0 != end {
            let submitted = model.submitted[partition];
            return fail(format!(
                "{acknowledged} acknowledged, {submitted} submitted, ends at {end}"
            ));
        }
        if log.log_start().0 > model.removed[partition] {
            return fail(format!("starts at {}", log.log_start()));
        }
        let content = content(&log).await?;
        let expected = log.log_start().0..end;
        if !content.iter().map(|c| c.0).eq(expected.clone()) || !content.iter().map(|c| c.1).eq(expected) {
            return fail("other records than were submitted".into());
        }
        if !content.is_sorted_by_key(|c| c.2) {
            return fail("commit times fall".into());
        }
        for &(end, at) in &model.commit_times[partition] {
            let read = content.iter().find(|c| c.0 + 1 == end);
            if read.is_some_and(|read| read.2 != at) {
                return fail(format!("the commit time below {end} changed"));
            }
        }
        let last = model.commit_times[partition]
            .last()
            .map_or(CommitTime(0), |c| c.1);
        if log.last_commit_time() < last {
            return fail("the commit time's floor fell".into());
        }
        let (opened, _known) = log.open_producer(&ProducerKey::Random(PRODUCER), last).unwrap();
        if opened.is_new && partition < model.opened {
            return fail("the producer was opened, and is not known".into());
        }
        if opened.last_sequence != end || opened.unflushed_until.is_some() {
            return fail(format!(
                "the producer is at {}, the log at {end}",
                opened.last_sequence
            ));
        }
        logs.push(log);
    }
    judge_cursor(disk, model).await?;
    Ok(logs)
}

async fn judge_cursor<D: Disk>(disk: &D, model: &Model) -> Result<(), String> {
    let bytes = disk
        .read_small(Path::new(CURSOR))
        .await
        .map_err(|e| e.to_string())?;
    let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let position = match &text {
        None => None,
        Some(text) => {
            let number = text
                .strip_prefix("{\"next_offset\":")
                .and_then(|rest| rest.strip_suffix('}'));
            let number = number.and_then(|digits| digits.parse().ok());
            Some(number.ok_or(format!("half a cursor file: {text:?}"))?)
        }
    };
    let (acknowledged, asked) = model.cursor;
    if position == acknowledged || position == asked {
        Ok(())
    } else {
        Err(format!(
            "the cursor is at {position:?}, {acknowledged:?} was acknowledged"
        ))
    }
}

/// After a judged recovery: append, commit, and cut the power again.
async fn go_on<D: Disk>(disk: &D, logs: &[Log<D>], model: &mut Model) -> Result<(), String> {
    let now = CommitTime::from_millis(2);
    let mut waits = Vec::new();
    for (partition, log) in logs.iter().enumerate() {
        let first = log.next_offset().0;
        let (end, _) = append(log, first, 3, 40, now).ok_or("the recovered log takes nothing")?;
        model.submitted[partition] = end.0;
        waits.push((partition, end, log.committed(end)));
    }
    while logs.iter().any(|log| log.needs_round()) {
        commit_round(disk, logs, now).await;
    }
    for (partition, end, wait) in waits {
        wait.await.map_err(|e| e.to_string())?;
        model.acknowledged[partition] = end.0;
    }
    Ok(())
}

/// A disk on which a test may see through to the simulated one.
trait Rig: Disk {
    fn around(disk: MemoryDisk) -> Self;
}

impl Rig for MemoryDisk {
    fn around(disk: MemoryDisk) -> Self {
        disk
    }
}

/// One cut of the script, all that may be left after it, and a second cut of each.
fn check_cut<R: Rig>(op: u64, when: When) -> Result<(), String> {
    let disk = MemoryDisk::new(op * 3 + when as u64);
    disk.crash_at(op, when);
    let mut model = Model::default();
    let finished = block_on(script(&R::around(disk.clone()), &mut model)).is_some();
    if !finished && !disk.power_is_off() {
        return Err("the script ended on its own".into());
    }
    // All or nothing at every third point each, a draw at every point.
    let plain = match (op + when as u64) % 3 {
        0 => Some(CrashPlan::LoseAll),
        1 => Some(CrashPlan::KeepAll),
        _ => None,
    };
    let drawn = CrashPlan::Random(3 * op + when as u64);
    for plan in plain.into_iter().chain([drawn]) {
        let at = |stage: &str, error: String| format!("op {op}, {when:?}, {plan:?}, {stage}: {error}");
        let left = disk.crash(plan);
        let rig = R::around(left.clone());
        let mut model = model.clone();
        let logs = block_on(judge(&rig, &model, op)).map_err(|e| at("recovery", e))?;
        let recovery_ops = left.ops();
        block_on(go_on(&rig, &logs, &mut model)).map_err(|e| at("going on", e))?;
        drop(logs);
        let left = R::around(left.crash(CrashPlan::LoseAll));
        block_on(judge(&left, &model, op + 7)).map_err(|e| at("after a second cut", e))?;
        if recovery_ops > 0 && plan == drawn {
            check_cut_in_recovery::<R>(&disk, plan, op % recovery_ops, when)
                .map_err(|e| at("cut in recovery", e))?;
        }
    }
    Ok(())
}

/// The power goes again while the logs are being recovered.
fn check_cut_in_recovery<R: Rig>(
    disk: &MemoryDisk,
    plan: CrashPlan,
    op: u64,
    when: When,
) -> Result<(), String> {
    let left = disk.crash(plan);
    let before = model_of(disk, op);
    left.crash_at(op, when);
    let rig = R::around(left.clone());
    for partition in 0..PARTITIONS {
        drop(block_on(open(&rig, partition, op + 11)));
    }
    let left = R::around(left.crash(CrashPlan::Random(op + 5)));
    for (partition, expected) in before.iter().enumerate() {
        let (log, report) = block_on(open(&left, partition, op + 13))?;
        let content = block_on(content(&log))?;
        if content.len() as u64 + log.log_start().0 < *expected {
            return Err(format!(
                "partition {partition} had {expected} proved, now {report:?}"
            ));
        }
    }
    Ok(())
}

/// What every recovery must find: the ends of the logs when all that is volatile is lost.
fn model_of(disk: &MemoryDisk, seed: u64) -> Vec<u64> {
    let least = disk.crash(CrashPlan::LoseAll);
    (0..PARTITIONS)
        .map(|partition| block_on(open(&least, partition, seed)).map_or(0, |(log, _)| log.next_offset().0))
        .collect()
}

fn script_ops<R: Rig>() -> u64 {
    let disk = MemoryDisk::new(0);
    let mut model = Model::default();
    block_on(script(&R::around(disk.clone()), &mut model)).expect("the script runs through");
    assert_eq!(model.acknowledged, model.submitted);
    assert!(model.removed[1] > 0, "retention removed something");
    disk.ops()
}

/// Every second operation from `first` on.
fn check_cuts(first: u64) {
    let ops = script_ops::<MemoryDisk>();
    assert!(ops * 3 >= 500, "{ops} operations");
    for op in (first..ops).step_by(2) {
        for when in [When::Before, When::Inside, When::After] {
            check_cut::<MemoryDisk>(op, when).unwrap();
        }
    }
}

// Two tests, so that two cores share the work.
#[test]
fn nothing_acknowledged_is_lost_at_any_even_crash_point() {
    check_cuts(0);
}

#[test]
fn nothing_acknowledged_is_lost_at_any_odd_crash_point() {
    check_cuts(1);
}

impl<const LIE: u8> Rig for Lying<LIE> {
    fn around(disk: MemoryDisk) -> Self {
        Lying(disk)
    }
}

/// Whether some cut of the script on such a disk is found out.
fn is_found_out<R: Rig>() -> bool {
    let ops = script_ops::<R>();
    (0..ops).any(|op| check_cut::<R>(op, When::Before).is_err())
}

#[test]
fn a_skipped_flush_is_found_out() {
    assert!(is_found_out::<Lying<SKIP_SYNC>>());
}

#[test]
fn a_skipped_flush_of_a_directory_is_found_out() {
    assert!(is_found_out::<Lying<SKIP_DIR_SYNC>>());
}
