//! Partitions on their shard, along a record's way: who owns which, how a batch gets in, how all are committed
//! together, how slabs get out.

pub mod owner;
pub mod commit;
pub mod group;
pub mod era;
pub mod fetch;
pub mod refusal;
pub mod leftovers;
