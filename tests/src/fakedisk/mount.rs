//! Filesystems on image files, through loop devices, for as long as a guard lives.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A kind of filesystem, with the options to make and mount it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filesystem {
    /// What `mount -t` calls it.
    pub kind: &'static str,
    /// More options for mkfs.
    pub mkfs: &'static [&'static str],
    /// More options for mount, separated by commas.
    pub options: &'static str,
}

impl Filesystem {
    /// ext4 as `mkfs.ext4` and `mount` make it by default.
    pub const EXT4: Filesystem = Filesystem {
        kind: "ext4",
        mkfs: &[],
        options: "",
    };
    /// XFS as `mkfs.xfs` and `mount` make it by default; needs an image of at least 300 MiB.
    pub const XFS: Filesystem = Filesystem {
        kind: "xfs",
        mkfs: &[],
        options: "",
    };

    /// What an operator would do about an image that does not mount; destroys whatever is in the way.
    pub fn repair(&self, image: &Path) -> io::Result<()> {
        let mut repair = match self.kind {
            "ext4" => Command::new("e2fsck"),
            _ => Command::new("xfs_repair"),
        };
        match self.kind {
            "ext4" => repair.args(["-f", "-y"]),
            _ => repair.arg("-L"),
        };
        // Both answer with a code other than 0 if they had something to repair.
        repair.arg(image).output().map(drop)
    }
}

/// A filesystem mounted on an image file. Dropping it unmounts it and frees the loop device.
pub struct LoopMount {
    dir: PathBuf,
    device: PathBuf,
}

impl LoopMount {
    /// Makes a new filesystem on `image` and mounts it on `dir` (made if absent).
    pub fn create(filesystem: Filesystem, image: &Path, dir: &Path) -> io::Result<LoopMount> {
        let mut mkfs = Command::new(format!("mkfs.{}", filesystem.kind));
        match filesystem.kind {
            // Nothing may be left to the kernel's lazy initialisation: it would write behind the test's back.
            "ext4" => mkfs.args([
                "-q",
                "-F",
                "-E",
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
            ]),
            _ => mkfs.args(["-q", "-f", "-K"]),
        };
        run(mkfs.args(filesystem.mkfs).arg(image))?;
        LoopMount::open(filesystem, image, dir)
    }

    /// Mounts the filesystem that is on `image`, after whatever recovery it needs.
    pub fn open(filesystem: Filesystem, image: &Path, dir: &Path) -> io::Result<LoopMount> {
        fs::create_dir_all(dir)?;
        let mut options = String::from("loop");
        if filesystem.kind == "xfs" {
            // A cut image carries the identity of the original, which may be mounted at the same time.
            options.push_str(",nouuid");
        }
        if !filesystem.options.is_empty() {
            options.push(',');
            options.push_str(filesystem.options);
        }
        run(Command::new("mount")
            .args(["-t", filesystem.kind, "-o", &options])
            .arg(image)
            .arg(dir))?;
        let device = run(Command::new("findmnt")
            .args(["-n", "-o", "SOURCE", "--mountpoint"])
            .arg(dir));
        match device {
            Ok(device) => Ok(LoopMount {
                dir: dir.to_path_buf(),
                device: PathBuf::from(device.trim()),
            }),
            Err(error) => {
                unmount(dir);
                Err(error)
            }
        }
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The loop device beneath it, such as `/dev/loop0`.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Tells the kernel that the device has no volatile cache, so that it sends no flushes (or that it has one again).
    pub fn set_write_through(&self, write_through: bool) -> io::Result<()> {
        let setting = if write_through {
            "write through"
        } else {
            "write back"
        };
        fs::write(self.sysfs().join("queue/write_cache"), setting)
    }

    /// Cache flushes that the kernel has sent to the device so far.
    pub fn flushes(&self) -> io::Result<u64> {
        /// Position in `stat`, as the kernel's documentation of that file counts from zero.
        const FLUSHES: usize = 15;
        let stat = fs::read_to_string(self.sysfs().join("stat"))?;
        let flushes = stat
            .split_whitespace()
            .nth(FLUSHES)
            .and_then(|field| field.parse().ok());
        flushes.ok_or_else(|| io::Error::other(format!("no flushes in {stat:?}")))
    }

    /// The device's directory in sysfs, such as `/sys/block/loop0`, with `stat` and `queue`.
    pub fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.device.file_name().unwrap_or_default())
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if let Err(error) = self.set_write_through(false) {
            eprintln!("{}: {error}", self.device.display());
        }
        unmount(&self.dir);
    }
}

/// Whether this process can mount fake disks here, and what is missing if not.
pub fn available() -> Result<(), String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective_uid = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if effective_uid != Some("0") {
        return Err("fake disks need root".into());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            return Err(format!("fake disks need {device}"));
        }
    }
    for (program, package) in [("mkfs.ext4", "e2fsprogs"), ("mkfs.xfs", "xfsprogs")] {
        if Command::new(program).arg("-V").output().is_err() {
            return Err(format!("fake disks need {program} (Debian package {package})"));
        }
    }
    Ok(())
}

/// Unmounts `dir`: patiently at first, then by detaching it, so that nothing stays in the way of the next test.
pub(crate) fn unmount(dir: &Path) {
    for _ in 0..40 {
        match run(Command::new("umount").arg(dir)) {
            Ok(_) => return,
            Err(error) if error.to_string().contains("busy") => thread::sleep(Duration::from_millis(50)),
            Err(_) => break,
        }
    }
    if let Err(error) = run(Command::new("umount").arg("--lazy").arg(dir)) {
        eprintln!("{error}");
    }
}

/// Runs a command and returns what it printed; an error holds the command and what it complained of.
fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!(
        "{command:?}: {}: {}",
        output.status,
        complaint.trim()
    )))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;

    use super::*;
    use crate::fakedisk::cache::{Cut, FailedFlush};
    use crate::fakedisk::disk::FakeDisk;

    /// What `kept` holds after a cut that lost whatever was not flushed.
    fn after_cut(disk: &FakeDisk, filesystem: Filesystem, dir: &Path) -> Option<Vec<u8>> {
        let image = dir.join("cut");
        disk.cut(Cut::DropPending, &image).expect("the image is written");
        let mounted = LoopMount::open(filesystem, &image, &dir.join("after")).expect("recovered");
        fs::read(mounted.dir().join("kept")).ok()
    }

    #[test]
    fn a_real_filesystem_keeps_what_was_synced_and_loses_the_rest() {
        available().expect("what a fake disk needs: root, FUSE, loop devices, mkfs");
        for filesystem in [Filesystem::EXT4, Filesystem::XFS] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let disk = FakeDisk::mount(&dir.path().join("disk"), 320 << 20).expect("mounted");
            let mounted =
                LoopMount::create(filesystem, &disk.image(), &dir.path().join("live")).expect("made");
            let mut file = File::create(mounted.dir().join("kept")).expect("created");
            file.write_all(b"synced").expect("written");
            file.sync_all().expect("flushed");
            File::open(mounted.dir())
                .and_then(|dir| dir.sync_all())
                .expect("flushed");
            file.write_all(b", not synced").expect("written");
            assert_eq!(
                after_cut(&disk, filesystem, dir.path()).as_deref(),
                Some(b"synced".as_slice())
            );

            disk.fail_flushes(1, FailedFlush::KeepsWrites);
            let failed = file.sync_all().expect_err("the flush failed");
            assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{}", filesystem.kind);
            assert_eq!(disk.counters().failed_flushes, 1);
        }
    }

    #[test]
    fn a_panic_leaves_no_mount_behind() {
        available().expect("what a fake disk needs: root, FUSE, loop devices, mkfs");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = dir.path().to_path_buf();
        let panicked = thread::spawn(move || {
            let disk = FakeDisk::mount(&root.join("disk"), 64 << 20).expect("mounted");
            let _mounted =
                LoopMount::create(Filesystem::EXT4, &disk.image(), &root.join("live")).expect("made");
            panic!("on purpose");
        })
        .join();
        assert!(panicked.is_err());
        let mounts = fs::read_to_string("/proc/self/mounts").expect("readable");
        let root = dir.path().to_str().expect("a plain name");
        assert!(!mounts.contains(root), "{mounts}");
        let loops = run(Command::new("losetup").arg("--all")).expect("losetup");
        assert!(!loops.contains(root), "{loops}");
    }
}
