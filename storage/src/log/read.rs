//! Reading a log: from the tail cache where it reaches, else from segments.

use std::rc::Rc;

use bytes::Bytes;
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::ids::{CommitTime, Offset};

use crate::disk::device::{Disk, OpenMode};
use crate::error::ReadError;
use crate::log::PartitionLog;
use crate::log::segments::{Loaded, Sealed, index_of};
use crate::segment::reader::{Source, Step, Walk, scan};
use crate::segment::recovery::{Hole, holes, kept_of};
use crate::slab::{ReadLimits, Slab, SlabBuilder};
use crate::tail_cache::CachedChunk;

/// Where the next batch of a read lies.
enum Place<F> {
    Cached(CachedChunk),
    Sealed(Sealed<F>),
    Active(Source<F>),
}

impl<D: Disk> PartitionLog<D> {
    /// Whole batches from the one that holds `from`, up to the high-water mark or a limit; none when `from` is at the
    /// high-water mark. What has rotted is passed over and named in the slab.
    ///
    /// # Errors
    /// [`ReadError`]. A disk error latches nothing: writing goes on, and another read may succeed.
    pub async fn read(&self, from: Offset, limits: ReadLimits) -> Result<Slab, ReadError> {
        let (end, mut slab) = {
            let state = self.state.borrow();
            let high_water_mark = state.high_water_mark();
            let end = if limits.flushed_only {
                state.flushed
            } else {
                high_water_mark
            };
            if from > end {
                return Err(ReadError::Ahead { high_water_mark: end });
            }
            (
                end,
                SlabBuilder::new(from, limits, high_water_mark, state.lineage, state.eras.clone()),
            )
        };
        let mut scanned = None;
        while slab.next_offset() < end {
            let next = slab.next_offset();
            match self.place(next, end) {
                Err(behind) if next == from => return Err(behind),
                // Retention passed the read while it went on: what it has is good.
                Err(_) => break,
                Ok(Place::Cached(chunk)) => {
                    if !add_cached(&mut slab, &chunk) {
                        break;
                    }
                }
                Ok(Place::Sealed(segment)) => {
                    let source = self.sealed_source(segment).await?;
                    if !self.add_walked(&mut slab, source, &mut scanned).await? {
                        break;
                    }
                }
                Ok(Place::Active(source)) => {
                    if !self.add_walked(&mut slab, source, &mut scanned).await? {
                        break;
                    }
                }
            }
        }
        Ok(slab.finish())
    }

    /// The offset of the first record that was committed at or after a time; the high-water mark when there is none.
    ///
    /// # Errors
    /// [`ReadError`], as for a read.
    pub async fn find_time(&self, at: CommitTime) -> Result<Offset, ReadError> {
        let (mut from, sealed) = {
            let state = self.state.borrow();
            let segments = &state.segments;
            let place = segments.sealed.partition_point(|s| s.last_commit_time < at);
            match segments.sealed.get(place) {
                Some(segment) => (segment.base, Some(segment.clone())),
                None => {
                    let entry = segments.index.before(at);
                    (
                        entry.map_or(segments.active.header.base_offset, |entry| entry.offset),
                        None,
                    )
                }
            }
        };
        if let Some(segment) = sealed {
            let source = self.sealed_source(segment).await?;
            from = source.index.before(at).map_or(from, |entry| entry.offset);
        }
        loop {
            let limits = ReadLimits {
                bytes_max: crate::segment::reader::READ_BYTES,
                ..ReadLimits::default()
            };
            let slab = match self.read(from, limits).await {
                Err(ReadError::Behind { log_start }) => {
                    from = log_start;
                    continue;
                }
                // In a `written` log the index may be ahead of what is readable.
                Err(ReadError::Ahead { high_water_mark }) => return Ok(high_water_mark),
                read => read?,
            };
            let counted = |header: &BatchHeader| self.counted(header.base_offset, header.commit_time);
            let found = headers(&slab).find(|header| counted(header) >= at);
            if let Some(header) = found {
                return Ok(header.base_offset.max(self.log_start()));
            }
            if slab.next_offset == from {
                return Ok(from);
            }
            from = slab.next_offset;
        }
    }

    /// The header of the batch that holds an offset; `None` when it is not there (any more, yet, or readable).
    ///
    /// # Errors
    /// A read that failed.
    pub async fn batch_containing(&self, offset: Offset) -> Result<Option<BatchHeader>, ReadError> {
        let limits = ReadLimits {
            bytes_max: 0,
            ..ReadLimits::default()
        };
        match self.read(offset, limits).await {
            Ok(slab) => Ok(headers(&slab)
                .next()
                .filter(|header| header.base_offset <= offset)),
            Err(ReadError::Behind { .. } | ReadError::Ahead { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn place(&self, offset: Offset, end: Offset) -> Result<Place<D::File>, ReadError> {
        let state = self.state.borrow();
        let segments = &state.segments;
        if offset < segments.log_start() {
            return Err(ReadError::Behind {
                log_start: segments.log_start(),
            });
        }
        let cache = state.options.tail_cache.borrow();
        if let Some(chunk) = cache.get(self.cache_slot, offset) {
            return Ok(Place::Cached(chunk.clone()));
        }
        // From the disk up to where the cache begins.
        let end = cache
            .first_offset(self.cache_slot)
            .filter(|&first| first > offset)
            .map_or(end, |first| first.min(end));
        if let Some(at) = segments.sealed_at(offset) {
            let mut segment = segments.sealed[at].clone();
            segment.end = segment.end.min(end);
            return Ok(Place::Sealed(segment));
        }
        let active = &segments.active;
        Ok(Place::Active(Source {
            file: active.file.clone(),
            path: active.path.clone(),
            base: active.header.base_offset,
            end,
            nonce: active.header.nonce,
            data_start: active.header.data_start(),
            data_end: segments.written_end,
            index: segments.index.clone(),
            holes: segments.holes.clone(),
        }))
    }

    /// Opens a sealed segment and its index, unless they are open.
    async fn sealed_source(&self, segment: Sealed<D::File>) -> Result<Source<D::File>, ReadError> {
        let loaded = match &segment.loaded {
            Some(loaded) => loaded.clone(),
            None => self.load(&segment).await?,
        };
        Ok(Source {
            file: loaded.file,
            path: segment.path,
            base: segment.base,
            end: segment.end,
            nonce: segment.nonce,
            data_start: segment.data_start,
            data_end: segment.bytes,
            index: loaded.index,
            holes: segment.holes,
        })
    }

    async fn load(&self, segment: &Sealed<D::File>) -> Result<Loaded<D::File>, ReadError> {
        let file = self.disk.open(&segment.path, OpenMode::Read).await?;
        let whole_end = {
            let mut state = self.state.borrow_mut();
            state.segments.sealed_mut(segment.base).map(|s| s.end)
        };
        let whole = Sealed {
            end: whole_end.unwrap_or(segment.end),
            ..segment.clone()
        };
        let index = match self.saved_index(&whole).await {
            Some(index) => index,
            None => {
                let found = scan(&file, whole.nonce, whole.data_start, whole.bytes).await?;
                let interval = self.state.borrow().options.index_interval_bytes;
                let kept = kept_of(whole.base, whole.end, &found);
                let eras = self.state.borrow().eras.clone();
                Rc::new(index_of(&kept, interval).counted(&eras))
            }
        };
        let loaded = Loaded { file, index };
        self.state
            .borrow_mut()
            .segments
            .load(segment.base, loaded.clone());
        Ok(loaded)
    }

    /// Adds what a walk finds; whether the read may go on. Damage is mapped by a scan of the segment, once a read.
    async fn add_walked(
        &self,
        slab: &mut SlabBuilder,
        source: Source<D::File>,
        scanned: &mut Option<Offset>,
    ) -> Result<bool, ReadError> {
        let base = source.base;
        let mut walk = Walk::new(source.clone(), slab.next_offset(), slab.bytes_wanted());
        loop {
            walk.wants(slab.bytes_wanted());
            match walk.next().await? {
                Step::End => return Ok(true),
                Step::Quarantined(offsets) => slab.quarantine(offsets),
                Step::Batch {
                    buffer,
                    range,
                    header,
                } => {
                    if !slab.admits(&header) {
                        return Ok(false);
                    }
                    slab.add(&buffer, range, &header);
                }
                Step::Damaged if *scanned == Some(base) => {
                    return Err(ReadError::Unstable {
                        path: source.path,
                        offset: slab.next_offset(),
                    });
                }
                Step::Damaged => {
                    *scanned = Some(base);
                    self.map_damage(&source).await?;
                    return Ok(true);
                }
            }
        }
    }

    /// Finds out which offsets of a segment have rotted, and remembers it.
    async fn map_damage(&self, source: &Source<D::File>) -> Result<(), ReadError> {
        // What is to be judged is fixed before the scan: the segment may grow or be sealed meanwhile.
        let (end, data_end) = {
            let mut state = self.state.borrow_mut();
            let active = (state.flushed, state.segments.written_end);
            let sealed = state.segments.sealed_mut(source.base);
            sealed.map_or(active, |s| (s.end, s.bytes))
        };
        let found = scan(&source.file, source.nonce, source.data_start, data_end).await?;
        let holes: Rc<[Hole]> = holes(source.base, end, &found).into();
        {
            let mut state = self.state.borrow_mut();
            let segments = &mut state.segments;
            if let Some(segment) = segments.sealed_mut(source.base) {
                segment.holes = holes.clone();
            } else if segments.active.header.base_offset == source.base {
                segments.holes = holes.clone();
            }
        }
        for hole in holes.iter() {
            let (start, end) = (hole.offsets.start, hole.offsets.end);
            tracing::error!(
                topic = %self.identity.topic, partition = %self.identity.partition,
                path = %source.path.display(), "quarantined rotted offsets {start}..{end}",
            );
        }
        Ok(())
    }
}

/// Adds the batches of a chunk that was written by this process; whether the read may go on.
fn add_cached(slab: &mut SlabBuilder, chunk: &CachedChunk) -> bool {
    let mut at = 0;
    while let Ok(header) = BatchHeader::decode(&chunk.bytes[at..]) {
        let range = at..at + header.batch_len();
        at = range.end;
        if header.end_offset() <= slab.next_offset() {
            continue;
        }
        if !slab.admits(&header) {
            return false;
        }
        slab.add(&chunk.bytes, range, &header);
    }
    debug_assert_eq!(at, chunk.bytes.len(), "a cached chunk holds whole batches");
    true
}

/// The headers of a slab's batches.
fn headers(slab: &Slab) -> impl Iterator<Item = BatchHeader> + '_ {
    slab.runs.iter().flat_map(|run: &Bytes| {
        let mut at = 0;
        std::iter::from_fn(move || {
            let header = BatchHeader::decode(run.get(at..)?).ok()?;
            at += header.batch_len();
            Some(header)
        })
    })
}
