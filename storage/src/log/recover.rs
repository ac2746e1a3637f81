//! Recovering the last segment of a log: the driver of `segment::recovery`'s plan.
//!
//! A plan says either to go on in the segment, or to begin a new one at D with the unproved batches copied into it.
//! What is copied is flushed, with the header that then proves it, before the new segment has its name.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use tailwater_wire::batch::header::BatchKind;
use tailwater_wire::batch::view::BatchView;
use tailwater_wire::ids::{CommitTime, Lineage, Offset};
use tailwater_wire::meta::Durability;
use tailwater_wire::mutant::{Mutant, planted};

use crate::dedup::table::DedupTable;
use crate::disk::device::{BLOCK, Disk, File, OpenMode};
use crate::error::OpenError;
use crate::group_commit::ROUND_BYTES_MAX;
use crate::log::open::{NewSegment, Opener, Recovered};
use crate::log::segments::{Loaded, Sealed, Segments, index_of, last_proved_commit_time};
use crate::log::state::appended_batch;
use crate::segment::appender::{Active, ChunkStamp, Stamped, pack};
use crate::segment::format::SegmentHeader;
use crate::segment::index::SparseIndex;
use crate::segment::reader::scan;
use crate::segment::recovery::{Plan, Verdict, plan};
use crate::segment::scan::Found;

impl<D: Disk> Opener<'_, D> {
    /// Judges the last segment and makes the log whole. Writes nothing before everything is judged.
    pub(super) async fn recover(
        &mut self,
        base: Offset,
        header: SegmentHeader,
        mut sealed: VecDeque<Sealed<D::File>>,
        leftovers: &[String],
    ) -> Result<Recovered<D::File>, OpenError> {
        let path = self.path(base);
        let file = self.disk.open(&path, OpenMode::ReadWrite).await?;
        let capacity = file.len().await?;
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
        let eras = header.eras.clone();
        let plan = plan(base, header.proved_through, header.data_start(), &found).map_err(|_| {
            OpenError::Inconsistent {
                path: path.clone(),
                what: "a frontier lies inside a batch",
            }
        })?;
        let all_times = found.found.iter().map(|f| f.header.commit_time);
        let last_commit_time = all_times.max().unwrap_or_default().max(header.commit_time_floor);
        let proved_commit_time = last_proved_commit_time(&plan, header.commit_time_floor);
        let holes = plan.holes.iter().map(|hole| hole.offsets.clone());
        self.report.quarantined.extend(holes);
        self.report.dropped_batches = plan.dropped;
        let (proved, unproved) = plan.kept.split_at(plan.kept_proved);
        let opens = found
            .found
            .iter()
            .filter(|f| f.header.kind == BatchKind::Frontier);
        replay(&mut dedup, proved, opens, plan.proved_through);
        let index = index_of(proved, self.options.index_interval_bytes);
        // A segment is prepared in whole blocks before it has its name: one of another length was cut since, and how much
        // was in it nobody knows. Offsets that were handed out may be used again (SPEC.md D12).
        let was_cut = !capacity.is_multiple_of(BLOCK as u64);
        if was_cut {
            tracing::error!(
                topic = %self.identity.topic, partition = %self.identity.partition, path = %path.display(),
                "the file was cut to {capacity} bytes: the log goes on at {} with a new lineage", plan.next_offset,
            );
        }
        let verdict = match plan.kept.last() {
            _ if was_cut => Verdict::Rewrite,
            Some(last) if planted(Mutant::StaleAfterCut) => Verdict::Continue {
                position: last.end_position().next_multiple_of(BLOCK as u64),
            },
            _ => plan.verdict,
        };
        let old = Active {
            file,
            path,
            position: capacity,
            capacity,
            header,
        };
        let recovered = match verdict {
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
                eras,
            },
            Verdict::Rewrite => {
                self.report.cut_at = Some(plan.next_offset);
                self.report.copied_batches = unproved.len() as u64;
                let nonce = (self.random)();
                let copied = self.copy(&old, unproved, plan.proved_through, nonce).await?;
                // A `written` topic may have released what is lost now, and gives those offsets out again.
                let lineage = match self.options.durability {
                    Durability::Fsync if !was_cut => old.header.lineage,
                    Durability::Fsync | Durability::Written => Lineage::from_u64((self.random)()),
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
                    eras: eras.clone(),
                };
                let active = self.begin(new, &dedup, &copied).await?;
                replay(&mut dedup, unproved, std::iter::empty(), plan.next_offset);
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
                    eras,
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

/// Tells the dedup table of batches and of opened producers that were read back, in the order in which they lie in the
/// file: it lets go of the least recently used, as it did when they were written.
fn replay<'a>(
    dedup: &mut DedupTable,
    batches: &[Found],
    opens: impl Iterator<Item = &'a Found>,
    flushed: Offset,
) {
    let mut opens = opens.peekable();
    for found in batches {
        while let Some(open) = opens.next_if(|open| open.position < found.position) {
            dedup.reopened(open.header.writer, open.header.commit_time);
        }
        dedup.appended(&appended_batch(&found.header, found.origin));
    }
    for open in opens {
        dedup.reopened(open.header.writer, open.header.commit_time);
    }
    dedup.flushed(flushed);
}
