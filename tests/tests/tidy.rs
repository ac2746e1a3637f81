//! Guards the rules that no compiler knows: which files may name a driver or a clock, how long files are, what their
//! faces look like, and that imports go one way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Files longer than this hide a noun.
const LINES_MAX: usize = 600;

/// A word that only some files may name, as code. Paths are prefixes from the workspace's root.
const GUARDED: &[(&str, &[&str])] = &[
    (
        "glommio::",
        &[
            "storage/src/disk/",
            "node/src/shard.rs",
            "node/src/clock/keeper.rs",
            "node/src/ingress/socket.rs",
            "node/src/ingress/connection.rs",
            "node/src/ingress/listener.rs",
            "node/src/ingress/dispatch.rs",
            "node/src/ingress/outbox.rs",
            "node/src/ingress/neighbors.rs",
            "node/src/commands.rs",
            "node/src/partition/owner.rs",
            "node/src/partition/group.rs",
            "node/src/partition/fetch.rs",
            "node/src/fanout/accounting.rs",
            "node/src/fanout/runner.rs",
            "node/src/fanout/perform.rs",
            "node/src/fanout/cursors.rs",
            "node/src/fanout/starting.rs",
            "node/src/fanout/sweeper.rs",
            "bench/",
            "tests/",
        ],
    ),
    ("quinn", &[]),
    (
        "tokio::",
        &[
            "wire/src/client/",
            "node/src/control/",
            "node/src/metastore/",
            "node/src/process.rs",
            "tools/",
            "bench/",
            "tests/",
        ],
    ),
    (
        "std::net::",
        &["wire/src/client/", "node/src/", "tools/", "bench/", "tests/"],
    ),
    (
        "std::fs",
        &[
            "storage/src/disk/",
            "node/src/config.rs",
            "node/src/clock/keeper.rs",
            "node/src/process.rs",
            "node/src/shard.rs",
            "node/src/metastore/database.rs",
            "node/src/control/space.rs",
            "tools/",
            "bench/",
            "tests/",
            "fuzz/src/replay.rs",
        ],
    ),
    (
        "Instant::now",
        &[
            "storage/src/disk/",
            "wire/src/client/",
            "node/src/metastore/",
            "tools/",
            "bench/",
            "tests/",
            "models/src/check.rs",
        ],
    ),
    (
        "SystemTime::now",
        &[
            "wire/src/client/",
            "node/src/clock/system.rs",
            "tools/",
            "bench/",
            "tests/",
        ],
    ),
    (
        "clock_gettime",
        &["node/src/clock/system.rs", "storage/src/disk/watchdog.rs"],
    ),
    ("todo!(", &[]),
    ("unimplemented!(", &[]),
    ("#[ignore", &[]),
];

/// Which packages a package's sources may name.
const LAYERS: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("storage", &["tailwater_wire"]),
    ("node", &["tailwater_wire", "tailwater_storage"]),
    (
        "tools",
        &["tailwater_wire", "tailwater_storage", "tailwater_node"],
    ),
    (
        "bench",
        &["tailwater_wire", "tailwater_node", "tailwater_storage"],
    ),
    (
        "models",
        &["tailwater_wire", "tailwater_storage", "tailwater_node"],
    ),
    ("fuzz", &["tailwater_wire", "tailwater_storage", "tailwater_node"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

fn sources() -> BTreeMap<String, String> {
    fn walk(dir: &Path, root: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, root, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path
                    .strip_prefix(root)
                    .expect("below")
                    .to_string_lossy()
                    .into_owned();
                found.insert(name, fs::read_to_string(&path).expect("text"));
            }
        }
    }
    let (root, mut found) = (root(), BTreeMap::new());
    for package in [
        "wire", "storage", "node", "tools", "bench", "models", "tests", "fuzz",
    ] {
        walk(&root.join(package), &root, &mut found);
    }
    assert!(found.len() > 40, "the walk found the sources");
    found
}

/// Tests may name what they drive.
fn is_test(name: &str) -> bool {
    name.split('/').nth(1) == Some("tests")
        || name.contains("/src/disk/testing")
        || name.ends_with("/tests.rs")
}

/// The part of a file that is production code, without comments.
fn code(text: &str) -> String {
    let production = text.split("\n#[cfg(test)]").next().unwrap_or(text);
    production
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn drivers_and_clocks_stay_where_they_belong() {
    let mut problems = Vec::new();
    for (name, text) in sources().iter().filter(|(name, _)| !is_test(name)) {
        let code = code(text);
        for (word, allowed) in GUARDED {
            if code.contains(word) && !allowed.iter().any(|prefix| name.starts_with(prefix)) {
                problems.push(format!("{name} names `{word}`"));
            }
        }
    }
    report(&problems);
}

#[test]
fn files_are_short_and_say_what_they_are() {
    let mut problems = Vec::new();
    for (name, text) in &sources() {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            problems.push(format!("{name} has {lines} lines"));
        }
        if !text.starts_with("//!") {
            problems.push(format!("{name} does not open with a sentence about itself"));
        }
    }
    report(&problems);
}

#[test]
fn packages_depend_one_way() {
    let mut problems = Vec::new();
    for (name, text) in &sources() {
        let package = name.split('/').next().unwrap_or_default();
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| *layer == package) else {
            continue;
        };
        for other in [
            "tailwater_wire",
            "tailwater_storage",
            "tailwater_node",
            "tailwater_bench",
            "tailwater_tests",
        ] {
            let own = format!("tailwater_{package}");
            if other != own && !allowed.contains(&other) && code(text).contains(other) {
                problems.push(format!("{name} names {other}"));
            }
        }
    }
    report(&problems);
}

/// Imports between the modules of one package, as `crate::a::b` paths, must not form a circle of files.
#[test]
fn imports_form_no_circle() {
    let sources = sources();
    let mut problems = Vec::new();
    for package in ["wire", "storage", "node"] {
        let prefix = format!("{package}/src/");
        let files: BTreeSet<&str> = sources
            .keys()
            .filter_map(|name| name.strip_prefix(&prefix))
            .collect();
        let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for &file in &files {
            for path in crate_paths(&code(&sources[&format!("{prefix}{file}")])) {
                if let Some(target) = file_of(&path, &files).filter(|&target| target != file) {
                    imports.entry(file).or_default().insert(target);
                }
            }
        }
        for &file in &files {
            if let Some(circle) = circle_from(file, &imports) {
                problems.push(format!("{package}: {}", circle.join(" -> ")));
                break;
            }
        }
    }
    report(&problems);
}

fn crate_paths(code: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for part in code.split("crate::").skip(1) {
        let end = part
            .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .unwrap_or(part.len());
        paths.push(
            part[..end]
                .split("::")
                .filter(|s| !s.is_empty())
                .map(str::to_owned)
                .collect(),
        );
    }
    paths
}

fn file_of<'f>(path: &[String], files: &BTreeSet<&'f str>) -> Option<&'f str> {
    (1..=path.len())
        .rev()
        .find_map(|n| files.get(format!("{}.rs", path[..n].join("/")).as_str()).copied())
}

fn circle_from<'f>(start: &'f str, imports: &BTreeMap<&'f str, BTreeSet<&'f str>>) -> Option<Vec<&'f str>> {
    let (mut seen, mut stack) = (BTreeSet::new(), vec![vec![start]]);
    while let Some(way) = stack.pop() {
        for &next in imports.get(way[way.len() - 1]).into_iter().flatten() {
            let mut longer = way.clone();
            longer.push(next);
            if next == start {
                return Some(longer);
            }
            if seen.insert(next) {
                stack.push(longer);
            }
        }
    }
    None
}

#[test]
fn crates_forbid_unsafe_code_but_for_the_files_that_say_why() {
    let mut problems = Vec::new();
    for (name, text) in sources().iter().filter(|(name, _)| !name.ends_with("tidy.rs")) {
        if name.ends_with("src/lib.rs")
            && !text.contains("#![forbid(unsafe_code)]")
            && !text.contains("#![deny(unsafe_code)]")
        {
            problems.push(format!("{name} does not forbid unsafe code"));
        }
        let allows = text
            .lines()
            .find(|line| line.starts_with("#![allow(unsafe_code)]"));
        if allows.is_some_and(|line| !line.contains("//")) {
            problems.push(format!("{name} allows unsafe code without a reason"));
        }
        if code(text).contains("unsafe {")
            && allows.is_none()
            && !name.starts_with("tests/")
            && !name.starts_with("bench/")
        {
            problems.push(format!("{name} has unsafe code and does not say so at its top"));
        }
    }
    report(&problems);
}

#[test]
fn documents_speak_of_the_project_alone() {
    let root = root();
    let mut files: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    let docs = fs::read_dir(root.join("docs"))
        .into_iter()
        .flatten()
        .chain(fs::read_dir(root.join("docs/decisions")).into_iter().flatten());
    files.extend(
        docs.filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "md")),
    );
    let mut problems = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let relative = !target.is_empty() && !target.contains("://");
            if relative && !path.parent().expect("a folder").join(target).exists() {
                problems.push(format!("{}: the link {link} leads nowhere", path.display()));
            }
        }
    }
    report(&problems);
}
