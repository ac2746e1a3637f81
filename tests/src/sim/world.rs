//! One run: everything that exists, and what each happening does to it.

use tailwater_node::fanout::cursor::message::{Action, EpochVerdict, Event, RequestId};
use tailwater_node::fanout::desired::CursorKey;
use tailwater_storage::gaps::Gaps;
use tailwater_storage::proof::{LeaderConfirmed, Persist};
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{CommitTime, Offset, PartitionId};

use super::child::{Answer, Ask, Child, Reply, Request};
use super::meta::Meta;
use super::network::Network;
use super::node::Node;
use super::options::{Bug, Scenario};
use super::parent::Parent;
use super::report::Trace;
use super::retention::Removal;
use super::rng::Rng;
use super::runner::{Asked, ReadAsked, Runner};
use super::schedule::Schedule;

/// Where the virtual clock starts.
pub(super) const START: CommitTime = CommitTime(1_700_000_000_000_000_000);
/// How long a cursor waits for a child.
const CHILD_TIMEOUT_MICROS: u64 = 600_000;

/// What can happen.
#[derive(Debug)]
pub(super) enum Happening {
    Produce(usize),
    Pass,
    ToChild(PartitionId, Request),
    ToRunner(Reply),
    Flushed { child: usize, life: u64 },
    ChildUp { child: usize, life: u64 },
    NodeUp,
    ReadDone(usize, RequestId),
    Tick(usize),
    Timeout(usize, RequestId),
    Store(usize, Option<Persist>),
    AskStart(CursorKey, u64),
    StartWord(CursorKey, u64, Option<LeaderConfirmed>),
    AskEpoch(usize),
    EpochWord(usize, EpochVerdict),
    NodeSees(u64),
    ChildSees(usize, u64),
    TryAttach,
    Counted(usize, u64),
    Remove(usize, u64),
    Misfortune,
    LeaderUp,
    Heal,
    KillZombies,
    CheckDrained,
    CheckStopped,
}

/// See the module.
pub(super) struct World {
    pub scenario: Scenario,
    pub rng: Rng,
    pub schedule: Schedule<Happening>,
    pub network: Network,
    pub meta: Meta,
    pub parents: Vec<Parent>,
    pub children: Vec<Child>,
    pub node: Node,
    pub runners: Vec<Runner>,
    pub trace: Trace,
    pub failures: Vec<String>,
    pub healed: bool,
    pub drained: bool,
    /// A re-attach waits until the detach has settled.
    pub attach_wanted: bool,
    pub askings: u64,
    /// By parent partition: what retention is about to take.
    pub removals: Vec<Option<Removal>>,
    /// By parent partition: how often a removal has waited for a cursor to run.
    pub waited: Vec<u32>,
}

impl World {
    pub fn new(scenario: Scenario) -> World {
        let meta = Meta::new(&scenario);
        let parent = |n| Parent::new(n, scenario.parent_partitioner);
        let child = |n| Child::new(n, &scenario);
        let mut world = World {
            rng: Rng::new(scenario.seed),
            schedule: Schedule::new(START),
            network: Network::new(&scenario),
            parents: (0..scenario.parent_partitions).map(parent).collect(),
            children: (0..scenario.child_partitions).map(child).collect(),
            node: Node::new(scenario.seed, &meta, scenario.parent_partitions),
            runners: Vec::new(),
            trace: Trace::new(scenario.seed),
            failures: Vec::new(),
            healed: false,
            drained: false,
            attach_wanted: true,
            askings: 0,
            removals: (0..scenario.parent_partitions).map(|_| None).collect(),
            waited: vec![0; scenario.parent_partitions as usize],
            meta,
            scenario,
        };
        for parent in 0..world.parents.len() {
            world.schedule.after_micros(0, Happening::Produce(parent));
        }
        let attach = world.rng.range(0, 1_000_000);
        world.schedule.after_micros(attach, Happening::TryAttach);
        world.schedule.after_micros(0, Happening::Pass);
        world.schedule_misfortune();
        let heal = world.scenario.heal_millis * 1_000;
        world.schedule.after_micros(heal, Happening::Heal);
        world
    }

    /// Runs to the end: drained, failed, or out of time.
    pub fn run(&mut self) {
        while let Some(happening) = self.schedule.next() {
            self.happen(happening);
            if self.drained || !self.failures.is_empty() {
                break;
            }
        }
    }

    pub fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    pub fn now(&self) -> CommitTime {
        self.schedule.now()
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Produce(parent) => self.produce(parent),
            Happening::Pass => self.pass(),
            Happening::ToChild(child, request) => self.at_child(child, &request),
            Happening::ToRunner(reply) => self.at_runner(reply),
            Happening::Flushed { child, life } => {
                if self.children[child].life == life {
                    let replies = self.children[child].end_flush();
                    replies.into_iter().for_each(|reply| self.send_reply(reply));
                    self.flush(child);
                }
            }
            Happening::ChildUp { child, life } => {
                if self.children[child].life == life {
                    self.children[child].up = true;
                }
            }
            Happening::NodeUp => self.node.up = true,
            Happening::ReadDone(runner, request) => self.serve(runner, request),
            Happening::Tick(runner) => {
                self.runners[runner].tick_at = None;
                self.step(runner, Event::Tick);
            }
            Happening::Timeout(runner, request) => {
                if let Some(Asked { bucket, .. }) = self.runners[runner].asked.remove(&request) {
                    let code = ErrorCode::TimedOut;
                    self.step(
                        runner,
                        Event::Failed {
                            request,
                            bucket,
                            code,
                        },
                    );
                }
            }
            Happening::Store(runner, last) => self.store(runner, last),
            Happening::AskStart(key, asking) => {
                let word = self.meta.reachable.then(|| self.meta.confirm());
                let way = self.rng.range(50, 30_000);
                self.schedule
                    .after_micros(way, Happening::StartWord(key, asking, word));
            }
            Happening::StartWord(key, asking, word) => self.on_start_word(&key, asking, word.as_ref()),
            Happening::AskEpoch(runner) => {
                let current = self.meta.link().map(|link| link.epoch);
                let verdict = if !self.meta.reachable {
                    EpochVerdict::Unconfirmed
                } else if current == Some(self.runners[runner].identity.epoch) {
                    EpochVerdict::Current
                } else {
                    EpochVerdict::Gone
                };
                let way = self.rng.range(50, 30_000);
                self.schedule
                    .after_micros(way, Happening::EpochWord(runner, verdict));
            }
            Happening::EpochWord(runner, verdict) => self.step(runner, Event::Epoch(verdict)),
            Happening::NodeSees(version) => {
                if version > self.node.view {
                    self.node.view = version;
                    self.reconcile();
                }
            }
            Happening::ChildSees(child, version) => self.children[child].see(version, &self.meta),
            Happening::Counted(partition, life) => self.counted(partition, life),
            Happening::Remove(partition, life) => self.remove(partition, life),
            Happening::TryAttach => self.try_attach(),
            Happening::Misfortune => self.misfortune(),
            Happening::LeaderUp => self.meta.reachable = true,
            Happening::Heal => self.heal(),
            Happening::KillZombies => {
                for runner in &mut self.runners {
                    runner.dead |= runner.zombie;
                }
            }
            Happening::CheckDrained => self.check_drained(),
            Happening::CheckStopped => self.check_stopped(),
        }
    }

    fn produce(&mut self, parent: usize) {
        let now = self.now();
        self.parents[parent].produce(now, &mut self.rng);
        if self.scenario.retention && !self.healed && self.rng.chance(20) {
            let keep = self.rng.range(2, 12) as usize;
            self.expire(parent, keep);
        }
        let waiting: Vec<(usize, RequestId)> = self
            .runners
            .iter()
            .enumerate()
            .filter(|(_, runner)| runner.partition as usize == parent && !runner.dead)
            .flat_map(|(index, runner)| runner.reads.keys().map(move |&request| (index, request)))
            .collect();
        for (runner, request) in waiting {
            self.schedule
                .after_micros(20, Happening::ReadDone(runner, request));
        }
        let over = START.0 + (self.scenario.heal_millis + 500) * 1_000_000;
        if now.0 < over {
            let pause = self.rng.range(500, 60_000);
            self.schedule.after_micros(pause, Happening::Produce(parent));
        }
    }

    fn serve(&mut self, index: usize, request: RequestId) {
        let now = self.now();
        let runner = &mut self.runners[index];
        if runner.dead {
            return;
        }
        let parent = &self.parents[runner.partition as usize];
        let key = CursorKey {
            parent: self.meta.parent.clone(),
            partition: PartitionId(runner.partition),
            child: self.meta.child.clone(),
        };
        let (epoch, node, meta) = (runner.identity.epoch, &mut self.node, &self.meta);
        let forgets = self.scenario.bug == Some(Bug::ForgetLedger);
        let ledger = |from, log_start| {
            let gaps = node.ledger(&key, epoch, from, log_start, meta);
            if forgets {
                gaps.map(|_| Gaps::default())
            } else {
                gaps
            }
        };
        if let Some(actions) = runner.serve(request, parent, now, ledger) {
            self.act(index, actions);
        }
    }

    pub fn step(&mut self, index: usize, event: Event) {
        let now = self.now();
        if !self.runners[index].dead {
            let actions = self.runners[index].step(event, now);
            self.act(index, actions);
        }
    }

    fn act(&mut self, index: usize, actions: Vec<Action>) {
        for action in actions {
            self.trace.action(self.schedule.now(), index, &action);
            match action {
                Action::OpenOrigin { request, bucket } => self.ask(index, request, bucket, None, Ask::Open),
                Action::Commit {
                    request,
                    bucket,
                    batch,
                } => {
                    let end = batch.end;
                    self.ask(index, request, bucket, Some(end), Ask::Commit(batch.bytes));
                    if self.scenario.bug == Some(Bug::AdvanceBeforeAck) {
                        let way = Answer::Acked {
                            end,
                            duplicate: false,
                        };
                        self.schedule.after_micros(
                            0,
                            Happening::ToRunner(Reply {
                                runner: index,
                                request,
                                bucket,
                                what: way,
                            }),
                        );
                    }
                }
                Action::VerifyParent {
                    request,
                    bucket,
                    offset,
                    mark,
                } => {
                    let parent = &self.parents[self.runners[index].partition as usize];
                    let verdict = parent.verify(offset, &mark);
                    self.step(
                        index,
                        Event::Verified {
                            request,
                            bucket,
                            verdict,
                        },
                    );
                }
                Action::Read {
                    request,
                    from,
                    committed_at_max,
                    records_max,
                    wait_millis,
                    ..
                } => {
                    let gated = self.scenario.bug != Some(Bug::IgnoreGate);
                    let read = ReadAsked {
                        from,
                        committed_at_max: committed_at_max.filter(|_| gated),
                        records_max,
                        until: CommitTime(self.now().0 + wait_millis * 1_000_000),
                    };
                    let runner = &mut self.runners[index];
                    runner.reads.insert(request, read);
                    runner.first_read.get_or_insert(from);
                    let latency = self.rng.range(10, 300);
                    self.schedule
                        .after_micros(latency, Happening::ReadDone(index, request));
                    self.schedule.at(read.until, Happening::ReadDone(index, request));
                }
                Action::Persist(persist) => {
                    let latency = self.rng.range(100, 3_000);
                    self.schedule
                        .after_micros(latency, Happening::Store(index, Some(persist)));
                }
                Action::ConfirmEpoch => {
                    let way = self.rng.range(50, 30_000);
                    self.schedule.after_micros(way, Happening::AskEpoch(index));
                }
                Action::Stall { reason, .. } => {
                    if reason.is_final() {
                        let partition = self.runners[index].partition;
                        self.fail(format!(
                            "cursor {index} of partition {partition} stands for good: {reason}"
                        ));
                    }
                }
                Action::Unstall { .. } | Action::Dropped { .. } => {}
                Action::Stop => {
                    self.runners[index].dead = true;
                    self.node.forget(index);
                }
            }
        }
        self.offer(index);
    }

    /// What the driver does after every step: the next tick, and the cursor file.
    fn offer(&mut self, index: usize) {
        let now = self.now();
        let runner = &mut self.runners[index];
        if runner.dead {
            return;
        }
        if let Some(at) = runner.cursor.wake_at().map(|at| at.max(now))
            && runner.tick_at.is_none_or(|scheduled| at < scheduled)
        {
            runner.tick_at = Some(at);
            self.schedule.at(at, Happening::Tick(index));
        }
        if !runner.persisting && runner.cursor.persistable().is_some() {
            runner.persisting = true;
            let latency = self.rng.range(500, 60_000);
            self.schedule.after_micros(latency, Happening::Store(index, None));
        }
    }

    fn store(&mut self, index: usize, last: Option<Persist>) {
        let runner = &mut self.runners[index];
        runner.persisting &= last.is_some();
        let Some(persist) = last.or(runner.cursor.persistable()).filter(|_| !runner.dead) else {
            return;
        };
        let key = self.key(self.runners[index].partition);
        // A zombie sits on another machine, with a file of its own.
        let stored = self.runners[index].zombie || self.node.advance(&key, persist);
        self.trace
            .note(&[11, index as u64, persist.next_offset().0, u64::from(stored)]);
        let event = if stored {
            Event::Persisted(persist.next_offset())
        } else {
            Event::PersistFailed
        };
        self.step(index, event);
    }

    pub fn key(&self, partition: u32) -> CursorKey {
        CursorKey {
            parent: self.meta.parent.clone(),
            partition: PartitionId(partition),
            child: self.meta.child.clone(),
        }
    }

    fn ask(&mut self, index: usize, request: RequestId, bucket: PartitionId, end: Option<Offset>, what: Ask) {
        let runner = &mut self.runners[index];
        let overlaps = end.is_some() && runner.commits_to(bucket).next().is_some();
        runner.overlapped += u64::from(overlaps);
        runner.asked.insert(request, Asked { bucket, end });
        let slow = if runner.zombie { 10 } else { 1 };
        let message = Request {
            runner: index,
            request,
            origin: runner.cursor.config().origin,
            index: runner.index,
            what,
        };
        for way in self.network.send(slow, &mut self.rng).into_iter().flatten() {
            self.schedule
                .after_micros(way, Happening::ToChild(bucket, message.clone()));
        }
        self.schedule
            .after_micros(CHILD_TIMEOUT_MICROS, Happening::Timeout(index, request));
    }

    fn at_child(&mut self, partition: PartitionId, request: &Request) {
        let now = self.now();
        // Where retention runs, parent and children are one process: what was on its way dies with it.
        if self.scenario.retention && self.runners[request.runner].dead {
            return;
        }
        let child = &mut self.children[partition.0 as usize];
        if child.up {
            let reply = child.handle(request, now, &self.meta);
            self.flush(partition.0 as usize);
            if let Some(reply) = reply {
                self.send_reply(reply);
            }
        }
    }

    fn flush(&mut self, child: usize) {
        if self.children[child].begin_flush() {
            let life = self.children[child].life;
            let slow = !self.healed && self.rng.chance(300);
            let most = if slow { 400_000 } else { 2_000 };
            let latency = self.rng.range(100, most);
            self.schedule
                .after_micros(latency, Happening::Flushed { child, life });
        }
    }

    fn send_reply(&mut self, reply: Reply) {
        let slow = if self.runners[reply.runner].zombie { 10 } else { 1 };
        for way in self.network.send(slow, &mut self.rng).into_iter().flatten() {
            self.schedule.after_micros(way, Happening::ToRunner(reply));
        }
    }

    fn at_runner(&mut self, reply: Reply) {
        self.trace.reply(self.schedule.now(), &reply);
        let runner = &mut self.runners[reply.runner];
        let waiting: Vec<(RequestId, Offset)> = runner.commits_to(reply.bucket).collect();
        let place = waiting.iter().position(|&(request, _)| request == reply.request);
        runner.overtaken += u64::from(place > Some(0));
        runner.asked.remove(&reply.request);
        let mut event = reply.event();
        match (self.scenario.bug, reply.what, place) {
            (Some(Bug::AckCoversAll), Answer::Acked { .. }, Some(_)) => {
                for (request, end) in waiting {
                    let what = Answer::Acked {
                        end,
                        duplicate: false,
                    };
                    self.step(
                        reply.runner,
                        Reply {
                            request,
                            what,
                            ..reply
                        }
                        .event(),
                    );
                }
                return;
            }
            (Some(Bug::RefusalIsAck), Answer::Expected(_), Some(place)) => {
                let what = Answer::Acked {
                    end: waiting[place].1,
                    duplicate: true,
                };
                event = Reply { what, ..reply }.event();
            }
            _ => {}
        }
        self.step(reply.runner, event);
    }
}
