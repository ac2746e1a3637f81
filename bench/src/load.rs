//! The load: closed loops, which wait for answers, and paced ones, which do not; the same for every system.
//!
//! Everything runs on the one thread of the runtime, pinned beside the system under test, and inside a `LocalSet`.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, coop, yield_now};
use tokio::time::{sleep, timeout};

use crate::histogram::Schedule;
use crate::payload::{Payload, Payloads};
use crate::tally::{Tally, Timeline};

/// A timer is this coarse; the rest of a pause is waited out awake.
const TIMER_GRAIN: Duration = Duration::from_millis(2);
/// Records that a paced load leaves unanswered at most. A system that far behind does not keep the rate; what waits here
/// still counts from its intended send.
const UNANSWERED_MAX: usize = 200_000;
/// How long after the window answers still count; a system that is later did not keep the rate.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// One lane into a system: a connection, and partitions or streams behind it.
pub trait Sender {
    /// Resolves, with what the system says is on disk, when the record is acknowledged.
    type Ack: Future<Output = anyhow::Result<&'static str>> + 'static;

    /// Hands a record over; `turn` goes round the lane's partitions. Waits only when the client's buffer is full.
    fn send(&self, turn: u64, payload: Payload) -> impl Future<Output = anyhow::Result<Self::Ack>>;
}

/// When a closed loop stops.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// When the window is over.
    WindowEnds,
    /// After so many records.
    Records(u64),
}

/// Sends batches, at most `in_flight` of them unanswered, as fast as answers allow. A batch's records are handed over
/// without giving way in between, so that the client sees all of them before it sends the first.
///
/// # Errors
/// When a record is not acknowledged.
pub async fn closed<S: Sender>(
    sender: S,
    mut payloads: Payloads,
    batch_records: usize,
    in_flight: usize,
    until: Until,
    timeline: Timeline,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let mut unanswered: VecDeque<(Duration, u64, S::Ack)> = VecDeque::new();
    let (mut total, mut turn) = (0, 0);
    loop {
        while unanswered.len() < in_flight {
            let count = match until {
                Until::WindowEnds if timeline.is_over() => 0,
                Until::WindowEnds => batch_records as u64,
                Until::Records(records) => (batch_records as u64).min(records - total),
            };
            let sent = timeline.elapsed();
            let mut last = None;
            for _ in 0..count {
                last = Some(coop::unconstrained(sender.send(turn, payloads.take())).await?);
            }
            let Some(last) = last else { break };
            total += count;
            turn += 1;
            unanswered.push_back((sent, count, last));
        }
        let Some((sent, count, ack)) = unanswered.pop_front() else {
            return Ok(tally);
        };
        tally.label(ack.await?)?;
        tally.add(&timeline, sent, sent, count);
    }
}

/// Runs one closed loop on each lane.
///
/// # Errors
/// As [`closed`]; the first failure ends all.
pub async fn closed_lanes<S: Sender + 'static>(
    senders: Vec<S>,
    payloads: &Payloads,
    batch_records: usize,
    in_flight: usize,
    until: Until,
    timeline: Timeline,
) -> anyhow::Result<Tally> {
    let mut loops = JoinSet::new();
    let lanes = senders.len() as u64;
    for (sender, lane) in senders.into_iter().zip(0..) {
        let until = match until {
            Until::Records(all) => Until::Records(all / lanes + u64::from(lane < all % lanes)),
            Until::WindowEnds => until,
        };
        loops.spawn_local(closed(
            sender,
            payloads.clone(),
            batch_records,
            in_flight,
            until,
            timeline,
        ));
    }
    gather(loops).await
}

/// Sends stamped records at a rate, in turn over the lanes, whatever the answers do. Returns what was answered, and
/// how many were sent.
///
/// # Errors
/// When a record is not acknowledged.
pub async fn paced<S: Sender>(
    senders: Vec<S>,
    mut payloads: Payloads,
    per_s: u64,
    timeline: Timeline,
) -> anyhow::Result<(Tally, u64)> {
    let mut takers = JoinSet::new();
    let mut lanes = Vec::new();
    for _ in &senders {
        let (sent, mut taken) = mpsc::channel::<(Duration, Duration, S::Ack)>(UNANSWERED_MAX);
        takers.spawn_local(async move {
            let mut tally = Tally::default();
            let due = timeline.end() + ANSWERS_WITHIN;
            while let Some((intended, sent, ack)) = taken.recv().await {
                let left = due.saturating_sub(timeline.elapsed());
                // What is not answered now is later than anything that would count.
                let Ok(label) = timeout(left, ack).await else {
                    break;
                };
                tally.label(label?)?;
                tally.add(&timeline, intended, sent, 1);
            }
            anyhow::Ok(tally)
        });
        lanes.push(sent);
    }
    let schedule = Schedule::per_second(per_s);
    let mut n = 0;
    loop {
        let intended = schedule.intended(n);
        if intended >= timeline.end() || timeline.is_over() {
            break;
        }
        wait_until(&timeline, intended).await;
        let (lane, turn) = (n as usize % senders.len(), n / senders.len() as u64);
        let sent = timeline.elapsed();
        let payload = payloads.take_stamped(intended, sent);
        let ack = senders[lane].send(turn, payload).await?;
        if lanes[lane].send((intended, sent, ack)).await.is_err() {
            break;
        }
        n += 1;
    }
    drop(lanes);
    Ok((gather(takers).await?, n))
}

/// Waits to the microsecond: by a timer as far as one is exact, then awake, giving way to everything else.
async fn wait_until(timeline: &Timeline, at: Duration) {
    let ahead = at.saturating_sub(timeline.elapsed());
    if ahead > TIMER_GRAIN {
        sleep(ahead - TIMER_GRAIN).await;
    }
    while timeline.elapsed() < at {
        yield_now().await;
    }
}

/// Waits for all parts of a load.
///
/// # Errors
/// The first failure among them.
pub async fn gather(mut parts: JoinSet<anyhow::Result<Tally>>) -> anyhow::Result<Tally> {
    let mut all = Tally::default();
    while let Some(part) = parts.join_next().await {
        all.merge(&part.context("a part of the load panicked")??)?;
    }
    Ok(all)
}

/// A number that the end of a load tells to those who wait for its copies.
#[derive(Debug, Clone, Default)]
pub struct Expected(Rc<Cell<Option<u64>>>);

impl Expected {
    /// Says how many there will be.
    pub fn tell(&self, records: u64) {
        self.0.set(Some(records));
    }

    /// How many there will be, if it is known.
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::Pin;

    use bytes::Bytes;
    use tokio::time::Instant;

    use super::*;
    use crate::payload::stamps;

    /// Acknowledges everything after a time, and remembers how many records it held and was given at once.
    #[derive(Clone, Default)]
    struct Fake {
        delay: Duration,
        given: Rc<RefCell<Vec<Payload>>>,
        unanswered: Rc<Cell<usize>>,
        most_unanswered: Rc<Cell<usize>>,
    }

    impl Sender for Fake {
        type Ack = Pin<Box<dyn Future<Output = anyhow::Result<&'static str>>>>;

        async fn send(&self, _turn: u64, payload: Payload) -> anyhow::Result<Self::Ack> {
            self.given.borrow_mut().push(payload);
            self.unanswered.set(self.unanswered.get() + 1);
            self.most_unanswered
                .set(self.most_unanswered.get().max(self.unanswered.get()));
            let (due, unanswered) = (Instant::now() + self.delay, self.unanswered.clone());
            Ok(Box::pin(async move {
                tokio::time::sleep_until(due).await;
                unanswered.set(unanswered.get() - 1);
                Ok("fsync")
            }))
        }
    }

    fn run<T>(load: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, load)
    }

    #[test]
    fn a_closed_loop_sends_no_more_than_it_may_and_exactly_what_it_should() {
        let fake = Fake {
            delay: Duration::from_millis(1),
            ..Fake::default()
        };
        let timeline = Timeline::starting_now(Duration::ZERO, Duration::from_secs(60));
        let load = closed(
            fake.clone(),
            Payloads::new(100, true),
            1,
            3,
            Until::Records(100),
            timeline,
        );
        let tally = run(load).expect("acknowledged");
        assert_eq!(
            (
                tally.records,
                fake.given.borrow().len(),
                fake.most_unanswered.get()
            ),
            (100, 100, 3)
        );
        assert_eq!(tally.durability, Some("fsync"));
        let given = fake.given.borrow();
        assert!(
            given
                .iter()
                .all(|p| p.value.len() + p.key.as_ref().map_or(0, Bytes::len) == 100)
        );
    }

    #[test]
    fn lanes_share_a_number_of_records_to_the_last_one() {
        let fake = Fake::default();
        let timeline = Timeline::starting_now(Duration::ZERO, Duration::from_secs(60));
        let payloads = Payloads::new(10, false);
        let lanes = vec![fake.clone(), fake.clone(), fake.clone()];
        run(closed_lanes(
            lanes,
            &payloads,
            4,
            2,
            Until::Records(101),
            timeline,
        ))
        .expect("acknowledged");
        assert_eq!(fake.given.borrow().len(), 101);
    }

    #[test]
    fn a_paced_load_does_not_wait_for_answers_and_keeps_its_times() {
        let fake = Fake {
            delay: Duration::from_millis(80),
            ..Fake::default()
        };
        let timeline = Timeline::starting_now(Duration::from_millis(50), Duration::from_millis(100));
        let load = paced(
            vec![fake.clone(), fake.clone()],
            Payloads::new(100, false),
            1_000,
            timeline,
        );
        let (tally, sent) = run(load).expect("acknowledged");
        assert!(sent > 20 && sent <= 150, "{sent} of 150");
        assert!(fake.most_unanswered.get() > 10, "it did not wait");
        let response = tally.latencies.response().expect("some");
        assert!(response.p50_us >= 80_000.0, "{response:?}");
        assert!(
            tally.records < sent,
            "the warm-up, and what came after the end, do not count"
        );
        let given = fake.given.borrow();
        let (intended, at) = stamps(&given[7].value).expect("stamped");
        assert_eq!(intended, Duration::from_millis(7));
        assert!(at >= intended && given[7].value.len() == 100);
    }
}
