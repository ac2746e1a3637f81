//! The two disks under the filesystem: the fake one, and reflink snapshots as a check that does not involve it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tailwater_tests::fakedisk::{Cut, CutReport, FakeDisk, Filesystem, LoopMount};

/// XFS refuses less than 300 MiB.
pub const DISK_BYTES: u64 = 320 << 20;
/// Room for the image and its snapshots, which share what did not change.
const HOST_BYTES: u64 = 2 << 30;

/// A disk whose power can be cut while it goes on.
pub enum Disk {
    /// The fake disk, with its volatile cache.
    Fake(FakeDisk),
    /// An image on a reflink filesystem. A snapshot of it holds every write that reached the device: the power stays, but
    /// the machine above is gone. It sees what a filesystem forgot to write, and not what it forgot to flush.
    Reflink {
        /// The filesystem that holds the image and its snapshots.
        host: LoopMount,
    },
}

impl Disk {
    /// A fake disk in `scratch`.
    pub fn fake(scratch: &Path) -> io::Result<Disk> {
        Ok(Disk::Fake(FakeDisk::mount(&scratch.join("disk"), DISK_BYTES)?))
    }

    /// An image on a reflink filesystem in `scratch`.
    pub fn reflink(scratch: &Path) -> io::Result<Disk> {
        let host_image = scratch.join("host-image");
        File::create(&host_image)?.set_len(HOST_BYTES)?;
        let reflink = Filesystem {
            mkfs: &["-m", "reflink=1"],
            ..Filesystem::XFS
        };
        let host = LoopMount::create(reflink, &host_image, &scratch.join("host"))?;
        File::create(host.dir().join("image"))?.set_len(DISK_BYTES)?;
        Ok(Disk::Reflink { host })
    }

    /// The file to put a filesystem on.
    pub fn image(&self) -> PathBuf {
        match self {
            Disk::Fake(disk) => disk.image(),
            Disk::Reflink { host } => host.dir().join("image"),
        }
    }

    /// Cuts the power of a copy and returns the copy; the next cut replaces it.
    pub fn cut(&self, cut: Cut, scratch: &Path) -> io::Result<(PathBuf, CutReport)> {
        match self {
            Disk::Fake(disk) => {
                let to = scratch.join("cut");
                let report = disk.cut(cut, &to)?;
                Ok((to, report))
            }
            Disk::Reflink { host } => {
                let to = host.dir().join("cut");
                if to.exists() {
                    fs::remove_file(&to)?;
                }
                let mut copy = Command::new("cp");
                let status = copy.arg("--reflink=always").arg(self.image()).arg(&to).status()?;
                if !status.success() {
                    return Err(io::Error::other(format!("{copy:?}: {status}")));
                }
                Ok((to, CutReport::default()))
            }
        }
    }

    /// Cache flushes that `live`, the filesystem on this disk, has sent so far.
    pub fn flushes(&self, live: &LoopMount) -> io::Result<u64> {
        match self {
            Disk::Fake(disk) => Ok(disk.counters().flushes),
            Disk::Reflink { .. } => live.flushes(),
        }
    }
}
