//! A cursor's durable position: one small JSON file per parent partition and child, replaced whole (SPEC.md F5,
//! F7).
//!
//! The content is exactly `{"epoch":"67953471cc57a32a","next_offset":98332}`, in this spelling; a file that
//! says anything else is damaged, and a damaged file is treated like none: the cursor starts only with the
//! leader's confirmation. The file may lag behind the children and never leads them.

use tailwater_wire::ids::{Epoch, Offset};

use crate::atomic_file::{self, ReplaceError};
use crate::disk::device::{Disk, DiskError, DiskResult};
use crate::layout::CursorPath;
use crate::proof::{LeaderConfirmed, Persist};

/// Longer files are damaged: the spelling of the greatest offset has 63 bytes.
const BYTES_MAX: usize = 64;

/// What a cursor file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CursorFile {
    /// There is none.
    Absent,
    /// A whole one.
    Present {
        /// The attachment that it belongs to.
        epoch: Epoch,
        /// Everything below this parent offset is durable in every child partition.
        next_offset: Offset,
    },
    /// One that cannot be read, and why. It says nothing about the cursor.
    Damaged(&'static str),
}

/// Why a cursor file was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CursorFileError {
    /// The proof speaks of another pair of topics.
    #[error("the leader's confirmation is about another link")]
    OtherLink,
    /// The proof does not bear the move: the epoch is not the confirmed one, or the file's own is.
    #[error("the leader's confirmed epoch of the link forbids it")]
    NotConfirmed,
    /// The file is absent, damaged or of another epoch: only the leader's confirmation allows to write it.
    #[error("the cursor file is not of this epoch: {0:?}")]
    NotOwnEpoch(CursorFile),
    /// The file is not what it was before the leader was asked: begin again, with a new confirmation.
    #[error("the cursor file has changed since the leader was asked: {0:?}")]
    Changed(CursorFile),
    /// The file stands further on in the same epoch.
    #[error("the cursor file stands at {0} already")]
    WouldGoBack(Offset),
    /// The file could not be read.
    #[error("the cursor file could not be read")]
    Read(#[source] DiskError),
    /// The file could not be replaced.
    #[error("the cursor file could not be replaced")]
    Replace(#[from] ReplaceError),
    /// The file could not be removed.
    #[error("the cursor file could not be removed")]
    Remove(#[source] DiskError),
}

/// Reads a cursor file.
///
/// # Errors
/// Only the disk's; a damaged file is an answer.
pub async fn read<D: Disk>(disk: &D, at: &CursorPath) -> DiskResult<CursorFile> {
    let bytes = disk.read_small(at.path()).await?;
    Ok(bytes.map_or(CursorFile::Absent, |bytes| decode(&bytes)))
}

/// Writes the file of a cursor that starts: where there is none, a damaged one or one of another epoch.
///
/// `seen` is what [`read`] said before the leader was asked. If the file says something else by now, another
/// cursor has been there since, and the proof may be older than that cursor's link.
///
/// # Errors
/// [`CursorFileError`]; without [`LeaderConfirmed`] of this very epoch nothing is touched.
pub async fn start<D: Disk>(
    disk: &D,
    at: &CursorPath,
    unique: u64,
    epoch: Epoch,
    next_offset: Offset,
    seen: &CursorFile,
    proof: &LeaderConfirmed,
) -> Result<(), CursorFileError> {
    if !proof.is_about(at.parent(), at.child()) {
        return Err(CursorFileError::OtherLink);
    }
    if proof.current() != Some(epoch) {
        return Err(CursorFileError::NotConfirmed);
    }
    let found = read_unchanged(disk, at, seen).await?;
    if let CursorFile::Present {
        epoch: own,
        next_offset: there,
    } = found
        && own == epoch
        && there > next_offset
    {
        return Err(CursorFileError::WouldGoBack(there));
    }
    write(disk, at, unique, epoch, next_offset).await
}

/// Moves the file of a running cursor on to what its children acknowledged.
///
/// # Errors
/// [`CursorFileError`]; a file that is not of the same epoch is not touched, and the position never falls.
pub async fn advance<D: Disk>(
    disk: &D,
    at: &CursorPath,
    unique: u64,
    persist: Persist,
) -> Result<(), CursorFileError> {
    match read(disk, at).await.map_err(CursorFileError::Read)? {
        CursorFile::Present { epoch, next_offset } if epoch == persist.epoch() => {
            if next_offset > persist.next_offset() {
                return Err(CursorFileError::WouldGoBack(next_offset));
            }
        }
        other => return Err(CursorFileError::NotOwnEpoch(other)),
    }
    write(disk, at, unique, persist.epoch(), persist.next_offset()).await
}

/// Removes a file that no live link has a use for. An absent file is fine. `seen` is as for [`start`].
///
/// # Errors
/// [`CursorFileError`]; a file of the confirmed epoch is not touched, nor is a damaged one while the pair is
/// linked.
pub async fn remove<D: Disk>(
    disk: &D,
    at: &CursorPath,
    seen: &CursorFile,
    proof: &LeaderConfirmed,
) -> Result<(), CursorFileError> {
    if !proof.is_about(at.parent(), at.child()) {
        return Err(CursorFileError::OtherLink);
    }
    let is_orphan = match read_unchanged(disk, at, seen).await? {
        CursorFile::Present { epoch, .. } => proof.current() != Some(epoch),
        CursorFile::Damaged(_) => proof.current().is_none(),
        CursorFile::Absent => true,
    };
    if !is_orphan {
        return Err(CursorFileError::NotConfirmed);
    }
    atomic_file::remove(disk, at.path())
        .await
        .map_err(CursorFileError::Remove)
}

async fn read_unchanged<D: Disk>(
    disk: &D,
    at: &CursorPath,
    seen: &CursorFile,
) -> Result<CursorFile, CursorFileError> {
    let found = read(disk, at).await.map_err(CursorFileError::Read)?;
    if found == *seen {
        Ok(found)
    } else {
        Err(CursorFileError::Changed(found))
    }
}

async fn write<D: Disk>(
    disk: &D,
    at: &CursorPath,
    unique: u64,
    epoch: Epoch,
    next_offset: Offset,
) -> Result<(), CursorFileError> {
    let bytes = encode(epoch, next_offset);
    Ok(atomic_file::replace(disk, at.path(), unique, bytes.as_bytes()).await?)
}

/// The file's content.
#[must_use]
pub fn encode(epoch: Epoch, next_offset: Offset) -> String {
    format!("{{\"epoch\":\"{epoch}\",\"next_offset\":{next_offset}}}")
}

/// Reads a file's content. Only the spelling that [`encode`] writes is accepted, which is checked by writing it
/// again.
#[must_use]
pub fn decode(bytes: &[u8]) -> CursorFile {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Content {
        epoch: Epoch,
        next_offset: Offset,
    }

    if bytes.is_empty() {
        return CursorFile::Damaged("empty");
    }
    if bytes.len() > BYTES_MAX {
        return CursorFile::Damaged("longer than any cursor file");
    }
    if bytes.iter().all(|&b| b == 0) {
        return CursorFile::Damaged("nothing but zeros");
    }
    match serde_json::from_slice::<Content>(bytes) {
        Err(error) if error.is_eof() => CursorFile::Damaged("cut off"),
        Err(_) => CursorFile::Damaged("not a cursor's position"),
        Ok(Content { epoch, next_offset }) if encode(epoch, next_offset).as_bytes() == bytes => {
            CursorFile::Present { epoch, next_offset }
        }
        Ok(_) => CursorFile::Damaged("a cursor's position in another spelling"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures_lite::future::block_on;
    use proptest::prelude::*;
    use tailwater_wire::ids::{PartitionId, TopicName};

    use super::*;
    use crate::disk::memory::{CrashPlan, MemoryDisk, When};
    use crate::proof::Acknowledged;

    const GOLDEN: &str = r#"{"epoch":"67953471cc57a32a","next_offset":98332}"#;
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

    fn persist(epoch: Epoch, next_offset: u64) -> Persist {
        let mut acknowledged = Acknowledged::start(epoch, Offset(0), 1);
        acknowledged
            .acknowledge(0, Offset(next_offset))
            .expect("it rises")
    }

    /// A disk with this in the cursor's place, durably.
    fn disk_with(content: Option<&[u8]>) -> MemoryDisk {
        let disk = MemoryDisk::new(1);
        let at = at();
        block_on(disk.create_dir_all(at.path().parent().expect("in a directory"))).expect("no faults");
        if let Some(content) = content {
            block_on(atomic_file::replace(&disk, at.path(), 0, content)).expect("no faults");
        }
        disk
    }

    fn disk_at(epoch: Epoch, next_offset: u64) -> MemoryDisk {
        disk_with(Some(encode(epoch, Offset(next_offset)).as_bytes()))
    }

    fn start_at(disk: &MemoryDisk, next_offset: u64, proof: &LeaderConfirmed) -> Result<(), CursorFileError> {
        let seen = block_on(read(disk, &at())).expect("read");
        block_on(start(disk, &at(), 1, OWN, Offset(next_offset), &seen, proof))
    }

    #[track_caller]
    fn check(disk: &MemoryDisk, epoch: Epoch, next_offset: u64) {
        let next_offset = Offset(next_offset);
        assert_eq!(
            block_on(read(disk, &at())).expect("read"),
            CursorFile::Present { epoch, next_offset }
        );
    }

    #[test]
    fn golden_bytes() {
        let epoch = "67953471cc57a32a".parse().expect("hex");
        assert_eq!(encode(epoch, Offset(98_332)), GOLDEN);
        let next_offset = Offset(98_332);
        assert_eq!(
            decode(GOLDEN.as_bytes()),
            CursorFile::Present { epoch, next_offset }
        );
        assert!(encode(epoch, Offset(u64::MAX)).len() <= BYTES_MAX);
    }

    #[test]
    fn anything_else_is_damaged() {
        let long = GOLDEN.repeat(2);
        for text in [
            "",
            "\0\0\0\0",
            "{",
            "{}",
            "98332",
            "garbage",
            &GOLDEN.replace('6', "\0"),
            &GOLDEN.replace(':', ": "),
            &format!("{GOLDEN}\n"),
            &format!("{GOLDEN}\0"),
            &format!("{GOLDEN}}}"),
            &long,
            r#"{"epoch":"67953471CC57A32A","next_offset":98332}"#,
            r#"{"epoch":"67953471cc57a32a","next_offset":-1}"#,
            r#"{"epoch":"67953471cc57a32a","next_offset":1e3}"#,
            r#"{"epoch":"67953471cc57a32a","next_offset":098}"#,
            r#"{"epoch":"67953471cc57a32a"}"#,
            r#"{"epoch":"67953471cc57a32a","next_offset":98332,"x":1}"#,
            r#"{"next_offset":98332,"epoch":"67953471cc57a32a"}"#,
            r#"["67953471cc57a32a",98332]"#,
        ] {
            assert!(
                matches!(decode(text.as_bytes()), CursorFile::Damaged(_)),
                "{text:?}"
            );
        }
        for len in 0..GOLDEN.len() {
            assert!(
                matches!(decode(&GOLDEN.as_bytes()[..len]), CursorFile::Damaged(_)),
                "{len}"
            );
        }
    }

    #[test]
    fn a_start_needs_the_leader_s_word_on_this_epoch_of_this_link() {
        for disk in [
            disk_with(None),
            disk_with(Some(b"")),
            disk_with(Some(&[0; 48])),
            disk_at(OTHER, 90),
        ] {
            let before = disk.peek(at().path());
            let other_link = LeaderConfirmed::by_leader(topic("orders"), topic("other"), Some(OWN), 7);
            assert!(matches!(
                start_at(&disk, 5, &other_link),
                Err(CursorFileError::OtherLink)
            ));
            for unproved in [confirmed(None), confirmed(Some(OTHER))] {
                assert!(matches!(
                    start_at(&disk, 5, &unproved),
                    Err(CursorFileError::NotConfirmed)
                ));
            }
            assert_eq!(disk.peek(at().path()), before, "nothing was touched");
            start_at(&disk, 5, &confirmed(Some(OWN))).expect("confirmed");
            check(&disk.crash(CrashPlan::LoseAll), OWN, 5);
        }
    }

    #[test]
    fn a_position_only_moves_on_and_only_within_its_epoch() {
        let advance_to = |disk: &MemoryDisk, offset| block_on(advance(disk, &at(), 1, persist(OWN, offset)));
        let disk = disk_at(OWN, 50);
        advance_to(&disk, 60).expect("its own epoch");
        check(&disk, OWN, 60);
        assert!(matches!(
            advance_to(&disk, 55),
            Err(CursorFileError::WouldGoBack(Offset(60)))
        ));
        let back = start_at(&disk, 55, &confirmed(Some(OWN)));
        assert!(matches!(back, Err(CursorFileError::WouldGoBack(Offset(60)))));
        check(&disk, OWN, 60);
        for disk in [disk_at(OTHER, 5), disk_with(None), disk_with(Some(b"{"))] {
            let before = disk.peek(at().path());
            assert!(matches!(
                advance_to(&disk, 60),
                Err(CursorFileError::NotOwnEpoch(_))
            ));
            assert_eq!(disk.peek(at().path()), before, "a zombie touches nothing");
        }
    }

    #[test]
    fn only_orphans_are_removed() {
        let remove_with = |disk: &MemoryDisk, current| {
            let seen = block_on(read(disk, &at())).expect("read");
            block_on(remove(disk, &at(), &seen, &confirmed(current)))
        };
        for (disk, current, goes) in [
            (disk_at(OWN, 5), Some(OWN), false),
            (disk_at(OWN, 5), Some(OTHER), true),
            (disk_at(OWN, 5), None, true),
            (disk_with(Some(b"{")), Some(OWN), false),
            (disk_with(Some(b"{")), None, true),
            (disk_with(None), Some(OWN), true),
        ] {
            let result = remove_with(&disk, current);
            assert_eq!(result.is_ok(), goes);
            let is_there = disk.crash(CrashPlan::LoseAll).peek(at().path()).is_some();
            assert_eq!(is_there, !goes);
        }
        let other_link = LeaderConfirmed::by_leader(topic("trades"), topic("analytics"), None, 7);
        let seen = CursorFile::Present {
            epoch: OWN,
            next_offset: Offset(5),
        };
        let result = block_on(remove(&disk_at(OWN, 5), &at(), &seen, &other_link));
        assert!(matches!(result, Err(CursorFileError::OtherLink)));
    }

    #[test]
    fn a_confirmation_that_was_overtaken_by_a_new_link_touches_nothing() {
        // A sweeper and a cursor of OWN saw no file and asked the leader; before they act on its word, OTHER
        // was attached and its cursor has written its file.
        let disk = disk_at(OTHER, 90);
        let late = block_on(remove(&disk, &at(), &CursorFile::Absent, &confirmed(None)));
        assert!(matches!(late, Err(CursorFileError::Changed(_))));
        let proof = confirmed(Some(OWN));
        let late = block_on(start(
            &disk,
            &at(),
            1,
            OWN,
            Offset(5),
            &CursorFile::Absent,
            &proof,
        ));
        assert!(matches!(late, Err(CursorFileError::Changed(_))));
        check(&disk, OTHER, 90);
    }

    #[test]
    fn a_cut_at_any_step_of_an_advance_leaves_one_of_the_two_positions() {
        for step in 0..3 {
            for when in [When::Before, When::Inside, When::After] {
                for plan in (0..20).map(CrashPlan::Random) {
                    let disk = disk_at(OWN, 50);
                    disk.crash_at(disk.ops() + step, when);
                    block_on(advance(&disk, &at(), 1, persist(OWN, 60))).expect_err("the power went");
                    let found = block_on(read(&disk.crash(plan), &at())).expect("read");
                    let is_one_of = [50, 60].map(|n| CursorFile::Present {
                        epoch: OWN,
                        next_offset: Offset(n),
                    });
                    assert!(is_one_of.contains(&found), "{found:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn reads_back_and_never_takes_anything_else(
            epoch: u64,
            offset: u64,
            garbage in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let (epoch, next_offset) = (Epoch::from_u64(epoch), Offset(offset));
            let text = encode(epoch, next_offset);
            prop_assert_eq!(decode(text.as_bytes()), CursorFile::Present { epoch, next_offset });
            prop_assert!(matches!(decode(&garbage), CursorFile::Damaged(_)));
        }
    }
}
