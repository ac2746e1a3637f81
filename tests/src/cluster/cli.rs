//! The CLI as a script uses it: arguments in; exit code, standard output and standard error out.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::cluster::place;

/// How long a command may take.
const WITHIN: Duration = Duration::from_secs(120);

/// The CLI, pointed at one node.
#[derive(Debug, Clone, Copy)]
pub struct Cli {
    server: SocketAddr,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// As it was given.
    pub line: String,
    /// The exit code; none after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Cli {
    /// For the node at an address.
    #[must_use]
    pub fn new(server: SocketAddr) -> Cli {
        Cli { server }
    }

    /// The command, not started; nothing of the caller's environment changes what it does.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(place::binary());
        command
            .args(args)
            .env("TAILWATER_SERVER", self.server.to_string())
            .env_remove("RUST_LOG");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command; the line is split at spaces.
    pub async fn run(&self, line: &str) -> Finished {
        let args: Vec<&str> = line.split(' ').collect();
        self.run_with_input(&args, b"").await
    }

    /// Runs a command with these bytes on its standard input.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn run_with_input(&self, args: &[&str], input: &[u8]) -> Finished {
        let mut command = self.command(args);
        command.stdin(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be started");
        let mut stdin = child.stdin.take().expect("piped");
        let feed = async move {
            // A command that does not want its input is not wrong.
            let _unwanted = stdin.write_all(input).await;
        };
        let line = args.join(" ");
        let ended = timeout(WITHIN, async {
            tokio::join!(feed, finish(child, line.clone())).1
        })
        .await;
        ended.unwrap_or_else(|_| panic!("`{line}` does not end within {WITHIN:?}"))
    }

    /// Runs a command that must succeed, and reads its standard output as one JSON value.
    pub async fn json(&self, line: &str) -> Value {
        self.run(&format!("{line} -o json")).await.succeeded().json()
    }

    /// `link verify`, which must find nothing; returns its row.
    ///
    /// # Panics
    /// When it found something.
    pub async fn verify(&self, parent: &str, child: &str) -> Value {
        let verified = self.run(&format!("link verify {parent} {child} -o json")).await;
        assert_eq!(
            verified.code,
            Some(0),
            "the link {parent} -> {child} is not clean: {verified:?}"
        );
        let row = verified.json();
        for fault in ["missing", "duplicate", "early", "dropped"] {
            assert_eq!(row[fault], 0, "{fault} in {row}");
        }
        assert_eq!(row["ok"], true, "{row}");
        assert_eq!(row["records"], row["expected"], "{row}");
        row
    }
}

/// Waits for a command's end.
///
/// # Panics
/// When its output cannot be read.
pub async fn finish(child: Child, line: String) -> Finished {
    let output = child.wait_with_output().await.expect("our own child");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Finished {
        line,
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

impl Finished {
    /// It must have succeeded.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn succeeded(self) -> Finished {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// It must have failed with this exit code, and one line of the form `error: ... (CODE)`; nothing on standard
    /// output. Returns that line.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn refused(&self, exit: i32, code: &str) -> &str {
        assert_eq!(self.code, Some(exit), "{self:?}");
        let error = self.stderr.lines().find(|line| line.starts_with("error: "));
        let error = error.unwrap_or_else(|| panic!("no line that begins with `error: `: {self:?}"));
        assert!(
            error.ends_with(&format!("({code})")),
            "no `({code})` at the end of `{error}`"
        );
        assert_eq!(self.stdout, "", "{self:?}");
        error
    }

    /// Standard output as one JSON value.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Standard output as one JSON value a line.
    ///
    /// # Panics
    /// When a line is none.
    #[must_use]
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("`{line}`: {error}"));
        self.stdout.lines().map(parse).collect()
    }
}

/// An unsigned number in a JSON object.
///
/// # Panics
/// When it is not there.
#[must_use]
#[track_caller]
pub fn number(row: &Value, field: &str) -> u64 {
    row[field]
        .as_u64()
        .unwrap_or_else(|| panic!("no number `{field}` in {row}"))
}
