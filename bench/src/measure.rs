//! The cells that are the same for every system that stores records: producing, catching up, and reading at the tail.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::load::{Expected, Until, closed_lanes, gather, paced};
use crate::payload::{Payloads, stamps};
use crate::peer::lab::Lab;
use crate::peer::outcome::{Outcome, per_op};
use crate::scenario::{Catchup, Produce, Tail};
use crate::store::{From, LanePlan, Reader, Store, TopicPlan};
use crate::tally::{Tally, Timeline};

/// What an outcome counts, and the outcome.
pub type Counted = (&'static str, Outcome);

/// Batches that fill a topic: their size, and how many are unacknowledged in each lane.
pub const FILL: (usize, usize) = (1_000, 4);
/// How long records may take to arrive after the last one was sent; what is later did not keep the rate.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// How long a receiver waits before it looks whether it is done.
const RECEIVE_WITHIN: Duration = Duration::from_millis(50);
/// How long nothing may arrive before reading is given up.
const STANDSTILL: Duration = Duration::from_secs(15);

/// One round of `produce` or `partitions`.
///
/// # Errors
/// When a record is not acknowledged, or batches were not what was meant.
pub async fn produce<S: Store>(store: &S, cell: &Produce, lab: &Lab) -> anyhow::Result<Vec<Counted>> {
    let topic = TopicPlan {
        name: "bench",
        partitions: cell.partitions,
    };
    store.make(&topic).await?;
    let payloads = Payloads::new(cell.record_bytes, false);
    let bytes = cell.record_bytes as u64;
    let batches = cell.in_flight.map(|in_flight| (cell.batch_records, in_flight));
    let lanes = LanePlan {
        lanes: cell.producers,
        batches,
    };
    let lanes = store.lanes(&topic, lanes).await?;
    let whole_batches = cell.batch_records > 1;
    let window = if whole_batches {
        lab.options.steady
    } else {
        lab.options.seconds
    };
    let timeline = Timeline::starting_now(lab.options.warmup, window);
    let cpu = timeline.at_both_ends(|| async { store.cpu() });
    if let Some(rate) = cell.rate_per_s {
        let ((tally, _), cpu) = tokio::try_join!(paced(lanes, payloads, rate, timeline), cpu)?;
        let outcome = Outcome::of_tally(&tally, &timeline, cpu, bytes);
        // It waits awake, so its core is always busy.
        return Ok(vec![(
            "records",
            Outcome {
                offered_per_s: Some(rate as f64),
                load_busy: None,
                ..outcome
            },
        )]);
    }
    let (batch, in_flight) = (cell.batch_records, cell.in_flight.unwrap_or(1));
    let load = closed_lanes(lanes, &payloads, batch, in_flight, Until::WindowEnds, timeline);
    let (tally, cpu) = tokio::try_join!(load, cpu)?;
    store.check(&topic, batch).await?;
    let outcome = Outcome::of_tally(&tally, &timeline, cpu, bytes);
    let written = outcome.achieved_per_s * (lab.options.warmup + window).as_secs_f64() * bytes as f64;
    Ok(vec![(
        "records",
        Outcome {
            written_bytes: whole_batches.then_some(written as u64),
            ..outcome
        },
    )])
}

/// Fills a topic with keyless records, as fast as they are acknowledged.
///
/// # Errors
/// When one is not.
pub async fn fill<S: Store>(
    store: &S,
    topic: &TopicPlan,
    payloads: &Payloads,
    records: u64,
) -> anyhow::Result<()> {
    let (batch, in_flight) = FILL;
    let plan = LanePlan {
        lanes: topic.partitions,
        batches: Some(FILL),
    };
    let lanes = store.lanes(topic, plan).await?;
    let timeline = Timeline::starting_now(Duration::ZERO, Duration::MAX / 4);
    closed_lanes(
        lanes,
        payloads,
        batch,
        in_flight,
        Until::Records(records),
        timeline,
    )
    .await?;
    Ok(())
}

/// The topic of `catchup`.
#[must_use]
pub fn catchup_topic(cell: &Catchup) -> TopicPlan {
    TopicPlan {
        name: "stored",
        partitions: cell.partitions,
    }
}

/// One round of `catchup` on a filled topic: from the reader's first request until it has everything.
///
/// # Errors
/// When records are missing, or nothing arrives for a while.
pub async fn catch_up<S: Store>(store: &S, cell: &Catchup) -> anyhow::Result<Vec<Counted>> {
    let (before, started) = (store.cpu()?, Instant::now());
    let mut reader = store.reader(&catchup_topic(cell), From::Earliest).await?;
    let (mut arrived, mut bytes, mut progress) = (0, 0, Instant::now());
    while arrived < cell.records {
        let seen = arrived;
        let mut take = |value: &[u8]| {
            (arrived, bytes) = (arrived + 1, bytes + value.len() as u64);
            Ok(())
        };
        reader.read(&mut take).await?;
        if arrived > seen {
            progress = Instant::now();
        } else if progress.elapsed() > STANDSTILL {
            bail!(
                "nothing arrived for {STANDSTILL:?}; of {} records {arrived} had",
                cell.records
            );
        }
    }
    let (after, seconds) = (store.cpu()?, started.elapsed().as_secs_f64());
    Ok(vec![(
        "records",
        Outcome {
            achieved_per_s: arrived as f64 / seconds,
            bytes_per_op: bytes / arrived.max(1),
            cpu_us_per_op: per_op(after.system.saturating_sub(before.system), arrived as f64),
            load_busy: Some(after.load.saturating_sub(before.load).as_secs_f64() / seconds),
            ..Outcome::of_nothing(store.durability())
        },
    )])
}

/// One round of `tail`: what readers got, from the intended send to their hands; and the acknowledgements meanwhile.
///
/// # Errors
/// When the system fails.
pub async fn tail<S: Store>(store: &S, cell: &Tail, lab: &Lab) -> anyhow::Result<Vec<Counted>> {
    let topic = TopicPlan {
        name: "bench",
        partitions: cell.partitions,
    };
    store.make(&topic).await?;
    let plan = LanePlan {
        lanes: 1,
        batches: None,
    };
    let lanes = store.lanes(&topic, plan).await?;
    let mut readers = Vec::new();
    for _ in 0..cell.readers {
        readers.push(store.reader(&topic, From::Tail).await?);
    }
    let timeline = Timeline::starting_now(lab.options.warmup, lab.options.seconds);
    let payloads = Payloads::new(cell.record_bytes, false);
    let cpu = timeline.at_both_ends(|| async { store.cpu() });
    let (produced, received, arrived, cpu) =
        received_at_rate(lanes, readers, payloads, cell.rate_per_s, timeline, cpu).await?;
    let bytes = cell.record_bytes as u64;
    let deliveries = Outcome::of_tally(&received, &timeline, cpu, bytes);
    let records = Outcome::of_tally(&produced.0, &timeline, cpu, bytes);
    Ok(vec![
        (
            "deliveries",
            Outcome {
                durability: store.durability(),
                offered_per_s: Some((cell.rate_per_s * u64::from(cell.readers)) as f64),
                response: deliveries
                    .response
                    .filter(|_| arrived >= produced.1 * u64::from(cell.readers)),
                load_busy: None,
                ..deliveries
            },
        ),
        (
            "records",
            Outcome {
                offered_per_s: Some(cell.rate_per_s as f64),
                cpu_us_per_op: None,
                load_busy: None,
                ..records
            },
        ),
    ])
}

/// A paced load, and readers that receive all of it. Returns the load with how many it sent, what was received with how
/// many in all, and what `beside` returns.
///
/// # Errors
/// When any of it fails.
pub async fn received_at_rate<L: crate::load::Sender, R: Reader + 'static, T>(
    lanes: Vec<L>,
    readers: Vec<R>,
    payloads: Payloads,
    rate_per_s: u64,
    timeline: Timeline,
    beside: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<((Tally, u64), Tally, u64, T)> {
    let (expected, arrived) = (Expected::default(), Rc::new(std::cell::Cell::new(0)));
    let mut receivers = JoinSet::new();
    for reader in readers {
        receivers.spawn_local(receive(reader, expected.clone(), Rc::clone(&arrived), timeline));
    }
    let load = async {
        let produced = paced(lanes, payloads, rate_per_s, timeline).await?;
        expected.tell(produced.1);
        Ok(produced)
    };
    let (produced, received, beside) = tokio::try_join!(load, gather(receivers), beside)?;
    Ok((produced, received, arrived.get(), beside))
}

/// Takes records until all that were sent have arrived, or too much time has passed since.
async fn receive(
    mut reader: impl Reader,
    expected: Expected,
    all: Rc<std::cell::Cell<u64>>,
    timeline: Timeline,
) -> anyhow::Result<Tally> {
    let (mut tally, mut arrived, mut known_since) = (Tally::default(), 0, None);
    loop {
        if let Some(sent) = expected.get() {
            let since = *known_since.get_or_insert_with(Instant::now);
            if arrived >= sent || since.elapsed() > DRAIN_WITHIN {
                all.set(all.get() + arrived);
                return Ok(tally);
            }
        }
        let mut take = |value: &[u8]| {
            let (intended, sent) = stamps(value).context("a record that the bench did not send")?;
            tally.add(&timeline, intended, sent, 1);
            arrived += 1;
            Ok(())
        };
        reader.read(&mut take).await?;
    }
}

/// Watches a number grow until it reaches `whole`, or `at_most` has passed; returns what it reached.
///
/// # Errors
/// When it does not grow for a while, or cannot be read.
pub async fn watch_growth<F>(
    whole: u64,
    at_most: Duration,
    mut look: impl FnMut() -> F,
) -> anyhow::Result<u64>
where
    F: Future<Output = anyhow::Result<u64>>,
{
    let (started, mut most, mut progress) = (Instant::now(), 0, Instant::now());
    loop {
        let asked = Instant::now();
        let now = look().await?;
        let cost = asked.elapsed();
        if now >= whole || started.elapsed() >= at_most {
            return Ok(now);
        }
        if now > most {
            (most, progress) = (now, Instant::now());
        }
        if progress.elapsed() > STANDSTILL {
            bail!("nothing was copied for {STANDSTILL:?}; of {whole} copies there are {now}");
        }
        // Looking is work for the system too: it may have a tenth of the time.
        sleep(LOOK_EVERY + 9 * cost).await;
    }
}

/// How often a growing number is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits for something no longer than a receiver may.
pub async fn for_a_while<T>(wait: impl Future<Output = T>) -> Option<T> {
    timeout(RECEIVE_WITHIN, wait).await.ok()
}
