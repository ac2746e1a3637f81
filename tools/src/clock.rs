//! The one place of the command line that reads the wall clock.

use std::time::SystemTime;

/// Nanoseconds since 1970-01-01T00:00:00Z; 0 on a machine whose clock is before that.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the command line reads the clock"
)]
pub fn now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
