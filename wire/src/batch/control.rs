//! Control batches: what fan-out writes into a child for its own, which consumers pass over. So far one kind: the notice
//! of parent records that were gone before they could be copied (SPEC.md F9).
//!
//! A notice is a batch of one record, with the writer and the watermarks of the origin's other batches, so that it
//! has its place in their chain and is committed once like them. The record's key is `dropped`, its value is exactly
//! `{"from":100,"to":250,"records":37,"filtered":12}`, in this spelling.

use bytes::Bytes;

use crate::batch::builder::{BatchBuilder, OriginStamp};
use crate::batch::header::BatchKind;
use crate::batch::view::BatchView;
use crate::ids::{Offset, OriginId, Writer};
use crate::partitioner::Partitioner;
use crate::record::Record;

const DROPPED_KEY: &[u8] = b"dropped";

/// Parent records that one child partition should have received, and that nobody can read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// The first parent offset of the range.
    pub from: Offset,
    /// Behind the last one: the watermark that the notice leaves.
    pub to: Offset,
    /// Records of the range that would have gone to this child partition.
    pub records: u64,
    /// Records of the range that would have gone there if the link's filter had not held them back.
    pub filtered: u64,
}

impl Dropped {
    /// The whole batch, padded; the owner's fields are empty. It follows the child's watermark `previous`. Of the
    /// stamp, `end` and the parent's batch are replaced: there is no batch left that could be compared.
    ///
    /// # Panics
    /// With an empty range, or a watermark inside it.
    #[must_use]
    pub fn batch(
        &self,
        partitioner: Partitioner,
        origin: OriginId,
        previous: Offset,
        stamp: OriginStamp,
    ) -> Bytes {
        assert!(
            self.from < self.to && previous <= self.from,
            "a range above the watermark"
        );
        let mut builder = BatchBuilder::new(partitioner, usize::MAX);
        let record = Record {
            key: Some(Bytes::from_static(DROPPED_KEY)),
            value: self.encode().into(),
            headers: Vec::new(),
            timestamp: i64::try_from(stamp.released_at).unwrap_or(i64::MAX),
        };
        let pushed = builder.push(&record);
        assert!(pushed.is_ok(), "a small record");
        let stamp = OriginStamp {
            end: self.to,
            parent_crc: 0,
            parent_commit_time: 0,
            ..stamp
        };
        let built = builder.finish_notice(Writer::Origin(origin), previous, self.from, stamp);
        built.expect("one record was pushed")
    }

    /// What a control batch states; `None` for any other batch.
    #[must_use]
    pub fn of(view: &BatchView<'_>) -> Option<Dropped> {
        if view.header().kind != BatchKind::Control {
            return None;
        }
        let record = view.record(0)?;
        if record.key != Some(DROPPED_KEY) {
            return None;
        }
        Dropped::decode(record.value)
    }

    fn encode(&self) -> String {
        let Dropped {
            from,
            to,
            records,
            filtered,
        } = self;
        format!(r#"{{"from":{from},"to":{to},"records":{records},"filtered":{filtered}}}"#)
    }

    /// Only the spelling that `encode` writes is accepted, which is checked by writing it again.
    fn decode(value: &[u8]) -> Option<Dropped> {
        let text = std::str::from_utf8(value).ok()?;
        let mut numbers = text
            .split(|c: char| !c.is_ascii_digit())
            .filter(|digits| !digits.is_empty())
            .map(|digits| digits.parse::<u64>().ok());
        let mut number = || numbers.next().flatten();
        let dropped = Dropped {
            from: Offset(number()?),
            to: Offset(number()?),
            records: number()?,
            filtered: number()?,
        };
        (dropped.encode() == text).then_some(dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, PartitionId};

    #[test]
    fn a_notice_reads_back_and_takes_its_place_in_the_chain() {
        let dropped = Dropped {
            from: Offset(100),
            to: Offset(u64::MAX),
            records: 37,
            filtered: 12,
        };
        let origin = OriginId {
            epoch: Epoch([3; 8]),
            partition: PartitionId(1),
        };
        let stamp = OriginStamp {
            released_at: 9,
            lineage: 5,
            parent_crc: 1,
            parent_commit_time: 2,
            ..OriginStamp::default()
        };
        let bytes = dropped.batch(Partitioner::Crc32c, origin, Offset(40), stamp);
        let view = BatchView::parse(&bytes).expect("sound");
        assert_eq!(Dropped::of(&view), Some(dropped));
        let header = view.header();
        assert_eq!((header.previous, header.sequence), (40, u64::MAX));
        assert_eq!((header.kind, view.len()), (BatchKind::Control, 1));
        let stamped = view
            .body()
            .and_then(|body| body.origin.as_ref())
            .expect("an origin");
        assert_eq!(
            (stamped.parent_crc.to_native(), stamped.lineage.to_native()),
            (0, 5)
        );
    }

    #[test]
    fn other_spellings_are_no_notice() {
        for text in [
            "{}",
            "",
            r#"{"from":1,"to":2,"records":3}"#,
            r#"{"from":1,"to":2,"records":3,"filtered":4} "#,
            r#"{"from":01,"to":2,"records":3,"filtered":4}"#,
            r#"{"from":1,"to":2,"records":3,"filtered":99999999999999999999}"#,
        ] {
            assert_eq!(Dropped::decode(text.as_bytes()), None, "{text}");
        }
    }
}
