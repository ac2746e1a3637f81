//! Spike 1's price list: one flush for all files of a commit, or one for each file?
//!
//! Each iteration writes 4 KiB to each of some recycled files at once, through glommio, and then flushes: through one of
//! them, or through each of them at the same time. The two take turns, so that both see the same machine.
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

/// Latencies in nanoseconds.
struct Latencies {
    one_flush: Histogram<u64>,
    flush_each: Histogram<u64>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let dir = arguments.dir.join("spike-flush-cost");
    fs::create_dir(&dir).context("making the folder for the files")?;
    let measured = measure(&dir, arguments.commits);
    fs::remove_dir_all(&dir)?;
    let mut out = stdout();
    writeln!(out, "{:>5} {:>22} {:>22}", "files", "one flush", "flush each")?;
    writeln!(out, "{:>5} {:>22} {:>22}", "", "p50 / p99 us", "p50 / p99 us")?;
    for (files, latencies) in measured? {
        let column = |histogram: &Histogram<u64>| {
            let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
            format!("{:.0} / {:.0}", us(0.5), us(0.99))
        };
        let (one, each) = (column(&latencies.one_flush), column(&latencies.flush_each));
        writeln!(out, "{files:>5} {one:>22} {each:>22}")?;
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
    File::open(dir)?.sync_all()?;
    let executor = LocalExecutorBuilder::new(Placement::Fixed(0)).spawn(move || async move {
        // The first file that an executor reads decides how it reads all others; these are not empty.
        let mut files = Vec::new();
        for path in &paths {
            let file = OpenOptions::new().read(true).write(true).dma_open(path).await?;
            file.read_at_aligned(0, BLOCK_BYTES).await?;
            files.push(Rc::new(file));
        }
        let mut measured = Vec::new();
        for count in FILES {
            measured.push((count, measure_files(&files[..count], commits).await?));
        }
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

async fn measure_files(files: &[Rc<DmaFile>], commits: usize) -> io::Result<Latencies> {
    let histogram = || Histogram::new(3).map_err(io::Error::other);
    let mut latencies = Latencies {
        one_flush: histogram()?,
        flush_each: histogram()?,
    };
    for commit in 0..2 * commits {
        let at = (commit * BLOCK_BYTES % FILE_BYTES) as u64;
        let started = Instant::now();
        for_each(files, async move |file| {
            let mut buffer = file.alloc_dma_buffer(BLOCK_BYTES);
            buffer.as_bytes_mut().fill(commit as u8);
            file.write_at(buffer, at).await.map(drop)
        })
        .await?;
        let histogram = if commit % 2 == 0 {
            files[0].fdatasync().await?;
            &mut latencies.one_flush
        } else {
            for_each(files, async |file| file.fdatasync().await).await?;
            &mut latencies.flush_each
        };
        histogram
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
