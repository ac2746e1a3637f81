//! Every scenario runs against a real node, and what is not there is named instead of passed over.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The node beside this test's own build, built if it is not there: the figures do not matter here.
fn tailwater() -> PathBuf {
    if let Some(given) = std::env::var_os("TAILWATER_BIN") {
        return given.into();
    }
    let folder = Path::new(env!("CARGO_BIN_EXE_tailwater-bench"))
        .parent()
        .expect("a target folder");
    let binary = folder.join("tailwater");
    if !binary.is_file() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--package", "tailwater"])
            .status();
        assert!(built.expect("cargo").success() && binary.is_file());
    }
    binary
}

#[test]
fn every_scenario_runs_and_a_missing_system_is_named() {
    let bench = Command::new(env!("CARGO_BIN_EXE_tailwater-bench"))
        .args(["run", "--all", "--quick", "--against", "tailwater,nats"])
        .args(["--skip-missing", "--nats", "/nowhere/nats-server", "-o", "json"])
        .arg("--tailwater")
        .arg(tailwater())
        .stdin(Stdio::null())
        .output()
        .expect("started");
    let errors = String::from_utf8_lossy(&bench.stderr);
    assert!(bench.status.success(), "{errors}");
    assert!(errors.contains("SKIPPED: nats altogether"), "{errors}");
    let result: Value = serde_json::from_slice(&bench.stdout).expect("JSON");
    let skipped = result["env"]["skipped"][0].as_str().expect("a text");
    assert!(skipped.contains("/nowhere/nats-server"), "{skipped}");
    let rows = result["rows"].as_array().expect("rows");
    for scenario in ["produce", "partitions", "fanout", "catchup", "tail"] {
        let mut own = rows.iter().filter(|row| row["scenario"] == scenario).peekable();
        assert!(own.peek().is_some(), "{scenario}: {rows:?}");
        // How fast is not asked: on a busy machine nothing may be answered within half a second.
        assert!(own.all(|row| row["system"] == "tailwater" && row["params"]["shards"] == 1));
    }
}
