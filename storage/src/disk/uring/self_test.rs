//! The read self-test at start: 4 KiB written by other means, read back through this shard's ring, and compared.
//!
//! It must come before any other file is opened on the executor and device. glommio 0.9.0 probes once per executor and
//! device whether the device can be polled for completions, by reading from the first file that it opens there. If that
//! file is empty, as every new file is, the probe believes that it can, and where it cannot every later read fails with
//! EOPNOTSUPP. A file with something in it gives the probe the true answer.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use glommio::io::DmaFile;

use crate::disk::device::{BLOCK, DiskError, DiskErrorKind, DiskResult};
use crate::disk::flush_watch::FailedFlushes;
use crate::disk::uring::blocking::{self, Device};
use crate::disk::uring::errno::{from_glommio, from_std};

const OP: &str = "self-test";

/// Tests the device under a directory, and says which it is.
pub(super) async fn run(dir: &Path, failed_flushes: FailedFlushes) -> DiskResult<Device> {
    // With the process in the name too: two processes in one directory would race.
    let name = format!(".self-test-{}-{}", std::process::id(), glommio::executor().id());
    let path = dir.join(name);
    let pattern: Vec<u8> = (0..BLOCK).map(|n| (n % 251) as u8 ^ (n / 251) as u8).collect();
    let (written, bytes) = (path.clone(), pattern.clone());
    let device = glommio::executor()
        .spawn_blocking(move || write(&written, &bytes, &failed_flushes))
        .await?;
    let found = read_back(&path).await;
    let removed = path.clone();
    glommio::executor()
        .spawn_blocking(move || blocking::remove_file(&removed))
        .await?;
    let found = found?;
    if found != pattern {
        let detail = format!("{} bytes read back differ from those written", found.len());
        return Err(DiskError {
            op: OP,
            path,
            kind: DiskErrorKind::Io,
            detail,
        });
    }
    Ok(device)
}

fn write(path: &Path, bytes: &[u8], failed_flushes: &FailedFlushes) -> DiskResult<Device> {
    let written = fs::File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        blocking::flush(&file, failed_flushes)?;
        Ok(file.metadata()?.dev())
    });
    written.map_err(|error| from_std(OP, path, &error))
}

async fn read_back(path: &Path) -> DiskResult<Vec<u8>> {
    let file = DmaFile::open(path).await.map_err(|error| {
        let mut error = from_glommio(OP, path, error);
        if error.kind == DiskErrorKind::Io {
            error.detail = format!("the filesystem refuses direct I/O (O_DIRECT): {}", error.detail);
        }
        error
    })?;
    let bytes = file.read_at_aligned(0, BLOCK).await.map(|read| read.to_vec());
    file.close()
        .await
        .map_err(|error| from_glommio(OP, path, error))?;
    bytes.map_err(|error| from_glommio(OP, path, error))
}
