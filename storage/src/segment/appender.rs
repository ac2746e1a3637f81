//! Making segments ready, beginning them, and packing batches into chunks for them.
//!
//! A segment exists twice before its first record: prepared, under a name that no reader looks at, and begun, when its
//! header, its dedup checkpoint and, after a recovery, its copied batches are flushed and it has got its own name. Only
//! then may anything be appended. Everything in the segment before it is flushed by then.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::ids::Offset;
use tailwater_wire::mutant::{Mutant, planted};

use crate::disk::device::{BLOCK, Disk, DiskError, DiskResult, File, OpenMode};
use crate::disk::flush_watch::FlushWatch;
use crate::error::is_full;
use crate::layout;
use crate::segment::format::{SegmentHeader, data_start};

/// A file of written zeros that waits to become a segment.
#[derive(Debug)]
pub struct Prepared<F> {
    /// Open to read and write.
    pub file: F,
    /// Its present name.
    pub path: PathBuf,
    /// Its length in bytes.
    pub capacity: u64,
}

/// The segment that is appended to.
#[derive(Debug)]
pub struct Active<F> {
    /// Open to read and write.
    pub file: F,
    /// Its name.
    pub path: PathBuf,
    /// Its header.
    pub header: SegmentHeader,
    /// Where the next chunk goes: behind everything that was ever written, failed writes included.
    pub position: u64,
    /// Its length in bytes.
    pub capacity: u64,
}

impl<F> Active<F> {
    /// Bytes that it still takes.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.capacity - self.position
    }
}

/// Why a segment was not begun.
#[derive(Debug, Clone)]
pub enum BeginError {
    /// No space; nothing that a reader would look at was changed, and it may be tried again.
    Full(DiskError),
    /// The disk failed: latch.
    Failed(DiskError),
}

impl BeginError {
    fn of(error: DiskError) -> BeginError {
        if is_full(&error) {
            BeginError::Full(error)
        } else {
            BeginError::Failed(error)
        }
    }
}

/// One batch on its way to the disk. The header has all that the owner stamps at append; `durable_through` and nonce
/// are stamped as it is packed.
#[derive(Debug, Clone)]
pub struct Stamped {
    /// The batch as it was received, header and padding included.
    pub bytes: Bytes,
    /// The header that it gets.
    pub header: BatchHeader,
}

/// What is stamped when a chunk is packed.
#[derive(Debug, Clone, Copy)]
pub struct ChunkStamp {
    /// Every record below was flushed before the chunk is written.
    pub durable_through: Offset,
    /// The segment's nonce.
    pub nonce: u64,
}

/// Bytes of a chunk of batches with these lengths together.
#[must_use]
pub fn chunk_len(batch_bytes: u64) -> u64 {
    batch_bytes.next_multiple_of(BLOCK as u64)
}

/// Makes a file of `capacity` bytes of zeros ready: gently until `hurry` is set, if that is given. Its name need not be durable: a prepared file that is lost or left
/// over is removed or made again.
///
/// # Errors
/// The disk's; what was made of the file is removed again, as far as the disk lets us.
pub async fn prepare<D: Disk>(
    disk: &D,
    dir: &Path,
    number: u64,
    capacity: u64,
    hurry: Option<Rc<Cell<bool>>>,
) -> DiskResult<Prepared<D::File>> {
    let path = dir.join(layout::prepared_name(number));
    let watch = FlushWatch::begin(disk);
    let file = disk.open(&path, OpenMode::CreateNew).await?;
    let prepared = match hurry {
        Some(hurry) => file.prepare_gently(0, capacity, hurry).await,
        None => file.prepare(0, capacity).await,
    };
    match prepared.and_then(|()| watch.check(disk, &path)) {
        Ok(()) => Ok(Prepared { file, path, capacity }),
        Err(error) => {
            // The first error is the one to report; a file that stays is removed when the log is next opened.
            drop(disk.remove_file(&path).await);
            Err(error)
        }
    }
}

/// Makes a prepared file the log's newest segment: header, checkpoint and copied batches, flush, rename, flush of the
/// directory. When this returns the segment is durable under its name.
///
/// # Errors
/// [`BeginError`]; after `Full` the prepared file is gone.
pub async fn begin<D: Disk>(
    disk: &D,
    dir: &Path,
    mut prepared: Prepared<D::File>,
    header: SegmentHeader,
    checkpoint: &[u8],
    copied: &[<D::File as File>::Shared],
    room: u64,
) -> Result<Active<D::File>, BeginError> {
    let watch = FlushWatch::begin(disk);
    let start = data_start(checkpoint.len());
    let copied_bytes: u64 = copied
        .iter()
        .map(|chunk| D::File::bytes(chunk).len() as u64)
        .sum();
    let needed = start + copied_bytes + room;
    if prepared.capacity < needed {
        let grown = prepared.file.prepare(prepared.capacity, needed).await;
        if let Err(error) = grown {
            drop(disk.remove_file(&prepared.path).await);
            return Err(BeginError::of(error));
        }
        prepared.capacity = needed;
    }
    let file = prepared.file;
    let mut block = file.alloc(start as usize);
    header.encode(checkpoint, &mut block);
    let mut position = start;
    file.write_at(&D::File::freeze(block), 0)
        .await
        .map_err(BeginError::Failed)?;
    for chunk in copied {
        file.write_at(chunk, position).await.map_err(BeginError::Failed)?;
        position += D::File::bytes(chunk).len() as u64;
    }
    if copied.is_empty() || !planted(Mutant::RecoveryWithoutFlush) {
        file.sync().await.map_err(BeginError::Failed)?;
    }
    // Before it gets its name: a segment whose header is in doubt must not be found as one.
    watch.check(disk, &prepared.path).map_err(BeginError::Failed)?;
    let path = dir.join(layout::segment_name(header.base_offset));
    disk.rename(&prepared.path, &path)
        .await
        .map_err(BeginError::Failed)?;
    if !planted(Mutant::SkipDirectorySync) {
        disk.sync_dir(dir).await.map_err(BeginError::Failed)?;
    }
    watch.check(disk, &path).map_err(BeginError::Failed)?;
    // Under its own name, so that later errors say which segment they are about.
    drop(file);
    let file = disk
        .open(&path, OpenMode::ReadWrite)
        .await
        .map_err(BeginError::Failed)?;
    Ok(Active {
        file,
        path,
        header,
        position,
        capacity: prepared.capacity,
    })
}

/// Packs batches into one chunk: their bodies copied once, into the buffer that is written; their headers stamped
/// there, with a new checksum; zeros up to the next block. Completes each header.
pub fn pack<F: File>(file: &F, batches: &mut [Stamped], stamp: ChunkStamp) -> F::Shared {
    let bytes: usize = batches.iter().map(|batch| batch.bytes.len()).sum();
    let mut chunk = file.alloc(chunk_len(bytes as u64) as usize);
    let mut at = 0;
    for batch in batches {
        batch.header.durable_through = stamp.durable_through;
        batch.header.segment_nonce = stamp.nonce;
        let end = at + batch.bytes.len();
        chunk[at..end].copy_from_slice(&batch.bytes);
        batch.header.encode(&mut chunk[at..end]);
        at = end;
    }
    if !planted(Mutant::PaddingNotZeroed) {
        chunk[at..].fill(0);
    }
    F::freeze(chunk)
}
