//! `inspect segment`: the header of a segment, its batches, and what is damaged in it.
//!
//! Damage is told as recovery tells it: below the highest frontier that is proved durable it is rot, and what follows
//! stays readable; at or above it is torn, and recovery cuts the log there. Batches of another nonce are left from an
//! earlier use of the file, and are no damage.

use std::path::Path;

use serde::Serialize;
use tailwater_storage::segment::format::SegmentHeader;
use tailwater_storage::segment::scan::{Found, Scanner};
use tailwater_wire::batch::header::BatchHeader;
use tailwater_wire::limits::BATCH_ALIGN;

use crate::error::{Failure, exit};
use crate::inspect::batch::{self, BatchRow};
use crate::output::{self, Format, Out};

/// How the file is handed to the scanner.
const PIECE_BYTES: usize = 1 << 20;

/// The header as it is printed.
#[derive(Debug, Serialize)]
struct HeaderRow {
    incarnation: String,
    partition: u32,
    lineage: String,
    base_offset: u64,
    nonce: String,
    proved_through: u64,
    created_at: u64,
    commit_time_floor: u64,
    previous_base: Option<u64>,
    owner_epoch: u64,
    checkpoint_bytes: u32,
    checkpoint_ok: bool,
    data_start: u64,
}

/// A range of bytes that is neither zeros nor a sound batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Range {
    /// Where it begins in the file, in bytes.
    position: u64,
    /// Where it ends.
    end: u64,
    /// `rot`, `torn` or `stale`.
    verdict: &'static str,
    /// The offset that the log has reached before it.
    at_offset: u64,
}

/// The whole report.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    file_bytes: u64,
    header: HeaderRow,
    /// The offset after the last batch.
    end_offset: u64,
    /// Everything below was flushed, as far as this file proves.
    durable_through: u64,
    batches: Vec<BatchRow>,
    damage: Vec<Range>,
}

/// Prints the report on a file.
///
/// # Errors
/// When the file cannot be read; exit 5 when it is damaged or no segment.
pub fn run(out: &mut Out, format: Format, file: &Path) -> Result<(), Failure> {
    let bytes = batch::read(file)?;
    let header = SegmentHeader::decode(&bytes).map_err(|error| {
        Failure::local(file.display(), format!("no segment: {error}"), "CORRUPT_SEGMENT")
            .with_exit(exit::FOUND)
    })?;
    let report = report(file, &bytes, &header);
    match format {
        Format::Table => {
            out.line(&output::render(&facts(&report)))?;
            out.line("")?;
            out.line(&output::render(&batch::batch_table(&report.batches)))?;
            batch::dropped_lines(out, &report.batches)?;
            for range in &report.damage {
                out.line(&format!(
                    "{}: bytes {} to {}, at offset {}",
                    range.verdict, range.position, range.end, range.at_offset
                ))?;
            }
        }
        Format::Json => out.json(&report)?,
        Format::Ndjson => {
            out.json(&report.header)?;
            report.batches.iter().try_for_each(|row| out.json(row))?;
            report.damage.iter().try_for_each(|row| out.json(row))?;
        }
    }
    out.flush()?;
    let damaged = !report.header.checkpoint_ok || report.damage.iter().any(|range| range.verdict != "stale");
    if damaged { Err(Failure::found()) } else { Ok(()) }
}

fn report(file: &Path, bytes: &[u8], header: &SegmentHeader) -> Report {
    let start = (header.data_start() as usize).min(bytes.len());
    let chain = bytes
        .get(tailwater_storage::disk::device::BLOCK..start)
        .unwrap_or_default();
    let mut scanner = Scanner::new(header.nonce, start as u64);
    bytes[start..]
        .chunks(PIECE_BYTES)
        .for_each(|piece| scanner.push(piece));
    let found = scanner.finish().found;
    let durable_through = found
        .iter()
        .map(|one| one.header.durable_through.0)
        .fold(header.proved_through.0, u64::max);
    let end_offset = found
        .iter()
        .map(|one| one.header.end_offset().0)
        .fold(header.base_offset.0, u64::max);
    Report {
        file: file.display().to_string(),
        file_bytes: bytes.len() as u64,
        header: HeaderRow {
            incarnation: header.incarnation.to_string(),
            partition: header.partition.0,
            lineage: header.lineage.to_string(),
            base_offset: header.base_offset.0,
            nonce: format!("{:016x}", header.nonce),
            proved_through: header.proved_through.0,
            created_at: header.created_at.0,
            commit_time_floor: header.commit_time_floor.0,
            previous_base: header.previous_base.map(|base| base.0),
            owner_epoch: header.owner_epoch.0,
            checkpoint_bytes: header.checkpoint_bytes,
            checkpoint_ok: header.decode_checkpoint(chain).is_ok(),
            data_start: header.data_start(),
        },
        end_offset,
        durable_through,
        batches: found
            .iter()
            .map(|one| BatchRow::read(one.position, &one.header, &bytes[one.position as usize..]))
            .collect(),
        damage: damage(bytes, start, header, &found, durable_through),
    }
}

/// What lies between the batches and is not zero.
fn damage(
    bytes: &[u8],
    start: usize,
    header: &SegmentHeader,
    found: &[Found],
    durable_through: u64,
) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut at = start;
    let mut at_offset = header.base_offset.0;
    let ends = found.iter().map(|one| (one.position as usize, Some(one)));
    for (end, next) in ends.chain([(bytes.len(), None)]) {
        if let Some((from, to)) = non_zero(&bytes[at..end]) {
            let (position, end) = (at + from, at + to);
            ranges.push(Range {
                position: position as u64,
                end: end as u64,
                verdict: verdict(&bytes[position..], header.nonce, at_offset, durable_through),
                at_offset,
            });
        }
        if let Some(one) = next {
            at = one.end_position() as usize;
            at_offset = at_offset.max(one.header.end_offset().0);
        }
    }
    ranges
}

fn verdict(bytes: &[u8], nonce: u64, at_offset: u64, durable_through: u64) -> &'static str {
    match BatchHeader::decode(bytes) {
        Ok(header) if header.segment_nonce != nonce => "stale",
        _ if at_offset < durable_through => "rot",
        _ => "torn",
    }
}

/// The part between the first and the last unit that is not zero.
fn non_zero(bytes: &[u8]) -> Option<(usize, usize)> {
    let used = |unit: &[u8]| unit.iter().any(|&byte| byte != 0);
    let first = bytes.chunks(BATCH_ALIGN).position(used)?;
    let last = bytes.chunks(BATCH_ALIGN).rposition(used)?;
    Some((first * BATCH_ALIGN, ((last + 1) * BATCH_ALIGN).min(bytes.len())))
}

fn facts(report: &Report) -> comfy_table::Table {
    let header = &report.header;
    output::facts(vec![
        ("partition", header.partition.to_string()),
        (
            "offsets",
            format!("{} to {}", header.base_offset, report.end_offset),
        ),
        ("durable through", report.durable_through.to_string()),
        ("proved at start", header.proved_through.to_string()),
        (
            "previous segment",
            header
                .previous_base
                .map_or("none".to_owned(), |base| base.to_string()),
        ),
        ("created", output::time_text(header.created_at)),
        ("incarnation", header.incarnation.clone()),
        ("lineage", header.lineage.clone()),
        ("nonce", header.nonce.clone()),
        ("owner epoch", header.owner_epoch.to_string()),
        (
            "checkpoint",
            format!(
                "{} bytes{}",
                header.checkpoint_bytes,
                if header.checkpoint_ok { "" } else { ", DAMAGED" }
            ),
        ),
        (
            "data",
            format!("bytes {} to {}", header.data_start, report.file_bytes),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tailwater_wire::batch::builder::BatchBuilder;
    use tailwater_wire::ids::{CommitTime, Incarnation, Lineage, Offset, OwnerEpoch, PartitionId, Writer};
    use tailwater_wire::partitioner::Partitioner;
    use tailwater_wire::record::Record;

    use super::*;

    const BLOCK: usize = tailwater_storage::disk::device::BLOCK;

    fn header() -> SegmentHeader {
        SegmentHeader {
            checkpoint_bytes: 0,
            incarnation: Incarnation([1; 8]),
            partition: PartitionId(3),
            lineage: Lineage([2; 8]),
            base_offset: Offset(10),
            nonce: 77,
            proved_through: Offset(10),
            created_at: CommitTime(1),
            commit_time_floor: CommitTime(0),
            eras: Default::default(),
            previous_base: None,
            owner_epoch: OwnerEpoch(1),
        }
    }

    /// One record at `offset`, alone in a block.
    fn block(offset: u64, durable_through: u64, nonce: u64) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
        let record = Record {
            value: Bytes::from_static(b"value"),
            ..Record::default()
        };
        builder.push(&record).expect("fits");
        let mut bytes = builder.finish(Writer::Anonymous, 0).expect("not empty").to_vec();
        let mut header = BatchHeader::decode(&bytes).expect("sound");
        header.base_offset = Offset(offset);
        header.durable_through = Offset(durable_through);
        header.segment_nonce = nonce;
        header.encode(&mut bytes);
        bytes.resize(BLOCK, 0);
        bytes
    }

    fn segment(blocks: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        header().encode(&[], &mut bytes);
        bytes.extend(blocks.concat());
        bytes
    }

    fn verdicts(bytes: &[u8]) -> (Vec<u64>, Vec<&'static str>) {
        let report = report(
            Path::new("x"),
            bytes,
            &SegmentHeader::decode(bytes).expect("a segment"),
        );
        (
            report.batches.iter().map(|row| row.base_offset).collect(),
            report.damage.iter().map(|range| range.verdict).collect(),
        )
    }

    #[test]
    fn a_sound_segment_has_its_batches_and_no_damage() {
        let bytes = segment(&[block(10, 10, 77), block(11, 11, 77), vec![0; BLOCK]]);
        assert_eq!(verdicts(&bytes), (vec![10, 11], vec![]));
    }

    #[test]
    fn rot_torn_and_stale_are_told_apart() {
        let mut bytes = segment(&[block(10, 10, 77), block(11, 11, 77), block(12, 12, 77)]);
        bytes[2 * BLOCK + 140] ^= 1;
        assert_eq!(
            verdicts(&bytes),
            (vec![10, 12], vec!["rot"]),
            "below what a later batch proves"
        );
        let mut bytes = segment(&[block(10, 10, 77), block(11, 11, 77)]);
        bytes[2 * BLOCK + 140] ^= 1;
        assert_eq!(
            verdicts(&bytes),
            (vec![10], vec!["torn"]),
            "above everything that is proved"
        );
        let bytes = segment(&[block(10, 10, 77), block(500, 500, 78)]);
        assert_eq!(
            verdicts(&bytes),
            (vec![10], vec!["stale"]),
            "of an earlier use of the file"
        );
    }
}
