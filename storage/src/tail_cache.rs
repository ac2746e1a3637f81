//! The chunks that a shard committed last, so that readers at the tail never touch the disk.
//!
//! One cache serves all logs of a shard, bounded in bytes; what came in first goes out first, whichever log it belongs
//! to. For each log it therefore holds one run of offsets that ends at what was flushed last. It keeps the very buffers
//! that were written, so nothing is copied into it. It lives on the shard that owns the logs.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use tailwater_wire::ids::Offset;

/// Bytes that a shard's cache holds by default.
pub const TAIL_CACHE_BYTES: usize = 32 << 20;

/// One chunk's batches, without the padding behind them.
#[derive(Debug, Clone)]
pub struct CachedChunk {
    /// The first batch's offset.
    pub base: Offset,
    /// The offset after the last batch.
    pub end: Offset,
    /// The batches.
    pub bytes: Bytes,
}

/// The number of a log in a [`TailCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheSlot(u64);

/// See the module. Pure.
#[derive(Debug)]
pub struct TailCache {
    bytes_max: usize,
    bytes: usize,
    slots: u64,
    /// Every chunk once, oldest first, by the log that it belongs to; entries of logs that left are passed over.
    order: VecDeque<CacheSlot>,
    logs: HashMap<CacheSlot, VecDeque<CachedChunk>>,
}

/// A handle to a shard's cache.
pub type SharedTailCache = Rc<RefCell<TailCache>>;

impl TailCache {
    /// An empty cache of at most `bytes_max` bytes, counted by the blocks that were written.
    #[must_use]
    pub fn new(bytes_max: usize) -> TailCache {
        TailCache {
            bytes_max,
            bytes: 0,
            slots: 0,
            order: VecDeque::new(),
            logs: HashMap::new(),
        }
    }

    /// An empty cache behind a handle.
    #[must_use]
    pub fn shared(bytes_max: usize) -> SharedTailCache {
        Rc::new(RefCell::new(TailCache::new(bytes_max)))
    }

    /// A place for a log.
    pub fn join(&mut self) -> CacheSlot {
        self.slots += 1;
        let slot = CacheSlot(self.slots);
        self.logs.insert(slot, VecDeque::new());
        slot
    }

    /// Forgets a log and its chunks.
    pub fn leave(&mut self, slot: CacheSlot) {
        let chunks = self.logs.remove(&slot).unwrap_or_default();
        self.bytes -= chunks.iter().map(weight).sum::<usize>();
        self.order.retain(|&s| s != slot);
    }

    /// Adds the chunk that a log has just flushed.
    ///
    /// # Panics
    /// When it does not follow the log's last chunk.
    pub fn push(&mut self, slot: CacheSlot, chunk: CachedChunk) {
        let weight = weight(&chunk);
        let Some(chunks) = self.logs.get_mut(&slot) else {
            return;
        };
        assert!(chunks.back().is_none_or(|last| last.end == chunk.base));
        chunks.push_back(chunk);
        self.order.push_back(slot);
        self.bytes += weight;
        while self.bytes > self.bytes_max {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let oldest = self.order.pop_front();
        let chunk = oldest.and_then(|slot| self.logs.get_mut(&slot)?.pop_front());
        debug_assert!(chunk.is_some(), "every entry of the order is a chunk");
        self.bytes -= chunk.as_ref().map_or(self.bytes, weight);
    }

    /// The chunk that holds an offset.
    #[must_use]
    pub fn get(&self, slot: CacheSlot, offset: Offset) -> Option<&CachedChunk> {
        let chunks = self.logs.get(&slot)?;
        let at = chunks.partition_point(|chunk| chunk.end <= offset);
        chunks.get(at).filter(|chunk| chunk.base <= offset)
    }

    /// The first offset of a log that is here.
    #[must_use]
    pub fn first_offset(&self, slot: CacheSlot) -> Option<Offset> {
        self.logs.get(&slot)?.front().map(|chunk| chunk.base)
    }

    /// Bytes that are held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What a chunk keeps from being freed: its whole buffer, padding included.
fn weight(chunk: &CachedChunk) -> usize {
    chunk.bytes.len().next_multiple_of(crate::disk::device::BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(base: u64, end: u64, len: usize) -> CachedChunk {
        CachedChunk {
            base: Offset(base),
            end: Offset(end),
            bytes: Bytes::from(vec![base as u8; len]),
        }
    }

    #[test]
    fn oldest_chunks_go_first_whichever_log_they_are_of() {
        let mut cache = TailCache::new(3 * 4096);
        let (a, b) = (cache.join(), cache.join());
        cache.push(a, chunk(0, 5, 100));
        cache.push(b, chunk(0, 1, 4096));
        cache.push(a, chunk(5, 9, 100));
        assert_eq!(cache.get(a, Offset(4)).map(|c| c.base), Some(Offset(0)));
        cache.push(b, chunk(1, 2, 1));
        assert!(cache.get(a, Offset(4)).is_none(), "evicted");
        assert_eq!(cache.first_offset(a), Some(Offset(5)));
        assert_eq!(cache.get(a, Offset(8)).map(|c| c.base), Some(Offset(5)));
        assert!(cache.get(a, Offset(9)).is_none());
        assert_eq!(cache.bytes(), 3 * 4096);
        cache.leave(b);
        assert_eq!(cache.bytes(), 4096);
        cache.push(a, chunk(9, 10, 9000));
        assert_eq!(
            (cache.bytes(), cache.first_offset(a)),
            (3 * 4096, Some(Offset(9)))
        );
    }

    #[test]
    fn a_chunk_larger_than_the_cache_is_not_kept() {
        let mut cache = TailCache::new(4096);
        let a = cache.join();
        cache.push(a, chunk(0, 5, 4097));
        assert_eq!((cache.bytes(), cache.first_offset(a)), (0, None));
        cache.push(a, chunk(5, 6, 1));
        assert_eq!(cache.first_offset(a), Some(Offset(5)));
    }
}
