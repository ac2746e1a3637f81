//! Spike 2: what does it cost to make a segment ready, and what does each way cost every commit after it?
//!
//! Each round prepares one segment in each way, in changing order, and then appends to it through glommio: direct write,
//! fdatasync, next. What survives a power cut is shown by `spike_one_flush` (cases Zeroed, Recycled, Fallocated, Growing).
//! Run it on the filesystem in question: `cargo run --release -p tailwater-bench --bin spike_prepare -- --dir DIR`.
#![deny(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write, stdout};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use glommio::io::DmaFile;
use glommio::{LocalExecutorBuilder, Placement};
use hdrhistogram::Histogram;

const ALIGNMENT: usize = 4096;
/// Zeros are written in steps of this length.
const ZEROS_BYTES: usize = 1 << 20;
/// Length of an append, and how many of them a round makes.
const APPENDS: [(usize, usize); 3] = [(4 << 10, 400), (64 << 10, 80), (1 << 20, 20)];
/// `FALLOC_FL_WRITE_ZEROES` of linux/falloc.h (Linux 6.17): allocate written extents of zeros.
const WRITE_ZEROES: i32 = 0x80;

#[derive(Parser)]
struct Arguments {
    /// Where to make the segments; the folder `spike-prepare` in it is made and removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Rounds, each with every way of preparing
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Length of a segment
    #[arg(long, default_value_t = 64)]
    segment_mib: u64,
}

/// How a segment is made ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A retired segment, renamed; its old bytes stay until overwritten.
    Recycled,
    /// Written extents of zeros by the device's own command.
    WriteZeroes,
    /// Zeros written.
    Zeroed,
    /// Space reserved, extents unwritten.
    Fallocated,
    /// Nothing: the file grows.
    Growing,
}

const WAYS: [Way; 5] = [
    Way::Recycled,
    Way::WriteZeroes,
    Way::Zeroed,
    Way::Fallocated,
    Way::Growing,
];

/// What goes on beside the appends to a recycled segment: nothing, or the preparation of others by writing zeros, with
/// this pause after each step.
const BESIDE: [(&str, Option<Duration>); 3] = [
    ("nothing", None),
    ("zeros, 1 MiB per 16 ms", Some(Duration::from_millis(16))),
    ("zeros at full speed", Some(Duration::ZERO)),
];

/// What was measured of one way.
struct Cell {
    way: Way,
    prepare_ms: Vec<f64>,
    append_ns: Histograms,
    /// Why this way is not to be had here.
    refused: Option<io::Error>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let dir = arguments.dir.join("spike-prepare");
    let segment_bytes = arguments.segment_mib << 20;
    let appended: usize = APPENDS.iter().map(|(len, count)| len * count).sum();
    anyhow::ensure!(
        appended as u64 <= segment_bytes,
        "segments are too short for the appends"
    );
    fs::create_dir(&dir).context("making the folder for the segments")?;
    let measured = measure(&dir, segment_bytes, arguments.rounds);
    let measured_beside = measure_beside(&dir, segment_bytes, arguments.rounds);
    fs::remove_dir_all(&dir)?;
    print(&measured?, arguments.segment_mib)?;
    print_beside(&measured_beside?)
}

fn measure(dir: &Path, segment_bytes: u64, rounds: usize) -> anyhow::Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for way in WAYS {
        let append_ns = APPENDS
            .iter()
            .map(|_| Histogram::new(3))
            .collect::<Result<_, _>>()?;
        cells.push(Cell {
            way,
            prepare_ms: Vec::new(),
            append_ns,
            refused: None,
        });
    }
    let retired = dir.join("retired");
    prepare(Way::Zeroed, dir, &retired, segment_bytes)?;
    for round in 0..rounds {
        // Every way comes first, second, third ... equally often.
        cells.rotate_left(1);
        for cell in &mut cells {
            let path = dir.join(format!("segment-{round}"));
            let started = Instant::now();
            if let Err(error) = prepare(cell.way, dir, &path, segment_bytes) {
                anyhow::ensure!(error.raw_os_error() == Some(libc::EOPNOTSUPP), error);
                cell.refused = Some(error);
                fs::remove_file(&path)?;
                continue;
            }
            cell.prepare_ms.push(started.elapsed().as_secs_f64() * 1e3);
            append(dir, &path, &mut cell.append_ns)?;
            match cell.way {
                Way::Recycled => fs::rename(&path, &retired)?,
                _ => fs::remove_file(&path)?,
            }
            File::open(dir)?.sync_all()?;
        }
    }
    cells.sort_by_key(|cell| WAYS.iter().position(|way| *way == cell.way));
    Ok(cells)
}

/// Appends to the recycled segment that `measure` left, beside each of `BESIDE`.
fn measure_beside(dir: &Path, segment_bytes: u64, rounds: usize) -> anyhow::Result<Vec<Histograms>> {
    let retired = dir.join("retired");
    let mut cells = BESIDE
        .iter()
        .map(|_| histograms())
        .collect::<anyhow::Result<Vec<_>>>()?;
    for round in 0..rounds * BESIDE.len() {
        let nth = round % BESIDE.len();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let stop = &stop;
            let beside = BESIDE[nth]
                .1
                .map(|pause| scope.spawn(move || prepare_others(dir, segment_bytes, pause, stop)));
            let appended = append(dir, &retired, &mut cells[nth]);
            stop.store(true, Ordering::Relaxed);
            beside.map_or(Ok(()), |thread| thread.join().expect("it does not panic"))?;
            appended
        })?;
    }
    Ok(cells)
}

/// Prepares one segment after the other by writing zeros.
fn prepare_others(dir: &Path, segment_bytes: u64, pause: Duration, stop: &AtomicBool) -> io::Result<()> {
    let other = dir.join("other");
    while !stop.load(Ordering::Relaxed) {
        write_zeros(&other, segment_bytes, pause)?;
        File::open(&other)?.sync_all()?;
        fs::remove_file(&other)?;
    }
    Ok(())
}

/// Makes `path` ready in the given way, durably.
fn prepare(way: Way, dir: &Path, path: &Path, segment_bytes: u64) -> io::Result<()> {
    match way {
        Way::Recycled => fs::rename(dir.join("retired"), path)?,
        Way::WriteZeroes => fallocate(&File::create_new(path)?, WRITE_ZEROES, segment_bytes)?,
        Way::Fallocated => fallocate(&File::create_new(path)?, 0, segment_bytes)?,
        Way::Zeroed => write_zeros(path, segment_bytes, Duration::ZERO)?,
        Way::Growing => drop(File::create_new(path)?),
    }
    File::open(path)?.sync_all()?;
    File::open(dir)?.sync_all()
}

fn write_zeros(path: &Path, segment_bytes: u64, pause: Duration) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)?;
    let zeros = vec![0; ZEROS_BYTES + ALIGNMENT];
    let start = zeros.as_ptr().align_offset(ALIGNMENT);
    for at in (0..segment_bytes).step_by(ZEROS_BYTES) {
        let len = (segment_bytes - at).min(ZEROS_BYTES as u64) as usize;
        file.write_all_at(&zeros[start..start + len], at)?;
        thread::sleep(pause);
    }
    Ok(())
}

/// fallocate(2), which the standard library does not have.
#[allow(unsafe_code)]
fn fallocate(file: &File, mode: i32, len: u64) -> io::Result<()> {
    let len = i64::try_from(len).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for the whole call, and the call touches no memory of this process.
    let answer = unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, len) };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Nanoseconds, one histogram for each of `APPENDS`.
type Histograms = Vec<Histogram<u64>>;

fn histograms() -> anyhow::Result<Histograms> {
    Ok(APPENDS
        .iter()
        .map(|_| Histogram::new(3))
        .collect::<Result<_, _>>()?)
}

/// Appends to the segment, each write flushed before the next.
fn append(dir: &Path, path: &Path, into: &mut Histograms) -> anyhow::Result<()> {
    let probe = dir.join("probe");
    fs::write(&probe, [1; ALIGNMENT])?;
    File::open(&probe)?.sync_all()?;
    let path = path.to_path_buf();
    let executor = LocalExecutorBuilder::new(Placement::Fixed(0)).spawn(move || async move {
        // The first file that an executor reads decides how it reads all others; it must not be an empty one.
        let first = DmaFile::open(&probe).await?;
        first.read_at_aligned(0, ALIGNMENT).await?;
        first.close().await?;
        let file = glommio::io::OpenOptions::new()
            .read(true)
            .write(true)
            .dma_open(&path)
            .await?;
        let mut at = 0;
        let mut latencies_ns = Vec::new();
        for (len, count) in APPENDS {
            let mut of_this_length = Vec::with_capacity(count);
            for nth in 0..count {
                let mut buffer = file.alloc_dma_buffer(len);
                buffer.as_bytes_mut().fill(nth as u8 | 1);
                let started = Instant::now();
                let written = file.write_at(buffer, at).await?;
                file.fdatasync().await?;
                of_this_length.push(started.elapsed().as_nanos() as u64);
                if written != len {
                    return Err(io::Error::other("short write"));
                }
                at += len as u64;
            }
            latencies_ns.push(of_this_length);
        }
        file.close().await?;
        Ok(latencies_ns)
    });
    let executor = executor.map_err(|error| anyhow::anyhow!("no executor: {error}"))?;
    let appended = executor
        .join()
        .map_err(|error| anyhow::anyhow!("executor failed: {error}"))?;
    for (histogram, latencies_ns) in into.iter_mut().zip(appended?) {
        latencies_ns.into_iter().try_for_each(|ns| histogram.record(ns))?;
    }
    Ok(())
}

fn print(cells: &[Cell], segment_mib: u64) -> anyhow::Result<()> {
    let mut out = stdout();
    let prepare = format!("prepare {segment_mib} MiB");
    writeln!(
        out,
        "{:<12} {:>22} {:>24} {:>24} {:>24}",
        "", prepare, "4 KiB", "64 KiB", "1 MiB"
    )?;
    let (ms, us) = ("median / max ms", "p50 / p99 us");
    writeln!(out, "{:<12} {ms:>22} {us:>24} {us:>24} {us:>24}", "way")?;
    for cell in cells {
        let way = format!("{:?}", cell.way);
        if let Some(refused) = &cell.refused {
            writeln!(out, "{way:<12} {refused}")?;
            continue;
        }
        let mut ms = cell.prepare_ms.clone();
        ms.sort_by(f64::total_cmp);
        let median_and_max = (ms.get(ms.len() / 2), ms.last());
        let (Some(median), Some(max)) = median_and_max else {
            continue;
        };
        write!(out, "{way:<12} {:>22}", format!("{median:.1} / {max:.1}"))?;
        writeln!(out, "{}", appends(&cell.append_ns))?;
    }
    Ok(())
}

fn print_beside(cells: &[Histograms]) -> anyhow::Result<()> {
    let mut out = stdout();
    writeln!(out, "\nrecycled, and beside it")?;
    for ((beside, _), histograms) in BESIDE.iter().zip(cells) {
        writeln!(out, "{beside:<35}{}", appends(histograms))?;
    }
    Ok(())
}

/// Columns of p50 and p99 in microseconds.
fn appends(histograms: &Histograms) -> String {
    let column = |histogram: &Histogram<u64>| {
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        format!(" {:>24}", format!("{:.0} / {:.0}", us(0.5), us(0.99)))
    };
    histograms.iter().map(column).collect()
}
