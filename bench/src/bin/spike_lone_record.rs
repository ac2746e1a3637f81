//! Where a lone record's time goes: its way without the node, part by part, on a plain thread and on glommio.
//!
//! A thread that blocks is the floor of each part. glommio does the same with its rings, with or without spinning before it
//! parks; and once with a file opened with O_DSYNC, where one write is the write and the flush. The parts are a disk (write
//! 4 KiB, flush), a socket (a request of a lone record's size, an answer of an acknowledgement's), and both behind each
//! other, which is a node that does nothing. What `tailwater-bench run produce --only 'x1 in flight 1, 1 to'` shows above
//! that is the node's own and the client library's.
//! `cargo run --release -p tailwater-bench --bin spike_lone_record -- --dir DIR`
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Read, Write, stdout};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Parser;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::io::{DmaFile, OpenOptions};
use glommio::{LocalExecutorBuilder, Placement};
use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_setaffinity};

const BLOCK_BYTES: usize = 4096;
const FILE_BYTES: u64 = 64 << 20;
/// What a client sends for a record of 100 bytes, and what it gets.
const REQUEST_BYTES: usize = 424;
const ANSWER_BYTES: usize = 48;
const SERVER_CORE: usize = 0;
const CLIENT_CORE: usize = 1;

#[derive(Parser)]
struct Arguments {
    /// Where to make the file `spike-lone-record`, which is removed in the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Records of each kind in each round
    #[arg(long, default_value_t = 2000)]
    records: usize,
    /// All kinds take turns so often
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// One way through one part.
#[derive(Debug, Clone, Copy)]
enum Kind {
    ThreadDisk { dsync: bool },
    RingDisk { dsync: bool, spin_us: u64 },
    ThreadSocket,
    RingSocket { spin_us: u64 },
    RingBoth { dsync: bool, spin_us: u64 },
}

const KINDS: [Kind; 10] = [
    Kind::ThreadDisk { dsync: false },
    Kind::ThreadDisk { dsync: true },
    Kind::RingDisk {
        dsync: false,
        spin_us: 0,
    },
    Kind::RingDisk {
        dsync: false,
        spin_us: 50,
    },
    Kind::RingDisk {
        dsync: true,
        spin_us: 0,
    },
    Kind::ThreadSocket,
    Kind::RingSocket { spin_us: 0 },
    Kind::RingBoth {
        dsync: false,
        spin_us: 0,
    },
    Kind::RingBoth {
        dsync: false,
        spin_us: 50,
    },
    Kind::RingBoth {
        dsync: true,
        spin_us: 0,
    },
];

fn main() -> anyhow::Result<()> {
    let Arguments { dir, records, rounds } = Arguments::parse();
    let path = dir.join("spike-lone-record");
    let measured = make(&path).and_then(|()| measure(&path, records, rounds));
    fs::remove_file(&path)?;
    let mut out = stdout();
    writeln!(out, "us of a record, p50 / p99 over all rounds")?;
    for (kind, latencies) in KINDS.iter().zip(measured?) {
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        writeln!(
            out,
            "{:<48} {:>8.0} / {:.0}",
            format!("{kind:?}"),
            us(0.5),
            us(0.99)
        )?;
    }
    Ok(())
}

fn make(path: &Path) -> anyhow::Result<()> {
    let mut file = File::create(path).context("making the file")?;
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&[1; 1 << 20])?;
    }
    Ok(file.sync_all()?)
}

fn measure(path: &Path, records: usize, rounds: usize) -> anyhow::Result<Vec<Histogram<u64>>> {
    let mut all = KINDS.map(|_| Histogram::new_with_max(60_000_000_000, 3).expect("valid bounds"));
    for _ in 0..rounds {
        for (kind, latencies) in KINDS.iter().zip(&mut all) {
            let times = run(*kind, path, records).with_context(|| format!("{kind:?}"))?;
            for time in times {
                latencies.record(time.as_nanos() as u64)?;
            }
        }
    }
    Ok(all.into())
}

fn run(kind: Kind, path: &Path, records: usize) -> anyhow::Result<Vec<Duration>> {
    let path = path.to_owned();
    match kind {
        Kind::ThreadDisk { dsync } => on_core(SERVER_CORE, move || thread_disk(&path, dsync, records)),
        Kind::RingDisk { dsync, spin_us } => executor(spin_us, move || async move {
            let file = open(&path, dsync).await?;
            let mut times = Vec::new();
            for n in 0..records {
                let started = Instant::now();
                ring_record(&file, dsync, n).await?;
                times.push(started.elapsed());
            }
            file.close_rc().await.map_err(io::Error::from)?;
            Ok(times)
        })?
        .join()
        .map_err(|error| anyhow!("executor failed: {error}"))?,
        Kind::ThreadSocket => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let port = listener.local_addr()?.port();
            let client = std::thread::spawn(move || on_core(CLIENT_CORE, move || client(port, records)));
            on_core(SERVER_CORE, move || {
                let (mut stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                let mut request = [0; REQUEST_BYTES];
                while stream.read_exact(&mut request).is_ok() {
                    stream.write_all(&request[..ANSWER_BYTES])?;
                }
                Ok(())
            })?;
            client.join().map_err(|_| anyhow!("the client panicked"))?
        }
        Kind::RingSocket { spin_us } => serve(None, false, spin_us, records),
        Kind::RingBoth { dsync, spin_us } => serve(Some(path), dsync, spin_us, records),
    }
}

fn thread_disk(path: &Path, dsync: bool, records: usize) -> anyhow::Result<Vec<Duration>> {
    let flags = libc::O_DIRECT | if dsync { libc::O_DSYNC } else { 0 };
    let file = fs::OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(path)?;
    let mut room = vec![7; 2 * BLOCK_BYTES];
    let at = room.as_ptr().align_offset(BLOCK_BYTES);
    let mut times = Vec::new();
    for n in 0..records {
        room[at] = n as u8;
        let started = Instant::now();
        file.write_all_at(&room[at..at + BLOCK_BYTES], position(n))?;
        if !dsync {
            file.sync_data()?;
        }
        times.push(started.elapsed());
    }
    Ok(times)
}

/// Answers requests on an executor, after a record was written if there is a file; returns what the client saw.
fn serve(path: Option<PathBuf>, dsync: bool, spin_us: u64, records: usize) -> anyhow::Result<Vec<Duration>> {
    let (tell, told) = mpsc::channel();
    let server = executor(spin_us, move || async move {
        let file = match &path {
            Some(path) => Some(open(path, dsync).await?),
            None => None,
        };
        let listener = glommio::net::TcpListener::bind("127.0.0.1:0").map_err(io::Error::from)?;
        let address = listener.local_addr().map_err(io::Error::from)?;
        tell.send(address.port())?;
        let mut stream = listener.accept().await.map_err(io::Error::from)?;
        stream.set_nodelay(true).map_err(io::Error::from)?;
        let (mut request, mut n) = ([0; REQUEST_BYTES], 0);
        while stream.read_exact(&mut request).await.is_ok() {
            if let Some(file) = &file {
                ring_record(file, dsync, n).await?;
            }
            stream.write_all(&request[..ANSWER_BYTES]).await?;
            n += 1;
        }
        if let Some(file) = file {
            file.close_rc().await.map_err(io::Error::from)?;
        }
        Ok(Vec::new())
    })?;
    let port = told.recv().context("the server did not start")?;
    let times = on_core(CLIENT_CORE, move || client(port, records));
    let _nothing: Vec<Duration> = server
        .join()
        .map_err(|error| anyhow!("executor failed: {error}"))??;
    times
}

fn executor<F>(
    spin_us: u64,
    main: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<glommio::ExecutorJoinHandle<anyhow::Result<Vec<Duration>>>>
where
    F: Future<Output = anyhow::Result<Vec<Duration>>> + 'static,
{
    let mut builder = LocalExecutorBuilder::new(Placement::Fixed(SERVER_CORE))
        // As the node has it.
        .preempt_timer(Duration::from_millis(100));
    if spin_us > 0 {
        builder = builder.spin_before_park(Duration::from_micros(spin_us));
    }
    builder
        .spawn(main)
        .map_err(|error| anyhow!("no executor: {error}"))
}

async fn open(path: &Path, dsync: bool) -> anyhow::Result<Rc<DmaFile>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if dsync {
        options.custom_flags(libc::O_DSYNC);
    }
    let file = options.dma_open(path).await.map_err(io::Error::from)?;
    // The first read of an executor decides how it reads all files; this one is not empty.
    file.read_at_aligned(0, BLOCK_BYTES)
        .await
        .map_err(io::Error::from)?;
    Ok(Rc::new(file))
}

async fn ring_record(file: &DmaFile, dsync: bool, n: usize) -> io::Result<()> {
    let mut buffer = file.alloc_dma_buffer(BLOCK_BYTES);
    buffer.as_bytes_mut().fill(n as u8);
    file.write_at(buffer, position(n)).await?;
    if !dsync {
        file.fdatasync().await?;
    }
    Ok(())
}

fn client(port: u16, records: usize) -> anyhow::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let (request, mut answer, mut times) = ([1; REQUEST_BYTES], [0; ANSWER_BYTES], Vec::new());
    for _ in 0..records {
        let started = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        times.push(started.elapsed());
    }
    Ok(times)
}

fn position(n: usize) -> u64 {
    (n * BLOCK_BYTES) as u64 % FILE_BYTES
}

fn on_core<T: Send + 'static>(
    core: usize,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let pinned = std::thread::spawn(move || {
        let mut set = CpuSet::new();
        set.set(core);
        sched_setaffinity(None, &set).with_context(|| format!("cannot run on core {core}"))?;
        work()
    });
    pinned.join().map_err(|_| anyhow!("a thread panicked"))?
}
