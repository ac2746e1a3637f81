//! One running cursor and what is outstanding for it: the glue that the node's driver is in production.

use std::collections::BTreeMap;

use tailwater_node::fanout::batch::Cutter;
use tailwater_node::fanout::cursor::message::{Action, Event, RequestId, Slab};
use tailwater_node::fanout::cursor::state::{Cursor, CursorConfig};
use tailwater_node::fanout::desired::{CursorSpec, Identity};
use tailwater_node::fanout::filter::Filter;
use tailwater_node::fanout::rekey::Rekey;
use tailwater_storage::gaps::Gaps;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Lineage, Offset, OriginId, PartitionId};

use super::options::Scenario;
use super::parent::{Found, Parent};

/// A read that was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadAsked {
    pub from: Offset,
    pub committed_at_max: Option<CommitTime>,
    pub records_max: usize,
    /// It waits at the tail until then.
    pub until: CommitTime,
}

/// A request to a child partition that is unanswered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub bucket: PartitionId,
    /// Of a commit, the watermark that it leaves.
    pub end: Option<Offset>,
}

/// See the module.
pub(super) struct Runner {
    pub partition: u32,
    pub identity: Identity,
    /// The metadata index of its link.
    pub index: u64,
    pub cursor: Cursor,
    /// Replaced on another machine, or forgotten by it, and not yet dead.
    pub zombie: bool,
    pub dead: bool,
    pub reads: BTreeMap<RequestId, ReadAsked>,
    /// Requests to child partitions, by number.
    pub asked: BTreeMap<RequestId, Asked>,
    /// Commits that were sent while another one to the same child partition was unanswered.
    pub overlapped: u64,
    /// Commits that were answered before an earlier one to the same child partition was.
    pub overtaken: u64,
    /// A tick is scheduled for this time.
    pub tick_at: Option<CommitTime>,
    pub persisting: bool,
    /// Where the first shared read began.
    pub first_read: Option<Offset>,
    cutter: Cutter,
    filter: Option<Filter>,
}

impl Runner {
    pub fn new(
        scenario: &Scenario,
        spec: &CursorSpec,
        partition: u32,
        lineage: Lineage,
        (start, gaps): (Offset, Gaps),
        now: CommitTime,
    ) -> Runner {
        let origin = OriginId {
            epoch: spec.identity.epoch,
            partition: PartitionId(partition),
        };
        let config = CursorConfig {
            delay: spec.options.delay,
            linger_millis: spec.options.linger_millis,
            slab_records_max: scenario.slab_records_max,
            gaps,
            ..CursorConfig::new(origin, lineage, spec.child_partitions, start)
        };
        let rekey = Rekey {
            partitioner: spec.child_partitioner,
            partitions: spec.child_partitions,
            parent: PartitionId(partition),
        };
        let filter = spec.options.filter.as_deref();
        Runner {
            partition,
            identity: spec.identity,
            index: spec.index,
            cursor: Cursor::new(config, now),
            zombie: false,
            dead: false,
            reads: BTreeMap::new(),
            asked: BTreeMap::new(),
            overlapped: 0,
            overtaken: 0,
            tick_at: None,
            persisting: false,
            first_read: None,
            cutter: Cutter::new(rekey, scenario.batch_bytes_max),
            filter: filter.map(|text| Filter::parse(text).expect("the scenario's filters are sound")),
        }
    }

    /// Unanswered commits to a child partition, oldest first.
    pub fn commits_to(&self, bucket: PartitionId) -> impl Iterator<Item = (RequestId, Offset)> + '_ {
        let to = self.asked.iter().filter(move |(_, asked)| asked.bucket == bucket);
        to.filter_map(|(&request, asked)| Some((request, asked.end?)))
    }

    pub fn step(&mut self, event: Event, now: CommitTime) -> Vec<Action> {
        let mut actions = Vec::new();
        self.cursor.step(event, now, &mut actions);
        actions
    }

    /// Serves a read, if it does not have to wait.
    /// `ledger` reads the cursor's gap ledger, from where the read began and where the log begins.
    pub fn serve(
        &mut self,
        request: RequestId,
        parent: &Parent,
        now: CommitTime,
        ledger: impl FnOnce(Offset, Offset) -> Option<Gaps>,
    ) -> Option<Vec<Action>> {
        let read = *self.reads.get(&request)?;
        let found = match parent.read(read.from, read.committed_at_max, read.records_max) {
            Found::AtTail if now < read.until => return None,
            Found::AtTail => Found::Slab {
                runs: Vec::new(),
                next: read.from,
                full: false,
                next_commit: None,
            },
            found => found,
        };
        self.reads.remove(&request);
        let event = match found {
            Found::Behind(log_start) => match ledger(read.from, log_start) {
                Some(gaps) => Event::Behind {
                    request,
                    log_start,
                    gaps,
                },
                None => Event::ReadFailed {
                    request,
                    code: ErrorCode::PositionBehind,
                },
            },
            Found::Ahead(high_water_mark) => Event::Ahead {
                request,
                high_water_mark,
            },
            Found::AtTail => Event::Tick,
            Found::Slab {
                runs,
                next,
                full,
                next_commit,
            } => {
                let slab = Slab {
                    request,
                    next,
                    full,
                    next_commit,
                };
                match self.cursor.plan(&slab, now) {
                    None => Event::Tick,
                    Some(plan) => match self.cutter.cut(&runs, &plan, self.filter.as_ref()) {
                        Ok(cut) => Event::Slab { slab, cut },
                        Err(_) => Event::ReadFailed {
                            request,
                            code: ErrorCode::Quarantined,
                        },
                    },
                }
            }
        };
        Some(self.step(event, now))
    }
}
