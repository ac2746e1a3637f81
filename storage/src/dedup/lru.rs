//! A map that knows which of its keys was used longest ago; every operation takes constant time.
//!
//! A hash map finds a slot; the slots are linked from the oldest to the newest by their numbers.

use std::collections::HashMap;
use std::hash::Hash;

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Slot<K, V> {
    key: K,
    value: V,
    older: u32,
    newer: u32,
}

/// The map. Iteration goes from the oldest to the newest, so it depends on the history alone and not on hashes.
#[derive(Debug, Clone)]
pub(super) struct Lru<K, V> {
    by_key: HashMap<K, u32>,
    /// `None` for free slots, whose numbers are in `free`.
    slots: Vec<Option<Slot<K, V>>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
}

impl<K: Copy + Eq + Hash, V> Lru<K, V> {
    pub(super) fn new() -> Self {
        Self {
            by_key: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let &at = self.by_key.get(key)?;
        self.slot(at).map(|slot| &slot.value)
    }

    /// Changes a value without making it newer.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let &at = self.by_key.get(key)?;
        self.slot_mut(at).map(|slot| &mut slot.value)
    }

    /// The value of a key, now the newest; made by `new` when there is none.
    pub(super) fn touch_or_insert(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        let at = match self.by_key.get(&key) {
            Some(&at) => {
                self.unlink(at);
                at
            }
            None => self.insert_unlinked(key, new()),
        };
        self.link_newest(at);
        match &mut self.slots[at as usize] {
            Some(slot) => &mut slot.value,
            None => unreachable!("a linked slot is in use"),
        }
    }

    pub(super) fn oldest(&self) -> Option<(&K, &V)> {
        self.slot(self.oldest).map(|slot| (&slot.key, &slot.value))
    }

    pub(super) fn remove_oldest(&mut self) -> Option<(K, V)> {
        self.take(self.oldest)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let &at = self.by_key.get(key)?;
        self.take(at).map(|(_, value)| value)
    }

    fn take(&mut self, at: u32) -> Option<(K, V)> {
        self.slot(at)?;
        self.unlink(at);
        let slot = self.slots[at as usize].take()?;
        self.free.push(at);
        self.by_key.remove(&slot.key);
        Some((slot.key, slot.value))
    }

    /// From the oldest to the newest.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let first = self.slot(self.oldest);
        std::iter::successors(first, |slot| self.slot(slot.newer)).map(|slot| (&slot.key, &slot.value))
    }

    fn slot(&self, at: u32) -> Option<&Slot<K, V>> {
        self.slots.get(at as usize)?.as_ref()
    }

    fn slot_mut(&mut self, at: u32) -> Option<&mut Slot<K, V>> {
        self.slots.get_mut(at as usize)?.as_mut()
    }

    fn insert_unlinked(&mut self, key: K, value: V) -> u32 {
        let slot = Some(Slot {
            key,
            value,
            older: NONE,
            newer: NONE,
        });
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                assert!(self.slots.len() < NONE as usize, "slots are numbered by u32");
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.by_key.insert(key, at);
        at
    }

    fn unlink(&mut self, at: u32) {
        let Some((older, newer)) = self.slot(at).map(|slot| (slot.older, slot.newer)) else {
            return;
        };
        match self.slot_mut(older) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
        match self.slot_mut(newer) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        match self.slot_mut(before) {
            Some(slot) => slot.newer = at,
            None => self.oldest = at,
        }
        if let Some(slot) = self.slot_mut(at) {
            (slot.older, slot.newer) = (before, NONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain list in the order of use.
        #[test]
        fn like_a_list(steps in prop::collection::vec((0u8..8, 0u8..4), 0..200)) {
            let mut lru = Lru::new();
            let mut list: Vec<(u8, usize)> = Vec::new();
            for (n, (key, step)) in steps.into_iter().enumerate() {
                if step == 0 {
                    let expected = if list.is_empty() { None } else { Some(list.remove(0)) };
                    prop_assert_eq!(lru.remove_oldest(), expected);
                } else if step == 1 {
                    let at = list.iter().position(|&(k, _)| k == key);
                    prop_assert_eq!(lru.remove(&key), at.map(|at| list.remove(at).1));
                } else {
                    let value = match list.iter().position(|&(k, _)| k == key) {
                        Some(at) => list.remove(at).1,
                        None => n,
                    };
                    list.push((key, value));
                    prop_assert_eq!(*lru.touch_or_insert(key, || n), value);
                }
                prop_assert_eq!(lru.len(), list.len());
                prop_assert_eq!(lru.oldest().map(|(&k, &v)| (k, v)), list.first().copied());
                prop_assert_eq!(lru.iter().map(|(&k, &v)| (k, v)).collect::<Vec<_>>(), list.clone());
                prop_assert_eq!(lru.get(&key).copied(), list.iter().find(|&&(k, _)| k == key).map(|&(_, v)| v));
            }
        }
    }
}
