//! A log that was stamped in a false future, and its recovery: the era ends whole or not at all, and what is in it counts
//! as committed no later than its end.

use futures_lite::future::block_on;
use tailwater_storage::disk::memory::{CrashPlan, MemoryDisk, When};
use tailwater_storage::error::AppendError;
use tailwater_storage::slab::ReadLimits;
use tailwater_storage::tail_cache::TailCache;
use tailwater_wire::ids::{CommitTime, Offset};
use tailwater_wire::meta::Retention;

use crate::support::*;

/// The clock, once it is right; and the false future.
const NOW: u64 = 60_000;
const FUTURE: u64 = 9_000_000_000;

/// Some records at the right time, then some in the false future, over several segments.
fn log_in_the_future(disk: &MemoryDisk) -> Log {
    let (log, _) = open(disk);
    for n in 0..20 {
        commit(&log, disk, 2, 1_500, 10_000 + n);
    }
    for n in 0..40 {
        commit(&log, disk, 2, 1_500, FUTURE + n);
    }
    assert!(segments(disk).len() > 2, "several segments");
    log
}

/// What every log must satisfy whose era ended after 120 records at `end`.
#[track_caller]
fn check_counted(log: &Log, disk: &MemoryDisk, end: u64) {
    let (all, _) = read_all(log, ReadLimits::default()).expect("reads");
    let counted: Vec<CommitTime> = all
        .iter()
        .map(|r| log.counted(Offset(r.offset), r.commit_time))
        .collect();
    assert!(counted.is_sorted(), "counted times never fall");
    assert!(
        all[..120].iter().any(|r| r.commit_time >= at(FUTURE)),
        "stamps stay as they are on the disk"
    );
    assert!(counted[..120].iter().all(|&time| time <= at(end)));
    // A delay gate's read stops at counted times, wherever it reads from.
    let limits = |ms| ReadLimits {
        committed_at_max: Some(at(ms)),
        ..ReadLimits::default()
    };
    let held = block_on(log.read(Offset(40), limits(end - 1))).expect("reads");
    assert_eq!((held.next_offset, held.next_due), (Offset(40), Some(at(end))));
    let mut from = Offset(40);
    while from < Offset(120) {
        let slab = block_on(log.read(from, limits(end))).expect("reads");
        assert!(slab.next_offset > from, "the whole era is released at its end");
        from = slab.next_offset;
    }
    // So is a search by time.
    let find = |ms| block_on(log.find_time(at(ms))).expect("finds");
    assert_eq!(find(10_000), Offset(0));
    assert_eq!(find(20_000), Offset(40));
    assert_eq!(find(end), Offset(40));
    // What is appended now is stamped from the present clock.
    let next = append(log, 1, 100, end + 5);
    assert_eq!(next.commit_time, Some(at(end + 5)));
    round(log, disk, end + 5);
    assert_eq!(find(end + 1), Offset(120));
    assert_eq!(find(end + 6), log.high_water_mark());
}

#[test]
fn an_era_ends_and_stays_ended_across_opens() {
    for cache in [0, 1 << 20] {
        let disk = MemoryDisk::new(1);
        let log = log_in_the_future(&disk);
        let stuck = append(&log, 1, 10, NOW);
        assert!(stuck.commit_time >= Some(at(FUTURE)), "D4: never back by itself");
        drop(log);
        let disk = disk.crash(CrashPlan::LoseAll);
        let with_cache = || {
            let mut options = options();
            options.tail_cache = TailCache::shared(cache);
            try_open(&disk, options).expect("opens").0
        };
        let log = with_cache();
        assert!(block_on(log.end_era(at(NOW))).expect("ends"));
        assert!(
            !block_on(log.end_era(at(NOW))).expect("asked again"),
            "there is nothing more to end"
        );
        check_counted(&log, &disk, NOW);
        block_on(log.close(at(NOW + 10))).expect("closes");
        let log = with_cache();
        check_reopened(&log, &disk);
        // Also through a crash that has to copy what is not proved.
        append(&log, 1, 100, NOW + 20);
        round(&log, &disk, NOW + 20);
        let survivor = disk.crash(CrashPlan::LoseAll);
        let (log, _) = open(&survivor);
        assert_eq!(log.counted(Offset(119), at(FUTURE)), at(NOW));
        assert_eq!(log.last_commit_time(), at(NOW + 20));
    }
}

#[track_caller]
fn check_reopened(log: &Log, disk: &MemoryDisk) {
    assert_eq!(log.counted(Offset(119), at(FUTURE)), at(NOW));
    assert_eq!(
        log.counted(Offset(120), at(FUTURE)),
        at(FUTURE),
        "only what lies in the era"
    );
    assert_eq!(block_on(log.find_time(at(NOW))).expect("finds"), Offset(40));
    assert_eq!(append(log, 1, 100, NOW + 10).commit_time, Some(at(NOW + 10)));
    round(log, disk, NOW + 10);
}

#[test]
fn a_clock_that_is_not_behind_ends_nothing() {
    let disk = MemoryDisk::new(1);
    let log = log_in_the_future(&disk);
    let before = segments(&disk).len();
    assert!(!block_on(log.end_era(at(FUTURE + 39))).expect("nothing to do"));
    assert_eq!(segments(&disk).len(), before);
}

#[test]
fn what_is_pending_is_committed_first_and_the_era_of_nothing_is_the_last_one() {
    let disk = MemoryDisk::new(1);
    let log = log_in_the_future(&disk);
    let pending = append(&log, 3, 100, FUTURE + 50);
    let committed = log.committed(pending.end);
    assert!(block_on(log.end_era(at(NOW))).expect("ends"));
    block_on(committed).expect("committed before the era ended");
    assert_eq!(log.counted(Offset(122), at(FUTURE)), at(NOW));
    // The clock was wrong once more, and nothing was written meanwhile: the same segment begins again.
    let before = segments(&disk);
    assert!(block_on(log.end_era(at(NOW - 1_000))).expect("ends"));
    assert_eq!(segments(&disk), before);
    assert_eq!(log.last_commit_time(), at(NOW - 1_000));
    drop(log);
    let (log, _) = open(&disk);
    assert_eq!(log.last_commit_time(), at(NOW - 1_000));
    assert_eq!(read_all(&log, ReadLimits::default()).expect("reads").0.len(), 123);
}

#[test]
fn retention_by_age_counts_as_the_eras_say() {
    let disk = MemoryDisk::new(1);
    let log = log_in_the_future(&disk);
    let day = Retention {
        millis: Some(1_000),
        bytes: None,
    };
    let removed = expire(&log, NOW + 2_000, day);
    assert!(
        log.log_start() < Offset(41),
        "{removed:?}: the future does not age"
    );
    assert!(block_on(log.end_era(at(NOW))).expect("ends"));
    commit(&log, &disk, 1, 100, NOW + 1);
    expire(&log, NOW + 900, day);
    assert!(log.log_start() < Offset(41), "not a second old");
    expire(&log, NOW + 1_001, day);
    assert_eq!(log.log_start(), Offset(120), "the whole era is over a second old");
    // Its records are gone, so the next header has nothing to say of it: the first version again.
    while segments(&disk).len() < 2 {
        commit(&log, &disk, 2, 1_500, NOW + 1_100);
    }
    let newest = segments(&disk).pop().expect("a segment");
    assert_eq!(disk.peek(&newest).expect("a file")[4], 1);
}

// The power is cut before, inside and after every operation that ending an era makes: the era has ended, or it has not,
// and nothing that was acknowledged is lost. After the caller was told, it has.
#[test]
fn a_cut_at_any_step_leaves_an_era_that_ended_or_did_not() {
    let (mut ended, mut open_still) = (0, 0);
    for op in 0.. {
        let mut beyond = false;
        for when in [When::Before, When::Inside, When::After] {
            let disk = MemoryDisk::new(op);
            let log = log_in_the_future(&disk);
            disk.crash_at(disk.ops() + op, when);
            let told = block_on(log.end_era(at(NOW)));
            beyond |= told.is_ok() && when == When::Before;
            drop(log);
            let drawn = (0..6).map(CrashPlan::Random);
            for plan in [CrashPlan::LoseAll, CrashPlan::KeepAll].into_iter().chain(drawn) {
                let survivor = disk.crash(plan);
                let (log, _) = open(&survivor);
                assert_eq!(log.next_offset(), Offset(120), "op {op} {when:?}");
                let floor = log.last_commit_time();
                if floor == at(NOW) {
                    ended += 1;
                    check_counted(&log, &survivor, NOW);
                } else {
                    open_still += 1;
                    assert!(told.is_err(), "the caller was told, op {op} {when:?}");
                    assert_eq!(floor, at(FUTURE + 39));
                    assert!(block_on(log.end_era(at(NOW))).expect("once more"));
                    check_counted(&log, &survivor, NOW);
                }
            }
        }
        if beyond {
            break;
        }
    }
    assert!(ended > 0 && open_still > 0, "{ended} {open_still}");
}

#[test]
fn appends_are_busy_while_an_era_ends_and_come_in_again_when_it_failed() {
    use tailwater_storage::disk::device::DiskErrorKind;
    use tailwater_storage::disk::memory::OpKind;
    let disk = MemoryDisk::new(1);
    let log = log_in_the_future(&disk);
    let mut ending = Box::pin(log.end_era(at(NOW)));
    let first = block_on(futures_lite::future::poll_once(&mut ending));
    if first.is_none() {
        let refused = try_append(&log, &batch(120, 1, 10), NOW).expect_err("busy");
        assert!(matches!(refused, AppendError::Busy), "{refused}");
    }
    drop(ending);
    let disk = MemoryDisk::new(2);
    let log = log_in_the_future(&disk);
    disk.fail_next(OpKind::Create, DIR, DiskErrorKind::NoSpace, 1);
    block_on(log.end_era(at(NOW))).expect_err("no room");
    assert!(log.latched().is_none(), "a full disk is no failure of the log");
    let stamped = append(&log, 1, 10, NOW).commit_time;
    assert!(stamped >= Some(at(FUTURE)), "the era has not ended: {stamped:?}");
    assert!(block_on(log.end_era(at(NOW))).expect("there is room again"));
}
