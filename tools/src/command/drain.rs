//! Waits until a child has what its parent had when it was asked for: the first half of `link detach --drain`.
//!
//! The goals are the ends of all parent partitions, read once at the start, so a parent that is produced to is not chased.

use std::time::{Duration, Instant};

use tailwater_wire::client::handle::Client;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Delay, Offset, PartitionId};
use tailwater_wire::message::{LinkStatus, Place};

use crate::cli::Pair;
use crate::command::context::counter;
use crate::error::Failure;
use crate::output;
use crate::verify::driver;

/// How often a draining link is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How long it may take before it is said what is waited for.
const SILENCE: Duration = Duration::from_secs(2);

/// Waits, however long the link's delay is, and however long it is stalled.
///
/// # Errors
/// The node's refusals, or that the link is not any more what it was: it was ended, or ended and attached anew.
pub async fn drain(client: &Client, pair: &Pair) -> Result<(), Failure> {
    let link = driver::find_link(client, &pair.parent, &pair.child).await?.link;
    let described = client.describe_topics(Some(vec![pair.parent.clone()])).await?;
    let partitions = described.first().map_or(0, |topic| topic.spec.partitions);
    let mut goals = Vec::with_capacity(partitions as usize);
    for partition in (0..partitions).map(PartitionId) {
        let found = client.find_offset(&pair.parent, partition, Place::Tail).await?;
        goals.push(found.high_water_mark);
    }
    let progress = counter("records to drain");
    let mut told = None;
    let started = Instant::now();
    let mut said = false;
    loop {
        let now = driver::find_link(client, &pair.parent, &pair.child).await?;
        if now.link.epoch != link.epoch {
            let what = format!("link {} -> {}", pair.parent, pair.child);
            let why = "it was attached anew while it was drained, and the new one was left alone";
            return Err(Failure::coded(what, why, ErrorCode::StaleEpoch));
        }
        let left = left(&goals, &now);
        if left == 0 {
            progress.finish_and_clear();
            return Ok(());
        }
        progress.set_position(left);
        if !said && started.elapsed() >= SILENCE {
            said = true;
            output::note(&waiting(left, link.options.delay));
        }
        let stalled = now.cursors.iter().find_map(|cursor| {
            let why = cursor.stalled.as_ref()?;
            Some(format!("partition {}: {why}", cursor.partition))
        });
        if let Some(why) = stalled.filter(|why| told.as_ref() != Some(why)) {
            output::note(&format!("waiting: the link is stalled: {why}"));
            told = Some(why);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// What is waited for, in words.
fn waiting(left: u64, delay: Delay) -> String {
    let records = format!(
        "{} {} left",
        output::counted(left, "record"),
        if left == 1 { "is" } else { "are" }
    );
    if delay.is_none() {
        return format!("waiting: {records}");
    }
    let delay = output::millis_text(delay.millis);
    format!("waiting: {records}, and the link's delay is {delay}: the last one is due within that")
}

/// Records below the goals, by parent partition, that were not passed yet. A cursor that is not there yet, or is still of an
/// earlier attachment, has passed nothing.
fn left(goals: &[Offset], now: &LinkStatus) -> u64 {
    let left_of = |(number, goal): (u32, &Offset)| {
        let cursor = now
            .cursors
            .iter()
            .find(|cursor| cursor.partition.0 == number && cursor.epoch == now.link.epoch);
        let passed = cursor.map_or(now.link.attach_offset(number), |cursor| cursor.position);
        match cursor {
            None => goal.since(passed).max(1),
            Some(_) => goal.since(passed),
        }
    };
    (0u32..).zip(goals).map(left_of).sum()
}

#[cfg(test)]
mod tests {
    use tailwater_wire::ids::{Epoch, Incarnation};
    use tailwater_wire::message::CursorStatus;
    use tailwater_wire::meta::{Link, LinkOptions};

    use super::*;

    /// What is left of goals with cursors `(partition, epoch, position)` and a parent that has gone on to 1,000.
    fn check(goals: &[u64], cursors: &[(u32, u8, u64)], expected: u64) {
        let cursor = |&(partition, epoch, position): &(u32, u8, u64)| CursorStatus {
            partition: PartitionId(partition),
            epoch: Epoch([epoch; 8]),
            position: Offset(position),
            parent_high_water_mark: Offset(1_000),
            due_lag_millis: 0,
            next_due: None,
            committed: 0,
            filtered: 0,
            dropped: 0,
            duplicates: 0,
            stalled: None,
        };
        let status = LinkStatus {
            link: Link {
                parent: "parent".parse().expect("a name"),
                child: "child".parse().expect("a name"),
                epoch: Epoch([1; 8]),
                parent_incarnation: Incarnation([2; 8]),
                child_incarnation: Incarnation([3; 8]),
                options: LinkOptions::default(),
                attach_offsets: vec![Offset(10); goals.len()],
                index: 1,
            },
            cursors: cursors.iter().map(cursor).collect(),
        };
        let goals: Vec<Offset> = goals.iter().copied().map(Offset).collect();
        assert_eq!(left(&goals, &status), expected, "{goals:?} {cursors:?}");
    }

    #[test]
    fn what_is_waited_for_is_told_with_the_delay() {
        let after = |millis| Delay { millis };
        assert_eq!(waiting(1, after(0)), "waiting: 1 record is left");
        assert_eq!(
            waiting(12, after(900_000)),
            "waiting: 12 records are left, and the link's delay is 15m: the last one is due within that"
        );
    }

    #[test]
    fn a_parent_that_goes_on_is_not_chased() {
        check(&[50, 60], &[(0, 1, 50), (1, 1, 999)], 0);
        check(&[50, 60], &[(0, 1, 40), (1, 1, 59)], 11);
    }

    /// Seen once: right after the attach no cursor was there yet, and the link was ended at once.
    #[test]
    fn a_cursor_that_is_not_there_yet_has_passed_nothing() {
        check(&[50, 60], &[], 90);
        check(&[50, 60], &[(0, 1, 50)], 50);
        check(&[10], &[], 1);
        check(&[50], &[(0, 9, 50)], 40);
    }
}
