//! Where things are: the binary under test, directories on a real disk, free ports, and the machine's one free turn.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use tempfile::TempDir;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Below the range that the kernel draws outgoing ports from, so that no connection takes a port between two starts.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The workspace's root.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests' package lies in the workspace")
}

/// The build directory that this program runs from.
fn target_dir() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    let home = program.parent().expect("a program lies in a directory");
    // A test is TARGET/debug/deps/PROGRAM, a program to be run by hand TARGET/release/PROGRAM.
    let up = if home.ends_with("deps") { 2 } else { 1 };
    home.ancestors().nth(up).expect("a build directory").to_owned()
}

/// The release binary: TAILWATER_BIN, or the workspace's own, built once if it is not there.
///
/// # Panics
/// When it cannot be built.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("TAILWATER_BIN") {
            let path = PathBuf::from(path);
            assert!(path.is_file(), "TAILWATER_BIN: {} is no file", path.display());
            return path;
        }
        let path = target_dir().join("release/tailwater");
        if !path.is_file() {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo
                .args(["build", "--release", "--package", "tailwater", "--target-dir"])
                .arg(target_dir());
            let built = cargo.current_dir(workspace()).status().expect("cargo can be run");
            assert!(built.success() && path.is_file(), "the binary cannot be built");
        }
        path
    })
}

/// A fresh directory on a real disk, removed with the returned value.
///
/// # Panics
/// When there is none: a flush to a memory filesystem proves nothing.
#[must_use]
pub fn directory() -> TempDir {
    let parent =
        std::env::var_os("TAILWATER_TEST_DIR").map_or_else(|| target_dir().join("end-to-end"), PathBuf::from);
    std::fs::create_dir_all(&parent).expect("a directory for the tests' data");
    let mount = mount_of(&parent);
    let memory = ["tmpfs", "ramfs"].contains(&mount.filesystem.as_str());
    assert!(
        !memory,
        "{} is in memory; name a directory on a disk in TAILWATER_TEST_DIR",
        parent.display()
    );
    tempfile::Builder::new()
        .prefix("t")
        .tempdir_in(parent)
        .expect("a directory for a test's data")
}

/// What a directory lies on.
#[derive(Debug)]
pub struct Mounted {
    /// `major:minor` of the device.
    pub device: String,
    /// `ext4`, `xfs`, `tmpfs`.
    pub filesystem: String,
}

/// Looks a directory up in the kernel's list of mounts.
///
/// # Panics
/// When it is not there.
#[must_use]
pub fn mount_of(directory: &Path) -> Mounted {
    let directory = directory.canonicalize().expect("a directory that is there");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("a list of mounts");
    // `36 35 98:0 /root /mountpoint options [optional...] - ext4 /dev/sda options`; later lines hide earlier ones.
    let holding = mounts.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let (device, point) = (fields.next()?, fields.nth(1)?);
        let filesystem = source.split(' ').next()?;
        directory
            .starts_with(point)
            .then_some((point.len(), device, filesystem))
    });
    let (_, device, filesystem) = holding
        .max_by_key(|&(length, _, _)| length)
        .expect("every directory lies on a mount");
    Mounted {
        device: device.to_owned(),
        filesystem: filesystem.to_owned(),
    }
}

/// A port that nobody listens on, and that this process has given to nobody yet.
#[must_use]
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of so many ports in a row that nobody listens on, and that this process has given to nobody yet.
///
/// # Panics
/// When there are none.
#[must_use]
pub fn free_ports(count: u16) -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let first = (0..1_000)
        .map(|_| rand::random_range(PORTS))
        .find(|&first| (first..first + count).all(|port| !given.contains(&port) && is_free(port)))
        .expect("free ports");
    given.extend(first..first + count);
    first
}

static MACHINE: RwLock<()> = RwLock::const_new(());

/// The machine together with others, for tests that judge no speed and make little load.
pub async fn share_machine() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// The machine alone, for tests that load it or judge by time.
pub async fn take_machine() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}
