//! Where everything lies below the data directory, as pure functions from names to paths and back.
//!
//! ```text
//! topics/orders/                                  a live topic, by its plain name (SPEC.md F5)
//! topics/orders/p00003/                           one partition
//! topics/orders/p00003/00000000000000000000.log   a segment, by its base offset
//! topics/orders/p00003/00000000000000000000.idx   a sealed segment's sparse index; may be absent
//! topics/orders/p00003/prepared-<nonce>.log       a segment made ready, without a place in the log yet
//! topics/orders/p00003/fanout-analytics.offset    the cursor that copies this partition into `analytics`
//! topics/orders/p00003/fanout-analytics.gaps      what retention took before that cursor had copied it
//! topics/orders/p00003/<any name>.tmp-<number>    half of an atomic replacement; rubbish after a start
//! topics/.deleted-<incarnation>-orders/           a deleted topic on its way out
//! ```
//!
//! The incarnation is not part of a live topic's path: it stands in every segment's header. So a deletion first
//! renames the topic's directory, in one step, to a name that no topic can have (a topic's name never begins
//! with a dot) and only then removes it piece by piece; a re-created topic never meets files of the dead one.

use std::path::{Path, PathBuf};

use tailwater_wire::ids::{Incarnation, Offset, PartitionId, TopicName};

const TOPICS: &str = "topics";
const DELETED_PREFIX: &str = ".deleted-";
const SEGMENT_SUFFIX: &str = ".log";
const INDEX_SUFFIX: &str = ".idx";
const PREPARED_PREFIX: &str = "prepared-";
const CURSOR_PREFIX: &str = "fanout-";
const CURSOR_SUFFIX: &str = ".offset";
const GAPS_SUFFIX: &str = ".gaps";
const TEMPORARY_MARK: &str = ".tmp-";

/// Decimal digits of a base offset in a file's name: as many as the greatest `u64` has.
const BASE_DIGITS: usize = 20;
/// Decimal digits of a partition's number in a directory's name.
const PARTITION_DIGITS: usize = 5;
/// Hex digits of a nonce, an incarnation and a temporary file's number.
const HEX_DIGITS: usize = 16;

/// The directory that holds all topics.
#[must_use]
pub fn topics_dir(data: &Path) -> PathBuf {
    data.join(TOPICS)
}

/// A live topic's directory.
#[must_use]
pub fn topic_dir(data: &Path, topic: &TopicName) -> PathBuf {
    topics_dir(data).join(topic.as_str())
}

/// Where a topic's directory is renamed to before it is removed. Beside [`topic_dir`], and no topic's own path.
#[must_use]
pub fn deleted_topic_dir(data: &Path, topic: &TopicName, incarnation: Incarnation) -> PathBuf {
    topics_dir(data).join(format!("{DELETED_PREFIX}{incarnation}-{topic}"))
}

/// A partition's directory.
#[must_use]
pub fn partition_dir(data: &Path, topic: &TopicName, partition: PartitionId) -> PathBuf {
    topic_dir(data, topic).join(partition_dir_name(partition))
}

/// The last component of a partition's directory: `p00003`.
#[must_use]
pub fn partition_dir_name(partition: PartitionId) -> String {
    format!("p{:0width$}", partition.0, width = PARTITION_DIGITS)
}

/// A segment's name: `00000000000000000042.log`.
#[must_use]
pub fn segment_name(base: Offset) -> String {
    format!("{:0width$}{SEGMENT_SUFFIX}", base.0, width = BASE_DIGITS)
}

/// The name of a segment's sparse index: `00000000000000000042.idx`.
#[must_use]
pub fn index_name(base: Offset) -> String {
    format!("{:0width$}{INDEX_SUFFIX}", base.0, width = BASE_DIGITS)
}

/// The name of a segment that was made ready and has no place in the log yet, by a random number of its own.
#[must_use]
pub fn prepared_name(nonce: u64) -> String {
    format!(
        "{PREPARED_PREFIX}{nonce:0width$x}{SEGMENT_SUFFIX}",
        width = HEX_DIGITS
    )
}

/// The name of a cursor file: `fanout-analytics.offset`.
#[must_use]
pub fn cursor_name(child: &TopicName) -> String {
    format!("{CURSOR_PREFIX}{child}{CURSOR_SUFFIX}")
}

/// The name of a gap ledger: `fanout-analytics.gaps`.
#[must_use]
pub fn gaps_name(child: &TopicName) -> String {
    format!("{CURSOR_PREFIX}{child}{GAPS_SUFFIX}")
}

/// The temporary sibling under which a file's next content is written before it gets the name.
///
/// # Panics
/// When `path` has no last component.
#[must_use]
pub fn temporary_path(path: &Path, unique: u64) -> PathBuf {
    let mut name = path
        .file_name()
        .expect("a file's path ends with its name")
        .to_owned();
    name.push(format!("{TEMPORARY_MARK}{unique:0width$x}", width = HEX_DIGITS));
    path.with_file_name(name)
}

/// What a name in the directory of topics stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicsEntry {
    /// A topic.
    Live(TopicName),
    /// A deleted topic whose removal has not ended.
    Deleted(Incarnation, TopicName),
    /// Not ours: left alone.
    Foreign,
}

/// Reads a name in the directory of topics.
#[must_use]
pub fn parse_topics_entry(name: &str) -> TopicsEntry {
    if let Ok(topic) = name.parse() {
        return TopicsEntry::Live(topic);
    }
    let deleted = name.strip_prefix(DELETED_PREFIX).and_then(|rest| {
        let (digits, topic) = rest.split_once('-')?;
        let incarnation: Incarnation = digits.parse().ok()?;
        // Also spelt as we do: another spelling is another name, and what lies there is not ours to remove.
        (incarnation.to_string() == digits).then_some((incarnation, topic.parse().ok()?))
    });
    deleted.map_or(TopicsEntry::Foreign, |(incarnation, topic)| {
        TopicsEntry::Deleted(incarnation, topic)
    })
}

/// Reads the name of a partition's directory.
#[must_use]
pub fn parse_partition_dir(name: &str) -> Option<PartitionId> {
    let digits = name.strip_prefix('p')?;
    let number = parse_digits(digits, PARTITION_DIGITS)?;
    u32::try_from(number).ok().map(PartitionId)
}

/// What a name in a partition's directory stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionEntry {
    /// The segment with this base offset.
    Segment(Offset),
    /// The sparse index of the segment with this base offset.
    Index(Offset),
    /// A segment made ready, by its number.
    Prepared(u64),
    /// The cursor file of a child.
    Cursor(TopicName),
    /// The gap ledger of a child's cursor.
    Gaps(TopicName),
    /// An atomic replacement that did not come to its end: may be removed at a start, before anything is
    /// written.
    Temporary,
    /// Not ours: left alone.
    Foreign,
}

/// Reads a name in a partition's directory.
#[must_use]
pub fn parse_partition_entry(name: &str) -> PartitionEntry {
    // Temporary names first: they are made by adding to any of the others.
    if let Some((_, number)) = name.rsplit_once(TEMPORARY_MARK)
        && parse_hex(number).is_some()
    {
        return PartitionEntry::Temporary;
    }
    let segment = name.strip_suffix(SEGMENT_SUFFIX);
    let prepared = segment.and_then(|stem| stem.strip_prefix(PREPARED_PREFIX));
    let index = name.strip_suffix(INDEX_SUFFIX);
    let of_child = name.strip_prefix(CURSOR_PREFIX);
    let cursor = of_child.and_then(|rest| rest.strip_suffix(CURSOR_SUFFIX));
    let gaps = of_child.and_then(|rest| rest.strip_suffix(GAPS_SUFFIX));
    let base = |stem| parse_digits(stem, BASE_DIGITS).map(Offset);
    None.or_else(|| segment.and_then(base).map(PartitionEntry::Segment))
        .or_else(|| index.and_then(base).map(PartitionEntry::Index))
        .or_else(|| prepared.and_then(parse_hex).map(PartitionEntry::Prepared))
        .or_else(|| cursor.and_then(|child| child.parse().ok().map(PartitionEntry::Cursor)))
        .or_else(|| gaps.and_then(|child| child.parse().ok().map(PartitionEntry::Gaps)))
        .unwrap_or(PartitionEntry::Foreign)
}

/// Exactly `width` decimal digits: another spelling of the same number is another name, and not ours.
fn parse_digits(text: &str, width: usize) -> Option<u64> {
    let plain = text.len() == width && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// Exactly [`HEX_DIGITS`] lower-case hex digits.
fn parse_hex(text: &str) -> Option<u64> {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let plain = text.len() == HEX_DIGITS && text.bytes().all(digit);
    if plain {
        u64::from_str_radix(text, 16).ok()
    } else {
        None
    }
}

/// The place of one cursor file, with the link that it belongs to, so that a proof about another link is
/// noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorPath {
    parent: TopicName,
    child: TopicName,
    path: PathBuf,
}

impl CursorPath {
    /// The cursor file of a parent's partition and a child.
    #[must_use]
    pub fn new(data: &Path, parent: &TopicName, partition: PartitionId, child: &TopicName) -> CursorPath {
        CursorPath {
            path: partition_dir(data, parent, partition).join(cursor_name(child)),
            parent: parent.clone(),
            child: child.clone(),
        }
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the cursor's gap ledger, beside it.
    #[must_use]
    pub fn gaps(&self) -> PathBuf {
        self.path.with_file_name(gaps_name(&self.child))
    }

    /// The topic that is copied.
    #[must_use]
    pub fn parent(&self) -> &TopicName {
        &self.parent
    }

    /// The topic that receives the copies.
    #[must_use]
    pub fn child(&self) -> &TopicName {
        &self.child
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topic(name: &str) -> TopicName {
        name.parse().expect("a topic's name")
    }

    #[test]
    fn a_deleted_topic_s_directory_is_spelt_as_we_spell_it() {
        // A directory with capital hex digits in its name was taken for a deleted topic's, and removed at a start.
        let ours = ".deleted-6a0f6361726e6174-ticks";
        assert!(matches!(parse_topics_entry(ours), TopicsEntry::Deleted(..)));
        let other = ".deleted-6A0F6361726E6174-ticks";
        assert_eq!(parse_topics_entry(other), TopicsEntry::Foreign);
    }

    #[test]
    fn the_spec_s_own_paths() {
        let orders = topic("orders");
        let cursor = CursorPath::new(Path::new("/data"), &orders, PartitionId(3), &topic("analytics"));
        assert_eq!(
            cursor.path(),
            Path::new("/data/topics/orders/p00003/fanout-analytics.offset")
        );
        assert_eq!(
            cursor.gaps(),
            Path::new("/data/topics/orders/p00003/fanout-analytics.gaps")
        );
        assert_eq!(segment_name(Offset(0)), "00000000000000000000.log");
        assert_eq!(index_name(Offset(u64::MAX)), "18446744073709551615.idx");
        assert_eq!(prepared_name(0xab), "prepared-00000000000000ab.log");
        let gone = deleted_topic_dir(Path::new("/data"), &orders, Incarnation([0xab; 8]));
        assert_eq!(gone, Path::new("/data/topics/.deleted-abababababababab-orders"));
    }

    #[test]
    fn names_of_other_spellings_are_foreign() {
        for name in [
            "0.log",
            "00000000000000000000.LOG",
            "99999999999999999999.log",
            "+0000000000000000000.log",
            "fanout-.offset",
            "fanout-a..b.offset",
            "fanout-A.offset",
            "fanout-.gaps",
            "fanout-A.gaps",
            "prepared-ab.log",
            "prepared-00000000000000AB.log",
            "lost+found",
            "x.tmp-1",
            "",
        ] {
            assert_eq!(parse_partition_entry(name), PartitionEntry::Foreign, "{name}");
        }
        for name in ["p3", "p000003", "q00003", "p0000x", "p+0003", "00003"] {
            assert_eq!(parse_partition_dir(name), None, "{name}");
        }
        for name in [
            ".deleted-",
            ".deleted-ab-orders",
            ".deleted-abababababababab-",
            "Orders",
        ] {
            assert_eq!(parse_topics_entry(name), TopicsEntry::Foreign, "{name}");
        }
    }

    proptest! {
        #[test]
        fn names_read_back(
            number: u64,
            partition in 0u32..1_024,
            name in "[a-z0-9][a-z0-9_-]{0,20}(\\.offset|\\.log|\\.gaps|\\.tmp-0000000000000000)?",
        ) {
            let (child, offset, partition) = (topic(&name), Offset(number), PartitionId(partition));
            prop_assert_eq!(parse_partition_entry(&segment_name(offset)), PartitionEntry::Segment(offset));
            prop_assert_eq!(parse_partition_entry(&index_name(offset)), PartitionEntry::Index(offset));
            prop_assert_eq!(parse_partition_entry(&prepared_name(number)), PartitionEntry::Prepared(number));
            prop_assert_eq!(parse_partition_entry(&cursor_name(&child)), PartitionEntry::Cursor(child.clone()));
            prop_assert_eq!(parse_partition_entry(&gaps_name(&child)), PartitionEntry::Gaps(child.clone()));
            prop_assert_eq!(parse_partition_dir(&partition_dir_name(partition)), Some(partition));
            let file_name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
            for file in [segment_name(offset), cursor_name(&child), prepared_name(number)] {
                let temporary = file_name(&temporary_path(Path::new(&file), number));
                prop_assert_eq!(parse_partition_entry(&temporary), PartitionEntry::Temporary);
            }
            let life = Incarnation::from_u64(number);
            let gone = file_name(&deleted_topic_dir(Path::new("d"), &child, life));
            prop_assert!(gone.parse::<TopicName>().is_err());
            prop_assert_eq!(parse_topics_entry(&gone), TopicsEntry::Deleted(life, child.clone()));
            prop_assert_eq!(parse_topics_entry(child.as_str()), TopicsEntry::Live(child));
        }
    }
}
