//! Preparing a range of a file: its blocks get their place on the device and are full of zeros, durably.

use std::cell::Cell;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use glommio::io::DmaFile;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::disk::flush_watch::FailedFlushes;
use crate::disk::uring::blocking::name_of;

/// The most that is written at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// The pause after each step that nobody waits for: 64 MiB a second were not seen in the commits beside it.
const PAUSE: Duration = Duration::from_millis(16);

/// FALLOC_FL_WRITE_ZEROES (Linux 6.17): the device writes the zeros, and the extents end up as written ones.
const WRITE_ZEROES: FallocateFlags = FallocateFlags::from_bits_retain(0x80);

/// Whether the kernel, filesystem and device can write zeros by themselves; assumed until they refuse.
#[derive(Debug)]
pub(super) struct DeviceZeros(Cell<bool>);

impl Default for DeviceZeros {
    fn default() -> Self {
        Self(Cell::new(true))
    }
}

/// Fills an aligned range with zeros and flushes it, its extents and the length. Without `hurry`, or when that is set, at
/// full speed.
pub(super) async fn fill(
    file: &DmaFile,
    from: u64,
    to: u64,
    by_device: &DeviceZeros,
    failed_flushes: &FailedFlushes,
    hurry: Option<Rc<Cell<bool>>>,
) -> glommio::Result<(), ()> {
    if !by_device.0.get() || !ask_device(file, from, to, by_device).await? {
        write(file, from, to, hurry.as_deref()).await?;
    }
    flush(file, failed_flushes).await
}

/// fdatasync; a failure is counted before anyone hears of it.
pub(super) async fn flush(file: &DmaFile, failed_flushes: &FailedFlushes) -> glommio::Result<(), ()> {
    file.fdatasync().await.inspect_err(|_| failed_flushes.add())
}

/// Returns whether the device did it.
async fn ask_device(file: &DmaFile, from: u64, to: u64, by_device: &DeviceZeros) -> std::io::Result<bool> {
    let descriptor = name_of(file);
    let call = move || -> std::io::Result<()> {
        let same = fs::OpenOptions::new().write(true).open(descriptor)?;
        Ok(fallocate(&same, WRITE_ZEROES, from, to - from)?)
    };
    match glommio::executor().spawn_blocking(call).await {
        Ok(()) => Ok(true),
        Err(error) if is_refusal(&error) => {
            by_device.0.set(false);
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether the answer means "cannot", not "failed". A process without /proc cannot ask either.
fn is_refusal(error: &std::io::Error) -> bool {
    let refusals = [
        Errno::OPNOTSUPP,
        Errno::INVAL,
        Errno::NOSYS,
        Errno::NODEV,
        Errno::NOENT,
    ];
    error
        .raw_os_error()
        .is_some_and(|errno| refusals.iter().any(|refusal| refusal.raw_os_error() == errno))
}

async fn write(file: &DmaFile, from: u64, to: u64, hurry: Option<&Cell<bool>>) -> glommio::Result<(), ()> {
    let mut zeros = file.alloc_dma_buffer((to - from).min(CHUNK_BYTES) as usize);
    zeros.as_bytes_mut().fill(0); // a DMA buffer holds whatever was there before
    let mut zeros = Rc::new(zeros);
    let mut position = from;
    while position < to {
        let left = (to - position).min(CHUNK_BYTES) as usize;
        if left < zeros.len() {
            let mut rest = file.alloc_dma_buffer(left);
            rest.as_bytes_mut().fill(0);
            zeros = Rc::new(rest);
        }
        let written = file.write_rc_at(zeros.clone(), position).await?;
        if written != left {
            return Err(short_write(written, left).into());
        }
        position += left as u64;
        if position < to && hurry.is_some_and(|hurry| !hurry.get()) {
            glommio::timer::sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// A write that ended early; the kernel does not say why.
pub(super) fn short_write(written: usize, wanted: usize) -> std::io::Error {
    std::io::Error::other(format!("short write: {written} of {wanted} bytes"))
}
