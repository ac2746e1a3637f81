//! Memory for large frames that come in: what of a frame is counted, taken from the shard's budget before it arrives.

use std::rc::Rc;

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::decoder::Announced;

use crate::budget::{Budget, Charge};

/// A frame's typed part, and its raw part, up to so many bytes each, are not counted: `connections_max` bounds them.
pub const UNCOUNTED_BYTES_MAX: usize = 64 << 10;

/// What one frame has taken of the budget; given back when dropped. Shard-local.
#[derive(Default)]
pub struct Room {
    meta: Option<Charge>,
    payload: Option<Charge>,
}

impl Room {
    /// Takes what the frame needs by what is known of it, and has not taken yet. Nobody waits here: one who is slow
    /// to send would hold up all others. Without room nothing is kept, and it says no.
    #[must_use]
    pub fn make(&mut self, budget: &Rc<Budget>, announced: &Announced) -> bool {
        let header = &announced.header;
        // A payload is a claim until the checksum; a large meta has to be counted before, because it comes first.
        let payload_len = if announced.verified { header.payload_len } else { 0 };
        let room = take(&mut self.meta, budget, header.meta_len as usize)
            && take(&mut self.payload, budget, payload_len as usize);
        if !room {
            *self = Room::default();
        }
        room
    }

    /// As [`Room::make`], for a payload of any size that leaves for another shard: many of them may wait for their turn.
    #[must_use]
    pub fn make_to_leave(&mut self, budget: &Rc<Budget>, payload_len: usize) -> bool {
        if self.payload.is_none() {
            self.payload = budget.try_take(payload_len);
        }
        self.payload.is_some()
    }
}

/// Why a request is refused that has no room.
#[must_use]
pub fn no_room() -> Refusal {
    let what = "the node receives as many large requests as it has memory for (receive_bytes_max)";
    Refusal::new(ErrorCode::Busy, what)
}

fn take(charge: &mut Option<Charge>, budget: &Rc<Budget>, bytes: usize) -> bool {
    if charge.is_none() && bytes > UNCOUNTED_BYTES_MAX {
        *charge = budget.try_take(bytes);
        return charge.is_some();
    }
    true
}

#[cfg(test)]
mod tests {
    use tailwater_wire::frame::{FrameHeader, FrameKind};

    use super::*;

    fn announced(meta_len: u32, payload_len: u32, verified: bool) -> Announced {
        let header = FrameHeader {
            kind: FrameKind::Request,
            correlation: 1,
            meta_len,
            payload_len,
            crc: 0,
        };
        Announced { header, verified }
    }

    #[test]
    fn a_part_is_counted_once_when_it_is_large_and_a_payload_not_before_the_checksum() {
        let budget = Budget::new(1 << 20);
        let mut room = Room::default();
        for (meta_len, payload_len, verified, used) in [
            (60_000, 60_000, true, 0),
            (70_000, 500_000, false, 70_000),
            (70_000, 500_000, true, 570_000),
            (70_000, 500_000, true, 570_000),
        ] {
            assert!(room.make(&budget, &announced(meta_len, payload_len, verified)));
            assert_eq!(budget.used_bytes(), used);
        }
        let mut other = Room::default();
        assert!(other.make(&budget, &announced(70_000, 500_000, false)));
        assert!(!other.make(&budget, &announced(70_000, 500_000, true)));
        assert_eq!(budget.used_bytes(), 570_000, "one without room keeps nothing");
        assert!(
            other.make(&budget, &announced(10, 10, true)),
            "small ones always have it"
        );
        assert!(other.make_to_leave(&budget, 1_000) && other.make_to_leave(&budget, 1_000));
        assert_eq!(
            budget.used_bytes(),
            571_000,
            "on its way to another shard it is counted"
        );
        assert!(!Room::default().make_to_leave(&budget, 1 << 20));
        drop((room, other));
        assert_eq!(budget.used_bytes(), 0);
    }
}
