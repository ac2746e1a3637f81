//! One `tailwater serve`: started, awaited, killed, drained and started again; its log is shown when a test fails.

use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};
use tailwater_wire::client::config::ClientConfig;
use tailwater_wire::client::handle::Client;
use tempfile::TempDir;

use crate::cluster::cli::Cli;
use crate::cluster::{http, place};

/// How long a node may take to serve.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long a node may take to drain.
const DRAINED_WITHIN: Duration = Duration::from_secs(30);
/// Shards of a node at most: each listens on a port of its own, side by side.
const SHARDS_MAX: u16 = 8;
/// Lines of the node's log that a failed test shows.
const LOG_LINES_SHOWN: usize = 120;

/// A node of one test. Dropping it kills the process.
#[derive(Debug)]
pub struct TestNode {
    process: Option<Child>,
    /// Programs to start it through.
    launcher: Vec<OsString>,
    data: PathBuf,
    listen: SocketAddr,
    admin: SocketAddr,
    config: PathBuf,
    log: PathBuf,
    has_served: bool,
    /// Kept for its files.
    home: TempDir,
}

/// A node that ended by itself.
#[derive(Debug)]
pub struct Refused {
    /// Its exit code.
    pub code: Option<i32>,
    /// What it said on standard error.
    pub log: String,
}

impl TestNode {
    /// A running node with the defaults, on a fresh directory.
    pub async fn start() -> TestNode {
        TestNode::start_with("").await
    }

    /// A running node with a configuration file, on a fresh directory.
    pub async fn start_with(config: &str) -> TestNode {
        let mut node = TestNode::prepare(None, config);
        node.restart().await;
        node
    }

    /// A running node with a configuration file, on a given data directory.
    pub async fn start_on(data: &Path, config: &str) -> TestNode {
        let mut node = TestNode::prepare(Some(data), config);
        node.restart().await;
        node
    }

    /// A node that was not started yet.
    #[must_use]
    pub fn prepare(data: Option<&Path>, config: &str) -> TestNode {
        let home = place::directory();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut node = TestNode {
            process: None,
            launcher: Vec::new(),
            data: data.map_or_else(|| home.path().join("data"), Path::to_owned),
            listen: loopback,
            admin: loopback,
            config: home.path().join("tailwater.toml"),
            log: home.path().join("log"),
            has_served: false,
            home,
        };
        node.draw_ports();
        std::fs::write(&node.config, config).expect("a configuration file");
        node
    }

    /// Starts it through another program from now on: `prlimit --memlock=...`.
    #[must_use]
    pub fn through(mut self, launcher: &[&str]) -> TestNode {
        self.launcher = launcher.iter().map(OsString::from).collect();
        self
    }

    /// Lets it listen where another node listens.
    #[must_use]
    pub fn listening_as(mut self, other: &TestNode) -> TestNode {
        self.listen = other.listen;
        self
    }

    /// Replaces its configuration file; in force after the next start.
    pub fn configure(&mut self, config: &str) {
        std::fs::write(&self.config, config).expect("a configuration file");
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Where clients connect.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    /// A directory of the test's own that goes with the node.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The process's id.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> Pid {
        let process = self.process.as_ref().expect("the node runs");
        Pid::from_child(process)
    }

    /// The command that starts it.
    fn command(&self) -> Command {
        // The node is not to outlive a test program that is killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .args(&self.launcher)
            .arg(place::binary())
            .arg("serve");
        command
            .arg("--config")
            .arg(&self.config)
            .arg("--data")
            .arg(&self.data);
        command
            .arg("--listen")
            .arg(self.listen.to_string())
            .arg("--admin")
            .arg(self.admin.to_string());
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("a file for the node's log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// Starts the process and waits for nothing.
    pub fn spawn(&mut self) {
        assert!(self.process.is_none(), "the node runs already");
        self.process = Some(self.command().spawn().expect("the node can be started"));
    }

    /// Starts it and waits until it serves. Returns how long that took.
    ///
    /// # Panics
    /// When it ends or does not serve in time.
    pub async fn restart(&mut self) -> Duration {
        let started = Instant::now();
        let mut said_before = self.log().len();
        self.spawn();
        loop {
            if let Ok((200, _)) = http::get(self.admin, "/readyz").await {
                self.has_served = true;
                return started.elapsed();
            }
            let process = self.process.as_mut().expect("just started");
            if let Some(status) = process.try_wait().expect("our own child") {
                self.process = None;
                let log = self.log();
                let taken = log[said_before..].contains("Address already in use");
                assert!(taken, "the node ended with {status} instead of serving:\n{log}");
                assert!(!self.has_served, "a node gets its ports back:\n{log}");
                // Some other program was quicker to the port.
                self.draw_ports();
                said_before = log.len();
                self.spawn();
            }
            assert!(
                started.elapsed() < READY_WITHIN,
                "the node does not serve within {READY_WITHIN:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn draw_ports(&mut self) {
        self.listen.set_port(place::free_ports(SHARDS_MAX));
        self.admin.set_port(place::free_port());
    }

    /// Starts it, and expects that it ends by itself.
    ///
    /// # Panics
    /// When it is still there after the time that it may take to start.
    pub async fn start_refused(&mut self) -> Refused {
        let said_before = self.log().len();
        self.spawn();
        let status = self.wait(READY_WITHIN).await;
        Refused {
            code: status.code(),
            log: self.log()[said_before..].to_owned(),
        }
    }

    /// `kill -9`, and waits until the process is gone.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended before.
            let _gone = process.kill();
            process.wait().expect("our own child");
        }
    }

    /// SIGSTOP for so long, then SIGCONT.
    pub async fn freeze(&self, pause: Duration) {
        kill_process(self.pid(), Signal::STOP).expect("our own child");
        tokio::time::sleep(pause).await;
        kill_process(self.pid(), Signal::CONT).expect("our own child");
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Panics
    /// When it has not drained in time.
    pub async fn terminate(&mut self) -> ExitStatus {
        kill_process(self.pid(), Signal::TERM).expect("our own child");
        self.wait(DRAINED_WITHIN).await
    }

    /// SIGTERM, with the exit code that a drained node has.
    ///
    /// # Panics
    /// With any other.
    pub async fn stop(&mut self) {
        let status = self.terminate().await;
        assert_eq!(status.code(), Some(0), "a node that was asked to stop");
    }

    async fn wait(&mut self, within: Duration) -> ExitStatus {
        let started = Instant::now();
        let process = self.process.as_mut().expect("the node runs");
        loop {
            if let Some(status) = process.try_wait().expect("our own child") {
                self.process = None;
                return status;
            }
            assert!(
                started.elapsed() < within,
                "the node did not end within {within:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.process
            .as_mut()
            .is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }

    /// The memory that the process occupies, in bytes.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status = format!("/proc/{}/status", self.pid().as_raw_nonzero());
        let status = std::fs::read_to_string(status).expect("a running process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.expect("the kernel says how much") << 10
    }

    /// The processor time that the process has used, threads that have ended included; in ticks of the kernel's clock,
    /// 10 ms as a rule.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let stat = format!("/proc/{}/stat", self.pid().as_raw_nonzero());
        let stat = std::fs::read_to_string(stat).expect("a running process");
        let ticks = ticks_used(&stat).expect("the kernel says how much");
        Duration::from_secs(ticks) / u32::try_from(clock_ticks_per_second()).expect("some hundred a second")
    }

    /// How to connect to it.
    #[must_use]
    pub fn client_config(&self) -> ClientConfig {
        ClientConfig::new(self.listen.to_string())
    }

    /// A client with the defaults.
    pub async fn client(&self) -> Client {
        Client::connect(self.client_config())
            .await
            .expect("the node takes connections")
    }

    /// The CLI, pointed at it.
    #[must_use]
    pub fn cli(&self) -> Cli {
        Cli::new(self.listen)
    }

    /// Where its admin server listens.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A page of the admin server: status and body.
    pub async fn get(&self, path: &str) -> (u16, String) {
        http::get(self.admin, path)
            .await
            .expect("the admin server answers")
    }

    /// Everything that it has said on standard error, over all starts.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map_or_else(
            |_| String::new(),
            |text| String::from_utf8_lossy(&text).into_owned(),
        )
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(LOG_LINES_SHOWN);
            eprintln!(
                "--- the end of the node's log ---\n{}\n---",
                lines[from..].join("\n")
            );
        }
    }
}

/// Ticks in user and in kernel mode, of a process's `stat`: the fields 14 and 15. The second is the program's name in
/// parentheses, which may hold anything.
fn ticks_used(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

#[cfg(test)]
mod tests {
    use super::ticks_used;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 120 0 0 0 250 31 9 9 20 0 1 0 100";
        assert_eq!(ticks_used(stat), Some(281));
        assert_eq!(ticks_used("7 (a) S 1"), None);
    }
}
