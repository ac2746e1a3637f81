//! The dedup table as bytes, for the head of each segment: what was flushed when it was made.
//!
//! The segment's format splits these bytes into blocks with checksums; here they are taken to be whole, and
//! still nothing in them can make this panic. Little-endian:
//!
//! ```text
//!   0  magic "TWDT"         u32 |   8  producers          u32
//!   4  format version        u8 |  12  origins            u32
//!   5  zero              3 bytes |  16  producers, then origins
//!
//! producer, least recently used first          origin, by epoch and parent partition
//!   0  kind (1 random, 2 named)   u8             0  epoch                 8 bytes
//!   1  length of the name         u8             8  parent partition         u32
//!   2  zero                      u16             12 records of the batch     u32
//!   4  records of the batch      u32             16 watermark before it      u64
//!   8  id                   16 bytes             24 watermark after it       u64
//!  24  last sequence             u64             32 its end offset           u64
//!  32  end offset of the batch   u64             40 its commit time          u64
//!  40  commit time of the batch  u64             48 lineage of the parent  8 bytes
//!  48  last used, commit time    u64             56 parent's commit time     u64
//!  56  the name, if it is known                  64 parent batch's crc       u32
//!                                                68 1 if the last three are known, u32
//! ```
//!
//! "The batch" is the writer's last flushed one; a producer that was opened and has written nothing has zeros
//! there.

use std::collections::HashSet;

use tailwater_wire::ids::{CommitTime, Epoch, Lineage, Offset, OriginId, PartitionId, Writer};
use tailwater_wire::limits::{PARTITIONS_MAX, PRODUCER_NAME_BYTES_MAX, PRODUCERS_PER_PARTITION};

use crate::dedup::name::name_hash;
use crate::dedup::table::{Batch, DedupTable, NAMES_BYTES_MAX, Origin, Producer};
use crate::dedup::verdict::OriginMark;

/// The first four bytes of a checkpoint.
pub const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"TWDT");
/// The one version that this code writes, and the newest that it reads.
pub const CHECKPOINT_VERSION: u8 = 1;

const HEADER_BYTES: usize = 16;
const PRODUCER_BYTES: usize = 56;
const ORIGIN_BYTES: usize = 72;

const NO_MARK: OriginMark = OriginMark {
    lineage: Lineage([0; 8]),
    parent_crc: 0,
    parent_commit_time: CommitTime(0),
};

/// The greatest checkpoint with the origins of so many links from parents of the greatest partition count.
#[must_use]
pub const fn checkpoint_bytes_max(links: usize) -> usize {
    let producers = PRODUCERS_PER_PARTITION * PRODUCER_BYTES + NAMES_BYTES_MAX;
    HEADER_BYTES + producers + links * PARTITIONS_MAX as usize * ORIGIN_BYTES
}

const _: () = assert!(checkpoint_bytes_max(1) < 3 << 19, "1.5 MiB");
const _: () = assert!(PRODUCER_NAME_BYTES_MAX <= u8::MAX as usize);

/// Why bytes are no checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// They end before their content does.
    #[error("the dedup checkpoint is cut off")]
    Short,
    /// The magic is not there.
    #[error("no dedup checkpoint begins here")]
    NotACheckpoint,
    /// A checkpoint of another format version.
    #[error("dedup checkpoint version {0}, and this version reads {CHECKPOINT_VERSION}")]
    OtherVersion(u8),
    /// The content contradicts itself or a limit.
    #[error("the dedup checkpoint is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl DedupTable {
    /// What is flushed, as bytes: the same for the same history.
    #[must_use]
    pub fn checkpoint(&self) -> Vec<u8> {
        let origins: Vec<_> = self
            .origins
            .iter()
            .filter_map(|(id, origin)| Some((id, origin, origin.history.last_flushed?)))
            .collect();
        let mut out = Vec::with_capacity(
            HEADER_BYTES + self.producers.len() * PRODUCER_BYTES + origins.len() * ORIGIN_BYTES,
        );
        out.extend_from_slice(&CHECKPOINT_MAGIC.to_le_bytes());
        out.extend_from_slice(&[CHECKPOINT_VERSION, 0, 0, 0]);
        out.extend_from_slice(&(self.producers.len() as u32).to_le_bytes());
        out.extend_from_slice(&(origins.len() as u32).to_le_bytes());
        for (writer, producer) in self.producers.iter() {
            encode_producer(&mut out, *writer, producer);
        }
        for (id, origin, batch) in origins {
            encode_origin(&mut out, *id, origin, &batch);
        }
        out
    }

    /// The table of a checkpoint: everything in it is flushed.
    ///
    /// # Errors
    /// [`CheckpointError`], never a panic, for any bytes.
    pub fn restore(bytes: &[u8]) -> Result<DedupTable, CheckpointError> {
        let mut input = Input { rest: bytes };
        if input.u32()? != CHECKPOINT_MAGIC {
            return Err(CheckpointError::NotACheckpoint);
        }
        let [version, zeros @ ..] = input.take::<4>()?;
        if version != CHECKPOINT_VERSION {
            return Err(CheckpointError::OtherVersion(version));
        }
        if zeros != [0; 3] {
            return Err(CheckpointError::Inconsistent("unknown fields"));
        }
        let (producers, origins) = (input.u32()?, input.u32()?);
        if producers as usize > PRODUCERS_PER_PARTITION {
            return Err(CheckpointError::Inconsistent("too many producers"));
        }
        let mut table = DedupTable::new();
        let mut seen = HashSet::new();
        let mut last_used = CommitTime(0);
        let mut names_bytes = 0;
        for _ in 0..producers {
            let producer = decode_producer(&mut input)?;
            names_bytes += producer.name.map_or(0, str::len);
            if !seen.insert(producer.writer) {
                return Err(CheckpointError::Inconsistent("a producer twice"));
            }
            if producer.last_used < last_used || names_bytes > NAMES_BYTES_MAX {
                return Err(CheckpointError::Inconsistent("producers out of order or bounds"));
            }
            last_used = producer.last_used;
            table.restore_producer(producer.writer, producer.name, last_used, producer.last);
        }
        let mut last_id = None;
        for _ in 0..origins {
            let (id, batch, mark) = decode_origin(&mut input)?;
            if last_id.is_some_and(|last| last >= id) {
                return Err(CheckpointError::Inconsistent("origins out of order"));
            }
            last_id = Some(id);
            table.restore_origin(id, batch, mark);
        }
        if !input.rest.is_empty() {
            return Err(CheckpointError::Inconsistent("more bytes than content"));
        }
        Ok(table)
    }
}

fn encode_producer(out: &mut Vec<u8>, writer: Writer, producer: &Producer) {
    let (kind, id) = match writer {
        Writer::Random(id) => (1, id),
        Writer::Named(id) => (2, id),
        Writer::Anonymous | Writer::Origin(_) => unreachable!("never among the producers"),
    };
    let name = producer.name.as_deref().unwrap_or_default();
    let last = producer.history.last_flushed;
    out.extend_from_slice(&[kind, name.len() as u8, 0, 0]);
    out.extend_from_slice(&last.map_or(0, record_count).to_le_bytes());
    out.extend_from_slice(&id);
    let number = |of: fn(Batch) -> u64| last.map_or(0, of);
    for number in [
        number(|batch| batch.sequence),
        number(|batch| batch.end_offset.0),
        number(|batch| batch.commit_time.0),
        producer.last_used.0,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(name.as_bytes());
}

fn encode_origin(out: &mut Vec<u8>, id: OriginId, origin: &Origin, batch: &Batch) {
    let mark = origin.flushed_mark.unwrap_or(NO_MARK);
    out.extend_from_slice(&id.epoch.0);
    out.extend_from_slice(&id.partition.0.to_le_bytes());
    out.extend_from_slice(&record_count(*batch).to_le_bytes());
    for number in [
        batch.previous,
        batch.sequence,
        batch.end_offset.0,
        batch.commit_time.0,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&mark.lineage.0);
    out.extend_from_slice(&mark.parent_commit_time.0.to_le_bytes());
    out.extend_from_slice(&mark.parent_crc.to_le_bytes());
    out.extend_from_slice(&u32::from(origin.flushed_mark.is_some()).to_le_bytes());
}

fn record_count(batch: Batch) -> u32 {
    batch.end_offset.since(batch.base_offset) as u32
}

struct DecodedProducer<'a> {
    writer: Writer,
    name: Option<&'a str>,
    last_used: CommitTime,
    last: Option<Batch>,
}

fn decode_producer<'a>(input: &mut Input<'a>) -> Result<DecodedProducer<'a>, CheckpointError> {
    let [kind, name_len, zeros @ ..] = input.take::<4>()?;
    let count = input.u32()?;
    let id = input.take::<16>()?;
    let (sequence, end_offset) = (input.u64()?, Offset(input.u64()?));
    let (commit_time, last_used) = (CommitTime(input.u64()?), CommitTime(input.u64()?));
    let name = std::str::from_utf8(input.bytes(usize::from(name_len))?)
        .map_err(|_| CheckpointError::Inconsistent("a name that is no text"))?;
    let name = Some(name).filter(|name| !name.is_empty());
    let writer = match (kind, name) {
        (1, None) => Writer::Random(id),
        (2, None) => Writer::Named(id),
        (2, Some(name)) if name.len() <= PRODUCER_NAME_BYTES_MAX && name_hash(name) == id => {
            Writer::Named(id)
        }
        _ => return Err(CheckpointError::Inconsistent("a name that is not its id's")),
    };
    if zeros != [0; 2] {
        return Err(CheckpointError::Inconsistent("unknown fields"));
    }
    let last = if count == 0 {
        if (sequence, end_offset, commit_time) != (0, Offset::ZERO, CommitTime(0)) {
            return Err(CheckpointError::Inconsistent("a batch without records"));
        }
        None
    } else {
        let previous = sequence.checked_sub(u64::from(count));
        let previous = previous.ok_or(CheckpointError::Inconsistent("a sequence below its records"))?;
        Some(batch(previous, sequence, end_offset, count, commit_time)?)
    };
    Ok(DecodedProducer {
        writer,
        name,
        last_used,
        last,
    })
}

fn decode_origin(input: &mut Input<'_>) -> Result<(OriginId, Batch, Option<OriginMark>), CheckpointError> {
    let id = OriginId {
        epoch: Epoch(input.take()?),
        partition: PartitionId(input.u32()?),
    };
    let count = input.u32()?;
    let (previous, sequence) = (input.u64()?, input.u64()?);
    let (end_offset, commit_time) = (Offset(input.u64()?), CommitTime(input.u64()?));
    let lineage = Lineage(input.take()?);
    let parent_commit_time = CommitTime(input.u64()?);
    let parent_crc = input.u32()?;
    let mark = OriginMark {
        lineage,
        parent_crc,
        parent_commit_time,
    };
    let mark = match input.u32()? {
        0 if mark == NO_MARK => None,
        1 => Some(mark),
        _ => return Err(CheckpointError::Inconsistent("unknown fields")),
    };
    if previous >= sequence || count == 0 {
        return Err(CheckpointError::Inconsistent("a watermark that does not rise"));
    }
    let batch = batch(previous, sequence, end_offset, count, commit_time)?;
    Ok((id, batch, mark))
}

fn batch(
    previous: u64,
    sequence: u64,
    end_offset: Offset,
    count: u32,
    commit_time: CommitTime,
) -> Result<Batch, CheckpointError> {
    let base = end_offset.0.checked_sub(u64::from(count));
    Ok(Batch {
        previous,
        sequence,
        base_offset: Offset(base.ok_or(CheckpointError::Inconsistent("an offset below zero"))?),
        end_offset,
        commit_time,
    })
}

/// What is left to read.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], CheckpointError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(CheckpointError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], CheckpointError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(CheckpointError::Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, CheckpointError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, CheckpointError> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tailwater_wire::message::ProducerKey;

    use super::*;
    use crate::dedup::tests::{Log, origin, random};

    /// One of everything: a random producer, a named one that has written, one that has not, and an origin.
    fn table() -> DedupTable {
        let mut log = Log::new();
        log.append(random(0x0102), 6, 9, CommitTime(1_000));
        for name in ["feed", "idle"] {
            let key = ProducerKey::Named(name.to_owned());
            log.table.open(&key, CommitTime(2_000)).expect("free");
        }
        log.append(Writer::Named(name_hash("feed")), 0, 4, CommitTime(2_000));
        log.append(Writer::Origin(origin(0xAB, 3)), 70, 75, CommitTime(3_000));
        log.table.flushed(log.end);
        log.append(random(0x0102), 9, 20, CommitTime(4_000)); // not flushed: not in it, but for the time of use
        log.table
    }

    const GOLDEN: &str = concat!(
        "5457445401000000",
        "0300000001000000",
        // idle: opened, nothing written
        "02040000",
        "00000000",
        "IDLE",
        "0000000000000000",
        "0000000000000000",
        "0000000000000000",
        "d007000000000000",
        "69646c65",
        // feed: 4 records, ending at offset 7
        "02040000",
        "04000000",
        "FEED",
        "0400000000000000",
        "0700000000000000",
        "d007000000000000",
        "d007000000000000",
        "66656564",
        // random: 3 records, sequence 9, ending at offset 3
        "01000000",
        "03000000",
        "02010000000000000000000000000000",
        "0900000000000000",
        "0300000000000000",
        "e803000000000000",
        "a00f000000000000",
        // origin: watermark 70 to 75, ending at offset 12
        "abababababababab",
        "03000000",
        "05000000",
        "4600000000000000",
        "4b00000000000000",
        "0c00000000000000",
        "b80b000000000000",
        "0303030303030303",
        "b70b000000000000",
        "eeffc000",
        "01000000",
    );

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn golden() -> Vec<u8> {
        let text = GOLDEN
            .replace("IDLE", &hex(&name_hash("idle")))
            .replace("FEED", &hex(&name_hash("feed")));
        let digits = text.as_bytes().chunks(2);
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ascii"), 16).expect("hex");
        digits.map(byte).collect()
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(hex(&table().checkpoint()), hex(&golden()));
        let restored = DedupTable::restore(&golden()).expect("golden");
        assert_eq!(restored.checkpoint(), golden());
        assert!(restored.is_all_flushed());
        let watermark = restored.origin(origin(0xAB, 3)).expect("in it");
        assert_eq!((watermark.appended, watermark.flushed), (75, 75));
        assert_eq!(watermark.mark.map(|mark| mark.parent_crc), Some(0xC0FFEE));
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = golden();
        bytes[4] = 2;
        assert_eq!(
            DedupTable::restore(&bytes).err(),
            Some(CheckpointError::OtherVersion(2))
        );
        assert_eq!(
            DedupTable::restore(&[0; 64]).err(),
            Some(CheckpointError::NotACheckpoint)
        );
    }

    #[test]
    fn cut_off_or_with_more_behind_it_is_refused() {
        let bytes = golden();
        for len in 0..bytes.len() {
            assert_eq!(
                DedupTable::restore(&bytes[..len]).err(),
                Some(CheckpointError::Short),
                "{len}"
            );
        }
        let more = [&bytes[..], &[0]].concat();
        assert!(matches!(
            DedupTable::restore(&more),
            Err(CheckpointError::Inconsistent(_))
        ));
    }

    #[test]
    fn a_name_belongs_to_its_id() {
        let mut bytes = golden();
        let name = HEADER_BYTES + PRODUCER_BYTES;
        assert_eq!(&bytes[name..name + 4], b"idle");
        bytes[name] = b'I';
        assert!(matches!(
            DedupTable::restore(&bytes),
            Err(CheckpointError::Inconsistent(_))
        ));
        bytes[name] = 0xFF;
        assert!(matches!(
            DedupTable::restore(&bytes),
            Err(CheckpointError::Inconsistent(_))
        ));
    }

    #[test]
    fn an_unknown_mark_has_no_content() {
        let mut bytes = golden();
        let flag = bytes.len() - 4;
        bytes[flag] = 0;
        assert!(matches!(
            DedupTable::restore(&bytes),
            Err(CheckpointError::Inconsistent(_))
        ));
        bytes[flag - 20..].fill(0);
        let restored = DedupTable::restore(&bytes).expect("an origin without a mark");
        assert_eq!(restored.origin(origin(0xAB, 3)).expect("in it").mark, None);
        assert_eq!(restored.checkpoint(), bytes);
    }

    proptest! {
        /// Whatever restores says the same again: nothing is read that is not kept.
        #[test]
        fn damage_never_panics(at in 0usize..400, bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut damaged = golden();
            let at = at % damaged.len();
            let end = (at + bytes.len()).min(damaged.len());
            damaged[at..end].copy_from_slice(&bytes[..end - at]);
            if let Ok(table) = DedupTable::restore(&damaged) {
                prop_assert_eq!(table.checkpoint(), damaged);
                let _ = table.decide(random(0x0102), 9, 20, None);
            }
            let _ = DedupTable::restore(&bytes);
        }
    }
}
