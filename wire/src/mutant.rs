//! Faults that can be planted, to see that a test goes red for each: `tests/run mutants` (docs/testing.md).
//!
//! They exist in builds with the feature `mutants` alone, and there one at a time, by its name in `TAILWATER_MUTANT`.
//! In every other build [`planted`] is `false` while it compiles, and nothing of them is left.

macro_rules! mutants {
    ($($variant:ident $name:literal $what:literal)+) => {
        /// A fault; its documentation says what goes wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant {
            $(#[doc = $what] $variant,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$variant),+];

            /// Its name in `TAILWATER_MUTANT`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $name,)+
                }
            }

            /// What goes wrong.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self {
                    $(Mutant::$variant => $what,)+
                }
            }
        }
    };
}

mutants! {
    SkipDirectorySync "skip-directory-sync" "A file replaced or a segment begun is not made durable under its name."
    RetryFailedFlush "retry-failed-flush" "A failed flush is tried again, and believed."
    AcknowledgeBeforeFlush "acknowledge-before-flush" "Producers are answered when the write has ended."
    BelieveFlushBesideFailed "believe-flush-beside-failed" "A flush counts although another one on the device failed beside it."
    PaddingNotZeroed "padding-not-zeroed" "The rest of a chunk's last block is what the buffer held before."
    RawCommitTime "raw-commit-time" "A batch is stamped with the clock's reading, also if that is below the one before."
    IgnoreDedup "ignore-dedup" "Every batch of a known writer is appended, also one that is there already."
    AcknowledgeDuplicateEarly "acknowledge-duplicate-early" "A duplicate is answered before its original is flushed."
    CutAfterDamage "cut-after-damage" "Recovery keeps nothing behind the first damaged batch."
    RecoveryWithoutFlush "recovery-without-flush" "What recovery has copied is served before it is flushed."
    StaleAfterCut "stale-after-cut" "A log goes on in the old segment over what it has cut, which stays valid there."
    AnchorAtTail "anchor-at-tail" "A cursor without a file starts at the parent's end."
    SkipLeaderConfirmation "skip-leader-confirmation" "A cursor starts on the word of a local replica."
    ResumeOtherEpoch "resume-other-epoch" "A cursor goes on from the file of another epoch."
    AdvanceBeforeLastAcknowledgement "advance-before-last-acknowledgement" "A position is stored when the first child partition has acknowledged it."
    ResendAcknowledged "resend-acknowledged" "After a refusal, batches are sent again that were acknowledged."
    ReleaseEarly "release-early" "A delayed record is released one millisecond before it is due."
    ForgetDropped "forget-dropped" "Records that retention takes from a child are not counted."
}

/// Whether this fault is to happen.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
#[must_use]
pub const fn planted(_mutant: Mutant) -> bool {
    false
}

/// Whether this fault is to happen.
///
/// # Panics
/// When the environment names a fault that there is not: a run that plants nothing must not pass for one that did.
#[cfg(feature = "mutants")]
#[must_use]
pub fn planted(mutant: Mutant) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Mutant>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("TAILWATER_MUTANT").ok()?;
        let found = Mutant::ALL.iter().find(|mutant| mutant.name() == name);
        Some(*found.unwrap_or_else(|| panic!("TAILWATER_MUTANT={name}: there is no such fault")))
    });
    *chosen == Some(mutant)
}
