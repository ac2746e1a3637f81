//! What the cursors of a link cost: the time that a shard spends in their tasks, counted poll by poll.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use crate::clock::system::elapsed_since_boot;
use crate::telemetry::counters::Cell as CounterCell;

/// The meter of one cursor. Shard-local.
#[derive(Debug)]
pub struct Meter {
    link: Arc<CounterCell>,
    /// glommio may poll a task within the poll of the one that spawns it: time is counted by the outer one alone.
    running: Cell<bool>,
}

impl Meter {
    /// A meter that counts into its link's.
    #[must_use]
    pub fn new(link: Arc<CounterCell>) -> Meter {
        Meter {
            link,
            running: Cell::new(false),
        }
    }

    /// Does work, and counts the time of its polls, into `shard` too. Two readings of the clock each.
    pub async fn measure<F: Future>(&self, shard: &CounterCell, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if self.running.replace(true) {
                return work.as_mut().poll(cx);
            }
            let began = elapsed_since_boot();
            let polled = work.as_mut().poll(cx);
            let nanos = elapsed_since_boot().saturating_sub(began).as_nanos() as u64;
            self.running.set(false);
            self.link.add(nanos);
            shard.add(nanos);
            polled
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use futures_lite::future::block_on;
    use tailwater_wire::ids::TopicName;

    use super::*;
    use crate::telemetry::counters::LinkMeters;

    fn name(text: &str) -> TopicName {
        text.parse().expect("a name")
    }

    #[test]
    fn polls_are_counted_once_and_waits_are_not() {
        let (meters, shard) = (LinkMeters::default(), CounterCell::default());
        let meter = Meter::new(meters.of(&name("ticks"), &name("copy")));
        let spin = |millis| {
            let until = elapsed_since_boot() + Duration::from_millis(millis);
            while elapsed_since_boot() < until {}
        };
        block_on(meter.measure(&shard, async {
            spin(4);
            // Between its polls, whatever passes is not the work's.
            futures_lite::future::yield_now().await;
            meter.measure(&shard, async { spin(4) }).await;
        }));
        assert!(shard.get() >= 8_000_000, "{} ns", shard.get());
        let mut sums = BTreeMap::new();
        meters.add_to(&mut sums);
        assert_eq!(
            sums[&(name("ticks"), name("copy"))],
            shard.get(),
            "no part of it twice"
        );

        let other = Meter::new(meters.of(&name("ticks"), &name("copy")));
        block_on(other.measure(&shard, async { spin(1) }));
        drop(meter);
        let mut sums = BTreeMap::new();
        meters.add_to(&mut sums);
        assert_eq!(
            sums[&(name("ticks"), name("copy"))],
            shard.get(),
            "cursors of a link share it"
        );
        drop(other);
        let mut sums = BTreeMap::new();
        meters.add_to(&mut sums);
        assert!(sums.is_empty(), "a link without cursors is forgotten");
    }
}
