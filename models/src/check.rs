//! Runs a model to its end, and says how much was looked at.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Threads that look: the machine of the tests has two cores, and its other tests want one.
const THREADS: usize = 2;

/// States that a run of all tests makes of one model at most, the shortest ways first. Deep runs make all.
const STATES_MAX: usize = 300_000;

/// States in which a planted fault has to be found.
const SEARCH_MAX: usize = 3_000_000;

/// Whether bounds are to be the greater ones, for runs by hand: `TAILWATER_MODELS=deep`.
#[must_use]
pub fn deep() -> bool {
    std::env::var("TAILWATER_MODELS").is_ok_and(|depth| depth == "deep")
}

/// Looks at every state, or at as many as the bound allows, and prints how many there were.
///
/// # Panics
/// When a property does not hold, with the shortest way there; or when something that should be possible is not.
pub fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + Clone + PartialEq + 'static,
    M::Action: Debug + Send + Sync + Clone + PartialEq + 'static,
{
    let began = Instant::now();
    let most = if deep() { usize::MAX } else { STATES_MAX };
    let checker = model
        .checker()
        .threads(THREADS)
        .target_state_count(most)
        .spawn_bfs()
        .join();
    let (states, is_whole) = (checker.unique_state_count(), checker.state_count() < most);
    let (depth, seconds) = (checker.max_depth(), began.elapsed().as_secs_f64());
    let whole = if is_whole { "all" } else { "the nearest" };
    eprintln!("{name}: {whole} {states} states, {depth} deep, {seconds:.1} s");
    let discoveries = checker.discoveries();
    for property in checker.model().properties() {
        let found = discoveries.get(property.name);
        match (&property.expectation, found) {
            (Expectation::Sometimes, None) if is_whole => panic!("{name}: never seen: {}", property.name),
            (Expectation::Sometimes, _) | (_, None) => {}
            (_, Some(path)) => {
                let way = way(path.clone().into_actions());
                panic!("{name}: does not hold: {}\n{way}", property.name);
            }
        }
    }
}

/// Looks until a planted fault breaks this property, and prints the way there.
///
/// # Panics
/// When nothing breaks it.
pub fn breaks<M>(name: &str, model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Send + Sync + Clone + PartialEq + 'static,
    M::Action: Debug + Send + Sync + Clone + PartialEq + 'static,
{
    let began = Instant::now();
    let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
    let checker = model.checker().threads(THREADS).target_state_count(SEARCH_MAX);
    let checker = checker.finish_when(wanted).spawn_bfs().join();
    let (states, seconds) = (checker.unique_state_count(), began.elapsed().as_secs_f64());
    let found = checker.discovery(property);
    let Some(path) = found else {
        panic!("{name}: {states} states, and nothing breaks: {property}");
    };
    let way = way(path.into_actions());
    eprintln!("{name}: breaks `{property}` after {states} states, {seconds:.1} s\n{way}");
}

fn way<A: Debug>(actions: Vec<A>) -> String {
    let step = |(n, action): (usize, &A)| format!("  {:2}. {action:?}\n", n + 1);
    actions.iter().enumerate().map(step).collect()
}
