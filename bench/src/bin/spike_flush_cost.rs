//! Spike 1's price list: one flush for all files of a commit, or one for each file?
//!
//! Each iteration writes 4 KiB to each of some recycled files at once, through glommio, and then flushes: through one of
//! them, through one other file that was made longer before, or through each of them at the same time. The three take
//! turns, so that they see the same machine. What each of them makes durable is shown by `spike_one_flush`.
//! `cargo run --release -p tailwater-bench --bin spike_flush_cost -- --dir DIR`
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use glommio::io::{DmaFile, OpenOptions};
use glommio::{LocalExecutorBuilder, Placement};
use hdrhistogram::Histogram;

const BLOCK_BYTES: usize = 4096;
/// Files are written from start to end and over again.
const FILE_BYTES: usize = 1 << 20;
const FILES: [usize; 4] = [1, 4, 16, 64];

#[derive(Parser)]
struct Arguments {
    /// Where to make the files; the folder `spike-flush-cost` in it is made and removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Commits of each kind for each number of files
    #[arg(long, default_value_t = 1000)]
    commits: usize,
}

/// What is flushed after the writes of a commit.
#[derive(Debug, Clone, Copy)]
enum Flush {
    /// One of the files written.
    One,
    /// A file that is never written, and longer than at the last flush.
    Grown,
    /// Each of the files written.
    Each,
}

const FLUSHES: [Flush; 3] = [Flush::One, Flush::Grown, Flush::Each];

/// Nanoseconds, one histogram for each of `FLUSHES`.
type Latencies = [Histogram<u64>; FLUSHES.len()];

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let dir = arguments.dir.join("spike-flush-cost");
    fs::create_dir(&dir).context("making the folder for the files")?;
    let measured = measure(&dir, arguments.commits);
    fs::remove_dir_all(&dir)?;
    let mut out = stdout();
    writeln!(
        out,
        "p50 / p99 us of a commit\nfiles{}",
        FLUSHES
            .map(|flush| format!("{:>22}", format!("{flush:?}")))
            .concat()
    )?;
    for (files, latencies) in measured? {
        let column = |histogram: Histogram<u64>| {
            let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
            format!("{:>22}", format!("{:.0} / {:.0}", us(0.5), us(0.99)))
        };
        writeln!(out, "{files:>5}{}", latencies.map(column).concat())?;
    }
    Ok(())
}

fn measure(dir: &Path, commits: usize) -> anyhow::Result<Vec<(usize, Latencies)>> {
    let mut paths = Vec::new();
    for index in 0..FILES.into_iter().max().unwrap_or(0) {
        let path = dir.join(index.to_string());
        fs::write(&path, vec![1; FILE_BYTES])?;
        File::open(&path)?.sync_all()?;
        paths.push(path);
    }
    let grown = File::create(dir.join("grown"))?;
    grown.sync_all()?;
    File::open(dir)?.sync_all()?;
    let grown_path = dir.join("grown");
    let executor = LocalExecutorBuilder::new(Placement::Fixed(0)).spawn(move || async move {
        // The first file that an executor reads decides how it reads all others; these are not empty.
        let mut files = Vec::new();
        for path in &paths {
            let file = OpenOptions::new().read(true).write(true).dma_open(path).await?;
            file.read_at_aligned(0, BLOCK_BYTES).await?;
            files.push(Rc::new(file));
        }
        let to_flush = OpenOptions::new().write(true).dma_open(&grown_path).await?;
        let mut measured = Vec::new();
        for count in FILES {
            measured.push((
                count,
                measure_files(&files[..count], (&grown, &to_flush), commits).await?,
            ));
        }
        to_flush.close().await?;
        for file in files {
            file.close_rc().await?;
        }
        io::Result::Ok(measured)
    });
    let executor = executor.map_err(|error| anyhow::anyhow!("no executor: {error}"))?;
    Ok(executor
        .join()
        .map_err(|error| anyhow::anyhow!("executor failed: {error}"))??)
}

/// `grown` is one file, open for std, which makes it longer at once, and for glommio, which flushes it.
async fn measure_files(
    files: &[Rc<DmaFile>],
    grown: (&File, &DmaFile),
    commits: usize,
) -> io::Result<Latencies> {
    let mut latencies = FLUSHES.map(|_| Histogram::new_with_max(60_000_000_000, 3).expect("valid bounds"));
    for commit in 0..FLUSHES.len() * commits {
        let at = (commit * BLOCK_BYTES % FILE_BYTES) as u64;
        let started = Instant::now();
        for_each(files, async move |file| {
            let mut buffer = file.alloc_dma_buffer(BLOCK_BYTES);
            buffer.as_bytes_mut().fill(commit as u8);
            file.write_at(buffer, at).await.map(drop)
        })
        .await?;
        let nth = commit % FLUSHES.len();
        match FLUSHES[nth] {
            Flush::One => files[0].fdatasync().await?,
            Flush::Grown => {
                grown.0.set_len(grown.0.metadata()?.len() + BLOCK_BYTES as u64)?;
                grown.1.fdatasync().await?;
            }
            Flush::Each => for_each(files, async |file| file.fdatasync().await).await?,
        }
        latencies[nth]
            .record(started.elapsed().as_nanos() as u64)
            .map_err(io::Error::other)?;
    }
    Ok(latencies)
}

/// Does the same to all files at once, each in its own task.
async fn for_each<F>(files: &[Rc<DmaFile>], action: F) -> io::Result<()>
where
    F: AsyncFn(Rc<DmaFile>) -> glommio::Result<(), ()> + Copy + 'static,
{
    let tasks: Vec<_> = files
        .iter()
        .cloned()
        .map(|file| glommio::spawn_local(async move { action(file).await }))
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}
