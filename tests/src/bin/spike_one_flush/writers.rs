//! One commit's system calls: direct writes to several files at once, then the flush, by threads or by io_uring.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::Context;
use glommio::io::{DmaFile, OpenOptions};
use glommio::{LocalExecutorBuilder, Placement};

use crate::cases::Writer;
use crate::segments;

const ALIGNMENT: usize = 4096;

/// Writes to one file, in order.
pub struct FileWrites {
    /// The file, open for direct writes.
    pub file: Arc<File>,
    /// The same file's path.
    pub path: PathBuf,
    /// Position and bytes of each write.
    pub writes: Vec<(u64, Vec<u8>)>,
}

/// Writes everything, waits for all of it, then makes the files of `flush` longer by `grow_bytes` and flushes them, one
/// after the other.
pub fn commit(
    writer: Writer,
    dir: &Path,
    writes: Vec<FileWrites>,
    flush: Vec<PathBuf>,
    grow_bytes: u64,
) -> anyhow::Result<()> {
    match writer {
        Writer::Threads => by_threads(&writes, &flush, grow_bytes).context("commit by threads"),
        Writer::Glommio => by_glommio(dir, writes, flush, grow_bytes).context("commit by glommio"),
    }
}

fn by_threads(writes: &[FileWrites], flush: &[PathBuf], grow_bytes: u64) -> io::Result<()> {
    thread::scope(|scope| {
        let spawn = |of: &FileWrites| {
            for (at, bytes) in &of.writes {
                of.file.write_all_at(Aligned::new(bytes).bytes(), *at)?;
            }
            io::Result::Ok(())
        };
        let running: Vec<_> = writes.iter().map(|of| scope.spawn(move || spawn(of))).collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a writer does not panic"))
    })?;
    for path in flush {
        let file = segments::direct(path)?;
        if grow_bytes > 0 {
            file.set_len(file.metadata()?.len() + grow_bytes)?;
        }
        file.sync_data()?;
    }
    Ok(())
}

fn by_glommio(
    dir: &Path,
    writes: Vec<FileWrites>,
    flush: Vec<PathBuf>,
    grow_bytes: u64,
) -> anyhow::Result<()> {
    let probe = dir.join("probe");
    if !probe.exists() {
        std::fs::write(&probe, [1; ALIGNMENT])?;
        File::open(&probe)?.sync_all()?;
    }
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(1 << 20);
    let running = executor.spawn(move || async move {
        // The first file that an executor reads decides how it reads all others; it must not be an empty one.
        let probe = DmaFile::open(&probe).await?;
        probe.read_at_aligned(0, ALIGNMENT).await?;
        probe.close().await?;

        let mut tasks = Vec::new();
        for of in writes {
            tasks.push(glommio::spawn_local(async move {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .dma_open(&of.path)
                    .await?;
                for (at, bytes) in of.writes {
                    let mut buffer = file.alloc_dma_buffer(bytes.len());
                    buffer.as_bytes_mut().copy_from_slice(&bytes);
                    let written = file.write_at(buffer, at).await?;
                    if written != bytes.len() {
                        return Err(io::Error::other("short write"));
                    }
                }
                file.close().await?;
                io::Result::Ok(())
            }));
        }
        for task in tasks {
            task.await?;
        }
        for path in flush {
            let file = OpenOptions::new().read(true).write(true).dma_open(&path).await?;
            if grow_bytes > 0 {
                file.truncate(file.file_size().await? + grow_bytes).await?;
            }
            file.fdatasync().await?;
            file.close().await?;
        }
        io::Result::Ok(())
    });
    let running = running.map_err(|error| anyhow::anyhow!("no executor: {error}"))?;
    running
        .join()
        .map_err(|error| anyhow::anyhow!("executor failed: {error}"))??;
    Ok(())
}

/// Bytes at an address that O_DIRECT takes.
pub struct Aligned {
    padded: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// A copy of `bytes`.
    pub fn new(bytes: &[u8]) -> Aligned {
        let mut padded = vec![0; bytes.len() + ALIGNMENT];
        let start = padded.as_ptr().align_offset(ALIGNMENT);
        padded[start..start + bytes.len()].copy_from_slice(bytes);
        Aligned {
            padded,
            start,
            len: bytes.len(),
        }
    }

    /// The copy.
    pub fn bytes(&self) -> &[u8] {
        &self.padded[self.start..self.start + self.len]
    }
}
