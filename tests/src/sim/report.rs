//! Running many seeds, and a hash over everything that happened in them.

use tailwater_node::fanout::cursor::message::Action;
use tailwater_wire::ids::CommitTime;

use super::child::{Answer, Reply};
use super::options::{Bug, Scenario};
use super::world::World;

/// What came out of one seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What is wrong; nothing if all is well.
    pub failures: Vec<String>,
    /// A hash over all events of the run.
    pub trace: u64,
    /// Records that the child held at the end.
    pub records: u64,
    /// Cursors that were started.
    pub cursors: usize,
    /// Links that were attached.
    pub links: usize,
    /// Commits that were sent while another one to the same child partition was unanswered.
    pub overlapped: u64,
    /// Commits that were answered before an earlier one to the same child partition was.
    pub overtaken: u64,
}

/// Runs one seed, with or without a planted defect.
#[must_use]
pub fn run(seed: u64, bug: Option<Bug>) -> Outcome {
    let mut world = World::new(Scenario::of(seed, bug));
    world.run();
    let durable = world.children.iter().flat_map(|child| child.durable());
    Outcome {
        seed,
        records: durable.map(|batch| u64::from(batch.batch.records)).sum(),
        cursors: world.runners.len(),
        links: world.meta.links.len(),
        overlapped: world.runners.iter().map(|runner| runner.overlapped).sum(),
        overtaken: world.runners.iter().map(|runner| runner.overtaken).sum(),
        trace: world.trace.hash,
        failures: world.failures,
    }
}

/// Mixes the trace of one seed into that of many.
#[must_use]
pub fn mix(all: u64, trace: u64) -> u64 {
    (all ^ trace).wrapping_mul(FNV_PRIME)
}

/// The FNV-1a offset basis, also the trace of no seed at all.
pub const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// A running hash of events (FNV-1a over 64-bit words).
#[derive(Debug)]
pub(super) struct Trace {
    pub hash: u64,
    /// Whether each event is also printed, for a replay.
    verbose: bool,
}

impl Trace {
    pub fn new(seed: u64) -> Trace {
        let mut trace = Trace {
            hash: FNV_BASIS,
            verbose: std::env::var_os("SIM_TRACE").is_some(),
        };
        trace.note(&[seed]);
        trace
    }

    pub fn note(&mut self, words: &[u64]) {
        for word in words {
            self.hash = mix(self.hash, *word);
        }
    }

    pub fn action(&mut self, now: CommitTime, runner: usize, action: &Action) {
        if self.verbose {
            eprintln!(
                "{} cursor {runner}: {}",
                now.0 / 1_000 % 1_000_000_000,
                brief(action)
            );
        }
        self.note(&[now.0, runner as u64]);
        match action {
            Action::OpenOrigin { bucket, .. } => self.note(&[1, u64::from(bucket.0)]),
            Action::VerifyParent { offset, .. } => self.note(&[2, offset.0]),
            Action::Read { from, .. } => self.note(&[3, from.0]),
            Action::Commit { bucket, batch, .. } => {
                self.note(&[4, u64::from(bucket.0), batch.previous.0, batch.end.0]);
            }
            Action::Persist(persist) => self.note(&[5, persist.next_offset().0]),
            Action::ConfirmEpoch => self.note(&[6]),
            Action::Stall { .. } => self.note(&[7]),
            Action::Unstall { .. } => self.note(&[8]),
            Action::Dropped { records, .. } => self.note(&[9, *records]),
            Action::Stop => self.note(&[10]),
        }
    }

    pub fn reply(&mut self, now: CommitTime, reply: &Reply) {
        if self.verbose {
            eprintln!("{} {reply:?}", now.0 / 1_000 % 1_000_000_000);
        }
        let what = match reply.what {
            Answer::Opened(watermark, _) => [20, watermark.0],
            Answer::Acked { end, duplicate } => [21 + u64::from(duplicate), end.0],
            Answer::Expected(watermark) => [23, watermark.0],
            Answer::Failed(code) => [24, u64::from(code.number())],
        };
        self.note(&[now.0, reply.runner as u64, u64::from(reply.bucket.0)]);
        self.note(&what);
    }
}

fn brief(action: &Action) -> String {
    match action {
        Action::Commit {
            request,
            bucket,
            batch,
        } => format!(
            "{request:?} commit to {bucket}: {}->{}, {} records",
            batch.previous, batch.end, batch.records
        ),
        other => format!("{other:?}"),
    }
}
