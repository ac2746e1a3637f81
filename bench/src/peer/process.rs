//! A system under test as a process of its own: started on its core, watched, asked to stop, never left behind.

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::machine::Cores;
use crate::peer::outcome::CpuTimes;

/// How long it may take to stop when it is asked to.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// How often it is looked at while it is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Lines of its log that an error shows.
const LOG_LINES: usize = 12;
/// The kernel counts CPU time for `/proc` in hundredths of a second on every machine (USER_HZ).
const TICK: Duration = Duration::from_millis(10);

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    child: RefCell<Child>,
    log: PathBuf,
}

impl Server {
    /// Starts a command on the system's core, with its output in a file.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(
        name: &'static str,
        command: &mut Command,
        log: PathBuf,
        cores: Option<Cores>,
    ) -> anyhow::Result<Server> {
        let output = File::create(&log).with_context(|| format!("{}: cannot make it", log.display()))?;
        let errors = output.try_clone()?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = Cores::start_apart(cores, || {
            command.spawn().with_context(|| format!("cannot start {name}"))
        })?;
        Ok(Server {
            name,
            child: RefCell::new(child),
            log,
        })
    }

    /// The CPU time of all its threads so far, and of this process.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu(&self) -> anyhow::Result<CpuTimes> {
        let id = self.child.borrow().id();
        let of = |path: String| {
            let text = fs::read_to_string(&path).with_context(|| format!("{path}: cannot read it"))?;
            cpu_of(&text).ok_or_else(|| anyhow!("{path}: it does not read as proc(5) says"))
        };
        Ok(CpuTimes {
            system: of(format!("/proc/{id}/stat"))?,
            load: of("/proc/self/stat".to_owned())?,
        })
    }

    /// Does something as long as the process lives.
    ///
    /// # Errors
    /// What `work` fails with, or that the process ended, with the end of its log.
    pub async fn while_alive<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        tokio::select! {
            done = work => done,
            ended = self.ended() => Err(self.epitaph(&format!("ended by itself: {ended}"))),
        }
    }

    /// Asks it to stop, and waits until it has.
    ///
    /// # Errors
    /// When it does not stop in time, and is killed; or stops as a failure.
    pub async fn stop(self) -> anyhow::Result<()> {
        let id = self.child.borrow().id();
        let pid = i32::try_from(id)
            .ok()
            .and_then(Pid::from_raw)
            .context("no process id")?;
        kill_process(pid, Signal::TERM).with_context(|| format!("cannot stop {}", self.name))?;
        match tokio::time::timeout(STOP_WITHIN, self.ended()).await {
            Ok(status) if status == "exit status: 0" => Ok(()),
            Ok(status) => Err(self.epitaph(&format!("was asked to stop and ended so: {status}"))),
            Err(_) => Err(self.epitaph(&format!("did not stop within {STOP_WITHIN:?}, and was killed"))),
        }
    }

    async fn ended(&self) -> String {
        loop {
            match self.child.borrow_mut().try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) => {}
                Err(error) => return error.to_string(),
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn epitaph(&self, what: &str) -> anyhow::Error {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n  ");
        anyhow!("{} {what}; the end of its log:\n  {end}", self.name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        if matches!(child.try_wait(), Ok(None)) {
            // Gone in between is as good as killed.
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

/// Tries until it works or `within` is over.
///
/// # Errors
/// The last failure.
pub async fn eventually<T, F>(within: Duration, mut attempt: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let deadline = Instant::now() + within;
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => sleep(LOOK_EVERY).await,
        }
    }
}

/// Addresses on loopback that nobody listens on now.
///
/// # Errors
/// When there are none.
pub fn free_addresses<const N: usize>() -> anyhow::Result<[SocketAddr; N]> {
    // All are held until all are found, so that they differ.
    let held: Vec<TcpListener> = (0..N)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect::<Result<_, _>>()?;
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for (address, listener) in addresses.iter_mut().zip(&held) {
        *address = listener.local_addr()?;
    }
    Ok(addresses)
}

/// The first of so many addresses on loopback with ports in a row that nobody listens on now.
///
/// # Errors
/// When none are found.
pub fn addresses_in_a_row(count: u32) -> anyhow::Result<SocketAddr> {
    for _ in 0..100 {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let is_free = |n: u16| {
            let port = first.port().checked_add(n);
            port.is_some_and(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        };
        if (0..u16::try_from(count)?).all(is_free) {
            return Ok(first);
        }
    }
    Err(anyhow!("no {count} free ports in a row on loopback"))
}

/// A program of the workspace, built in release mode beside this one. It is built also when it is there already: it
/// may be older than the sources, and the figures would then be of something else. Without cargo, the one that is there.
///
/// # Errors
/// When there is no such program and none can be built.
pub fn release_binary(name: &str, package: &str, workspace: &Path) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where this program lies is unknown")?;
    let target = own
        .ancestors()
        .nth(2)
        .context("this program does not lie in a target folder")?;
    let built = target.join("release").join(name);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--package", package]);
    cargo
        .arg("--target-dir")
        .arg(target)
        .current_dir(workspace)
        .stdin(Stdio::null());
    match cargo.status() {
        Ok(status) if status.success() && built.is_file() => Ok(built),
        Ok(status) => Err(anyhow!("{name}: cargo could not build it ({status})")),
        Err(_) if built.is_file() => Ok(built),
        Err(error) => {
            Err(error).with_context(|| format!("{name}: it is not there, and cargo cannot be started"))
        }
    }
}

/// User and system time of a line of `/proc/PID/stat`, whose second field may hold anything in its parentheses.
fn cpu_of(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * ticks()?.checked_add(ticks()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(work)
    }

    fn start(script: &str, dir: &Path) -> Server {
        let mut shell = Command::new("sh");
        Server::start("the shell", shell.args(["-c", script]), dir.join("log"), None).expect("started")
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let line = "12 (a) b (c)) S 1 12 12 0 -1 4194560 100 0 0 0 250 75 0 0 20 0 3 0 100 1 2";
        assert_eq!(cpu_of(line), Some(Duration::from_millis(3_250)));
        assert_eq!(cpu_of("12 (a) S 1"), None);
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_told_with_the_log() {
        let dir = tempfile::tempdir().expect("a folder");
        let server = start("echo no disk; exit 3", dir.path());
        let error =
            run(server.while_alive(std::future::pending::<anyhow::Result<()>>())).expect_err("it ended");
        assert!(
            error.to_string().contains("exit status: 3") && error.to_string().contains("no disk"),
            "{error}"
        );
    }

    #[test]
    fn stopping_is_asked_for_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("a folder");
        let kind = start("trap 'exit 0' TERM; while :; do sleep 0.01; done", dir.path());
        run(async {
            sleep(Duration::from_millis(200)).await;
            kind.stop().await
        })
        .expect("it drained");
        let unkind = start("sleep 60", dir.path());
        assert!(run(unkind.stop()).is_err(), "a signal is no exit status 0");
        let dropped = start("sleep 60", dir.path());
        let id = dropped.child.borrow().id();
        drop(dropped);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn addresses_differ() {
        let [a, b, c] = free_addresses::<3>().expect("free ports");
        assert!(a != b && b != c && a != c);
    }
}
