//! How many buckets are level, behind and busy, kept up to date so that an acknowledgement does not walk all of them.

use tailwater_wire::ids::Offset;

use crate::fanout::cursor::bucket::{Bucket, Phase};
use crate::fanout::cursor::lane::Members;

/// Counts over all buckets of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Census {
    /// Open, and read at least up to the front.
    pub level: Members,
    /// Open, and read less far.
    pub behind: Members,
    /// All that are open, also before there is a front.
    pub open: usize,
    /// To be asked for their watermark when the time comes; not those that wait for answers first.
    pub closed: usize,
    /// Asked, without an answer yet.
    pub asked: usize,
    /// Buckets with something unanswered, whatever else they are.
    pub in_flight: usize,
}

impl Census {
    /// Counts all buckets.
    pub fn of(buckets: &[Bucket], front: Option<Offset>) -> Census {
        let mut census = Census::default();
        for bucket in buckets {
            census.join(bucket, front);
        }
        census
    }

    /// Counts a bucket in.
    pub fn join(&mut self, bucket: &Bucket, front: Option<Offset>) {
        self.each(bucket, front, |count| *count += 1);
    }

    /// Takes a bucket out, before it changes.
    pub fn leave(&mut self, bucket: &Bucket, front: Option<Offset>) {
        self.each(bucket, front, |count| *count -= 1);
    }

    fn each(&mut self, bucket: &Bucket, front: Option<Offset>, count: impl Fn(&mut usize)) {
        if bucket.has_unanswered() {
            count(&mut self.in_flight);
        }
        match bucket.phase {
            Phase::Closed { .. } if bucket.ask_at().is_none() => {}
            Phase::Closed { .. } => count(&mut self.closed),
            Phase::Opening(_) | Phase::Verifying { .. } => count(&mut self.asked),
            Phase::Halted => {}
            Phase::Open => {
                count(&mut self.open);
                let Some(front) = front else { return };
                let lane = if bucket.read_to() >= front {
                    &mut self.level
                } else {
                    &mut self.behind
                };
                count(if bucket.can_take() {
                    &mut lane.ready
                } else {
                    &mut lane.blocked
                });
                if bucket.has_unanswered() {
                    count(&mut lane.busy);
                }
            }
        }
    }
}
