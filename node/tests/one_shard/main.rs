//! Parts of one shard on a real executor and disk, with metadata that a test brings into force itself.

mod child_owner;
mod removal;
mod starting;
mod support;
