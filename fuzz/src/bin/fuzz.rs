//! The fuzzer: looks for an input that the target named by `TAILWATER_FUZZ` does not hold for. `fuzz/run` runs it.
#![no_main]

use std::sync::OnceLock;

use tailwater_fuzz::target::{Target, find};

static TARGET: OnceLock<&Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("TAILWATER_FUZZ").unwrap_or_default();
        let target = find(&name).unwrap_or_else(|| panic!("TAILWATER_FUZZ names no target: `{name}`"));
        TARGET.get_or_init(|| target);
    },
    |input: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.check)(input);
        }
    }
);
