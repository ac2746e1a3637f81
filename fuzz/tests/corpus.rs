//! The corpus, replayed: each target holds for every input that was ever interesting.
//!
//! `corpus/TARGET/seed-*` are made by the formats' writers: `TAILWATER_BLESS=1 cargo test -p tailwater-fuzz` writes them
//! anew. Everything else in there was found, and says in its name what it showed; it is never removed.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use tailwater_fuzz::target::{TARGETS, Target};

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name)
}

fn files(target: &Target) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(target)).unwrap_or_else(|e| panic!("{}: {e}", target.name));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

#[test]
fn every_input_of_the_corpus_holds() {
    let mut broken = Vec::new();
    for target in TARGETS {
        for file in files(target) {
            let input = fs::read(&file).expect("an input");
            let cuts = [input.len(), input.len() / 2, input.len().saturating_sub(1), 0];
            if catch_unwind(|| cuts.iter().for_each(|&cut| (target.check)(&input[..cut]))).is_err() {
                broken.push(file);
            }
        }
    }
    assert!(broken.is_empty(), "what does not hold is said above: {broken:#?}");
}

#[test]
fn the_seeds_are_what_the_writers_write() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        let name = |what: &str| folder(target).join(format!("seed-{}", what.replace('/', "-")));
        if std::env::var_os("TAILWATER_BLESS").is_some() {
            fs::create_dir_all(folder(target)).expect("made");
            for (what, bytes) in &seeds {
                fs::write(name(what), bytes).expect("written");
            }
        }
        for (what, bytes) in &seeds {
            let there = fs::read(name(what)).unwrap_or_else(|e| panic!("{} {what}: {e}", target.name));
            assert!(
                there == *bytes,
                "{} {what}: the writer writes something else now",
                target.name
            );
        }
        let made: Vec<PathBuf> = seeds.iter().map(|(what, _)| name(what)).collect();
        let is_seed = |file: &PathBuf| file.to_string_lossy().contains("/seed-");
        let old = files(target)
            .into_iter()
            .filter(|file| is_seed(file) && !made.contains(file));
        assert_eq!(old.count(), 0, "{}: a seed that nothing makes", target.name);
    }
}
