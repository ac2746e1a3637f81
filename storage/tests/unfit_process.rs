//! A process that may not run executors is told so by name. Limits and filters hold for a whole process, so each
//! case runs in a child: this test program again, with the case in its environment.
//!
//! Unsafe for one reason: a seccomp filter is installed with `prctl`, which has no safe form.
#![allow(unsafe_code)] // `prctl`, see above

use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};
use tailwater_storage::disk::executor::{ExecutorError, ExecutorOptions, spawn};
use tailwater_storage::disk::preflight::{PreflightError, check};
use tailwater_storage::disk::watchdog::{Watchdog, WatchdogOptions};

const CASE: &str = "TAILWATER_UNFIT_CASE";

/// Runs `case` in a child that runs only the named test.
fn in_child(test: &str, case: fn()) {
    if std::env::var(CASE).as_deref() == Ok(test) {
        return case();
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(CASE, test)
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn too_little_memlock_is_named_before_glommio_panics() {
    in_child("too_little_memlock_is_named_before_glommio_panics", || {
        let limit = Rlimit {
            current: Some(64 << 10),
            maximum: Some(256 << 10),
        };
        setrlimit(Resource::Memlock, limit).unwrap();
        let watchdog = Watchdog::start(WatchdogOptions::default(), Box::new(|_, _| {})).unwrap();
        let error = spawn(&ExecutorOptions::default(), &watchdog, || async {}).unwrap_err();
        let ExecutorError::Preflight(PreflightError::MemlockTooSmall {
            limit_bytes,
            needed_bytes,
        }) = error
        else {
            panic!("{error}");
        };
        assert_eq!(
            (limit_bytes, needed_bytes),
            (256 << 10, 512 << 10),
            "the soft limit was raised first"
        );
    });
}

#[test]
fn the_soft_memlock_limit_is_raised_to_the_hard_one() {
    in_child("the_soft_memlock_limit_is_raised_to_the_hard_one", || {
        setrlimit(
            Resource::Memlock,
            Rlimit {
                current: Some(64 << 10),
                maximum: Some(1 << 20),
            },
        )
        .unwrap();
        let watchdog = Watchdog::start(WatchdogOptions::default(), Box::new(|_, _| {})).unwrap();
        let executor = spawn(&ExecutorOptions::default(), &watchdog, || async { 42 }).unwrap();
        assert_eq!(executor.join().unwrap(), 42);
    });
}

#[test]
fn a_seccomp_filter_on_io_uring_is_named() {
    in_child("a_seccomp_filter_on_io_uring_is_named", || {
        forbid(libc::SYS_io_uring_setup, libc::EPERM);
        let error = check(1, 1 << 20).unwrap_err();
        assert!(matches!(error, PreflightError::UringForbidden { .. }), "{error}");
        assert!(error.to_string().contains("seccomp"), "{error}");
    });
}

#[test]
fn a_kernel_without_io_uring_is_named() {
    in_child("a_kernel_without_io_uring_is_named", || {
        forbid(libc::SYS_io_uring_setup, libc::ENOSYS);
        let error = check(1, 1 << 20).unwrap_err();
        assert!(matches!(error, PreflightError::UringMissing), "{error}");
    });
}

/// From here on, a system call answers this thread with an errno.
fn forbid(call: libc::c_long, errno: i32) {
    let op = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // the number, first field of seccomp_data
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        op(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `filter` and the program it points to are live for the call, and the kernel copies both.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(installed, "no filter: {}", std::io::Error::last_os_error());
}
