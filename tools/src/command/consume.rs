//! `consume`: the records of a topic, of one partition or merged over all by commit time.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tailwater_wire::client::config::StartAt;
use tailwater_wire::client::consumer::{ConsumedBatch, Gap, GapReason};
use tailwater_wire::client::error::ClientError;
use tailwater_wire::ids::PartitionId;
use tailwater_wire::meta::AttachFrom;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::cli;
use crate::command::context::Context;
use crate::command::lane::{self, Reading, Told};
use crate::command::merge::{Key, Merge, Step};
use crate::command::printer::{Form, Printer};
use crate::command::signals::Signals;
use crate::error::Failure;
use crate::output::{self, Format, Out};

/// Bytes of the reads of all partitions together, unless there are so many that each has the least.
const READ_BYTES: usize = 64 << 20;
/// Bytes of one partition's read, at least and at most.
const LANE_BYTES: (usize, usize) = (64 << 10, 1 << 20);
/// How long a read waits at the end of a partition; shorter when the connection's window must be shared by more than
/// [`LANES_CALM`].
const WAIT: Duration = Duration::from_secs(1);
const WAIT_CROWDED: Duration = Duration::from_millis(50);
const LANES_CALM: usize = 128;

/// Runs it.
///
/// # Errors
/// The node's refusals, that it cannot be reached, or that a signal ended it; what was read by then is printed, and a
/// JSON array is closed.
pub async fn run(context: &mut Context, signals: &mut Signals, args: cli::Consume) -> Result<(), Failure> {
    let form = match args.format {
        Some(template) => Form::Template(template),
        None => Form::Format(Format::for_stream(context.output)),
    };
    let from = match args.from {
        AttachFrom::Tail => StartAt::Tail,
        AttachFrom::Earliest => StartAt::Earliest,
        AttachFrom::Offset(offset) => StartAt::Offset(offset),
        AttachFrom::Time(nanos) => StartAt::Time(nanos),
    };
    let Context { client, out, .. } = context;
    let opening = async {
        let topics = client.describe_topics(Some(vec![args.topic.clone()])).await?;
        let count = topics.first().map_or(0, |topic| topic.spec.partitions);
        let partitions: Vec<PartitionId> = match args.partition {
            Some(partition) => vec![partition],
            None => (0..count).map(PartitionId).collect(),
        };
        let crowded = partitions.len() > LANES_CALM;
        let share = READ_BYTES / (2 * partitions.len().max(1));
        let reading = Reading {
            topic: args.topic.clone(),
            from,
            follow: args.follow,
            bytes_max: share.clamp(LANE_BYTES.0, LANE_BYTES.1) as u32,
            wait: if crowded { WAIT_CROWDED } else { WAIT },
        };
        let mut lanes = Vec::with_capacity(partitions.len());
        for partition in partitions {
            lanes.push(lane::open(client, &reading, partition).await?);
        }
        Ok::<_, ClientError>(Lanes::new(lanes))
    };
    let mut lanes = signals.unless(opening).await??;
    let mut printer = Printer::new(args.topic.clone(), form, args.count.unwrap_or(u64::MAX));
    printer.begin(out)?;
    let result = tokio::select! {
        result = print(&mut lanes, &mut printer, out) => result,
        failure = signals.next() => Err(failure),
    };
    // However it ended, what was printed is whole.
    printer.end(out)?;
    out.flush()?;
    result
}

async fn print(lanes: &mut Lanes, printer: &mut Printer, out: &mut Out) -> Result<(), Failure> {
    while !printer.is_done() {
        match lanes.merge.step(lanes.now()) {
            Step::Take((lane, batch)) => {
                lanes.empty.push(lane);
                printer.batch(out, &batch)?;
            }
            Step::End => break,
            Step::Wait(until) => {
                if lanes.take_what_is_there()? {
                    continue;
                }
                // The readers get a turn; only if they have nothing either is it time to show what there is, and to wait.
                tokio::task::yield_now().await;
                if !lanes.take_what_is_there()? {
                    out.flush()?;
                    lanes.wait(until).await?;
                }
            }
        }
    }
    Ok(())
}

/// The partitions that are read, and their merge.
struct Lanes {
    receivers: Vec<mpsc::Receiver<Told>>,
    /// Those without a batch at hand, which have not ended.
    empty: Vec<usize>,
    merge: Merge<(usize, ConsumedBatch)>,
    started: Instant,
}

impl Lanes {
    fn new(receivers: Vec<mpsc::Receiver<Told>>) -> Lanes {
        Lanes {
            empty: (0..receivers.len()).collect(),
            merge: Merge::new(receivers.len()),
            receivers,
            started: Instant::now(),
        }
    }

    /// Nanoseconds since the start.
    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Takes what lanes without a batch at hand have brought. Says whether there was anything.
    fn take_what_is_there(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        let mut at = 0;
        while at < self.empty.len() {
            let lane = self.empty[at];
            let told = match self.receivers[lane].try_recv() {
                Ok(told) => Some(told),
                Err(mpsc::error::TryRecvError::Disconnected) => None,
                Err(mpsc::error::TryRecvError::Empty) => {
                    at += 1;
                    continue;
                }
            };
            any = true;
            if self.take(lane, told)? {
                self.empty.swap_remove(at);
            }
        }
        Ok(any)
    }

    /// Waits until one of them brings something, or until a time.
    async fn wait(&mut self, until: Option<u64>) -> Result<(), Failure> {
        let told = {
            let (receivers, empty) = (&mut self.receivers, &self.empty);
            let arrival = poll_fn(|context| {
                let found = empty.iter().enumerate().find_map(|(at, &lane)| {
                    match receivers[lane].poll_recv(context) {
                        Poll::Ready(told) => Some((at, lane, told)),
                        Poll::Pending => None,
                    }
                });
                found.map_or(Poll::Pending, Poll::Ready)
            });
            match until {
                None => Some(arrival.await),
                Some(until) => {
                    let until = self.started + Duration::from_nanos(until);
                    tokio::select! {
                        told = arrival => Some(told),
                        () = sleep_until(until) => None,
                    }
                }
            }
        };
        if let Some((at, lane, told)) = told
            && self.take(lane, told)?
        {
            self.empty.swap_remove(at);
        }
        Ok(())
    }

    /// Takes what a lane told. Says whether it is not to be asked now: it has a batch at hand, or has ended.
    fn take(&mut self, lane: usize, told: Option<Told>) -> Result<bool, Failure> {
        match told {
            Some(Told::Batch(batch, since, more)) => {
                let key = Key {
                    commit_time: batch.header.commit_time.0,
                    partition: batch.partition.0,
                    offset: batch.first.0,
                };
                let since = since.saturating_duration_since(self.started).as_nanos() as u64;
                self.merge.arrived(lane, key, since, more, (lane, batch));
                Ok(true)
            }
            Some(Told::Gap(gap, more)) => {
                say_gap(&gap);
                self.merge.known(lane, more);
                Ok(false)
            }
            Some(Told::Quiet) => {
                self.merge.known(lane, false);
                Ok(false)
            }
            Some(Told::End) => {
                self.merge.ended(lane);
                Ok(true)
            }
            Some(Told::Failed(error)) => Err(error.into()),
            // Its task is gone without a word.
            None => Err(Failure::local("consume", "a reader ended early", "INTERNAL")),
        }
    }
}

fn say_gap(gap: &Gap) {
    let why = match gap.reason {
        GapReason::Quarantined => "they are damaged on the node's disk",
        GapReason::Retention => "retention removed them",
    };
    output::note(&format!(
        "gap: partition {}, offsets {} to {}: {why}",
        gap.partition, gap.from, gap.to
    ));
}
