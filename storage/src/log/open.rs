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
use crate::error::{OpenError, RecoveryReport};
use crate::layout::{PartitionEntry, parse_partition_entry, segment_name};
use crate::log::PartitionLog;
use crate::log::options::{LogIdentity, LogOptions};
use crate::log::segments::{Sealed, Segments, index_of};
use crate::log::state::LogState;
use crate::log::waiters::Waiters;
use crate::segment::appender::{Active, BeginError, begin, prepare};
use crate::segment::format::{FormatError, SegmentHeader, data_start};

/// What is in a partition's directory.
#[derive(Default)]
struct Names {
    /// Base offsets, rising.
    segments: Vec<Offset>,
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
}

/// What a segment begun by recovery says in its header, but for what every segment of the log says.
pub(super) struct NewSegment {
    pub(super) base: Offset,
    pub(super) previous_base: Option<Offset>,
    pub(super) proved_through: Offset,
    pub(super) lineage: Lineage,
    pub(super) commit_time_floor: CommitTime,
    pub(super) nonce: u64,
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
    /// Opens the log in a directory. An absent or empty one is made, with its first segment and a fresh lineage.
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
            stated: recovered.stated,
            active_at: now,
            pending: VecDeque::new(),
            pending_bytes: 0,
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
            self.remove_leftovers(&names.leftovers).await?;
            return self.create().await;
        };
        let mut headers = Vec::with_capacity(names.segments.len());
        for &base in &names.segments {
            headers.push(self.header(base, headers.last()).await?);
        }
        let last_header = headers[earlier.len()].0.clone();
        let mut sealed = VecDeque::with_capacity(earlier.len() + 1);
        for (at, (header, bytes)) in headers[..earlier.len()].iter().enumerate() {
            let next = &headers[at + 1].0;
            sealed.push_back(Sealed {
                base: header.base_offset,
                end: next.base_offset,
                path: self.path(header.base_offset),
                nonce: header.nonce,
                data_start: header.data_start(),
                bytes: *bytes,
                last_commit_time: next.commit_time_floor,
                loaded: None,
                holes: Rc::from([]),
                index_unsaved: false,
            });
        }
        self.recover(last, last_header, sealed, &names.leftovers).await
    }

    pub(super) fn path(&self, base: Offset) -> PathBuf {
        self.dir.join(segment_name(base))
    }

    async fn names(&self) -> DiskResult<Names> {
        let mut names = Names::default();
        let mut indexes = Vec::new();
        for entry in self.disk.list(self.dir).await? {
            match parse_partition_entry(&entry.name) {
                PartitionEntry::Segment(base) => names.segments.push(base),
                PartitionEntry::Index(base) => indexes.push((base, entry.name)),
                PartitionEntry::Prepared(_) | PartitionEntry::Temporary => names.leftovers.push(entry.name),
                PartitionEntry::Cursor(_) | PartitionEntry::Foreign => {}
            }
        }
        names.segments.sort_unstable();
        let orphans = indexes
            .into_iter()
            .filter(|(base, _)| names.segments.binary_search(base).is_err());
        names.leftovers.extend(orphans.map(|(_, name)| name));
        Ok(names)
    }

    pub(super) async fn remove_leftovers(&self, leftovers: &[String]) -> DiskResult<()> {
        for name in leftovers {
            self.disk.remove_file(&self.dir.join(name)).await?;
        }
        Ok(())
    }

    /// A segment's header and length, checked against its name, this log, and the segment before it.
    async fn header(
        &self,
        base: Offset,
        previous: Option<&(SegmentHeader, u64)>,
    ) -> Result<(SegmentHeader, u64), OpenError> {
        let path = self.path(base);
        let file = self.disk.open(&path, OpenMode::Read).await?;
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
        if let Some((previous, _)) = previous
            && header.previous_base != Some(previous.base_offset)
        {
            return Err(OpenError::MissingSegment {
                path,
                expected: header.previous_base.unwrap_or(Offset::ZERO),
            });
        }
        let bytes = file.len().await?;
        Ok((header, bytes))
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
