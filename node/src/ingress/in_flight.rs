//! One connection as its requests see it: where answers go, and how many requests are unanswered.

use std::cell::Cell;
use std::rc::Rc;

use tailwater_wire::limits::REQUESTS_IN_FLIGHT_MAX;

use crate::ingress::outbox::Outbox;
use crate::signal::Signal;

/// A connection as its requests see it. Shard-local.
#[derive(Default)]
pub struct Connection {
    /// Answers on their way out.
    pub outbox: Outbox,
    in_flight: Cell<usize>,
    settled: Signal,
    greeted: Cell<bool>,
}

/// Room for an answer that is being made; given back when dropped.
pub struct Reservation {
    connection: Rc<Connection>,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.connection.outbox.unreserve(self.bytes);
    }
}

/// A request's place among those in flight; given back when the request is answered.
pub struct InFlight(Rc<Connection>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.settled.notify();
    }
}

impl Connection {
    /// A place for a request; none when too many are unanswered already.
    #[must_use]
    pub fn enter(self: &Rc<Connection>) -> Option<InFlight> {
        let busy = self.in_flight.get() >= REQUESTS_IN_FLIGHT_MAX;
        (!busy).then(|| {
            self.in_flight.set(self.in_flight.get() + 1);
            InFlight(Rc::clone(self))
        })
    }

    /// Returns when every request is answered, or the client is gone.
    pub async fn until_settled(&self) {
        self.settled
            .until(|| self.in_flight.get() == 0 || self.outbox.is_closed())
            .await;
    }

    /// Waits for room for an answer of so many bytes.
    pub async fn reserve(self: &Rc<Connection>, bytes: usize) -> Reservation {
        self.outbox.reserve(bytes).await;
        Reservation {
            connection: Rc::clone(self),
            bytes,
        }
    }

    /// Whether its first request was a `Hello`.
    #[must_use]
    pub fn greeted(&self) -> bool {
        self.greeted.get()
    }

    /// Its first request was a `Hello`.
    pub fn greet(&self) {
        self.greeted.set(true);
    }
}
