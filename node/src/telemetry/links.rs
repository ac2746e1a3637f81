//! The part of the exposition that is about links: one line for each link and metric, summed over partitions and shards.
//!
//! Written as text, not through the recorder: that keeps every series that it has ever seen, and a link that was detached
//! would stand still in it for ever.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use tailwater_wire::ids::TopicName;
use tailwater_wire::message::LinkStatus;

/// Parent and child.
type Pair = (TopicName, TopicName);

/// One link, over all its cursors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Totals {
    lag: u64,
    due_lag_millis_max: u64,
    stalled: u64,
}

/// How far links are, each over its cursors on one shard, or on several put together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkTotals(BTreeMap<Pair, Totals>);

impl LinkTotals {
    /// Adds up what each link's cursors say.
    #[must_use]
    pub fn of(links: Vec<LinkStatus>) -> LinkTotals {
        let total = |status: LinkStatus| {
            let mut total = Totals::default();
            for cursor in &status.cursors {
                total.lag += cursor.parent_high_water_mark.since(cursor.position);
                total.due_lag_millis_max = total.due_lag_millis_max.max(cursor.due_lag_millis);
                total.stalled += u64::from(cursor.stalled.is_some());
            }
            ((status.link.parent, status.link.child), total)
        };
        LinkTotals(links.into_iter().map(total).collect())
    }

    /// Takes in what another shard says.
    pub fn join(&mut self, part: LinkTotals) {
        for (link, more) in part.0 {
            let total = self.0.entry(link).or_default();
            total.lag += more.lag;
            total.due_lag_millis_max = total.due_lag_millis_max.max(more.due_lag_millis_max);
            total.stalled += more.stalled;
        }
    }
}

/// Name, kind and help text of a metric, and its value for a link whose cursors were busy for so many nanoseconds.
type Family = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Totals, u64) -> Box<dyn Display>,
);

const FAMILIES: [Family; 4] = [
    (
        "fanout_lag_messages",
        "gauge",
        "Parent records committed and not yet copied, per link, summed over partitions.",
        |link, _| Box::new(link.lag),
    ),
    (
        "fanout_due_lag_seconds",
        "gauge",
        "How far behind what is due, per link, the worst partition.",
        |link, _| Box::new(link.due_lag_millis_max as f64 / 1e3),
    ),
    (
        "fanout_stalled",
        "gauge",
        "Cursors that do not move, per link.",
        |link, _| Box::new(link.stalled),
    ),
    (
        "fanout_link_busy_seconds_total",
        "counter",
        "Time that shards have spent in the tasks of a link's cursors.",
        |_, busy_ns| Box::new(busy_ns as f64 / 1e9),
    ),
];

/// Appends the links' metrics to `text`. `busy_ns` says what each link costs.
pub fn render(text: &mut String, links: &LinkTotals, busy_ns: &BTreeMap<Pair, u64>) {
    if links.0.is_empty() {
        return;
    }
    for (name, kind, help, value) in FAMILIES {
        // Writing to a string cannot fail. A topic's name has nothing that a label would have to escape.
        let _ = writeln!(
            text,
            "# HELP tailwater_{name} {help}\n# TYPE tailwater_{name} {kind}"
        );
        for (link @ (parent, child), total) in &links.0 {
            let value = value(total, busy_ns.get(link).copied().unwrap_or(0));
            let _ = writeln!(
                text,
                "tailwater_{name}{{parent=\"{parent}\",child=\"{child}\"}} {value}"
            );
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_wire::ids::{Epoch, Incarnation, Offset, PartitionId};
    use tailwater_wire::message::CursorStatus;
    use tailwater_wire::meta::{Link, LinkOptions};

    fn name(text: &str) -> TopicName {
        text.parse().expect("a name")
    }

    fn status(child: &str, cursors: &[(u64, u64, bool)]) -> LinkStatus {
        let link = Link {
            parent: name("ticks"),
            child: name(child),
            epoch: Epoch::from_u64(1),
            parent_incarnation: Incarnation::from_u64(1),
            child_incarnation: Incarnation::from_u64(2),
            options: LinkOptions::default(),
            attach_offsets: vec![Offset(0)],
            index: 1,
        };
        let cursor =
            |(partition, &(lag, due_lag_millis, stalled)): (usize, &(u64, u64, bool))| CursorStatus {
                partition: PartitionId(partition as u32),
                epoch: link.epoch,
                position: Offset(10),
                parent_high_water_mark: Offset(10 + lag),
                due_lag_millis,
                next_due: None,
                committed: 0,
                filtered: 0,
                dropped: 0,
                duplicates: 0,
                stalled: stalled.then(|| "child: DISK_FULL".to_owned()),
            };
        LinkStatus {
            cursors: cursors.iter().enumerate().map(cursor).collect(),
            link,
        }
    }

    #[test]
    fn a_link_is_one_line_a_metric_whatever_its_partitions_and_shards() {
        let mut links = LinkTotals::of(vec![
            status("copy", &[(3, 250, false), (4, 0, true)]),
            status("late", &[]),
        ]);
        // The same link, as another shard tells of it.
        links.join(LinkTotals::of(vec![status("copy", &[(5, 1_500, true)])]));
        let busy = BTreeMap::from([
            ((name("ticks"), name("copy")), 2_500_000_000),
            ((name("ticks"), name("gone")), 7),
        ]);
        let mut text = String::new();
        render(&mut text, &links, &busy);
        for line in [
            "# HELP tailwater_fanout_stalled Cursors that do not move, per link.",
            "# TYPE tailwater_fanout_link_busy_seconds_total counter",
            "tailwater_fanout_lag_messages{parent=\"ticks\",child=\"copy\"} 12",
            "tailwater_fanout_lag_messages{parent=\"ticks\",child=\"late\"} 0",
            "tailwater_fanout_due_lag_seconds{parent=\"ticks\",child=\"copy\"} 1.5",
            "tailwater_fanout_stalled{parent=\"ticks\",child=\"copy\"} 2",
            "tailwater_fanout_link_busy_seconds_total{parent=\"ticks\",child=\"copy\"} 2.5",
            "tailwater_fanout_link_busy_seconds_total{parent=\"ticks\",child=\"late\"} 0",
        ] {
            assert_eq!(
                text.lines().filter(|l| *l == line).count(),
                1,
                "{line} in\n{text}"
            );
        }
        assert!(
            !text.contains("gone"),
            "a link that is no more is not shown:\n{text}"
        );
        let mut none = String::new();
        render(&mut none, &LinkTotals::default(), &busy);
        assert!(none.is_empty());
    }
}
