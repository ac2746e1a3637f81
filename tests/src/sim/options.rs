//! What one run is like: drawn from its seed, or broken on purpose.

use std::str::FromStr;

use tailwater_wire::ids::Delay;
use tailwater_wire::partitioner::Partitioner;

use super::rng::Rng;

/// A defect planted into the simulator's glue, to see that the oracle goes red.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The child appends whatever comes.
    IgnoreDedup,
    /// The child appends whatever ends above its watermark, whichever watermark it follows.
    IgnorePrevious,
    /// The child acknowledges before its flush.
    AckBeforeFlush,
    /// The child never refuses an epoch.
    AcceptDeadEpoch,
    /// The cursor is told that a batch was acknowledged when it is sent.
    AdvanceBeforeAck,
    /// An acknowledgement is taken for all that is in flight to its child partition.
    AckCoversAll,
    /// A refusal of what was sent too early is taken for the acknowledgement of a repeat.
    RefusalIsAck,
    /// A cursor resumes at a file of any epoch.
    ResumeOtherEpoch,
    /// A cursor without a file starts at the parent's end.
    AnchorAtTail,
    /// The parent hands out records that are not due.
    IgnoreGate,
    /// Retention removes at once, and counts afterwards.
    CountAfterRemoval,
    /// What is on its way to a child counts as one with what nobody has sent.
    ForgetInFlight,
    /// A cursor does not hear what was counted before it started.
    ForgetLedger,
}

impl Bug {
    /// All of them, by name.
    pub const ALL: &'static [(&'static str, Bug)] = &[
        ("ignore-dedup", Bug::IgnoreDedup),
        ("ignore-previous", Bug::IgnorePrevious),
        ("ack-before-flush", Bug::AckBeforeFlush),
        ("accept-dead-epoch", Bug::AcceptDeadEpoch),
        ("advance-before-ack", Bug::AdvanceBeforeAck),
        ("ack-covers-all", Bug::AckCoversAll),
        ("refusal-is-ack", Bug::RefusalIsAck),
        ("resume-other-epoch", Bug::ResumeOtherEpoch),
        ("anchor-at-tail", Bug::AnchorAtTail),
        ("ignore-gate", Bug::IgnoreGate),
        ("count-after-removal", Bug::CountAfterRemoval),
        ("forget-in-flight", Bug::ForgetInFlight),
        ("forget-ledger", Bug::ForgetLedger),
    ];
}

impl FromStr for Bug {
    type Err = String;

    fn from_str(text: &str) -> Result<Bug, String> {
        let found = Bug::ALL.iter().find(|(name, _)| *name == text);
        let names: Vec<&str> = Bug::ALL.iter().map(|(name, _)| *name).collect();
        found
            .map(|(_, bug)| *bug)
            .ok_or_else(|| format!("`{text}` is none of {}", names.join(", ")))
    }
}

/// The setting of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scenario {
    pub seed: u64,
    pub bug: Option<Bug>,
    pub parent_partitions: u32,
    pub child_partitions: u32,
    pub parent_partitioner: Partitioner,
    pub child_partitioner: Partitioner,
    pub delay: Delay,
    pub filter: Option<&'static str>,
    pub linger_millis: Option<u64>,
    pub slab_records_max: usize,
    /// Bytes of a child batch: small ones make a slab's part a chain.
    pub batch_bytes_max: usize,
    /// Whether the first attach takes in what is there already.
    pub from_earliest: bool,
    /// Whether a child takes the attach offset for the watermark of an origin that it has not met, or 0.
    pub floor_is_attach: bool,
    /// Whether retention runs.
    pub retention: bool,
    /// Whether the parents are `written` topics: each crash of their node gives them a new lineage over what they had
    /// flushed. Not with retention, which takes what could show that it is the same history.
    pub written: bool,
    /// Chances in 1,000 for each message, until everything heals.
    pub loss: u64,
    pub duplication: u64,
    /// The longest way of a message, in milliseconds, until everything heals.
    pub way_millis_max: u64,
    /// The mean time between two misfortunes, in milliseconds; none at 0.
    pub chaos_millis: u64,
    /// When everything heals, in milliseconds.
    pub heal_millis: u64,
}

impl Scenario {
    pub fn of(seed: u64, bug: Option<Bug>) -> Scenario {
        let rng = &mut Rng::new(seed ^ 0x7461_696c);
        let partitioners = [Partitioner::Murmur2, Partitioner::Crc32c, Partitioner::Identity];
        let calm = rng.chance(100);
        let scenario = Scenario {
            seed,
            bug,
            parent_partitions: rng.range(1, 2) as u32,
            child_partitions: rng.range(1, 5) as u32,
            parent_partitioner: rng.pick(&partitioners),
            child_partitioner: rng.pick(&partitioners),
            delay: Delay {
                millis: rng.pick(&[0, 0, 50, 700, 3_000]),
            },
            filter: rng.pick(&[None, None, Some("kind=trade"), Some("key^=1"), Some("key=3|4|5")]),
            linger_millis: rng.pick(&[None, None, None, Some(10)]),
            slab_records_max: rng.pick(&[8, 40, 4_096]),
            batch_bytes_max: rng.pick(&[1_000, 8 << 20, 8 << 20]),
            from_earliest: rng.chance(300),
            floor_is_attach: rng.chance(500),
            retention: rng.chance(400),
            written: false,
            loss: if calm { 0 } else { rng.pick(&[0, 10, 100]) },
            duplication: if calm { 0 } else { rng.pick(&[0, 10, 100]) },
            way_millis_max: if calm { 2 } else { rng.pick(&[2, 20, 400]) },
            chaos_millis: if calm { 0 } else { rng.pick(&[150, 500, 1_500]) },
            heal_millis: rng.range(4_000, 9_000),
        };
        Scenario {
            written: rng.chance(300) && !scenario.retention,
            ..scenario
        }
    }
}
