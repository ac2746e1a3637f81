//! How a test's node is set up: what differs from the defaults, as its configuration file.

use std::fmt::Write;

/// Shards of a node in the tests that are about shards: more than the machine has cores.
pub const MANY_SHARDS: usize = 4;

/// What differs from the defaults. Without anything, one shard.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    shards: Option<usize>,
    mesh_credits: Option<usize>,
    connections: Option<usize>,
    segments: Option<(u64, u64)>,
    slab_memory: Option<(usize, usize)>,
}

impl NodeOptions {
    /// So many shards.
    #[must_use]
    pub fn shards(self, shards: usize) -> NodeOptions {
        NodeOptions {
            shards: Some(shards),
            ..self
        }
    }

    /// Requests that one shard may have waiting at another; 1 is the smallest.
    #[must_use]
    pub fn mesh_credits(self, credits: usize) -> NodeOptions {
        NodeOptions {
            mesh_credits: Some(credits),
            ..self
        }
    }

    /// Client connections at most.
    #[must_use]
    pub fn connections(self, most: usize) -> NodeOptions {
        NodeOptions {
            connections: Some(most),
            ..self
        }
    }

    /// A log's first and longest segment, in bytes.
    #[must_use]
    pub fn segments(self, first: u64, longest: u64) -> NodeOptions {
        NodeOptions {
            segments: Some((first, longest)),
            ..self
        }
    }

    /// Bytes of one slab at most, and of all slabs in flight on a shard.
    #[must_use]
    pub fn slab_memory(self, slab: usize, all: usize) -> NodeOptions {
        NodeOptions {
            slab_memory: Some((slab, all)),
            ..self
        }
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> String {
        let mut text = format!("shards = {}\n", self.shards.unwrap_or(1));
        let mut add = |line: String| writeln!(text, "{line}").expect("a string takes everything");
        if let Some(most) = self.connections {
            add(format!("connections_max = {most}"));
        }
        if let Some(credits) = self.mesh_credits {
            add(format!("[mesh]\ncredits = {credits}"));
        }
        if let Some((first, longest)) = self.segments {
            add(format!(
                "[log]\nsegment_bytes_first = {first}\nsegment_bytes_max = {longest}"
            ));
        }
        if let Some((slab, all)) = self.slab_memory {
            add(format!(
                "[fanout]\nmax_batch_bytes = {slab}\nmemory_bytes = {all}"
            ));
        }
        text
    }
}
