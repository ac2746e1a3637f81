//! A cursor's durable position: one small JSON file per parent partition and child, replaced whole (SPEC.md F5, F7).
//!
//! The content is exactly `{"epoch":"67953471cc57a32a","next_offset":98332}`, in this spelling; a file that says anything
//! else is damaged, and a damaged file is treated like none: the cursor starts only with the leader's confirmation. The file
//! may lag behind the children and never leads them.

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
/// # Errors
/// [`CursorFileError`]; without [`LeaderConfirmed`] of this very epoch nothing is touched.
pub async fn start<D: Disk>(
    disk: &D,
    at: &CursorPath,
    unique: u64,
    epoch: Epoch,
    next_offset: Offset,
    proof: &LeaderConfirmed,
) -> Result<(), CursorFileError> {
    if !proof.is_about(at.parent(), at.child()) {
        return Err(CursorFileError::OtherLink);
    }
    if proof.current() != Some(epoch) {
        return Err(CursorFileError::NotConfirmed);
    }
    match read(disk, at).await.map_err(CursorFileError::Read)? {
        CursorFile::Present {
            epoch: found,
            next_offset: there,
        } if found == epoch && there > next_offset => return Err(CursorFileError::WouldGoBack(there)),
        CursorFile::Present { .. } | CursorFile::Absent | CursorFile::Damaged(_) => {}
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

/// Removes a file that no live link has a use for. An absent file is fine.
///
/// # Errors
/// [`CursorFileError`]; a file of the confirmed epoch is not touched, nor is a damaged one while the pair is linked.
pub async fn remove<D: Disk>(
    disk: &D,
    at: &CursorPath,
    proof: &LeaderConfirmed,
) -> Result<(), CursorFileError> {
    if !proof.is_about(at.parent(), at.child()) {
        return Err(CursorFileError::OtherLink);
    }
    let is_orphan = match read(disk, at).await.map_err(CursorFileError::Read)? {
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

/// Reads a file's content. Only the spelling that [`encode`] writes is accepted, which is checked by writing it again.
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
