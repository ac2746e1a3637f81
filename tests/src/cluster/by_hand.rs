//! What the programs that are run by hand share: which node they drive, the bounds that they hold figures against, and how
//! they end.

#![allow(clippy::print_stdout)] // figures and bounds are what these programs are run for

use std::fmt::Display;
use std::process::{Command, ExitCode};

use crate::cluster::place;

/// The bounds of one check. Each is printed with its figure; the first that does not hold ends nothing.
#[derive(Debug)]
pub struct Bounds {
    check: String,
    broken: Vec<String>,
}

impl Bounds {
    fn new(check: &str) -> Bounds {
        Bounds {
            check: check.to_owned(),
            broken: Vec::new(),
        }
    }

    /// A bound, as what must be so and the figure that was measured.
    pub fn hold(&mut self, holds: bool, bound: impl Display, figure: impl Display) {
        let line = format!("{}: {bound}: {figure}", self.check);
        println!("{} {line}", if holds { "holds " } else { "BROKEN" });
        if !holds {
            self.broken.push(line);
        }
    }
}

/// Says which node is driven, goes through the checks, each a name and what it does, and says what did not hold.
/// A check that panics has failed; those after it are made all the same.
pub fn run<N: Display>(
    checks: impl IntoIterator<Item = N>,
    check: impl AsyncFn(&N, &mut Bounds),
) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    println!("{}", node_binary());
    let mut failed = Vec::new();
    for name in checks {
        println!("== {name}");
        let mut bounds = Bounds::new(&name.to_string());
        // What a check leaves behind when it panics is dropped with it: its node above all.
        let made = std::panic::AssertUnwindSafe(|| runtime.block_on(check(&name, &mut bounds)));
        if let Err(panic) = std::panic::catch_unwind(made) {
            failed.push(format!("{name}: {}", message(&*panic)));
        }
        failed.append(&mut bounds.broken);
    }
    for line in &failed {
        eprintln!("error: {line}");
    }
    ExitCode::from(u8::from(!failed.is_empty()))
}

/// The path and the version of the binary that nodes are started from.
fn node_binary() -> String {
    let binary = place::binary();
    let asked = Command::new(binary).arg("--version").output();
    let version = asked.expect("the binary can be started").stdout;
    let version = String::from_utf8_lossy(&version);
    format!("node: {}: {}", binary.display(), version.trim())
}

/// The first line of what a panic said; all of it was printed when it came.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.and_then(|text| text.lines().next())
        .unwrap_or("a panic without words")
}

#[cfg(test)]
mod tests {
    use super::{Bounds, message};

    #[test]
    fn only_broken_bounds_are_kept() {
        let mut bounds = Bounds::new("check");
        bounds.hold(1 < 2, "under 2", 1);
        assert_eq!(bounds.broken, Vec::<String>::new());
        bounds.hold(3 < 2, "under 2", 3);
        assert_eq!(bounds.broken, ["check: under 2: 3"]);
    }

    #[test]
    fn a_panic_says_what_it_said() {
        let said = std::panic::catch_unwind(|| panic!("round {}\nand more", 7)).expect_err("it panics");
        assert_eq!(message(&*said), "round 7");
    }
}
