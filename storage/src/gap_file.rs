//! The gap ledger of a cursor on disk: one small JSON file beside its cursor file, replaced whole (SPEC.md F7, F9).
//!
//! The content is exactly `{"epoch":"67953471cc57a32a","since":0,"through":98332,"gaps":[[3,100,250,37,12]]}`: for each
//! gap its child partition, first offset, end, records and filtered records. It is durable before the segments go that it
//! accounts for, and it is the only witness of them afterwards: a ledger of another epoch is replaced or removed only on
//! the metadata leader's word, as a cursor file is.

use tailwater_wire::ids::{Epoch, Offset, PartitionId};

use crate::atomic_file::{self, ReplaceError};
use crate::disk::device::{Disk, DiskError, DiskResult};
use crate::gaps::{GAPS_MAX, Gap, Gaps};
use crate::layout::CursorPath;
use crate::proof::LeaderConfirmed;

/// Longer files are damaged: a gap is at most five numbers of 20 digits, five commas and two brackets.
const BYTES_MAX: usize = 128 + GAPS_MAX * 107;

/// What a gap ledger says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GapFile {
    /// There is none.
    Absent,
    /// A whole one.
    Present {
        /// The attachment that it belongs to.
        epoch: Epoch,
        /// What it holds.
        gaps: Gaps,
    },
    /// One that cannot be read, and why: what it counted is lost.
    Damaged(&'static str),
}

impl GapFile {
    /// The ledger, if it is of this epoch.
    #[must_use]
    pub fn of(&self, wanted: Epoch) -> Option<&Gaps> {
        match self {
            GapFile::Present { epoch, gaps } if *epoch == wanted => Some(gaps),
            _ => None,
        }
    }
}

/// Why a ledger was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GapFileError {
    /// The proof speaks of another pair of topics.
    #[error("the leader's confirmation is about another link")]
    OtherLink,
    /// There is no proof, or it does not bear the move: the epoch is not the confirmed one, or the file's own is.
    #[error("the leader's confirmed epoch of the link does not allow to replace the ledger")]
    NotConfirmed,
    /// The file is not what it was before the leader was asked.
    #[error("the ledger has changed since the leader was asked")]
    Changed,
    /// What was accounted for would be forgotten.
    #[error("the ledger accounts for everything below {0} already")]
    WouldGoBack(Offset),
    /// The file could not be read.
    #[error("the ledger could not be read")]
    Read(#[source] DiskError),
    /// The file could not be replaced.
    #[error("the ledger could not be replaced")]
    Replace(#[from] ReplaceError),
    /// The file could not be removed.
    #[error("the ledger could not be removed")]
    Remove(#[source] DiskError),
}

/// Reads a ledger.
///
/// # Errors
/// Only the disk's; a damaged file is an answer.
pub async fn read<D: Disk>(disk: &D, at: &CursorPath) -> DiskResult<GapFile> {
    let bytes = disk.read_small(&at.gaps()).await?;
    Ok(bytes.map_or(GapFile::Absent, |bytes| decode(&bytes)))
}

/// Stores a ledger: durable when this returns. Over one of the same epoch, or none, no proof is needed; over another
/// or a damaged one, `proof` must say that `epoch` is the link's, and have been asked for after `seen` was read.
///
/// # Errors
/// [`GapFileError`]; without a needed proof nothing is touched.
pub async fn store<D: Disk>(
    disk: &D,
    at: &CursorPath,
    unique: u64,
    epoch: Epoch,
    gaps: &Gaps,
    seen: &GapFile,
    proof: Option<&LeaderConfirmed>,
) -> Result<(), GapFileError> {
    let found = read(disk, at).await.map_err(GapFileError::Read)?;
    match &found {
        GapFile::Absent => {}
        GapFile::Present {
            epoch: own,
            gaps: there,
        } if *own == epoch => {
            if there.through > gaps.through {
                return Err(GapFileError::WouldGoBack(there.through));
            }
        }
        GapFile::Present { .. } | GapFile::Damaged(_) => {
            let proof = proof.ok_or(GapFileError::NotConfirmed)?;
            if !proof.is_about(at.parent(), at.child()) {
                return Err(GapFileError::OtherLink);
            }
            if proof.current() != Some(epoch) {
                return Err(GapFileError::NotConfirmed);
            }
            if found != *seen {
                return Err(GapFileError::Changed);
            }
        }
    }
    let bytes = encode(epoch, gaps);
    Ok(atomic_file::replace(disk, &at.gaps(), unique, bytes.as_bytes()).await?)
}

/// Removes a ledger that no live link has a use for. An absent file is fine. `seen` is what [`read`] said before the
/// leader was asked.
///
/// # Errors
/// [`GapFileError`]; a ledger of the confirmed epoch is not touched, nor is a damaged one while the pair is linked.
pub async fn remove<D: Disk>(
    disk: &D,
    at: &CursorPath,
    seen: &GapFile,
    proof: &LeaderConfirmed,
) -> Result<(), GapFileError> {
    if !proof.is_about(at.parent(), at.child()) {
        return Err(GapFileError::OtherLink);
    }
    let found = read(disk, at).await.map_err(GapFileError::Read)?;
    if found != *seen {
        return Err(GapFileError::Changed);
    }
    let is_orphan = match found {
        GapFile::Present { epoch, .. } => proof.current() != Some(epoch),
        GapFile::Damaged(_) => proof.current().is_none(),
        GapFile::Absent => true,
    };
    if !is_orphan {
        return Err(GapFileError::NotConfirmed);
    }
    atomic_file::remove(disk, &at.gaps())
        .await
        .map_err(GapFileError::Remove)
}

/// The file's content.
#[must_use]
pub fn encode(epoch: Epoch, gaps: &Gaps) -> String {
    use std::fmt::Write;
    let (since, through) = (gaps.since, gaps.through);
    let mut text = format!(r#"{{"epoch":"{epoch}","since":{since},"through":{through},"gaps":["#);
    for (n, gap) in gaps.all().iter().enumerate() {
        let comma = if n > 0 { "," } else { "" };
        let (bucket, from, to) = (gap.bucket.0, gap.from, gap.to);
        let written = write!(
            text,
            "{comma}[{bucket},{from},{to},{},{}]",
            gap.records, gap.filtered
        );
        debug_assert!(written.is_ok(), "a string takes everything");
    }
    text.push_str("]}");
    text
}

/// Reads a file's content. Only the spelling that [`encode`] writes is accepted, which is checked by writing it
/// again.
#[must_use]
pub fn decode(bytes: &[u8]) -> GapFile {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Content {
        epoch: Epoch,
        since: Offset,
        through: Offset,
        gaps: Vec<(u32, Offset, Offset, u64, u64)>,
    }

    if bytes.len() > BYTES_MAX {
        return GapFile::Damaged("longer than any gap ledger");
    }
    let Ok(content) = serde_json::from_slice::<Content>(bytes) else {
        return GapFile::Damaged("cut off, or not a gap ledger");
    };
    let gap = |(bucket, from, to, records, filtered)| Gap {
        bucket: PartitionId(bucket),
        from,
        to,
        records,
        filtered,
    };
    let gaps = content.gaps.into_iter().map(gap).collect();
    let epoch = content.epoch;
    match Gaps::from_parts(content.since, content.through, gaps) {
        None => GapFile::Damaged("gaps that contradict each other"),
        Some(gaps) if encode(epoch, &gaps).as_bytes() == bytes => GapFile::Present { epoch, gaps },
        Some(_) => GapFile::Damaged("a gap ledger in another spelling"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures_lite::future::block_on;
    use tailwater_wire::ids::TopicName;

    use super::*;
    use crate::disk::memory::{CrashPlan, MemoryDisk, When};

    const GOLDEN: &str = r#"{"epoch":"67953471cc57a32a","since":7,"through":98332,"gaps":[[3,100,250,37,12],[4,100,98332,1,0]]}"#;
    const OWN: Epoch = Epoch([1; 8]);
    const OTHER: Epoch = Epoch([2; 8]);

    fn topic(name: &str) -> TopicName {
        name.parse().expect("a topic's name")
    }

    fn at() -> CursorPath {
        CursorPath::new(
            Path::new("/data"),
            &topic("orders"),
            PartitionId(3),
            &topic("analytics"),
        )
    }

    fn confirmed(current: Option<Epoch>) -> LeaderConfirmed {
        LeaderConfirmed::by_leader(topic("orders"), topic("analytics"), current, 7)
    }

    fn through(offset: u64) -> Gaps {
        let mut gaps = Gaps::since(Offset(0));
        let gap = Gap {
            bucket: PartitionId(0),
            from: Offset(0),
            to: Offset(offset),
            records: 1,
            filtered: 0,
        };
        gaps.note(Offset(offset), [gap]);
        gaps
    }

    fn disk() -> MemoryDisk {
        let disk = MemoryDisk::new(1);
        let path = at().gaps();
        block_on(disk.create_dir_all(path.parent().expect("a directory"))).expect("no faults");
        disk
    }

    fn put(
        disk: &MemoryDisk,
        epoch: Epoch,
        offset: u64,
        proof: Option<&LeaderConfirmed>,
    ) -> Result<(), GapFileError> {
        let seen = block_on(read(disk, &at())).expect("read");
        block_on(store(disk, &at(), 1, epoch, &through(offset), &seen, proof))
    }

    fn holds(disk: &MemoryDisk, epoch: Epoch, offset: u64) -> bool {
        block_on(read(disk, &at())).expect("read").of(epoch) == Some(&through(offset))
    }

    #[test]
    fn golden_bytes() {
        let GapFile::Present { epoch, gaps } = decode(GOLDEN.as_bytes()) else {
            panic!("{:?}", decode(GOLDEN.as_bytes()));
        };
        assert_eq!(encode(epoch, &gaps), GOLDEN);
        assert_eq!(
            (gaps.since, gaps.through, gaps.all().len()),
            (Offset(7), Offset(98_332), 2)
        );
    }

    #[test]
    fn anything_else_is_damaged() {
        for text in [
            "",
            "\0\0\0",
            &GOLDEN[..GOLDEN.len() - 1],
            &GOLDEN.replace(':', ": "),
            &GOLDEN.replace("250", "50"),
            &GOLDEN.replace("98332,\"gaps\"", "98331,\"gaps\""),
        ] {
            assert!(matches!(decode(text.as_bytes()), GapFile::Damaged(_)), "{text}");
        }
    }

    #[test]
    fn a_ledger_of_another_epoch_takes_the_leaders_word() {
        let disk = disk();
        put(&disk, OTHER, 10, None).expect("there was none");
        put(&disk, OTHER, 20, None).expect("its own");
        assert!(matches!(
            put(&disk, OTHER, 19, None),
            Err(GapFileError::WouldGoBack(Offset(20)))
        ));
        for proof in [None, Some(&confirmed(None)), Some(&confirmed(Some(OTHER)))] {
            assert!(matches!(
                put(&disk, OWN, 5, proof),
                Err(GapFileError::NotConfirmed)
            ));
        }
        assert!(holds(&disk, OTHER, 20));
        put(&disk, OWN, 5, Some(&confirmed(Some(OWN)))).expect("confirmed");
        assert!(holds(&disk, OWN, 5));
        let seen = GapFile::Absent;
        let late = block_on(store(
            &disk,
            &at(),
            1,
            OTHER,
            &through(9),
            &seen,
            Some(&confirmed(Some(OTHER))),
        ));
        assert!(matches!(late, Err(GapFileError::Changed)));
    }

    #[test]
    fn only_an_orphan_is_removed() {
        let disk = disk();
        put(&disk, OWN, 10, None).expect("there was none");
        let seen = block_on(read(&disk, &at())).expect("read");
        let own = block_on(remove(&disk, &at(), &seen, &confirmed(Some(OWN))));
        assert!(matches!(own, Err(GapFileError::NotConfirmed)));
        block_on(remove(&disk, &at(), &seen, &confirmed(Some(OTHER)))).expect("an orphan");
        assert_eq!(block_on(read(&disk, &at())).expect("read"), GapFile::Absent);
    }

    #[test]
    fn a_crash_leaves_the_old_ledger_or_the_new_one() {
        for op in 0..6 {
            for when in [When::Before, When::Inside, When::After] {
                let disk = disk();
                put(&disk, OWN, 10, None).expect("no fault yet");
                disk.crash_at(disk.ops() + op, when);
                let stored = put(&disk, OWN, 20, None);
                for plan in [CrashPlan::LoseAll, CrashPlan::KeepAll, CrashPlan::Random(op)] {
                    let after = disk.crash(plan);
                    let new = holds(&after, OWN, 20);
                    assert!(new || holds(&after, OWN, 10), "op {op} {when:?}");
                    assert!(new || stored.is_err(), "what was said to be stored is there");
                }
            }
        }
    }
}
