//! Becomes another program that may not set up io_uring: `without-io-uring PROGRAM ARGS...`, as under a container's
//! seccomp profile.
//!
//! Unsafe for one reason: a seccomp filter is installed with `prctl`, which has no safe form.

use std::os::unix::process::CommandExt;
use std::process::Command;

fn main() {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().expect("usage: without-io-uring PROGRAM ARGS...");
    forbid(libc::SYS_io_uring_setup, libc::EPERM);
    let error = Command::new(&program).args(words).exec();
    panic!("cannot become {}: {error}", program.display());
}

/// From here on, a system call answers this process, and what it becomes, with an errno.
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
