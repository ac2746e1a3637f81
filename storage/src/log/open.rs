//! Opening a partition's directory: making the first segment, or recovering the last one.
//!
//! Order: read and judge everything; only then write. Whatever cannot be trusted is a named error that has changed
//! nothing. A new segment is flushed and has its name before the log is handed out, so what is published is flushed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tailwater_wire::ids::{CommitTime, Lineage, Offset};

use crate::dedup::table::DedupTable;
use crate::disk::device::{BLOCK, Disk, DiskResult, File, OpenMode};
use crate::disk::latch::Latch;
use crate::eras::Eras;
use crate::error::{OpenError, RecoveryReport};
use crate::layout::{PartitionEntry, index_name, parse_partition_entry, segment_name};
use crate::log::PartitionLog;
use crate::log::opens::Opens;
use crate::log::options::{LogIdentity, LogOptions};
use crate::log::segments::{Sealed, Segments, index_of};
use crate::log::state::LogState;
use crate::log::waiters::Waiters;
use crate::segment::appender::{Active, BeginError, begin, prepare};
use crate::segment::format::{FormatError, SegmentHeader, data_start};
use crate::segment::index::SparseIndex;
use crate::segment::recovery::Hole;

/// What is in a partition's directory.
#[derive(Default)]
struct Names {
    /// Base offsets, rising.
    segments: Vec<Offset>,
    /// Base offsets that index files are named by, rising.
    indexes: Vec<Offset>,
    /// Something that only a log with a segment leaves here.
    trace: Option<String>,
    /// Files without a place in the log.
    leftovers: Vec<String>,
}

/// A log as it was recovered.
pub(super) struct Recovered<F> {
    pub(super) segments: Segments<F>,
    pub(super) lineage: Lineage,
    pub(super) dedup: DedupTable,
    pub(super) next_offset: Offset,
    pub(super) stated: Offset,
    pub(super) flushed_commit_time: CommitTime,
    pub(super) last_commit_time: CommitTime,
    pub(super) eras: Eras,
}

/// What a segment begun by recovery says in its header, but for what every segment of the log says.
pub(super) struct NewSegment {
    pub(super) base: Offset,
    pub(super) previous_base: Option<Offset>,
    pub(super) proved_through: Offset,
    pub(super) lineage: Lineage,
    pub(super) commit_time_floor: CommitTime,
    pub(super) nonce: u64,
    pub(super) eras: Eras,
}

pub(super) struct Opener<'a, D: Disk> {
    pub(super) disk: &'a D,
    pub(super) dir: &'a Path,
    pub(super) identity: &'a LogIdentity,
    pub(super) options: &'a LogOptions,
    pub(super) now: CommitTime,
    pub(super) random: &'a dyn Fn() -> u64,
    pub(super) report: RecoveryReport,
}

impl<D: Disk> PartitionLog<D> {
    /// Opens the log in a directory. An absent or empty one is made, with its first segment and a fresh lineage; one
    /// that holds traces of a log and no segment is refused.
    ///
    /// `random` gives nonces, lineages and file numbers; `now` is the owner's clock.
    ///
    /// # Errors
    /// [`OpenError`]; the files are as they were, but for a new segment that may have been begun.
    pub async fn open(
        disk: D,
        dir: PathBuf,
        identity: LogIdentity,
        options: LogOptions,
        now: CommitTime,
        random: Rc<dyn Fn() -> u64>,
    ) -> Result<(Rc<Self>, RecoveryReport), OpenError> {
        let mut opener = Opener {
            disk: &disk,
            dir: &dir,
            identity: &identity,
            options: &options,
            now,
            random: &*random,
            report: RecoveryReport::default(),
        };
        let recovered = opener.run().await?;
        let mut report = opener.report;
        report.segments = recovered.segments.sealed.len() + 1;
        report.commit_time_floor = recovered.last_commit_time;
        let cache_slot = options.tail_cache.borrow_mut().join();
        let state = LogState {
            options,
            segments: recovered.segments,
            lineage: recovered.lineage,
            dedup: recovered.dedup,
            latch: Latch::new(),
            closed: false,
            next_offset: recovered.next_offset,
            written: recovered.next_offset,
            flushed: recovered.next_offset,
            last_commit_time: recovered.last_commit_time,
            flushed_commit_time: recovered.flushed_commit_time,
            eras: Rc::new(recovered.eras),
            ending_era: false,
            stated: recovered.stated,
            active_at: now,
            pending: VecDeque::new(),
            pending_bytes: 0,
            opens: Opens::default(),
            frontier_wanted: false,
            in_round: false,
            tail_is_open: false,
            prepared: None,
            preparing: false,
            hurry: Rc::default(),
            full: false,
            retaining: false,
        };
        let log = PartitionLog {
            disk,
            dir,
            identity,
            random,
            cache_slot,
            state: RefCell::new(state),
            committed: Waiters::default(),
            flushed: Waiters::default(),
            opened: Waiters::default(),
            round_ends: Waiters::default(),
        };
        Ok((Rc::new(log), report))
    }
}

impl<D: Disk> Opener<'_, D> {
    async fn run(&mut self) -> Result<Recovered<D::File>, OpenError> {
        self.disk.create_dir_all(self.dir).await?;
        let names = self.names().await?;
        let Some((&last, earlier)) = names.segments.split_last() else {
            // A crash while the first segment was made leaves prepared and temporary names alone.
            if let Some(trace) = names.trace {
                return Err(OpenError::NoSegments {
                    shown_by: self.dir.join(trace),
                });
            }
            self.remove_leftovers(&names.leftovers).await?;
            return self.create().await;
        };
        let mut earlier_files = Vec::with_capacity(earlier.len());
        let mut previous = None;
        for &base in earlier {
            earlier_files.push(self.sealed_file(base, previous).await?);
            previous = Some(base);
        }
        let (file, _) = self.file(last).await?;
        let last_header = self.header(last, &file, previous).await?;
        self.check_end(&last_header, &names.indexes).await?;
        let mut sealed = VecDeque::with_capacity(earlier.len() + 1);
        let mut end = (last, last_header.commit_time_floor);
        for (&base, (header, bytes)) in earlier.iter().zip(&earlier_files).rev() {
            // The newest header knows of all eras.
            let counted = last_header.eras.counted_below(end.0, end.1);
            sealed.push_front(self.sealed(base, (end.0, counted), header.as_ref(), *bytes));
            // Of a segment whose header is gone nothing is known; the next one's floor is no earlier.
            end = (base, header.as_ref().map_or(end.1, |h| h.commit_time_floor));
        }
        let lost = sealed.iter().flat_map(|s| s.holes.iter());
        self.report.quarantined = lost.map(|hole| hole.offsets.clone()).collect();
        self.recover(last, last_header, sealed, &names.leftovers).await
    }

    /// A sealed segment that ends where the next one begins, with the next one's commit time floor. One that was cut
    /// before the end of its header holds nothing that could be told from anything else: all of it is quarantined.
    fn sealed(
        &self,
        base: Offset,
        (end, last_commit_time): (Offset, CommitTime),
        header: Option<&SegmentHeader>,
        bytes: u64,
    ) -> Sealed<D::File> {
        let lost = Hole {
            offsets: base..end,
            resume: None,
        };
        Sealed {
            base,
            end,
            path: self.path(base),
            nonce: header.map_or(0, |h| h.nonce),
            data_start: header.map_or(BLOCK as u64, SegmentHeader::data_start),
            bytes,
            last_commit_time,
            loaded: None,
            holes: header.map_or_else(|| Rc::from([lost]), |_| Rc::from([])),
            index_unsaved: false,
        }
    }

    /// Refuses a log whose last segment was followed by another one: going on would hand out offsets a second time.
    ///
    /// A segment's index file is written only after the next segment is durable under its name, so an index of the last
    /// segment, or of a later one that is not there, shows that the log went on. Retention removes only the oldest.
    async fn check_end(&self, last: &SegmentHeader, indexes: &[Offset]) -> Result<(), OpenError> {
        let Some(&highest) = indexes.last().filter(|&&base| base >= last.base_offset) else {
            return Ok(());
        };
        let shown_by = self.dir.join(index_name(highest));
        let missing = if highest > last.base_offset {
            Some(highest)
        } else {
            // One that cannot be read shows nothing; one of another nonce is of an older file of this name.
            let bytes = self.disk.read_small(&shown_by).await?.unwrap_or_default();
            let read = SparseIndex::decode(&bytes).ok();
            read.filter(|(of, _)| of.nonce == last.nonce)
                .map(|(of, _)| of.end)
        };
        missing.map_or(Ok(()), |base| {
            Err(OpenError::MissingSegment {
                missing: self.path(base),
                shown_by,
            })
        })
    }

    pub(super) fn path(&self, base: Offset) -> PathBuf {
        self.dir.join(segment_name(base))
    }

    async fn names(&self) -> DiskResult<Names> {
        let mut names = Names::default();
        for entry in self.disk.list(self.dir).await? {
            match parse_partition_entry(&entry.name) {
                PartitionEntry::Segment(base) => names.segments.push(base),
                PartitionEntry::Index(base) => {
                    names.indexes.push(base);
                    names.trace = Some(entry.name);
                }
                PartitionEntry::Prepared(_) | PartitionEntry::Temporary => names.leftovers.push(entry.name),
                PartitionEntry::Cursor(_) | PartitionEntry::Gaps(_) => names.trace = Some(entry.name),
                PartitionEntry::Foreign => {}
            }
        }
        names.segments.sort_unstable();
        names.indexes.sort_unstable();
        let mut orphans = names.indexes.clone();
        orphans.retain(|base| names.segments.binary_search(base).is_err());
        names.leftovers.extend(orphans.into_iter().map(index_name));
        Ok(names)
    }

    pub(super) async fn remove_leftovers(&self, leftovers: &[String]) -> DiskResult<()> {
        for name in leftovers {
            self.disk.remove_file(&self.dir.join(name)).await?;
        }
        Ok(())
    }

    async fn file(&self, base: Offset) -> DiskResult<(D::File, u64)> {
        let file = self.disk.open(&self.path(base), OpenMode::Read).await?;
        let bytes = file.len().await?;
        Ok((file, bytes))
    }

    /// A sealed segment's header and length; no header when the file ends before it does.
    async fn sealed_file(
        &self,
        base: Offset,
        previous: Option<Offset>,
    ) -> Result<(Option<SegmentHeader>, u64), OpenError> {
        let (file, bytes) = self.file(base).await?;
        if bytes < BLOCK as u64 {
            return Ok((None, bytes));
        }
        let header = self.header(base, &file, previous).await?;
        Ok((Some(header), bytes))
    }

    /// A segment's header, checked against its name, this log, and the segment before it.
    async fn header(
        &self,
        base: Offset,
        file: &D::File,
        previous: Option<Offset>,
    ) -> Result<SegmentHeader, OpenError> {
        let path = self.path(base);
        let block = file.read_at(0, BLOCK).await?;
        let header = SegmentHeader::decode(&block).map_err(|error| self.bad_header(base, error))?;
        if header.incarnation != self.identity.incarnation {
            return Err(OpenError::ForeignIncarnation {
                path,
                found: header.incarnation,
                expected: self.identity.incarnation,
            });
        }
        if header.partition != self.identity.partition {
            return Err(OpenError::ForeignPartition {
                path,
                found: header.partition,
                expected: self.identity.partition,
            });
        }
        if header.base_offset != base {
            return Err(OpenError::SwappedFile {
                path,
                found: header.base_offset,
            });
        }
        if previous.is_some() && header.previous_base != previous {
            return Err(OpenError::MissingSegment {
                missing: self.path(header.previous_base.unwrap_or(Offset::ZERO)),
                shown_by: path,
            });
        }
        Ok(header)
    }

    pub(super) fn bad_header(&self, base: Offset, error: FormatError) -> OpenError {
        let path = self.path(base);
        match error {
            FormatError::Corrupt(what) => OpenError::CorruptHeader { path, what },
            FormatError::NewerVersion(version) => OpenError::NewerVersion {
                path,
                what: "the header",
                version,
            },
        }
    }

    async fn create(&mut self) -> Result<Recovered<D::File>, OpenError> {
        self.report.created = true;
        let dedup = DedupTable::new();
        let lineage = Lineage::from_u64((self.random)());
        let first = NewSegment {
            base: Offset::ZERO,
            previous_base: None,
            proved_through: Offset::ZERO,
            lineage,
            commit_time_floor: CommitTime(0),
            nonce: (self.random)(),
            eras: Eras::default(),
        };
        let active = self.begin(first, &dedup, &[]).await?;
        let index = index_of(&[], self.options.index_interval_bytes);
        Ok(Recovered {
            segments: Segments::new(VecDeque::new(), active, index, Vec::new()),
            lineage,
            dedup,
            next_offset: Offset::ZERO,
            stated: Offset::ZERO,
            flushed_commit_time: CommitTime(0),
            last_commit_time: CommitTime(0),
            eras: Eras::default(),
        })
    }

    pub(super) async fn begin(
        &self,
        new: NewSegment,
        dedup: &DedupTable,
        copied: &[<D::File as File>::Shared],
    ) -> Result<Active<D::File>, OpenError> {
        let checkpoint = dedup.checkpoint();
        let header = SegmentHeader {
            checkpoint_bytes: checkpoint.len() as u32,
            incarnation: self.identity.incarnation,
            partition: self.identity.partition,
            lineage: new.lineage,
            base_offset: new.base,
            nonce: new.nonce,
            proved_through: new.proved_through,
            created_at: self.now,
            commit_time_floor: new.commit_time_floor,
            previous_base: new.previous_base,
            owner_epoch: self.options.owner_epoch,
            eras: new.eras,
        };
        let copied_bytes: usize = copied.iter().map(|chunk| D::File::bytes(chunk).len()).sum();
        let needed = data_start(checkpoint.len()) + copied_bytes as u64;
        let mut capacity = self.options.next_segment_bytes(0);
        while capacity < needed + BLOCK as u64 {
            capacity *= 2;
        }
        let prepared = prepare(self.disk, self.dir, (self.random)(), capacity, None).await?;
        begin(self.disk, self.dir, prepared, header, &checkpoint, copied, 0)
            .await
            .map_err(|error| match error {
                BeginError::Full(error) | BeginError::Failed(error) => OpenError::Disk(error),
            })
    }
}
