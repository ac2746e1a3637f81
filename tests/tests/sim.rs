//! The fan-out simulator: many seeds without a failure, the same run for the same seed, and every planted defect found.

use tailwater_tests::sim::options::Bug;
use tailwater_tests::sim::report::run;

#[test]
fn no_seed_of_200_loses_doubles_or_hurries_anything() {
    let (mut records, mut cursors, mut links) = (0, 0, 0);
    let (mut overlapped, mut overtaken) = (0, 0);
    for seed in 0..200 {
        let outcome = run(seed, None);
        assert!(
            outcome.failures.is_empty(),
            "seed {seed}: {:#?}\nreplay: SIM_TRACE=1 cargo run -p tailwater-tests --bin sim -- --seeds 1 --seed {seed}",
            outcome.failures
        );
        records += outcome.records;
        cursors += outcome.cursors;
        links += outcome.links;
        overlapped += outcome.overlapped;
        overtaken += outcome.overtaken;
    }
    // The runs are not empty: records arrive, cursors are restarted, links are attached anew.
    assert!(records > 20_000, "{records} records");
    assert!(cursors > 500, "{cursors} cursors");
    assert!(links > 300, "{links} links");
    // Several batches are in flight to one child partition, and their answers overtake each other.
    assert!(overlapped > 2_000, "{overlapped} overlapped");
    assert!(overtaken > 500, "{overtaken} overtaken");
}

#[test]
fn a_seed_is_one_run() {
    for seed in [3, 77, 1_000_003] {
        assert_eq!(run(seed, None), run(seed, None));
    }
    assert_ne!(run(3, None).trace, run(77, None).trace);
}

#[test]
fn every_planted_defect_is_found() {
    for &(name, bug) in Bug::ALL {
        let found = (0..200).find(|&seed| !run(seed, Some(bug)).failures.is_empty());
        assert!(found.is_some(), "{name} was not found in 200 seeds");
    }
}
