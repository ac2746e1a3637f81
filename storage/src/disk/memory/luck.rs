//! What happens to each volatile thing when the power goes: all lost, all kept, or drawn from a seed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How a power cut treats what no flush has covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPlan {
    /// Only what was durable is left.
    LoseAll,
    /// Everything that reached the cache is left, except what a failed flush has doomed.
    KeepAll,
    /// A subset drawn from this seed, down to single 512-byte sectors and directory operations.
    Random(u64),
}

/// In which way the name operations that survive a cut are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameOrder {
    /// A prefix of all of them, as one journal would leave it.
    Journal,
    /// A prefix in each directory.
    PerDirectory,
    /// Each for itself.
    Independent,
}

/// The source of such decisions.
pub(super) enum Luck {
    /// Nothing survives.
    Bad,
    /// Everything survives.
    Good,
    /// Drawn, with a chance that `redraw` picks anew for each file.
    Drawn {
        /// Where it is drawn from.
        rng: Box<StdRng>,
        /// The chance that one thing survives.
        chance: f64,
    },
}

impl Luck {
    pub(super) fn of(plan: CrashPlan) -> Self {
        match plan {
            CrashPlan::LoseAll => Self::Bad,
            CrashPlan::KeepAll => Self::Good,
            CrashPlan::Random(seed) => Self::seeded(seed),
        }
    }

    pub(super) fn seeded(seed: u64) -> Self {
        let mut luck = Self::Drawn {
            rng: Box::new(StdRng::seed_from_u64(seed)),
            chance: 0.5,
        };
        luck.redraw();
        luck
    }

    /// Picks a new chance. The extremes are among them: a single lost sector, and a single one kept, are the cases
    /// that find bugs, and an even chance for each of a thousand sectors would never show them.
    pub(super) fn redraw(&mut self) {
        if let Self::Drawn { rng, chance } = self {
            *chance = [0.0, 0.05, 0.5, 0.95, 1.0][rng.random_range(0..5)];
        }
    }

    /// Whether one thing survives.
    pub(super) fn keeps(&mut self) -> bool {
        match self {
            Self::Bad => false,
            Self::Good => true,
            Self::Drawn { rng, chance } => rng.random_bool(*chance),
        }
    }

    /// Which of the set bits survive.
    pub(super) fn keeps_of(&mut self, mask: u8) -> u8 {
        (0..8)
            .map(|bit| mask & (1 << bit))
            .filter(|bit| *bit != 0 && self.keeps())
            .fold(0, |kept, bit| kept | bit)
    }

    /// How many of `n` ordered things survive, from the first on.
    pub(super) fn prefix_of(&mut self, n: usize) -> usize {
        match self {
            Self::Bad => 0,
            Self::Good => n,
            Self::Drawn { rng, .. } => rng.random_range(0..=n),
        }
    }

    pub(super) fn name_order(&mut self) -> NameOrder {
        match self {
            Self::Bad | Self::Good => NameOrder::Independent,
            Self::Drawn { rng, .. } => [
                NameOrder::Journal,
                NameOrder::PerDirectory,
                NameOrder::Independent,
            ][rng.random_range(0..3)],
        }
    }
}
