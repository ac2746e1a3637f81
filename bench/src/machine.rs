//! The machine that was measured on: what it is, which cores were given to whom, and whether a directory is on a disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// `statfs` types of file systems that have no disk below them.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// What a report says of the machine, and of what ran on it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Env {
    /// The kernel's name and release.
    pub kernel: String,
    /// The processor's name.
    pub cpu: String,
    /// Processors that the bench may use.
    pub cores: usize,
    /// How the system under test and the load were kept apart.
    pub pinning: String,
    /// The block device under the data directory.
    pub disk: String,
    /// The device's cache: `write back` needs flushes, `write through` does not.
    pub write_cache: String,
    /// The file system under the data directory, with its options.
    pub fs: String,
    /// The commit that was built; `+changes` if the work tree differs from it.
    pub commit: String,
    /// The compiler.
    pub rustc: String,
    /// When the run began.
    pub date: String,
    /// The command line, with what it left to defaults.
    pub run: String,
    /// What was asked for and not measured, each with the reason.
    pub skipped: Vec<String>,
}

impl Env {
    /// Looks at this machine and at the disk under a directory. What cannot be found out is `unknown`.
    #[must_use]
    pub fn gather(dir: &Path, workspace: &Path, cores: Option<Cores>, run: String) -> Env {
        let mount = fs::metadata(dir).ok().and_then(|meta| Mount::of(meta.dev()));
        Env {
            kernel: read("/proc/sys/kernel/osrelease")
                .map_or_else(unknown, |text| format!("Linux {}", text.trim())),
            cpu: read("/proc/cpuinfo")
                .and_then(|text| cpu_name(&text))
                .unwrap_or_else(unknown),
            cores: sched_getaffinity(None).map_or(0, |set| set.count() as usize),
            pinning: cores.map_or_else(|| "none".to_owned(), Cores::describe),
            disk: mount.as_ref().map_or_else(unknown, |mount| mount.source.clone()),
            write_cache: mount
                .as_ref()
                .and_then(Mount::write_cache)
                .unwrap_or_else(unknown),
            fs: mount.map_or_else(unknown, |mount| format!("{} ({})", mount.fs, mount.options)),
            commit: commit(workspace).unwrap_or_else(unknown),
            rustc: output(Command::new("rustc").arg("--version")).unwrap_or_else(unknown),
            date: now(),
            run,
            skipped: Vec::new(),
        }
    }

    /// Names and values, in order.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        vec![
            ("kernel", self.kernel.clone()),
            ("cpu", self.cpu.clone()),
            ("cores", self.cores.to_string()),
            ("pinning", self.pinning.clone()),
            ("disk", self.disk.clone()),
            ("write cache", self.write_cache.clone()),
            ("file system", self.fs.clone()),
            ("commit", self.commit.clone()),
            ("compiler", self.rustc.clone()),
            ("date", self.date.clone()),
            ("run", self.run.clone()),
            (
                "not measured",
                if self.skipped.is_empty() {
                    "-".to_owned()
                } else {
                    self.skipped.join("; ")
                },
            ),
        ]
    }
}

/// A core for the system under test, and one for the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// Runs the system under test.
    pub system: usize,
    /// Runs the load.
    pub load: usize,
}

impl Cores {
    /// The first two that this process may use, if it may use two.
    #[must_use]
    pub fn first_two() -> Option<Cores> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        Some(Cores {
            system: cores.next()?,
            load: cores.next()?,
        })
    }

    /// Does something with the calling thread on the system's core, so that processes started by it stay there, then
    /// puts the thread on the load's core.
    ///
    /// # Errors
    /// When the kernel does not let it; or what `start` fails with.
    pub fn start_apart<T>(
        cores: Option<Cores>,
        start: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let Some(cores) = cores else { return start() };
        pin_to(cores.system)?;
        let started = start();
        pin_to(cores.load)?;
        started
    }

    fn describe(self) -> String {
        let Cores { system, load } = self;
        format!("system under test on core {system}, load on core {load} (sched_setaffinity)")
    }
}

fn pin_to(core: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run on core {core}"))
}

/// Makes a directory, and refuses one that is not on a disk: flushes there would cost nothing.
///
/// # Errors
/// When it cannot be made or looked at, or lies in memory.
pub fn directory_on_disk(dir: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot make it", dir.display()))?;
    let dir = dir
        .canonicalize()
        .with_context(|| format!("{}: cannot find it", dir.display()))?;
    let stat = rustix::fs::statfs(&dir).with_context(|| format!("{}: no file system", dir.display()))?;
    if MEMORY_FILE_SYSTEMS.contains(&(stat.f_type as u64)) {
        bail!(
            "{}: it is in memory, and a flush there means nothing; give --dir one on a disk",
            dir.display()
        );
    }
    Ok(dir)
}

/// The time, as RFC 3339.
#[must_use]
pub fn now() -> String {
    #[allow(clippy::disallowed_methods, reason = "a report says when it was made")]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    tailwater_wire::time::format_time(seconds.saturating_mul(1_000_000_000))
}

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// `MAJOR:MINOR`.
    device: String,
    fs: String,
    source: String,
    options: String,
}

impl Mount {
    /// The mount of a device number.
    fn of(dev: u64) -> Option<Mount> {
        let wanted = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
        read("/proc/self/mountinfo")?
            .lines()
            .filter_map(Mount::parse)
            .find(|mount| mount.device == wanted)
    }

    /// `36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue`, as proc(5) has it.
    fn parse(line: &str) -> Option<Mount> {
        let (head, tail) = line.split_once(" - ")?;
        let mut tail = tail.split(' ');
        Some(Mount {
            device: head.split(' ').nth(2)?.to_owned(),
            fs: tail.next()?.to_owned(),
            source: tail.next()?.to_owned(),
            options: tail.next()?.to_owned(),
        })
    }

    /// Of the device, or of the one that it is a part of.
    fn write_cache(&self) -> Option<String> {
        let device = PathBuf::from(format!("/sys/dev/block/{}", self.device))
            .canonicalize()
            .ok()?;
        let cache = |device: &Path| read(device.join("queue/write_cache"));
        let text = cache(&device).or_else(|| cache(device.parent()?))?;
        Some(text.trim().to_owned())
    }
}

fn cpu_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn commit(workspace: &Path) -> Option<String> {
    let git = |arguments: &[&str]| output(Command::new("git").arg("-C").arg(workspace).args(arguments));
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|text| !text.is_empty());
    Some(if changed { format!("{head}+changes") } else { head })
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn unknown() -> String {
    "unknown".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read_whatever_its_optional_fields() {
        let plain = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard";
        let shared = "36 35 254:0 /a /b rw shared:7 master:1 - ext4 /dev/vda rw,discard";
        let mount = Mount::parse(plain).expect("a mount");
        assert_eq!(Some(&mount), Mount::parse(shared).as_ref());
        assert_eq!((mount.device.as_str(), mount.fs.as_str()), ("254:0", "ext4"));
        assert_eq!(
            (mount.source.as_str(), mount.options.as_str()),
            ("/dev/vda", "rw,discard")
        );
        assert_eq!(Mount::parse("no mount"), None);
    }

    #[test]
    fn memory_is_no_disk() {
        let refused = directory_on_disk(Path::new("/dev/shm")).expect_err("it is a tmpfs");
        assert!(refused.to_string().contains("--dir"), "{refused}");
    }

    #[test]
    fn what_is_started_apart_stays_on_its_core() {
        let Some(cores) = Cores::first_two() else { return };
        let thread = std::thread::spawn(move || {
            let core = |set: CpuSet| (0..CpuSet::MAX_CPU).find(|&core| set.is_set(core));
            let at_start =
                Cores::start_apart(Some(cores), || Ok(core(sched_getaffinity(None)?))).expect("pinned");
            (at_start, core(sched_getaffinity(None).expect("a set")))
        });
        assert_eq!(
            thread.join().expect("no panic"),
            (Some(cores.system), Some(cores.load))
        );
    }
}
