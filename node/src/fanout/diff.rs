//! What a reconciler's pass starts, stops and sweeps: desired cursors against running ones.

use std::collections::BTreeMap;

use tailwater_storage::cursor_file::CursorFile;
use tailwater_storage::proof::LeaderConfirmed;
use tailwater_wire::ids::{PartitionId, TopicName};
use tailwater_wire::meta::MetaSnapshot;

use crate::fanout::desired::{CursorKey, CursorSpec, Identity, desired};

/// Every so many passes, a second apart, orphan cursor files are looked for (SPEC.md F8).
pub const SWEEP_PASSES: u64 = 30;

/// A cursor that exists on the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    /// Which life it was started for.
    pub identity: Identity,
    /// Whether it was told to stop and has not ended yet.
    pub stopping: bool,
}

/// What a pass does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pass {
    /// To be told to stop, in order.
    pub stop: Vec<CursorKey>,
    /// To be anchored and started, in order. What is deferred is named again by the next pass.
    pub start: Vec<(CursorKey, CursorSpec)>,
    /// Whether orphan cursor files are to be looked for.
    pub sweep: bool,
}

/// Compares, once a second and on every change. Lives on the core whose cursors it compares.
#[derive(Debug, Default)]
pub struct Reconciler {
    desired: BTreeMap<CursorKey, CursorSpec>,
    /// The version of the metadata and of the core's ownerships that `desired` was made of.
    seen: Option<(u64, u64)>,
    /// Whether what runs was last found to be what is desired.
    settled: bool,
    passes: u64,
}

impl Reconciler {
    /// A reconciler that has seen nothing.
    #[must_use]
    pub fn new() -> Reconciler {
        Reconciler::default()
    }

    /// One pass. `owned_version` counts up whenever what `owns` says, or what runs for another reason than this
    /// reconciler's word (a cursor that ended by itself), has changed. While both versions stand and nothing was left
    /// to do, a pass looks at nothing.
    pub fn pass(
        &mut self,
        snapshot: &MetaSnapshot,
        owned_version: u64,
        owns: impl Fn(&TopicName, PartitionId) -> bool,
        running: &BTreeMap<CursorKey, Running>,
    ) -> Pass {
        if let Some(quiet) = self.quiet_pass(snapshot.version, owned_version) {
            return quiet;
        }
        self.passes += 1;
        let sweep = self.passes.is_multiple_of(SWEEP_PASSES);
        let seen = Some((snapshot.version, owned_version));
        if self.seen != seen {
            self.desired = desired(snapshot, owns);
            self.seen = seen;
        }
        let mut pass = diff(&self.desired, running);
        let stopping = running.values().any(|running| running.stopping);
        self.settled = pass.start.is_empty() && pass.stop.is_empty() && !stopping;
        pass.sweep = sweep;
        pass
    }

    /// A pass over versions that stand, when nothing was left to do; `None` when [`Reconciler::pass`] has to look. So
    /// whoever drives it describes what runs only when somebody looks at it.
    pub fn quiet_pass(&mut self, metadata_version: u64, owned_version: u64) -> Option<Pass> {
        if !self.settled || self.seen != Some((metadata_version, owned_version)) {
            return None;
        }
        self.passes += 1;
        Some(Pass {
            sweep: self.passes.is_multiple_of(SWEEP_PASSES),
            ..Pass::default()
        })
    }

    /// What should run, by the last pass.
    #[must_use]
    pub fn desired(&self) -> &BTreeMap<CursorKey, CursorSpec> {
        &self.desired
    }
}

/// The difference. A cursor of another identity stops in this pass, and its successor starts in one after it ended:
/// two lives of a cursor never run at once.
#[must_use]
pub fn diff(desired: &BTreeMap<CursorKey, CursorSpec>, running: &BTreeMap<CursorKey, Running>) -> Pass {
    let wanted = |key: &CursorKey| desired.get(key).map(|spec| spec.identity);
    let stop = running
        .iter()
        .filter(|(key, running)| !running.stopping && wanted(key) != Some(running.identity))
        .map(|(key, _)| key.clone());
    let start = desired
        .iter()
        .filter(|(key, _)| !running.contains_key(*key))
        .map(|(key, spec)| (key.clone(), spec.clone()));
    Pass {
        stop: stop.collect(),
        start: start.collect(),
        sweep: false,
    }
}

/// What becomes of a cursor file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sweep<'a> {
    /// A cursor uses it or will.
    Keep,
    /// It looks like an orphan: ask the metadata leader, and decide again.
    Ask,
    /// An orphan, by the leader's word: remove it with this proof.
    Remove(&'a LeaderConfirmed),
}

/// Decides about a cursor file of an owned partition; `in_use`, a cursor of that key runs or is desired. Only the
/// leader's word about this pair removes it.
#[must_use]
pub fn sweep<'a>(
    key: &CursorKey,
    file: &CursorFile,
    in_use: bool,
    word: Option<&'a LeaderConfirmed>,
) -> Sweep<'a> {
    if *file == CursorFile::Absent || in_use {
        return Sweep::Keep;
    }
    let Some(proof) = word.filter(|proof| proof.is_about(&key.parent, &key.child)) else {
        return Sweep::Ask;
    };
    let is_live = match (file, proof.current()) {
        (_, None) => false,
        (CursorFile::Present { epoch, .. }, Some(current)) => *epoch == current,
        // The pair is linked, and this core has not heard of it: its cursor will decide.
        (CursorFile::Damaged(_) | CursorFile::Absent, Some(_)) => true,
    };
    if is_live {
        Sweep::Keep
    } else {
        Sweep::Remove(proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fanout::desired::tests::{add_link, add_topic, name, snapshot};
    use std::cell::Cell;
    use tailwater_wire::ids::{Epoch, Offset};

    fn running_as_desired(snapshot: &MetaSnapshot) -> BTreeMap<CursorKey, Running> {
        let running = |spec: CursorSpec| Running {
            identity: spec.identity,
            stopping: false,
        };
        desired(snapshot, |_, _| true)
            .into_iter()
            .map(|(key, spec)| (key, running(spec)))
            .collect()
    }

    fn check(pass: &Pass, stop: &[&str], start: &[&str]) {
        let text = |key: &CursorKey| format!("{}/{}", key.child, key.partition);
        assert_eq!(pass.stop.iter().map(text).collect::<Vec<_>>(), stop, "stops");
        assert_eq!(
            pass.start.iter().map(|(key, _)| text(key)).collect::<Vec<_>>(),
            start,
            "starts"
        );
    }

    #[test]
    fn what_is_missing_starts_and_what_is_too_much_stops() {
        let mut meta = snapshot();
        let mut running = running_as_desired(&meta);
        check(&diff(&desired(&meta, |_, _| true), &running), &[], &[]);
        add_topic(&mut meta, "late", 1, 4);
        add_link(&mut meta, "orders", "late", 12);
        meta.links
            .get_mut(&name("orders"))
            .expect("links")
            .remove(&name("trades"));
        let wanted = desired(&meta, |_, _| true);
        check(
            &diff(&wanted, &running),
            &["trades/0", "trades/1"],
            &["late/0", "late/1"],
        );
        for running in running.values_mut() {
            running.stopping = true;
        }
        check(&diff(&wanted, &running), &[], &["late/0", "late/1"]);
    }

    #[test]
    fn another_epoch_incarnation_or_owner_stops_first_and_starts_after_the_end() {
        type Change = fn(&mut MetaSnapshot);
        let changes: [Change; 3] = [
            |meta| add_link(meta, "orders", "trades", 99),
            |meta| {
                add_topic(meta, "trades", 3, 33);
                add_link(meta, "orders", "trades", 11);
            },
            |meta| {
                let topic = meta.topics.get_mut(&name("orders")).expect("orders");
                topic.owner_epochs[0].0 += 1;
                meta.links
                    .get_mut(&name("orders"))
                    .expect("links")
                    .remove(&name("analytics"));
            },
        ];
        let expected: [(&[&str], &[&str]); 3] = [
            (&["trades/0", "trades/1"], &["trades/0", "trades/1"]),
            (&["trades/0", "trades/1"], &["trades/0", "trades/1"]),
            (&["analytics/0", "trades/0", "analytics/1"], &["trades/0"]),
        ];
        for (change, (stops, starts)) in changes.into_iter().zip(expected) {
            let mut running = running_as_desired(&snapshot());
            let mut meta = snapshot();
            change(&mut meta);
            let wanted = desired(&meta, |_, _| true);
            let pass = diff(&wanted, &running);
            check(&pass, stops, &[]);
            for key in &pass.stop {
                running.remove(key);
            }
            check(&diff(&wanted, &running), &[], starts);
        }
    }

    #[test]
    fn an_unchanged_version_looks_at_nothing() {
        let meta = snapshot();
        let looks = Cell::new(0);
        let owns = |_: &TopicName, _| {
            looks.set(looks.get() + 1);
            true
        };
        let mut reconciler = Reconciler::new();
        let none = BTreeMap::new();
        assert_eq!(reconciler.pass(&meta, 0, owns, &none).start.len(), 4);
        assert_eq!(looks.get(), 4);
        assert_eq!(
            reconciler.pass(&meta, 0, owns, &none).start.len(),
            4,
            "deferred starts are named again"
        );
        let running = running_as_desired(&meta);
        assert_eq!(
            reconciler.quiet_pass(meta.version, 0),
            None,
            "something is left to do"
        );
        for pass in 3..=60 {
            // Once settled, what runs need not even be described.
            let done = match reconciler.quiet_pass(meta.version, 0) {
                Some(quiet) => quiet,
                None => reconciler.pass(&meta, 0, owns, &running),
            };
            assert!(pass == 3 || reconciler.quiet_pass(meta.version + 1, 0).is_none());
            check(&done, &[], &[]);
            assert_eq!(done.sweep, pass % 30 == 0);
        }
        assert_eq!(looks.get(), 4);
        reconciler.pass(&meta, 1, owns, &running);
        assert_eq!(looks.get(), 8);
    }

    #[test]
    fn only_the_leaders_word_makes_an_orphan() {
        let meta = snapshot();
        let wanted = desired(&meta, |_, _| true);
        let (mine, other) = (Epoch::from_u64(10), Epoch::from_u64(99));
        let key = |child: &str| CursorKey {
            parent: name("orders"),
            partition: PartitionId(0),
            child: name(child),
        };
        let word = |child: &str, current| LeaderConfirmed::by_leader(name("orders"), name(child), current, 5);
        let file = |epoch| CursorFile::Present {
            epoch,
            next_offset: Offset(3),
        };
        let (gone, lives, moved) = (
            word("old", None),
            word("old", Some(mine)),
            word("old", Some(other)),
        );
        let elsewhere = word("analytics", None);
        let old = key("old");
        let (live, file_mine) = (key("analytics"), file(mine));
        let decide = |key, file, word| sweep(key, file, wanted.contains_key(key), word);
        assert_eq!(decide(&live, &file_mine, Some(&elsewhere)), Sweep::Keep);
        assert_eq!(decide(&old, &file_mine, None), Sweep::Ask);
        assert_eq!(decide(&old, &file_mine, Some(&elsewhere)), Sweep::Ask);
        assert_eq!(decide(&old, &file_mine, Some(&lives)), Sweep::Keep);
        assert_eq!(decide(&old, &file_mine, Some(&moved)), Sweep::Remove(&moved));
        assert_eq!(decide(&old, &file_mine, Some(&gone)), Sweep::Remove(&gone));
        let damaged = CursorFile::Damaged("torn");
        assert_eq!(decide(&old, &damaged, Some(&moved)), Sweep::Keep);
        assert_eq!(decide(&old, &damaged, Some(&gone)), Sweep::Remove(&gone));
        assert_eq!(sweep(&old, &file_mine, true, Some(&gone)), Sweep::Keep);
    }
}
