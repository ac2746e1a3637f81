//! What must be true of the process before an executor is built: io_uring allowed, and memory that may be locked.
//!
//! glommio panics where these say what is wrong and what to do.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// The least RLIMIT_MEMLOCK per executor; glommio refuses to start below it.
pub const MEMLOCK_PER_EXECUTOR_BYTES: u64 = 512 << 10;

/// The least I/O memory of an executor; glommio takes this much whatever it is told.
pub const IO_MEMORY_MIN_BYTES: u64 = 64 << 10;

/// glommio registers an executor's I/O memory with each of its three rings, and the kernel counts it each time.
const RINGS: u64 = 3;

/// Kept free of each executor's share for the rings themselves, which kernels before 5.12 count too.
const RING_BYTES: u64 = 256 << 10;

const PAGE_BYTES: u64 = 4096;

const _: () = assert!(RINGS * IO_MEMORY_MIN_BYTES + RING_BYTES <= MEMLOCK_PER_EXECUTOR_BYTES);

/// Why this process cannot run executors.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// Too little memory may be locked, even at the hard limit.
    #[error(
        "only {limit_bytes} bytes of memory may be locked (RLIMIT_MEMLOCK), {needed_bytes} are needed: 512 KiB for each \
         executor; raise it with `ulimit -l {}`, LimitMEMLOCK= in the systemd unit, or \
         /etc/security/limits.conf", needed_bytes.div_ceil(1024)
    )]
    MemlockTooSmall {
        /// The hard limit, to which the soft one was raised.
        limit_bytes: u64,
        /// What this many executors need.
        needed_bytes: u64,
    },
    /// The kernel has io_uring, but this process may not use it.
    #[error("io_uring is forbidden to this process: {why}")]
    UringForbidden {
        /// By what, and how to allow it.
        why: String,
    },
    /// The kernel has no io_uring.
    #[error("this kernel has no io_uring (Linux 5.8 or newer is needed, built with CONFIG_IO_URING)")]
    UringMissing,
    /// The kernel refused a ring for another reason.
    #[error("the kernel refused an io_uring: {source}")]
    UringRefused {
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

/// Checks the process once before its executors are built, and says how much I/O memory each of them can register
/// (in bytes, at most `io_memory_bytes`). Raises the soft RLIMIT_MEMLOCK to the hard one.
pub fn check(executors: u64, io_memory_bytes: u64) -> Result<u64, PreflightError> {
    probe_io_uring()?;
    let limit = raise_memlock();
    let fits = io_memory_within(limit, executors, io_memory_bytes)?;
    if may_lock_any_amount() {
        return Ok(io_memory_bytes.max(IO_MEMORY_MIN_BYTES));
    }
    Ok(fits)
}

/// The I/O memory per executor that fits under a limit (`None`: unlimited), in whole pages.
pub fn io_memory_within(
    limit_bytes: Option<u64>,
    executors: u64,
    wanted_bytes: u64,
) -> Result<u64, PreflightError> {
    let wanted = wanted_bytes.next_multiple_of(PAGE_BYTES).max(IO_MEMORY_MIN_BYTES);
    let Some(limit_bytes) = limit_bytes else {
        return Ok(wanted);
    };
    let needed_bytes = executors.saturating_mul(MEMLOCK_PER_EXECUTOR_BYTES);
    if limit_bytes < needed_bytes {
        return Err(PreflightError::MemlockTooSmall {
            limit_bytes,
            needed_bytes,
        });
    }
    let fits = (limit_bytes / executors.max(1)).saturating_sub(RING_BYTES) / RINGS;
    Ok(wanted.min(fits / PAGE_BYTES * PAGE_BYTES))
}

/// Raises the soft limit as far as it goes, and returns it.
fn raise_memlock() -> Option<u64> {
    raise(Resource::Memlock)
}

/// Raises the soft limit of open files to the hard one, and says what it now is (`None`: unlimited). A shell's default
/// of 1,024 is less than one topic of 1,000 partitions takes.
pub fn raise_open_files() -> Option<u64> {
    raise(Resource::Nofile)
}

fn raise(resource: Resource) -> Option<u64> {
    let limit = getrlimit(resource);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(resource, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current, // some sandboxes forbid the call: what there is must do
    }
}

/// Whether the kernel does not count locked memory for this process (CAP_IPC_LOCK). glommio looks at the limit all the
/// same, so this lifts only the size, not the least limit.
fn may_lock_any_amount() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

fn probe_io_uring() -> Result<(), PreflightError> {
    let Err(source) = io_uring::IoUring::new(2) else {
        return Ok(());
    };
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Err(PreflightError::UringForbidden { why: who_forbids() }),
        Some(libc::ENOSYS) => Err(PreflightError::UringMissing),
        _ => Err(PreflightError::UringRefused { source }),
    }
}

fn who_forbids() -> String {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match setting.trim() {
        "" | "0" => "a seccomp filter forbids it; containers need a profile that allows io_uring_setup, \
                     io_uring_enter and io_uring_register"
            .into(),
        value => {
            format!("kernel.io_uring_disabled is {value}; allow it with `sysctl kernel.io_uring_disabled=0`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_io_memory_fits_three_times_into_each_share() {
        let mib = 1 << 20;
        for (limit, executors, wanted) in [
            (8 * mib, 1, 10 * mib),
            (8 * mib, 16, 10 * mib),
            (64 * mib, 2, 4 * mib),
        ] {
            let each = io_memory_within(Some(limit), executors, wanted).unwrap();
            assert!(
                executors * (3 * each + RING_BYTES) <= limit,
                "{limit} {executors}: {each}"
            );
            assert!(each.is_multiple_of(PAGE_BYTES) && (IO_MEMORY_MIN_BYTES..=wanted).contains(&each));
        }
        assert_eq!(io_memory_within(None, 64, 10 * mib).unwrap(), 10 * mib);
    }

    #[test]
    fn a_limit_below_the_least_is_named_with_its_remedy() {
        let error = io_memory_within(Some(1 << 20), 3, 1 << 20).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("1048576 bytes") && text.contains("1572864 are needed"),
            "{text}"
        );
        assert!(text.contains("ulimit -l 1536"), "{text}");
    }
}
