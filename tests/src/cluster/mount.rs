//! A small filesystem of a test's own, on a loop device: it can be filled, mounted read-only, and its flushes counted.
//! Needs root; it is unmounted when the value goes, also after a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::cluster::place;

/// A mounted ext4.
#[derive(Debug)]
pub struct LoopMount {
    point: PathBuf,
    home: TempDir,
}

impl LoopMount {
    /// A fresh filesystem of so many MiB.
    ///
    /// # Panics
    /// Without root, or without `mkfs.ext4` and `mount`.
    #[must_use]
    pub fn new(mib: u64) -> LoopMount {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test mounts a filesystem, and only root can"
        );
        let home = place::directory();
        let (image, point) = (home.path().join("image"), home.path().join("mount"));
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(mib << 20).expect("a sparse image");
        std::fs::create_dir(&point).expect("a mount point");
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &text(&image)]);
        run("mount", &["-o", "loop", &text(&image), &text(&point)]);
        LoopMount { point, home }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Lets nobody write any more.
    pub fn make_read_only(&self) {
        run("mount", &["-o", "remount,ro", &text(&self.point)]);
    }

    /// Bytes that are free.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.point).expect("a mounted filesystem");
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let point = text(&self.point);
        let unmount = |options: &[&str]| {
            let status = Command::new("umount").args(options).arg(&point).status();
            status.is_ok_and(|status| status.success())
        };
        // Lazily, when somebody is still in it: the device goes with the last of them.
        if !unmount(&[]) && !unmount(&["-l"]) {
            eprintln!(
                "{point} is still mounted; its image is in {}",
                self.home.path().display()
            );
        }
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
}
