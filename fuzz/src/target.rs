//! The targets by name.

use crate::{batch, cursor_file, filter, frame, gap_ledger, names, recovery, replay, segment, snapshot};

/// An input that the corpus begins with: what it shows, and its bytes.
pub type Seed = (&'static str, Vec<u8>);

/// Something that reads bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// Panics when something does not hold for an input.
    pub check: fn(&[u8]),
    /// Inputs made by the writers of the format.
    pub seeds: fn() -> Vec<Seed>,
}

macro_rules! targets {
    ($($name:ident)*) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            check: $name::check,
            seeds: $name::seeds,
        }),*];
    };
}

targets! { frame batch segment recovery cursor_file gap_ledger snapshot names filter replay }

/// A target by its name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
