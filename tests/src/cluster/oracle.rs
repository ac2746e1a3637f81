//! What a child must hold, decided from the two logs alone and by another way than `link verify`.

use std::collections::HashMap;

use tailwater_wire::ids::Epoch;
use tailwater_wire::meta::Link;
use tailwater_wire::partitioner::Partitioner;

use crate::cluster::load::key_of;
use crate::cluster::reading::{Copied, Log, Stored};

/// One attachment: which range of each parent partition it copied.
#[derive(Debug, Clone)]
pub struct Span {
    /// Its epoch.
    pub epoch: Epoch,
    /// The first offset, by parent partition.
    pub from: Vec<u64>,
    /// Behind the last one, by parent partition.
    pub to: Vec<u64>,
    /// How long records are held back, in nanoseconds.
    pub delay_ns: u64,
}

impl Span {
    /// A link that is attached, up to these offsets.
    #[must_use]
    pub fn of(link: &Link, to: &[u64]) -> Span {
        let from = (0..to.len() as u32)
            .map(|partition| link.attach_offset(partition).0)
            .collect();
        Span {
            epoch: link.epoch,
            from,
            to: to.to_vec(),
            delay_ns: link.options.delay.as_nanos(),
        }
    }

    /// How many records lie in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.from
            .iter()
            .zip(&self.to)
            .map(|(from, to)| to.saturating_sub(*from))
            .sum()
    }

    /// Whether none lies in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Everything that is wrong with the copies of an attachment, in words; empty when each record of its range is
/// there once, equal, in order, and not early, and nothing else is. `wanted` says which of them, by parent partition,
/// offset and number, are to be copied at all.
#[must_use]
pub fn faults(
    parent: &Log,
    copies: &[Copied],
    span: &Span,
    wanted: impl Fn(u32, u64, u64) -> bool,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen: Vec<Vec<u32>> = span
        .from
        .iter()
        .zip(&span.to)
        .map(|(from, to)| vec![0; to.saturating_sub(*from) as usize])
        .collect();
    // In one child partition, the records of one parent partition keep their order.
    let mut last: HashMap<(u32, u32), u64> = HashMap::new();
    for copy in copies.iter().filter(|copy| copy.epoch == span.epoch) {
        let (partition, offset) = (copy.parent_partition as usize, copy.parent_offset);
        let inside = offset >= span.from[partition] && offset < span.to[partition];
        let Some(original) = parent.at(copy.parent_partition, offset).filter(|_| inside) else {
            faults.push(format!("outside of the attachment's range: {copy:?}"));
            continue;
        };
        seen[partition][(offset - span.from[partition]) as usize] += 1;
        if original.number != copy.stored.number {
            faults.push(format!("not equal to its original {original:?}: {copy:?}"));
        }
        if !wanted(copy.parent_partition, offset, original.number) {
            faults.push(format!("not to be copied: {copy:?}"));
        }
        let due = original.commit_time.saturating_add(span.delay_ns);
        if copy.released_at < due || copy.stored.commit_time < due {
            faults.push(format!(
                "early by its original's commit time {}: {copy:?}",
                original.commit_time
            ));
        }
        let before = last.insert((copy.partition, copy.parent_partition), offset);
        if before.is_some_and(|before| before >= offset) {
            faults.push(format!(
                "behind {before:?} of the same parent partition: {copy:?}"
            ));
        }
    }
    for (partition, counts) in seen.iter().enumerate() {
        for (index, &count) in counts.iter().enumerate() {
            let offset = span.from[partition] + index as u64;
            let number = parent
                .at(partition as u32, offset)
                .expect("read to the span's end")
                .number;
            let wanted = u32::from(wanted(partition as u32, offset, number));
            if count < wanted {
                faults.push(format!("missing: {partition}/{offset}"));
            } else if count > wanted.max(1) {
                faults.push(format!("{count} times: {partition}/{offset}"));
            }
        }
    }
    faults
}

/// What is wrong with the copies of an attachment that ended at no particular place: in each child partition they must be
/// the first of the records that belong there, from the attach offset on, in order, without a hole. For children with the
/// default partitioner and links without a filter; `copies` in the order of the child's log, `parent` from the attach
/// offsets or before.
#[must_use]
pub fn prefix_faults(parent: &Log, copies: &[Copied], link: &Link, child_partitions: u32) -> Vec<String> {
    let partitioner = Partitioner::default();
    let bucket_of =
        |number| partitioner.partition(partitioner.hash(key_of(number).as_bytes()), child_partitions);
    let mut faults = Vec::new();
    // Where each pair of partitions is to go on.
    let mut next: HashMap<(u32, u32), u64> = HashMap::new();
    for copy in copies.iter().filter(|copy| copy.epoch == link.epoch) {
        let partition = copy.parent_partition;
        let next = next
            .entry((partition, copy.partition))
            .or_insert_with(|| link.attach_offset(partition).0);
        let follows = |stored: &Stored| bucket_of(stored.number).0 == copy.partition;
        let mut offset = *next;
        let expected = loop {
            match parent.at(partition, offset) {
                Some(stored) if follows(stored) => break Some(stored),
                Some(_) => offset += 1,
                None => break None,
            }
        };
        let is_it =
            copy.parent_offset == offset && expected.is_some_and(|it| it.number == copy.stored.number);
        if !is_it {
            faults.push(format!(
                "instead of {offset} of partition {partition}, {expected:?}: {copy:?}"
            ));
        }
        *next = copy.parent_offset + 1;
    }
    faults
}

/// An attachment must be flawless.
///
/// # Panics
/// When it is not; shows the first faults.
#[track_caller]
pub fn flawless(what: &str, parent: &Log, copies: &[Copied], span: &Span) {
    let faults = faults(parent, copies, span, |_, _, _| true);
    assert!(
        faults.is_empty(),
        "{what}: {} faults, the first: {:#?}",
        faults.len(),
        &faults[..faults.len().min(5)]
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Epoch = Epoch([1; 8]);
    const DELAY_NS: u64 = 50;

    fn parent() -> Log {
        let records = (0..10)
            .map(|number| Stored {
                number,
                commit_time: 100 + number,
            })
            .collect();
        Log {
            starts: vec![0],
            partitions: vec![records],
        }
    }

    fn copy(offset: u64) -> Copied {
        let time = 100 + offset + DELAY_NS;
        Copied {
            epoch: MINE,
            parent_partition: 0,
            parent_offset: offset,
            partition: (offset % 2) as u32,
            offset: offset / 2,
            released_at: time,
            stored: Stored {
                number: offset,
                commit_time: time,
            },
        }
    }

    /// The attachment begins at 4; offset 7 is not wanted.
    fn check(alter: impl FnOnce(&mut Vec<Copied>), expected: &[&str]) {
        let mut copies: Vec<Copied> = [4, 5, 6, 8, 9].map(copy).to_vec();
        alter(&mut copies);
        let span = Span {
            epoch: MINE,
            from: vec![4],
            to: vec![10],
            delay_ns: DELAY_NS,
        };
        let found = faults(&parent(), &copies, &span, |_, _, number| number != 7);
        let as_expected =
            found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.contains(e));
        assert!(as_expected, "{found:#?}, expected {expected:?}");
    }

    #[test]
    fn each_kind_of_fault_is_found() {
        check(|_| {}, &[]);
        check(|copies| copies[0].epoch = Epoch([2; 8]), &["missing: 0/4"]);
        check(|copies| copies.truncate(4), &["missing: 0/9"]);
        check(|copies| copies.push(copy(9)), &["behind Some(9)", "2 times: 0/9"]);
        check(|copies| copies.push(copy(7)), &["not to be", "behind Some(9)"]);
        check(|copies| copies.insert(0, copy(3)), &["outside"]);
        check(|copies| copies[1].stored.number = 4, &["not equal"]);
        check(|copies| copies[1].released_at -= 1, &["early"]);
        check(|copies| copies[1].stored.commit_time -= 1, &["early"]);
        check(|copies| copies.swap(0, 2), &["behind Some(6)"]);
    }
}
