//! `inspect batch`: the batches that lie one after another in a file, header by header, with a verdict on each.

use std::path::Path;

use serde::Serialize;
use tailwater_wire::batch::control::Dropped;
use tailwater_wire::batch::header::{BatchHeader, BatchKind};
use tailwater_wire::batch::view::{BatchError, BatchView};
use tailwater_wire::ids::Writer;

use crate::error::Failure;
use crate::output::{self, Format, Out};

/// What is printed of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BatchRow {
    /// Where it begins in the file, in bytes.
    pub position: u64,
    /// `data`, `control` or `frontier`.
    pub kind: &'static str,
    /// The first record's offset.
    pub base_offset: u64,
    /// The offset after the last record.
    pub end_offset: u64,
    /// Records in it.
    pub records: u32,
    /// Bytes of header, body and padding.
    pub bytes: usize,
    /// When it was committed, nanoseconds since the epoch.
    pub commit_time: u64,
    /// Everything below was durable when it was written.
    pub durable_through: u64,
    /// Who wrote it.
    pub writer: String,
    /// The writer's watermark after it.
    pub sequence: u64,
    /// The writer's watermark before it.
    pub previous: u64,
    /// The history it belongs to.
    pub lineage: String,
    /// The ownership it was written under.
    pub owner_epoch: u64,
    /// The nonce of its segment, in hex.
    pub segment_nonce: String,
    /// Whether header, checksums and columns are sound.
    pub ok: bool,
    /// What a control batch says was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<DroppedRow>,
}

/// What is printed of a notice of dropped records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DroppedRow {
    /// The first parent offset.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
    /// Records that should have come here, and cannot any more.
    pub records: u64,
    /// Records of the range that the filter would have held back.
    pub filtered: u64,
}

impl BatchRow {
    /// Of a decoded header.
    #[must_use]
    pub fn new(position: u64, header: &BatchHeader, ok: bool) -> BatchRow {
        BatchRow {
            position,
            kind: match header.kind {
                BatchKind::Data => "data",
                BatchKind::Control => "control",
                BatchKind::Frontier => "frontier",
            },
            base_offset: header.base_offset.0,
            end_offset: header.end_offset().0,
            records: header.record_count,
            bytes: header.batch_len(),
            commit_time: header.commit_time.0,
            durable_through: header.durable_through.0,
            writer: writer(header.writer),
            sequence: header.sequence,
            previous: header.previous,
            lineage: header.lineage.to_string(),
            owner_epoch: header.owner_epoch.0,
            segment_nonce: format!("{:016x}", header.segment_nonce),
            ok,
            dropped: None,
        }
    }

    /// Of a sound batch at the start of `bytes`, with what it says if it is a control batch.
    #[must_use]
    pub fn read(position: u64, header: &BatchHeader, bytes: &[u8]) -> BatchRow {
        let mut row = BatchRow::new(position, header, true);
        if header.kind == BatchKind::Control {
            let told = BatchView::parse(bytes).ok().and_then(|view| Dropped::of(&view));
            row.dropped = told.map(|dropped| DroppedRow {
                from: dropped.from.0,
                to: dropped.to.0,
                records: dropped.records,
                filtered: dropped.filtered,
            });
        }
        row
    }
}

/// Bytes that are no sound batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Where it begins in the file, in bytes.
    pub position: u64,
    /// What is wrong there.
    pub why: String,
}

/// The report on a file of batches.
#[derive(Debug, Serialize)]
struct Report {
    file: String,
    batches: Vec<BatchRow>,
    damage: Vec<Damage>,
}

/// Prints the report on a file.
///
/// # Errors
/// When the file cannot be read; exit 5 when a batch is damaged.
pub fn run(out: &mut Out, format: Format, file: &Path) -> Result<(), Failure> {
    let bytes = read(file)?;
    let (batches, damage) = walk(&bytes);
    let sound = damage.is_empty();
    let report = Report {
        file: file.display().to_string(),
        batches,
        damage,
    };
    match format {
        Format::Table => {
            out.line(&output::render(&batch_table(&report.batches)))?;
            dropped_lines(out, &report.batches)?;
            damage_lines(out, &report.damage)?;
        }
        Format::Json => out.json(&report)?,
        Format::Ndjson => {
            report.batches.iter().try_for_each(|row| out.json(row))?;
            report.damage.iter().try_for_each(|row| out.json(row))?;
        }
    }
    out.flush()?;
    if sound { Ok(()) } else { Err(Failure::found()) }
}

/// A whole file.
///
/// # Errors
/// When it cannot be read.
pub fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| file_failure(file, &error))
}

/// Why a file cannot be read.
#[must_use]
pub fn file_failure(file: &Path, error: &std::io::Error) -> Failure {
    Failure::file(file.display(), error)
}

/// All batches from the start on. After a damaged one with a sound header the walk goes on behind it.
fn walk(bytes: &[u8]) -> (Vec<BatchRow>, Vec<Damage>) {
    let (mut rows, mut damage) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let position = at as u64;
        match BatchView::parse(rest) {
            Ok(view) => {
                rows.push(BatchRow::read(position, view.header(), rest));
                at += view.bytes().len();
            }
            Err(error) => {
                damage.push(Damage {
                    position,
                    why: error.to_string(),
                });
                match (BatchHeader::decode(rest), error) {
                    (Ok(header), BatchError::Body(_) | BatchError::Padding) => {
                        rows.push(BatchRow::new(position, &header, false));
                        at += header.batch_len();
                    }
                    _ => break,
                }
            }
        }
    }
    (rows, damage)
}

/// The table of batches, for people.
#[must_use]
pub fn batch_table(rows: &[BatchRow]) -> comfy_table::Table {
    let columns = [
        "position",
        "kind",
        "from",
        "to",
        "records",
        "bytes",
        "committed",
        "durable",
        "writer",
        "sequence",
        "ok",
    ];
    let numbers = [
        "position", "from", "to", "records", "bytes", "durable", "sequence",
    ];
    let mut table = output::table(&columns, &numbers);
    for row in rows {
        table.add_row([
            row.position.to_string(),
            row.kind.to_owned(),
            row.base_offset.to_string(),
            row.end_offset.to_string(),
            row.records.to_string(),
            row.bytes.to_string(),
            output::time_text(row.commit_time),
            row.durable_through.to_string(),
            row.writer.clone(),
            format!("{}>{}", row.previous, row.sequence),
            if row.ok { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    table
}

/// What control batches say, a line each.
///
/// # Errors
/// When standard output cannot be written.
pub fn dropped_lines(out: &mut Out, rows: &[BatchRow]) -> Result<(), Failure> {
    let told = rows.iter().filter_map(|row| Some((row, row.dropped?)));
    for (row, dropped) in told {
        out.line(&format!(
            "dropped, at offset {}: {} of the parent's offsets {} to {}, and {} that the filter holds back",
            row.base_offset,
            output::counted(dropped.records, "record"),
            dropped.from,
            dropped.to,
            dropped.filtered
        ))?;
    }
    Ok(())
}

/// Damage, a line each.
///
/// # Errors
/// When standard output cannot be written.
pub fn damage_lines(out: &mut Out, damage: &[Damage]) -> Result<(), Failure> {
    damage
        .iter()
        .try_for_each(|one| out.line(&format!("damage at byte {}: {}", one.position, one.why)))
}

fn writer(writer: Writer) -> String {
    let hex = |id: [u8; 16]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match writer {
        Writer::Anonymous => "anonymous".to_owned(),
        Writer::Random(id) => format!("random:{}", hex(id)),
        Writer::Named(id) => format!("named:{}", hex(id)),
        Writer::Origin(origin) => format!("origin:{}/{}", origin.epoch, origin.partition),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tailwater_wire::batch::builder::{BatchBuilder, OriginStamp};
    use tailwater_wire::ids::{Epoch, Offset, OriginId, PartitionId};
    use tailwater_wire::partitioner::Partitioner;
    use tailwater_wire::record::Record;

    use super::*;

    fn batch(value: &'static [u8]) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Partitioner::Murmur2, 1 << 20);
        let record = Record {
            value: Bytes::from_static(value),
            ..Record::default()
        };
        builder.push(&record).expect("fits");
        builder
            .finish(Writer::Random([7; 16]), 4)
            .expect("not empty")
            .to_vec()
    }

    #[test]
    fn sound_batches_are_listed() {
        let bytes = [batch(b"one"), batch(b"two")].concat();
        let (rows, damage) = walk(&bytes);
        assert_eq!((rows.len(), damage.len()), (2, 0));
        assert_eq!(rows[1].position as usize, bytes.len() / 2);
        assert_eq!((rows[0].previous, rows[0].sequence, rows[0].ok), (4, 5, true));
        assert_eq!(rows[0].writer, format!("random:{}", "07".repeat(16)));
    }

    #[test]
    fn a_control_batch_says_what_was_dropped() {
        let dropped = Dropped {
            from: Offset(100),
            to: Offset(250),
            records: 37,
            filtered: 12,
        };
        let origin = OriginId {
            epoch: Epoch([1; 8]),
            partition: PartitionId(0),
        };
        let stamp = OriginStamp::default();
        let bytes = dropped.batch(Partitioner::Murmur2, origin, Offset(90), stamp);
        let (rows, damage) = walk(&bytes);
        assert_eq!((rows.len(), damage.len(), rows[0].kind), (1, 0, "control"));
        let said = rows[0].dropped.expect("a notice");
        assert_eq!(
            (said.from, said.to, said.records, said.filtered),
            (100, 250, 37, 12)
        );
    }

    #[test]
    fn damage_is_named_and_what_follows_is_still_read() {
        let mut bytes = [batch(b"one"), batch(b"two")].concat();
        bytes[130] ^= 1;
        let (rows, damage) = walk(&bytes);
        assert_eq!(rows.iter().map(|row| row.ok).collect::<Vec<_>>(), [false, true]);
        assert_eq!(damage.len(), 1);
        assert!(damage[0].why.contains("checksum"), "{}", damage[0].why);
        let (rows, damage) = walk(b"no batch at all");
        assert_eq!((rows.len(), damage.len()), (0, 1));
    }
}
