//! Where clients come in, along a request's way: the listener, its sockets, a connection, the room for what comes in, the
//! dispatcher, what this shard answers by itself, its neighbours' requests, and the outbox that answers leave by.

pub mod listener;
pub mod socket;
pub mod connection;
pub mod room;
pub mod dispatch;
pub mod local;
pub mod neighbors;
pub mod in_flight;
pub mod outbox;
