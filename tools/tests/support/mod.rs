//! A node of a test's own, and the commands that are given to it.
#![allow(
    dead_code,
    reason = "every test binary compiles this file, and none uses all of it"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A running `serve`, killed when it is dropped.
pub struct Node {
    process: Child,
    /// Where it serves clients.
    pub server: String,
}

impl Node {
    /// Runs a node on a directory.
    pub fn start(data: &Path) -> Node {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tailwater"))
            .args([
                "serve",
                "-o",
                "json",
                "--listen",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--data",
            ])
            .arg(data)
            .env("TAILWATER_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let stdout = process.stdout.take().expect("piped");
        let mut line = String::new();
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it says where it serves");
        let serving: Value = serde_json::from_str(&line).expect("JSON");
        let server = serving["listen"].as_str().expect("an address").to_owned();
        Node { process, server }
    }

    /// A client command to it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command.args(args).env("TAILWATER_SERVER", &self.server);
        command
    }

    /// Runs a client command.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().expect("it runs")
    }

    /// Runs a command that must succeed, and reads what it printed.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["-o", "json"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Produces lines, and returns the acknowledgements.
    pub fn produce(&self, topic: &str, lines: &str) -> Vec<Value> {
        let mut produce = self.command(&["produce", topic, "-k", ":", "-o", "ndjson"]);
        let mut produce = produce
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        produce
            .stdin
            .take()
            .expect("piped")
            .write_all(lines.as_bytes())
            .expect("it reads");
        let output = produce.wait_with_output().expect("it ended");
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        signal(self.process.id(), name);
    }

    /// Sends it a signal, and waits for its exit code.
    pub fn end(&mut self, signal: &str) -> Option<i32> {
        self.signal(signal);
        self.process.wait().expect("it ended").code()
    }
}

/// Sends a signal, as `-INT`, to a process.
pub fn signal(process: u32, name: &str) {
    let kill = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(kill.expect("kill").success());
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A directory below the build's own.
pub fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// Lines with one of 50 keys each.
pub fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|n| format!("key-{}:value-{n}\n", n % 50)).collect()
}
