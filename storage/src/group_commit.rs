//! What one group commit takes of a partition, and what its end means for each; no I/O.
//!
//! A round covers every partition of a shard that has something pending: each one's batches become one chunk, all chunks
//! are written at once, and when every write has completed one flush covers them all (docs/decisions: it is the
//! device's cache that is flushed, so one flush serves every file of the filesystem whose extents were durable
//! already). While it runs, the next round gathers. Nothing of it is retried: what a failed write or flush covered is
//! unknown until recovery (SPEC.md D5).

use crate::disk::device::{DiskError, DiskResult};
use crate::disk::latch::{LatchStep, Latched};
use crate::segment::appender::chunk_len;

/// Bytes that a round takes of one partition; a larger batch goes alone.
pub const ROUND_BYTES_MAX: u64 = 1 << 20;

/// What a round does with one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Nothing is pending.
    Nothing,
    /// The first of what is pending needs more room than the segment has: begin a new one with room for this many bytes.
    Roll {
        /// Bytes of the chunk that would be taken.
        bytes: u64,
    },
    /// The first so many batches, as one chunk.
    Batches {
        /// How many.
        count: usize,
        /// Their bytes, without the chunk's padding.
        bytes: u64,
    },
}

/// Decides from the lengths of what is pending, in order, and the room that the segment has.
#[must_use]
pub fn take(pending: impl Iterator<Item = u64>, room: u64) -> Take {
    let (mut count, mut bytes) = (0, 0);
    let mut wanted = 0;
    for len in pending {
        if wanted > 0 && wanted + len > ROUND_BYTES_MAX {
            break;
        }
        wanted += len;
        if chunk_len(wanted) <= room {
            (count, bytes) = (count + 1, wanted);
        }
    }
    match (count, wanted) {
        (0, 0) => Take::Nothing,
        (0, bytes) => Take::Roll { bytes },
        (count, _) => Take::Batches { count, bytes },
    }
}

/// How a round ended for one partition.
#[derive(Debug, Clone)]
pub enum Fate {
    /// Written and flushed.
    Flushed,
    /// Not known to be there.
    Unknown(Latched),
}

/// What each partition's write, in the order they were submitted, and the one flush mean for it. `flush` is `None`
/// when no write succeeded and none was made.
#[must_use]
pub fn fates(writes: Vec<DiskResult<()>>, flush: Option<DiskResult<()>>) -> Vec<Fate> {
    let latched = |at, reason: &DiskError| {
        Fate::Unknown(Latched {
            at,
            reason: reason.clone(),
        })
    };
    let one = |write: DiskResult<()>| match (&write, &flush) {
        (Err(reason), _) => latched(LatchStep::Write, reason),
        (Ok(()), Some(Err(reason))) => latched(LatchStep::Flush, reason),
        (Ok(()), Some(Ok(()))) => Fate::Flushed,
        (Ok(()), None) => unreachable!("a flush follows every write that succeeded"),
    };
    writes.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::device::DiskErrorKind;

    fn check(pending: &[u64], room: u64, expected: Take) {
        assert_eq!(
            take(pending.iter().copied(), room),
            expected,
            "{pending:?} into {room}"
        );
    }

    #[test]
    fn a_round_takes_what_fits() {
        let mib = 1 << 20;
        check(&[], mib, Take::Nothing);
        check(&[64, 128], mib, Take::Batches { count: 2, bytes: 192 });
        check(
            &[mib / 2, mib / 2, 64],
            9 * mib,
            Take::Batches { count: 2, bytes: mib },
        );
        check(
            &[5 * mib, 64],
            9 * mib,
            Take::Batches {
                count: 1,
                bytes: 5 * mib,
            },
        );
        check(&[64, 5 * mib], 9 * mib, Take::Batches { count: 1, bytes: 64 });
        check(
            &[4096, 64],
            4096,
            Take::Batches {
                count: 1,
                bytes: 4096,
            },
        );
        check(&[64, 4096, 64], 4096, Take::Batches { count: 1, bytes: 64 });
        check(&[5000, 64], 4096, Take::Roll { bytes: 5064 });
        check(&[64], 0, Take::Roll { bytes: 64 });
    }

    #[test]
    fn one_flush_decides_for_all_whose_writes_succeeded() {
        let error = |op| DiskError {
            op,
            path: "x".into(),
            kind: DiskErrorKind::Io,
            detail: String::new(),
        };
        let steps = |fates: Vec<Fate>| -> Vec<Option<LatchStep>> {
            fates
                .into_iter()
                .map(|fate| match fate {
                    Fate::Flushed => None,
                    Fate::Unknown(latched) => Some(latched.at),
                })
                .collect()
        };
        let writes = || vec![Ok(()), Err(error("write")), Ok(())];
        assert_eq!(
            steps(fates(writes(), Some(Ok(())))),
            [None, Some(LatchStep::Write), None]
        );
        assert_eq!(
            steps(fates(writes(), Some(Err(error("flush"))))),
            [
                Some(LatchStep::Flush),
                Some(LatchStep::Write),
                Some(LatchStep::Flush)
            ]
        );
        assert_eq!(
            steps(fates(vec![Err(error("write"))], None)),
            [Some(LatchStep::Write)]
        );
    }
}
