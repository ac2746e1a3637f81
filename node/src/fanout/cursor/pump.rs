//! What a cursor does next, after any event: ask, read, send, or end.

use tailwater_wire::ids::{CommitTime, Offset};

use crate::fanout::cursor::bucket::{Bucket, Phase};
use crate::fanout::cursor::census::Census;
use crate::fanout::cursor::lane::{PATIENCE_NANOS, READ_WAIT_MILLIS, Reading, after};
use crate::fanout::cursor::message::{Action, RequestId};
use crate::fanout::cursor::state::{Cursor, EpochState, LaneName, Life};
use crate::fanout::delay_gate;

impl Cursor {
    /// Does everything that can be done now.
    pub(super) fn pump(&mut self, now: CommitTime, out: &mut Vec<Action>) {
        match self.life {
            Life::Running => {
                self.ask_epoch(now, out);
                self.open_buckets(now, out);
                self.find_front(now);
                self.read_level(now, out);
                self.read_behind(now, out);
            }
            Life::Halted(_) => self.ask_epoch(now, out),
            Life::Stopping { persist } if self.census.in_flight == 0 => self.end(persist, out),
            Life::Storing(position) if self.stored >= position => self.stop(out),
            Life::Stopping { .. } | Life::Storing(_) | Life::Stopped => {}
        }
    }

    /// When a `Tick` is due, if time alone can bring something to do.
    #[must_use]
    pub fn wake_at(&self) -> Option<CommitTime> {
        let epoch = match self.epoch {
            EpochState::AskAt(at) => Some(at),
            EpochState::Sure | EpochState::Asking => None,
        };
        match self.life {
            Life::Halted(_) => return epoch,
            Life::Running => {}
            Life::Stopping { .. } | Life::Storing(_) | Life::Stopped => return None,
        }
        let retry = if self.census.closed > 0 {
            self.buckets.iter().filter_map(Bucket::ask_at).min()
        } else {
            None
        };
        let front =
            (self.front.is_none() && self.census.open > 0).then(|| after(self.created_at, PATIENCE_NANOS));
        [epoch, retry, front, self.level_at(), self.behind_at()]
            .into_iter()
            .flatten()
            .min()
    }

    fn ask_epoch(&mut self, now: CommitTime, out: &mut Vec<Action>) {
        if matches!(self.epoch, EpochState::AskAt(at) if at <= now) {
            self.epoch = EpochState::Asking;
            out.push(Action::ConfirmEpoch);
        }
    }

    fn open_buckets(&mut self, now: CommitTime, out: &mut Vec<Action>) {
        if self.census.closed == 0 {
            return;
        }
        for index in 0..self.buckets.len() {
            if self.buckets[index].ask_at().is_some_and(|at| at <= now) {
                let request = self.request();
                let bucket = &mut self.buckets[index];
                bucket.phase = Phase::Opening(request);
                out.push(Action::OpenOrigin {
                    request,
                    bucket: bucket.partition,
                });
            }
        }
        self.recount();
    }

    /// The first shared read waits until every child partition has said where it is, or was given the time to.
    fn find_front(&mut self, now: CommitTime) {
        let heard = self.census.asked == 0 || now >= after(self.created_at, PATIENCE_NANOS);
        if self.front.is_none() && self.census.open > 0 && heard {
            let open = self.buckets.iter().filter(|bucket| bucket.is_open());
            self.front = open.map(Bucket::read_to).min();
            self.recount();
        }
    }

    fn level_at(&self) -> Option<CommitTime> {
        self.front?;
        // What a delay has held back is due: it has gathered long enough.
        let adaptive = self.config.linger_millis.is_none() && self.config.delay.is_none();
        self.level.read_at(self.census.level, adaptive)
    }

    fn read_level(&mut self, now: CommitTime, out: &mut Vec<Action>) {
        if let (Some(front), Some(at)) = (self.front, self.level_at())
            && at <= now
        {
            self.read(LaneName::Level, front, READ_WAIT_MILLIS, now, out);
        }
    }

    fn behind_at(&self) -> Option<CommitTime> {
        let reads = self.census.behind.ready > 0 && self.behind.reading.is_none();
        reads.then_some(self.behind.not_before)
    }

    /// Those that are behind take turns in where the read begins, so that one far behind does not hold back the rest.
    fn read_behind(&mut self, now: CommitTime, out: &mut Vec<Action>) {
        let Some(front) = self.front else { return };
        if self.behind_at().is_some_and(|at| at <= now) {
            let ready = self
                .buckets
                .iter()
                .filter(|bucket| bucket.can_take() && bucket.read_to() < front);
            if let Some(bucket) = ready.min_by_key(|bucket| (bucket.served, bucket.read_to())) {
                self.read(LaneName::Behind, bucket.read_to(), 0, now, out);
            }
        }
    }

    fn read(
        &mut self,
        name: LaneName,
        from: Offset,
        wait_millis: u64,
        now: CommitTime,
        out: &mut Vec<Action>,
    ) {
        let request = self.request();
        self.lane(name).reading = Some(Reading {
            request,
            from,
            asked_at: now,
        });
        self.probe.reads += 1;
        out.push(Action::Read {
            request,
            from,
            committed_at_max: delay_gate::committed_at_max(self.config.delay, now, self.gate_held),
            records_max: self.config.slab_records_max,
            bytes_max: self.config.slab_bytes_max,
            wait_millis,
        });
    }

    /// Sends what a bucket has waiting, as far as it may.
    pub(super) fn ship(&mut self, index: usize, now: CommitTime, out: &mut Vec<Action>) {
        let bucket = &mut self.buckets[index];
        if !bucket.has_queue() {
            return;
        }
        self.census.leave(bucket, self.front);
        let is_level = self.front.is_some_and(|front| bucket.read_to() >= front);
        while let Some(batch) = bucket.send(RequestId(self.next_request)) {
            let request = RequestId(self.next_request);
            self.next_request += 1;
            self.probe.commits += 1;
            if is_level {
                self.level.shipped_at = now;
            }
            out.push(Action::Commit {
                request,
                bucket: bucket.partition,
                batch,
            });
        }
        self.census.join(bucket, self.front);
    }

    /// Counts the buckets anew, after more than one of them or the front has changed.
    pub(super) fn recount(&mut self) {
        if let (Some(front), None) = (self.front, self.level.reading) {
            // Nobody level wants what lies below their lowest read position.
            let level = self
                .buckets
                .iter()
                .filter(|bucket| bucket.is_open() && bucket.read_to() >= front);
            self.front = level.map(Bucket::read_to).min().or(Some(front));
        }
        self.census = Census::of(&self.buckets, self.front);
    }

    pub(super) fn request(&mut self) -> RequestId {
        let request = RequestId(self.next_request);
        self.next_request += 1;
        request
    }

    fn end(&mut self, persist: bool, out: &mut Vec<Action>) {
        match self.persistable() {
            Some(value) if persist => {
                self.life = Life::Storing(value.next_offset());
                out.push(Action::Persist(value));
            }
            _ => self.stop(out),
        }
    }

    pub(super) fn stop(&mut self, out: &mut Vec<Action>) {
        self.life = Life::Stopped;
        out.push(Action::Stop);
    }
}
