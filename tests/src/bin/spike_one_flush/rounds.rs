//! Runs one case: commits, power cuts, recovery, and the comparison with what was acknowledged.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tailwater_tests::fakedisk::{Cut, CutReport, LoopMount};

use crate::cases::{Case, Flush};
use crate::disks::Disk;
use crate::segments::{self, SEGMENT_BYTES, Segment};
use crate::writers::{self, FileWrites};

const SEGMENTS: usize = 8;
const WRITE_BLOCKS_MAX: u64 = 8;
const WRITES_PER_FILE_MAX: u64 = 3;
const BLOCK_BYTES: u64 = 4096;
/// Commits and unflushed writes of one round fit into this.
const ROUND_BYTES_MAX: u64 = 3 * WRITES_PER_FILE_MAX * WRITE_BLOCKS_MAX * BLOCK_BYTES;

/// What came of a case.
#[derive(Default)]
pub struct Outcome {
    /// Power cuts made.
    pub cuts: u64,
    /// Cuts after which flushed bytes were missing.
    pub cuts_with_loss: u64,
    /// Cuts after which the filesystem could not be mounted before it was repaired.
    pub repairs: u64,
    /// Flushed bytes missing, over all cuts.
    pub lost_bytes: u64,
    /// Commits: parallel writes to several files and the flush that is to cover them.
    pub commits: u64,
    /// Cache flushes that reached the disk during the commits, also by the filesystem's own doing.
    pub commit_flushes: u64,
    /// The first loss in words.
    pub example: Option<String>,
    pending: CutReport,
}

impl Outcome {
    /// Share of the unflushed sectors that survived their cut.
    pub fn kept_percent(&self) -> f64 {
        100.0 * self.pending.kept_sectors as f64 / self.pending.pending_sectors.max(1) as f64
    }
}

/// What was acknowledged: per segment, its generation and the bytes that a flush covered.
type Acknowledged = Vec<(u64, u64)>;

/// What a cut must have kept; the image and what the cut found.
type AcknowledgedAndCut = (Acknowledged, (PathBuf, CutReport));

struct Run<'a> {
    case: &'a Case,
    disk: &'a Disk,
    live: &'a LoopMount,
    dir: PathBuf,
    segments: Vec<Segment>,
    acknowledged: Mutex<Acknowledged>,
    rng: StdRng,
    outcome: Outcome,
}

/// Runs `case` with so many power cuts.
pub fn run(case: &Case, cuts: u64, seed: u64) -> anyhow::Result<Outcome> {
    // In memory if possible: the images are copied at every cut, and nothing about them has to last.
    let in_memory = Path::new("/dev/shm");
    let parent = if in_memory.is_dir() {
        in_memory.to_path_buf()
    } else {
        std::env::temp_dir()
    };
    let scratch = tempfile::Builder::new()
        .prefix("tailwater-spike-")
        .tempdir_in(parent)?;
    let disk = if case.reflink {
        Disk::reflink(scratch.path())?
    } else {
        Disk::fake(scratch.path())?
    };
    let live = LoopMount::create(case.filesystem, &disk.image(), &scratch.path().join("live"))?;
    if case.write_through {
        live.set_write_through(true)?;
    }
    let dir = live.dir().to_path_buf();
    // Before the segments, whose preparation must not be made durable by chance.
    File::create(dir.join("idle"))?.sync_all()?;
    File::open(&dir)?.sync_all()?;
    let segments: io::Result<Vec<Segment>> = (0..SEGMENTS)
        .map(|index| Segment::first(&dir, index, case.prepared))
        .collect();
    let segments = segments.context("preparing segments")?;
    let mut run = Run {
        case,
        disk: &disk,
        live: &live,
        acknowledged: Mutex::new(vec![(1, 0); SEGMENTS]),
        dir,
        segments,
        rng: StdRng::seed_from_u64(seed),
        outcome: Outcome::default(),
    };
    let stop = AtomicBool::new(!case.noise);
    let noise_dir = live.dir().join("noise");
    fs::create_dir(&noise_dir)?;
    thread::scope(|scope| {
        let noise = scope.spawn(|| make_noise(&noise_dir, &stop, seed));
        let rounds = (0..cuts).try_for_each(|_| run.round(scratch.path()));
        stop.store(true, Ordering::Relaxed);
        noise.join().expect("noise does not panic")?;
        rounds
    })?;
    Ok(run.outcome)
}

impl Run<'_> {
    /// Commits once or twice, leaves something unflushed, cuts the power and looks.
    fn round(&mut self, scratch: &Path) -> anyhow::Result<()> {
        self.turn_over()?;
        self.commit()?;
        let cut = match self.rng.random_range(0..4) {
            0 => Cut::DropPending,
            _ => Cut::Torn {
                seed: self.rng.random(),
            },
        };
        let (acknowledged, (image, report)) = if self.rng.random_bool(0.3) {
            self.cut_while_committing(cut, scratch)?
        } else {
            let unflushed = self.plan_writes();
            writers::commit(self.case.writer, &self.dir, unflushed, Vec::new(), 0)?;
            (
                self.acknowledged.lock().expect("no panic").clone(),
                self.disk.cut(cut, scratch)?,
            )
        };
        self.outcome.pending.pending_sectors += report.pending_sectors;
        self.outcome.pending.kept_sectors += report.kept_sectors;
        self.compare(&acknowledged, &image, &scratch.join("after"));
        Ok(())
    }

    /// The cut falls somewhere into a commit; what was acknowledged is read before it.
    fn cut_while_committing(&mut self, cut: Cut, scratch: &Path) -> anyhow::Result<AcknowledgedAndCut> {
        let delay = Duration::from_micros(self.rng.random_range(0..3000));
        let (writes, flush) = self.plan_commit();
        let (disk, acknowledged) = (self.disk, &self.acknowledged);
        let cut_result = thread::scope(|scope| {
            let cutter = scope.spawn(move || {
                thread::sleep(delay);
                let acknowledged = acknowledged.lock().expect("no panic").clone();
                disk.cut(cut, scratch).map(|cut| (acknowledged, cut))
            });
            let committed = self.write_and_flush(writes, flush);
            if committed.is_ok() {
                acknowledge(&self.segments, acknowledged);
            }
            let cut_result = cutter.join().expect("the cutter does not panic");
            committed.map(|()| cut_result)
        })?;
        Ok(cut_result?)
    }

    /// Replaces segments that have no room for another round.
    fn turn_over(&mut self) -> anyhow::Result<()> {
        for index in 0..self.segments.len() {
            if self.segments[index].room_bytes() >= ROUND_BYTES_MAX {
                continue;
            }
            let full = self.segments.remove(index);
            let fresh = full.next(self.case.prepared).context("turning a segment over")?;
            self.acknowledged.lock().expect("no panic")[index] = (fresh.generation, 0);
            self.segments.insert(index, fresh);
        }
        Ok(())
    }

    fn commit(&mut self) -> anyhow::Result<()> {
        let (writes, flush) = self.plan_commit();
        let flushes = self.disk.flushes(self.live)?;
        self.write_and_flush(writes, flush)?;
        acknowledge(&self.segments, &self.acknowledged);
        self.outcome.commits += 1;
        self.outcome.commit_flushes += self.disk.flushes(self.live)? - flushes;
        Ok(())
    }

    fn write_and_flush(&self, writes: Vec<FileWrites>, flush: Vec<PathBuf>) -> anyhow::Result<()> {
        let grow = if self.case.flush == Flush::Grown {
            BLOCK_BYTES
        } else {
            0
        };
        writers::commit(self.case.writer, &self.dir, writes, flush, grow)
    }

    fn plan_commit(&mut self) -> (Vec<FileWrites>, Vec<PathBuf>) {
        let writes = self.plan_writes();
        let mut written = writes.iter().map(|of| of.path.clone());
        let flush = match self.case.flush {
            Flush::OneWritten => written
                .nth(self.rng.random_range(0..writes.len()))
                .into_iter()
                .collect(),
            Flush::Idle | Flush::Grown => vec![self.dir.join("idle")],
            Flush::Each => written.collect(),
            Flush::Nothing => Vec::new(),
        };
        (writes, flush)
    }

    /// Appends to at least two segments.
    fn plan_writes(&mut self) -> Vec<FileWrites> {
        let all: Vec<usize> = (0..SEGMENTS).collect();
        let how_many = self.rng.random_range(2..=SEGMENTS);
        let chosen: Vec<usize> = all.choose_multiple(&mut self.rng, how_many).copied().collect();
        let mut plan = Vec::new();
        for index in chosen {
            let segment = &mut self.segments[index];
            let writes = (0..self.rng.random_range(1..=WRITES_PER_FILE_MAX))
                .map(|_| segment.append(self.rng.random_range(1..=WRITE_BLOCKS_MAX) * BLOCK_BYTES))
                .collect();
            plan.push(FileWrites {
                file: segment.file.clone(),
                path: segment.path(),
                writes,
            });
        }
        plan
    }

    /// Recovers the image and counts what was acknowledged and is not there.
    fn compare(&mut self, acknowledged: &Acknowledged, image: &Path, dir: &Path) {
        self.outcome.cuts += 1;
        let mut recovered = LoopMount::open(self.case.filesystem, image, dir);
        if recovered.is_err() {
            self.outcome.repairs += 1;
            let repaired = self.case.filesystem.repair(image);
            recovered = repaired.and_then(|()| LoopMount::open(self.case.filesystem, image, dir));
        }
        let mut lost_bytes = 0;
        for (index, &(generation, flushed_bytes)) in acknowledged.iter().enumerate() {
            assert!(flushed_bytes <= SEGMENT_BYTES);
            lost_bytes += match &recovered {
                Ok(recovered) => segments::lost_bytes(recovered.dir(), index, generation, flushed_bytes),
                Err(_) => flushed_bytes,
            };
        }
        if lost_bytes > 0 && self.outcome.example.is_none() {
            let recovery = recovered
                .err()
                .map_or("recovered".into(), |error| error.to_string());
            self.outcome.example = Some(format!(
                "cut {}: {lost_bytes} bytes lost of (generation, flushed bytes) {acknowledged:?}; {recovery}",
                self.outcome.cuts
            ));
        }
        self.outcome.cuts_with_loss += u64::from(lost_bytes > 0);
        self.outcome.lost_bytes += lost_bytes;
    }
}

/// Everything written so far counts as durable from now on.
fn acknowledge(segments: &[Segment], acknowledged: &Mutex<Acknowledged>) {
    let now = segments
        .iter()
        .map(|segment| (segment.generation, segment.written_bytes))
        .collect();
    *acknowledged.lock().expect("no panic") = now;
}

/// Keeps the filesystem's journal busy, as cursor files and new segments would.
fn make_noise(dir: &Path, stop: &AtomicBool, seed: u64) -> io::Result<()> {
    let mut rng = StdRng::seed_from_u64(!seed);
    while !stop.load(Ordering::Relaxed) {
        let (temporary, named) = (
            dir.join("temporary"),
            dir.join(rng.random_range(0..20).to_string()),
        );
        fs::write(&temporary, vec![1; rng.random_range(1..40_000)])?;
        if rng.random_bool(0.5) {
            File::open(&temporary)?.sync_data()?;
        }
        fs::rename(&temporary, &named)?;
        match rng.random_range(0..4) {
            0 => File::open(dir)?.sync_all()?,
            1 => fs::remove_file(&named)?,
            _ => {}
        }
        thread::sleep(Duration::from_micros(rng.random_range(0..2000)));
    }
    Ok(())
}
