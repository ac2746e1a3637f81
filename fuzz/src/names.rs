//! Names: topic names as people type them, and names of files and directories as a start finds them.
//!
//! An accepted topic name is exactly as SPEC.md D1 says and stays one component of a path. A name on the disk that is
//! taken for ours is the one that we would have given, to the byte: another spelling is another file.

use std::path::{Component, Path};

use tailwater_storage::layout::{self, PartitionEntry, TopicsEntry};
use tailwater_wire::ids::{Incarnation, Offset, PartitionId, TopicName};

use crate::target::Seed;

/// See the module.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    check_topic(text);
    match layout::parse_topics_entry(text) {
        TopicsEntry::Live(topic) => assert_eq!(topic.as_str(), text),
        TopicsEntry::Deleted(incarnation, topic) => {
            let path = layout::deleted_topic_dir(Path::new("/data"), &topic, incarnation);
            assert_eq!(path.file_name(), Some(text.as_ref()));
        }
        TopicsEntry::Foreign => {}
    }
    if let Some(partition) = layout::parse_partition_dir(text) {
        assert_eq!(layout::partition_dir_name(partition), text);
    }
    let name = match layout::parse_partition_entry(text) {
        PartitionEntry::Segment(base) => layout::segment_name(base),
        PartitionEntry::Index(base) => layout::index_name(base),
        PartitionEntry::Prepared(number) => layout::prepared_name(number),
        PartitionEntry::Cursor(child) => layout::cursor_name(&child),
        PartitionEntry::Gaps(child) => layout::gaps_name(&child),
        PartitionEntry::Temporary | PartitionEntry::Foreign => return,
    };
    assert_eq!(name, text);
}

fn check_topic(text: &str) {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let is_name = (1..=128).contains(&bytes.len())
        && plain(bytes[0])
        && bytes.iter().all(|&byte| plain(byte) || b"._-".contains(&byte))
        && !text.contains("..");
    let parsed = text.parse::<TopicName>();
    assert_eq!(parsed.is_ok(), is_name, "{text:?}");
    let Ok(topic) = parsed else { return };
    assert_eq!(topic.to_string(), text);
    let dir = layout::topic_dir(Path::new("/data"), &topic);
    let below = dir.strip_prefix("/data/topics").expect("below the topics");
    let parts: Vec<Component<'_>> = below.components().collect();
    assert_eq!(parts, [Component::Normal(text.as_ref())]);
}

/// See [`crate::target::Target`].
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let topic: TopicName = "orders.v-2_x".parse().expect("a name");
    let deleted = layout::deleted_topic_dir(Path::new("/"), &topic, Incarnation(*b"incarnat"));
    let deleted = deleted.file_name().map(|name| name.as_encoded_bytes().to_vec());
    let prepared = layout::prepared_name(0xAB);
    vec![
        ("topic", topic.as_str().into()),
        ("two-dots", b"a..b".to_vec()),
        ("not-ascii", "ticks\u{e9}".into()),
        ("deleted-topic", deleted.expect("a name")),
        ("partition", layout::partition_dir_name(PartitionId(3)).into()),
        ("segment", layout::segment_name(Offset(u64::MAX)).into()),
        ("index", layout::index_name(Offset(7)).into()),
        ("prepared", prepared.into()),
        ("cursor", layout::cursor_name(&topic).into()),
        ("gaps", layout::gaps_name(&topic).into()),
        ("temporary", b"fanout-a.offset.tmp-00000000000000ab".to_vec()),
    ]
}
