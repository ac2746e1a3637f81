//! What the mounted filesystem lets a flush promise: which files it covers, or why it cannot be trusted; no I/O.
//!
//! The rules are those of docs/decisions/0001. A filesystem without a rule gets the careful one, a flush of each file.

use std::fmt;

use crate::disk::device::FlushScope;

/// The number of the device under a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Its driver.
    pub major: u32,
    /// Which of the driver's.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A filesystem as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// `ext4`, `xfs`, `overlay`, ...; `unknown` when the list does not have the device.
    pub fs_type: String,
    /// Its options, those of the superblock; not those of one mount point, which never touch flushes.
    pub options: Vec<String>,
    /// The device.
    pub device: DeviceNumber,
}

impl Mount {
    /// Finds a device's filesystem in the text of `/proc/self/mountinfo`. Of several mounts of it any will do: they share
    /// their options.
    ///
    /// ```text
    /// 27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,nobarrier
    ///      device      mount's, then any number of fields up to the "-"   type source superblock's
    /// ```
    #[must_use]
    pub fn find(mountinfo: &str, device: DeviceNumber) -> Self {
        let number = device.to_string();
        let parse = |line: &str| {
            let (mount, superblock) = line.split_once(" - ")?;
            if mount.split(' ').nth(2)? != number {
                return None;
            }
            let mut fields = superblock.split(' ');
            let fs_type = fields.next()?.to_owned();
            let options = fields.nth(1)?.split(',').map(str::to_owned).collect();
            Some(Self {
                fs_type,
                options,
                device,
            })
        };
        mountinfo.lines().find_map(parse).unwrap_or_else(|| Self {
            fs_type: "unknown".into(),
            options: Vec::new(),
            device,
        })
    }

    /// Whether the kernel lists more of its options in `/proc/fs/ext4/<device>/options`.
    #[must_use]
    pub fn is_ext4(&self) -> bool {
        self.fs_type == "ext4"
    }

    /// Adds the options of `/proc/fs/ext4/<device>/options`, one a line: mountinfo leaves out those that `tune2fs -o` made
    /// the filesystem's default, and fast commits.
    pub fn add_options(&mut self, lines: &str) {
        self.options.extend(lines.lines().map(str::to_owned));
    }

    fn has(&self, names: &[&str]) -> Option<&str> {
        self.options
            .iter()
            .map(String::as_str)
            .find(|option| names.contains(option))
    }
}

/// Why no flush on this filesystem can be trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Flushes end before the device.
    #[error(
        "{fs_type} on device {device} is mounted with `{option}`: flushes do not reach the device, so a power cut would \
         take records that were acknowledged; mount it without that option (ext4: `mount -o remount,barrier=1`; if \
         `tune2fs -l` lists nobarrier among the default mount options, also `tune2fs -o ^nobarrier`)"
    )]
    NoBarrier {
        /// Of the filesystem.
        fs_type: String,
        /// Of the filesystem.
        device: DeviceNumber,
        /// The one that is in the way.
        option: String,
    },
    /// What is written lies in the journal, where another file's flush does not find it.
    #[error(
        "{fs_type} on device {device} is mounted with `data=journal`: data then lies in the journal, and one flush \
         does not make all of it durable; unmount it and mount it with `data=ordered` (if `tune2fs -l` lists journal_data \
         among the default mount options, first `tune2fs -o ^journal_data`)"
    )]
    DataJournal {
        /// Of the filesystem.
        fs_type: String,
        /// Of the filesystem.
        device: DeviceNumber,
    },
}

/// What was decided about a filesystem, with the words for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What one flush covers.
    pub scope: FlushScope,
    /// One line for the start-up log.
    pub description: String,
    /// What the operator should change, if anything.
    pub warning: Option<&'static str>,
}

/// Options under which a flush ends before the device. XFS lost its own with Linux 4.19; an overlay's `volatile` drops
/// every flush.
const WITHOUT_FLUSH: &[&str] = &["nobarrier", "barrier=0", "volatile", "fsync=volatile"];

/// The second is what `/proc/fs/ext4` shows.
const FAST_COMMIT: &[&str] = &["fast_commit", "fc_debug_force"];

/// Data or journal on a device of its own: not among the cases that were tested.
const SECOND_DEVICE: &[&str] = &["rtdev=", "logdev=", "journal_dev=", "journal_path="];

/// Decides what a flush on this filesystem is worth. `write_cache` is what the device says of its cache
/// (`/sys/dev/block/<device>/queue/write_cache`).
///
/// # Errors
/// [`Refusal`]: nothing may be acknowledged there.
pub fn judge(mount: &Mount, write_cache: Option<&str>) -> Result<Verdict, Refusal> {
    let (fs_type, device) = (mount.fs_type.clone(), mount.device);
    if let Some(option) = mount.has(WITHOUT_FLUSH) {
        let option = option.to_owned();
        return Err(Refusal::NoBarrier {
            fs_type,
            device,
            option,
        });
    }
    if mount.has(&["data=journal"]).is_some() {
        return Err(Refusal::DataJournal { fs_type, device });
    }
    let second_device = mount
        .options
        .iter()
        .any(|option| SECOND_DEVICE.iter().any(|name| option.starts_with(name)));
    let scope = match fs_type.as_str() {
        "ext4" | "xfs" if !second_device => FlushScope::Device,
        _ => FlushScope::File,
    };
    let covers = match scope {
        FlushScope::Device => "one flush covers all partitions",
        FlushScope::File => "each partition is flushed by itself",
    };
    let cache = match write_cache.map(str::trim) {
        Some("write through") => {
            "write through (it is never flushed: right only if it keeps what it was given without power)"
        }
        Some(said) => said,
        None => "unknown",
    };
    let warning = mount.has(FAST_COMMIT).map(|_| {
        "ext4's fast_commit is on: power cuts have left journals that could not be replayed; turn it off with \
         `tune2fs -O ^fast_commit`"
    });
    Ok(Verdict {
        scope,
        description: format!("{fs_type} on device {device}: {covers}; the device's write cache: {cache}"),
        warning,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceNumber = DeviceNumber { major: 254, minor: 0 };

    const MOUNTINFO: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard,nobarrier
28 27 254:1 / /mnt/a\\040b rw - xfs /dev/vdb rw,inode64,logbufs=8
29 27 254:10 / /c rw,noatime - ext4 /dev/vdc rw
30 27 0:50 / /merged rw,relatime - overlay overlay rw,lowerdir=/l - x,upperdir=/u
31 27 254:11 /short
32 27 254:12 / /no-options rw - ext4 /dev/vdd";

    fn at(major: u32, minor: u32) -> DeviceNumber {
        DeviceNumber { major, minor }
    }

    #[test]
    fn a_device_is_found_by_its_number() {
        let cases: &[(DeviceNumber, &str, &[&str])] = &[
            (at(254, 0), "ext4", &["rw", "discard", "nobarrier"]),
            (at(254, 1), "xfs", &["rw", "inode64", "logbufs=8"]),
            (at(254, 10), "ext4", &["rw"]),
            (at(0, 50), "overlay", &["rw", "lowerdir=/l"]),
            (at(254, 11), "unknown", &[]),
            (at(254, 12), "unknown", &[]),
            (at(25, 4), "unknown", &[]),
        ];
        for (device, fs_type, options) in cases {
            let found = Mount::find(MOUNTINFO, *device);
            assert_eq!((found.fs_type.as_str(), found.device), (*fs_type, *device));
            assert_eq!(found.options, *options, "{device}");
        }
        assert_eq!(Mount::find("", DEVICE).fs_type, "unknown");
    }

    fn mount(fs_type: &str, options: &str) -> Mount {
        let options = options.split(',').map(str::to_owned).collect();
        Mount {
            fs_type: fs_type.into(),
            options,
            device: DEVICE,
        }
    }

    #[test]
    fn the_filesystem_decides_what_a_flush_covers() {
        use FlushScope::{Device, File};
        for (fs_type, options, expected) in [
            ("ext4", "rw,discard", Ok(Device)),
            ("ext4", "rw,barrier,data=ordered", Ok(Device)),
            ("ext4", "rw,data=writeback", Ok(Device)),
            ("xfs", "rw,inode64", Ok(Device)),
            ("xfs", "rw,rtdev=/dev/vdb", Ok(File)),
            ("xfs", "rw,logdev=/dev/vdb", Ok(File)),
            ("ext4", "rw,journal_dev=0x10", Ok(File)),
            ("ext3", "rw", Ok(File)),
            ("btrfs", "rw", Ok(File)),
            ("tmpfs", "rw", Ok(File)),
            ("overlay", "rw,upperdir=/u", Ok(File)),
            ("unknown", "", Ok(File)),
            ("ext4", "rw,nobarrier", Err("nobarrier")),
            ("ext4", "rw,barrier=0", Err("barrier=0")),
            ("xfs", "rw,nobarrier", Err("nobarrier")),
            ("btrfs", "rw,nobarrier", Err("nobarrier")),
            ("overlay", "rw,volatile", Err("volatile")),
            ("overlay", "rw,fsync=volatile", Err("fsync=volatile")),
            ("ext4", "rw,data=journal", Err("data=journal")),
            ("ext3", "rw,data=journal", Err("data=journal")),
        ] {
            let verdict = judge(&mount(fs_type, options), None);
            match (verdict, expected) {
                (Ok(verdict), Ok(scope)) => assert_eq!(verdict.scope, scope, "{fs_type} {options}"),
                (Err(refusal), Err(option)) => {
                    let text = refusal.to_string();
                    let quoted = format!("{fs_type} on device 254:0 is mounted with `{option}`");
                    assert!(
                        text.starts_with(&quoted) && text.contains("tune2fs -o ^"),
                        "{text}"
                    );
                }
                (found, _) => panic!("{fs_type} {options}: {found:?}"),
            }
        }
    }

    // `tune2fs -o nobarrier,journal_data` and the fast_commit feature, on Linux 6.18: mountinfo showed only `rw`.
    #[test]
    fn options_that_mountinfo_hides_count() {
        for (shown, refused) in [
            ("rw\nnobarrier\ndata=ordered\n", true),
            ("rw\nbarrier\ndata=journal\n", true),
            ("rw\nbarrier\nfc_debug_force\ndata=ordered\n", false),
        ] {
            let mut mount = mount("ext4", "rw");
            assert!(mount.is_ext4() && judge(&mount, None).is_ok());
            mount.add_options(shown);
            assert_eq!(judge(&mount, None).is_err(), refused, "{shown}");
        }
    }

    #[test]
    fn the_log_line_names_the_cache_and_fast_commits_are_warned_of() {
        let line = |fs_type, cache| judge(&mount(fs_type, "rw"), cache).unwrap().description;
        assert_eq!(
            line("ext4", Some("write back\n")),
            "ext4 on device 254:0: one flush covers all partitions; the device's write cache: write back"
        );
        assert_eq!(
            line("tmpfs", None),
            "tmpfs on device 254:0: each partition is flushed by itself; the device's write cache: unknown"
        );
        assert!(line("xfs", Some("write through")).contains("write through (it is never flushed"));
        for (options, warned) in [
            ("rw", false),
            ("rw,fast_commit", true),
            ("rw,fc_debug_force", true),
        ] {
            let verdict = judge(&mount("ext4", options), None).unwrap();
            assert_eq!(verdict.warning.is_some(), warned, "{options}");
        }
    }
}
