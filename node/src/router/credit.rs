//! The sending side of a mailbox, as a value: a request takes a credit, which reserves a place in the receiver's mailbox
//! and one for the answer in the sender's. Without a credit it waits at home, in order.
//!
//! So a mailbox of `2 x credits` places for each neighbour is never full, nobody ever waits to send, and two shards that
//! commit to each other at full load cannot block each other (DESIGN.md section 5).

use std::collections::VecDeque;

/// Requests that wait at home for a credit, per neighbour and kind; one more is refused as busy.
pub const BACKLOG_MAX: usize = 8_192;

/// The credits towards one neighbour, for one kind of request. Lives on the sending shard.
#[derive(Debug)]
pub struct Credits<T> {
    free: usize,
    backlog: VecDeque<T>,
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Submit<T> {
    /// Send it now: it holds a credit.
    Send(T),
    /// It waits its turn.
    Queued,
    /// There are too many that wait.
    Busy(T),
}

impl<T> Credits<T> {
    /// So many credits, at least one.
    #[must_use]
    pub fn new(credits: usize) -> Credits<T> {
        Credits {
            free: credits.max(1),
            backlog: VecDeque::new(),
        }
    }

    /// A new request.
    pub fn submit(&mut self, request: T) -> Submit<T> {
        if self.free > 0 {
            debug_assert!(self.backlog.is_empty(), "nobody waits while a credit is free");
            self.free -= 1;
            return Submit::Send(request);
        }
        if self.backlog.len() >= BACKLOG_MAX {
            return Submit::Busy(request);
        }
        self.backlog.push_back(request);
        Submit::Queued
    }

    /// An answer came: its credit goes to whoever waits longest, who is then to be sent.
    pub fn answered(&mut self) -> Option<T> {
        let next = self.backlog.pop_front();
        self.free += usize::from(next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_in_order_and_never_more_at_once_than_there_are_credits() {
        let mut credits = Credits::new(2);
        assert_eq!(credits.submit(1), Submit::Send(1));
        assert_eq!(credits.submit(2), Submit::Send(2));
        assert_eq!(credits.submit(3), Submit::Queued);
        assert_eq!(credits.submit(4), Submit::Queued);
        assert_eq!(credits.answered(), Some(3));
        assert_eq!(credits.answered(), Some(4));
        assert_eq!(credits.answered(), None);
        assert_eq!(credits.submit(5), Submit::Send(5));
        assert_eq!(credits.submit(6), Submit::Queued, "3 or 4 is still out, and 5");
    }

    #[test]
    fn a_full_backlog_says_so() {
        let mut credits = Credits::new(0);
        assert_eq!(credits.submit(0), Submit::Send(0), "at least one credit");
        for n in 0..BACKLOG_MAX {
            assert_eq!(credits.submit(n), Submit::Queued);
        }
        assert_eq!(credits.submit(7), Submit::Busy(7));
    }
}
