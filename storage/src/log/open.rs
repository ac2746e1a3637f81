//! Opening a partition's directory: making the first segment, or recovering the last one.
//!
//! Order: read and judge everything; only then write. Whatever cannot be trusted is a named error that has changed
//! nothing. A new segment is flushed and has its name before the log is handed out, so what is published is flushed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::{CommitTime, Lineage, Offset};
use tailwater_wire::meta::Durability;

use crate::dedup::table::DedupTable;
use crate::disk::device::{BLOCK, Disk, DiskResult, File, OpenMode};
use crate::disk::latch::Latch;
use crate::error::{OpenError, RecoveryReport};
use crate::group_commit::ROUND_BYTES_MAX;
use crate::layout::{PartitionEntry, parse_partition_entry, segment_name};
use crate::log::PartitionLog;
use crate::log::options::{LogIdentity, LogOptions};
use crate::log::segments::{Loaded, Sealed, Segments, index_of, last_proved_commit_time};
use crate::log::state::{LogState, appended_batch};
use crate::log::waiters::Waiters;
use crate::segment::appender::{Active, BeginError, ChunkStamp, Stamped, begin, pack, prepare};
use crate::segment::format::{FormatError, SegmentHeader, data_start};
use crate::segment::index::SparseIndex;
use crate::segment::reader::scan;
use crate::segment::recovery::{Plan, Verdict, plan};
use crate::segment::scan::Found;

/// What is in a partition's directory.
#[derive(Default)]
struct Names {
    /// Base offsets, rising.
    segments: Vec<Offset>,
    /// Files without a place in the log.
    leftovers: Vec<String>,
}

/// A log as it was recovered.
struct Recovered<F> {
    segments: Segments<F>,
    lineage: Lineage,
    dedup: DedupTable,
    next_offset: Offset,
    stated: Offset,
    flushed_commit_time: CommitTime,
    last_commit_time: CommitTime,
}

/// What a segment begun by recovery says in its header, but for what every segment of the log says.
struct NewSegment {
    base: Offset,
    previous_base: Option<Offset>,
    proved_through: Offset,
    lineage: Lineage,
    commit_time_floor: CommitTime,
    nonce: u64,
}

struct Opener<'a, D: Disk> {
    disk: &'a D,
    dir: &'a Path,
    identity: &'a LogIdentity,
    options: &'a LogOptions,
    now: CommitTime,
    random: &'a dyn Fn() -> u64,
    report: RecoveryReport,
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

    fn path(&self, base: Offset) -> PathBuf {
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

    async fn remove_leftovers(&self, leftovers: &[String]) -> DiskResult<()> {
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

    fn bad_header(&self, base: Offset, error: FormatError) -> OpenError {
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

    async fn begin(
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
        let prepared = prepare(self.disk, self.dir, (self.random)(), capacity).await?;
        begin(self.disk, self.dir, prepared, header, &checkpoint, copied, 0)
            .await
            .map_err(|error| match error {
                BeginError::Full(error) | BeginError::Failed(error) => OpenError::Disk(error),
            })
    }

    async fn recover(
        &mut self,
        base: Offset,
        header: SegmentHeader,
        mut sealed: VecDeque<Sealed<D::File>>,
        leftovers: &[String],
    ) -> Result<Recovered<D::File>, OpenError> {
        let path = self.path(base);
        let file = self.disk.open(&path, OpenMode::ReadWrite).await?;
        let capacity = file.len().await? / BLOCK as u64 * BLOCK as u64;
        let mut dedup = self.checkpoint(&file, &header).await?;
        let found = scan(&file, header.nonce, header.data_start(), capacity).await?;
        self.report.bytes_scanned = found.bytes;
        if let Some(version) = found.newer_version {
            return Err(OpenError::NewerVersion {
                path,
                what: "a batch",
                version: u16::from(version),
            });
        }
        let plan = plan(base, header.proved_through, header.data_start(), &found).map_err(|_| {
            OpenError::Inconsistent {
                path: path.clone(),
                what: "a frontier lies inside a batch",
            }
        })?;
        let all_times = found.found.iter().map(|f| f.header.commit_time);
        let last_commit_time = all_times.max().unwrap_or_default().max(header.commit_time_floor);
        let proved_commit_time = last_proved_commit_time(&plan, header.commit_time_floor);
        self.report.quarantined = plan.holes.iter().map(|hole| hole.offsets.clone()).collect();
        self.report.dropped_batches = plan.dropped;
        let (proved, unproved) = plan.kept.split_at(plan.kept_proved);
        replay(&mut dedup, proved, plan.proved_through);
        let index = index_of(proved, self.options.index_interval_bytes);
        let old = Active {
            file,
            path,
            position: capacity,
            capacity,
            header,
        };
        let recovered = match plan.verdict {
            Verdict::Continue { position } => Recovered {
                lineage: old.header.lineage,
                segments: Segments::new(
                    sealed,
                    Active {
                        position: position.min(capacity),
                        ..old
                    },
                    index,
                    plan.holes,
                ),
                dedup,
                next_offset: plan.next_offset,
                stated: plan.proved_through,
                flushed_commit_time: proved_commit_time,
                last_commit_time,
            },
            Verdict::Rewrite => {
                self.report.cut_at = Some(plan.next_offset);
                self.report.copied_batches = unproved.len() as u64;
                let nonce = (self.random)();
                let copied = self.copy(&old, unproved, plan.proved_through, nonce).await?;
                // A `written` topic may have released what is lost now, and gives those offsets out again.
                let lineage = match self.options.durability {
                    Durability::Fsync => old.header.lineage,
                    Durability::Written => Lineage::from_u64((self.random)()),
                };
                let d = plan.proved_through;
                let (previous, old) = self.seal(old, d, proved_commit_time, index, &plan);
                sealed.extend(old);
                let new = NewSegment {
                    base: d,
                    previous_base: previous,
                    proved_through: plan.next_offset,
                    lineage,
                    commit_time_floor: proved_commit_time,
                    nonce,
                };
                let active = self.begin(new, &dedup, &copied).await?;
                replay(&mut dedup, unproved, plan.next_offset);
                let moved = moved(unproved, active.header.data_start());
                let index = index_of(&moved, self.options.index_interval_bytes);
                let flushed_times = unproved.iter().map(|f| f.header.commit_time);
                Recovered {
                    lineage,
                    segments: Segments::new(sealed, active, index, Vec::new()),
                    dedup,
                    next_offset: plan.next_offset,
                    stated: plan.next_offset,
                    flushed_commit_time: flushed_times
                        .max()
                        .unwrap_or(proved_commit_time)
                        .max(proved_commit_time),
                    last_commit_time,
                }
            }
        };
        self.remove_leftovers(leftovers).await?;
        Ok(recovered)
    }

    /// The old active segment as a sealed one that ends at D, and the base that the new one follows. One that holds
    /// nothing below D is replaced by the new one, which has its name.
    fn seal(
        &self,
        old: Active<D::File>,
        d: Offset,
        last_commit_time: CommitTime,
        index: SparseIndex,
        plan: &Plan,
    ) -> (Option<Offset>, Option<Sealed<D::File>>) {
        if old.header.base_offset == d {
            return (old.header.previous_base, None);
        }
        let base = old.header.base_offset;
        let sealed = Sealed {
            base,
            end: d,
            path: old.path,
            nonce: old.header.nonce,
            data_start: old.header.data_start(),
            bytes: old.capacity,
            last_commit_time,
            loaded: Some(Loaded {
                file: old.file,
                index: Rc::new(index),
            }),
            holes: plan.holes.clone().into(),
            index_unsaved: true,
        };
        (Some(base), Some(sealed))
    }

    async fn checkpoint(&self, file: &D::File, header: &SegmentHeader) -> Result<DedupTable, OpenError> {
        let base = header.base_offset;
        let len = header.data_start() as usize - BLOCK;
        if len == 0 {
            return Ok(DedupTable::new());
        }
        let chain = file.read_at(BLOCK as u64, len).await?;
        let checkpoint = header
            .decode_checkpoint(&chain)
            .map_err(|error| self.bad_header(base, error))?;
        DedupTable::restore(&checkpoint).map_err(|_| OpenError::CorruptHeader {
            path: self.path(base),
            what: "the dedup checkpoint cannot be read",
        })
    }

    /// The unproved batches as chunks for a new segment: their bodies as they are, their headers stamped anew.
    async fn copy(
        &self,
        old: &Active<D::File>,
        unproved: &[Found],
        durable_through: Offset,
        nonce: u64,
    ) -> Result<Vec<<D::File as File>::Shared>, OpenError> {
        let stamp = ChunkStamp {
            durable_through,
            nonce,
        };
        let mut chunks = Vec::new();
        for group in chunked(unproved) {
            let mut batches = Vec::with_capacity(group.len());
            for run in group.chunk_by(|a, b| a.end_position() == b.position) {
                let start = run[0].position / BLOCK as u64 * BLOCK as u64;
                let end = run[run.len() - 1].end_position();
                let len = (end - start).next_multiple_of(BLOCK as u64) as usize;
                let bytes: Bytes = old.file.read_at(start, len).await?;
                for found in run {
                    let from = (found.position - start) as usize;
                    let to = from + found.header.batch_len();
                    let same = to <= bytes.len()
                        && BatchView::parse(&bytes[from..to])
                            .is_ok_and(|view| *view.header() == found.header);
                    if !same {
                        return Err(OpenError::Inconsistent {
                            path: old.path.clone(),
                            what: "it reads differently each time",
                        });
                    }
                    batches.push(Stamped {
                        bytes: bytes.slice(from..to),
                        header: found.header.clone(),
                    });
                }
            }
            chunks.push(pack(&old.file, &mut batches, stamp));
        }
        Ok(chunks)
    }
}

/// Splits batches into what goes into one chunk each.
fn chunked(batches: &[Found]) -> Vec<&[Found]> {
    let mut groups = Vec::new();
    let mut rest = batches;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|found| {
            bytes += found.header.batch_len() as u64;
            bytes <= ROUND_BYTES_MAX
        });
        let (group, others) = rest.split_at(fits.count().max(1));
        groups.push(group);
        rest = others;
    }
    groups
}

/// Where copied batches lie in their new segment.
fn moved(batches: &[Found], data_start: u64) -> Vec<Found> {
    let mut moved = Vec::with_capacity(batches.len());
    let mut position = data_start;
    for group in chunked(batches) {
        position = position.next_multiple_of(BLOCK as u64);
        for found in group {
            let found = Found {
                position,
                ..found.clone()
            };
            position = found.end_position();
            moved.push(found);
        }
    }
    moved
}

/// Tells the dedup table of batches that were read back.
fn replay(dedup: &mut DedupTable, batches: &[Found], flushed: Offset) {
    for found in batches {
        dedup.appended(&appended_batch(&found.header, found.origin));
    }
    dedup.flushed(flushed);
}
