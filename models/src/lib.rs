//! Models: the node's own deciders in a world of lost, late, doubled and reordered messages, and every order of events
//! within bounds looked at, breadth first. Where the simulator draws some of the orders, these draw all of the small ones.
//!
//! What is production code and what is modelled: `origin` runs the cursor, the cutter and the dedup table as they are, and
//! models the channel, flushes, crashes and the parent's log. `links` runs the rules and the state of the metadata, which
//! cursors are desired, started and swept, where they are anchored, the cursor file on the simulated disk and the child's
//! check of the epoch, and models replicas that lag, proposals, and a cursor that copies one record at a time.
//!
//! Each model can have one planted fault. A test without a fault says what holds; a test with one says which property
//! breaks, so that no property holds for want of looking.
#![forbid(unsafe_code)]

pub mod check;
pub mod origin;
pub mod links;
