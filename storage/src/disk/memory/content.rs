//! One file's bytes on the simulated disk: what readers see, and beside it what a power cut would leave.
//!
//! ```text
//! block n (4,096 bytes = 8 sectors of 512)
//!   cached   what reads return            durable   what is on the platter
//!   dirty    bit s: sector s of `cached` is not yet on the platter
//!   doomed   bit s: a failed flush covered it; no later flush makes it durable, only a new write can
//!   mapped   the block's place on the device is durable, so that any file's flush covers an overwrite of it
//! ```

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::disk::device::BLOCK;
use crate::disk::memory::luck::Luck;

/// The unit that a device writes whole: a power cut tears a write only between two of these.
pub(super) const SECTOR: usize = 512;

const _: () = assert!(BLOCK / SECTOR == u8::BITS as usize, "one mask bit per sector");

/// `None` stands for a block of zeros.
type Page = Option<Rc<[u8; BLOCK]>>;

#[derive(Debug, Clone, Default)]
struct Slot {
    cached: Page,
    durable: Page,
    /// Has a place on the device, as readers see it.
    allocated: bool,
    /// Has a place on the device, as a power cut would leave it.
    durable_allocated: bool,
    /// Both of these, and the same place.
    mapped: bool,
    dirty: u8,
    doomed: u8,
    /// The index in `Content::lens` of the cut that freed the durable place.
    cut_at: Option<usize>,
}

/// Which of a file's volatile sectors a flush covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The flush is of this file: all of them, and its length and extents.
    Own,
    /// The flush is of another file: overwrites of durable extents.
    Shared,
}

/// A file's content, without its name.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    slots: Vec<Slot>,
    /// The slots with a non-zero `dirty` or a `cut_at`.
    dirty: BTreeSet<usize>,
    len: u64,
    durable_len: u64,
    /// Every length since the last flush of this file, in order.
    lens: Vec<u64>,
    /// A failed flush covered a change of length or extents: none will ever be durable again.
    metadata_doomed: bool,
    allocated_blocks: u64,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn allocated_blocks(&self) -> u64 {
        self.allocated_blocks
    }

    /// Up to `len` bytes from `position`; fewer only at the end.
    pub(super) fn read(&self, position: u64, len: usize) -> Vec<u8> {
        let end = self.len.min(position.saturating_add(len as u64));
        let mut bytes = Vec::with_capacity(end.saturating_sub(position) as usize);
        let mut at = position;
        while at < end {
            let within = (at % BLOCK as u64) as usize;
            let take = (BLOCK - within).min((end - at) as usize);
            match self
                .slots
                .get((at / BLOCK as u64) as usize)
                .and_then(|slot| slot.cached.as_ref())
            {
                Some(page) => bytes.extend_from_slice(&page[within..within + take]),
                None => bytes.resize(bytes.len() + take, 0),
            }
            at += take as u64;
        }
        bytes
    }

    /// How many of the blocks from `from` to `to` (in bytes) have no place on the device yet.
    pub(super) fn unallocated(&self, from: u64, to: u64) -> u64 {
        let blocks = from / BLOCK as u64..to.div_ceil(BLOCK as u64);
        blocks
            .filter(|n| self.slots.get(*n as usize).is_none_or(|slot| !slot.allocated))
            .count() as u64
    }

    /// Writes into the cache the sectors that `luck` keeps, and extends the length to the last of them.
    pub(super) fn write(&mut self, position: u64, bytes: &[u8], luck: &mut Luck) {
        let mut end = self.len;
        let mut done = 0;
        while done < bytes.len() {
            let at = position as usize + done;
            let take = (SECTOR - at % SECTOR).min(bytes.len() - done);
            if luck.keeps() {
                let slot = self.touch(at / BLOCK, 1 << (at % BLOCK / SECTOR));
                let page = Rc::make_mut(slot.cached.get_or_insert_with(|| Rc::new([0; BLOCK])));
                page[at % BLOCK..at % BLOCK + take].copy_from_slice(&bytes[done..done + take]);
                end = end.max((at + take) as u64);
            }
            done += take;
        }
        self.grow(end);
    }

    /// Writes zeros into the cache for the blocks between two aligned positions that `luck` keeps.
    pub(super) fn write_zeros(&mut self, from: u64, to: u64, luck: &mut Luck) {
        let mut end = self.len;
        for n in from / BLOCK as u64..to / BLOCK as u64 {
            if luck.keeps() {
                self.touch(n as usize, u8::MAX).cached = None;
                end = end.max((n + 1) * BLOCK as u64);
            }
        }
        self.grow(end);
    }

    fn touch(&mut self, n: usize, sectors: u8) -> &mut Slot {
        if self.slots.len() <= n {
            self.slots.resize_with(n + 1, Slot::default);
        }
        self.dirty.insert(n);
        let slot = &mut self.slots[n];
        if !slot.allocated {
            slot.allocated = true;
            self.allocated_blocks += 1;
        }
        slot.dirty |= sectors;
        slot.doomed &= !sectors;
        slot
    }

    fn grow(&mut self, end: u64) {
        if end > self.len {
            self.len = end;
            self.lens.push(end);
        }
    }

    /// Cuts or extends the file, in the cache.
    pub(super) fn set_len(&mut self, len: u64) {
        if len == self.len {
            return;
        }
        let cut = self.lens.len();
        for n in (len / BLOCK as u64) as usize..self.slots.len() {
            let kept = len.saturating_sub((n * BLOCK) as u64).min(BLOCK as u64) as usize;
            let slot = &mut self.slots[n];
            if kept > 0 {
                if let Some(page) = slot.cached.as_mut() {
                    Rc::make_mut(page)[kept..].fill(0);
                    slot.dirty |= u8::MAX << (kept / SECTOR);
                    self.dirty.insert(n);
                }
                continue;
            }
            if slot.allocated {
                self.allocated_blocks -= 1;
            }
            (slot.cached, slot.allocated, slot.mapped) = (None, false, false);
            (slot.dirty, slot.doomed) = (0, 0);
            if slot.durable_allocated {
                slot.cut_at.get_or_insert(cut);
                self.dirty.insert(n);
            } else {
                self.dirty.remove(&n);
            }
        }
        self.len = len;
        self.lens.push(len);
    }

    /// A flush: the covered sectors that `luck` keeps are on the platter. With good luck, all of them.
    pub(super) fn settle(&mut self, scope: Scope, luck: &mut Luck) {
        let metadata = scope == Scope::Own && !self.metadata_doomed && luck.keeps();
        if metadata {
            self.durable_len = self.len;
            self.lens.clear();
        }
        for n in std::mem::take(&mut self.dirty) {
            let slot = &mut self.slots[n];
            if metadata {
                if slot.cut_at.take().is_some() {
                    slot.durable = None;
                }
                slot.durable_allocated = slot.allocated;
                slot.mapped = slot.allocated;
            }
            if slot.mapped {
                let sectors = luck.keeps_of(slot.dirty & !slot.doomed);
                copy_sectors(&mut slot.durable, &slot.cached, sectors);
                slot.dirty &= !sectors;
            }
            if slot.dirty != 0 || slot.cut_at.is_some() {
                self.dirty.insert(n);
            }
        }
    }

    /// A failed flush: what it covered stays readable, and no later flush makes it durable.
    pub(super) fn doom(&mut self, scope: Scope) {
        for n in &self.dirty {
            let slot = &mut self.slots[*n];
            if slot.mapped || scope == Scope::Own {
                slot.doomed |= slot.dirty;
                self.metadata_doomed |= !slot.mapped;
            }
        }
        self.metadata_doomed |= scope == Scope::Own && !self.lens.is_empty();
    }

    /// The file as a power cut leaves it, all of it durable.
    pub(super) fn survivor(&self, luck: &mut Luck) -> Self {
        luck.redraw();
        let steps = if self.metadata_doomed {
            0
        } else {
            luck.prefix_of(self.lens.len())
        };
        let len = if steps == 0 {
            self.durable_len
        } else {
            self.lens[steps - 1]
        };
        let blocks = len.div_ceil(BLOCK as u64) as usize;
        let mut left = Self {
            len,
            durable_len: len,
            ..Self::default()
        };
        left.slots
            .resize_with(blocks.min(self.slots.len()), Slot::default);
        for (n, (new, old)) in left.slots.iter_mut().zip(&self.slots).enumerate() {
            let cut = old.cut_at.map(|at| steps > at);
            let mut page = if cut == Some(true) {
                None
            } else {
                old.durable.clone()
            };
            let mut allocated = old.durable_allocated && cut != Some(true);
            // Without its cut, a freed block still belongs to the old place; doomed metadata reaches no new place.
            if cut != Some(false) && (old.mapped || !self.metadata_doomed) {
                let sectors = luck.keeps_of(old.dirty & !old.doomed);
                copy_sectors(&mut page, &old.cached, sectors);
                allocated |= sectors != 0;
            }
            let kept = len.saturating_sub((n * BLOCK) as u64).min(BLOCK as u64) as usize;
            if let Some(page) = page.as_mut().filter(|_| kept < BLOCK) {
                Rc::make_mut(page)[kept..].fill(0);
            }
            *new = Slot {
                cached: page.clone(),
                durable: page,
                allocated,
                durable_allocated: allocated,
                mapped: allocated,
                ..Slot::default()
            };
            left.allocated_blocks += u64::from(allocated);
        }
        left
    }

    /// Bit rot: changes one byte in the cache and on the platter. Returns whether the file has that byte.
    pub(super) fn flip(&mut self, byte: u64, mask: u8) -> bool {
        if byte >= self.len {
            return false;
        }
        let (n, within) = ((byte / BLOCK as u64) as usize, (byte % BLOCK as u64) as usize);
        if self.slots.len() <= n {
            self.slots.resize_with(n + 1, Slot::default);
        }
        let slot = &mut self.slots[n];
        for page in [&mut slot.cached, &mut slot.durable] {
            Rc::make_mut(page.get_or_insert_with(|| Rc::new([0; BLOCK])))[within] ^= mask;
        }
        true
    }
}

fn copy_sectors(to: &mut Page, from: &Page, sectors: u8) {
    if sectors == u8::MAX {
        to.clone_from(from);
        return;
    }
    for start in (0..8)
        .filter(|bit| sectors & (1 << bit) != 0)
        .map(|bit| bit * SECTOR)
    {
        let range = start..start + SECTOR;
        match from {
            Some(from) => {
                let to = Rc::make_mut(to.get_or_insert_with(|| Rc::new([0; BLOCK])));
                to[range.clone()].copy_from_slice(&from[range]);
            }
            None => {
                if let Some(to) = to.as_mut() {
                    Rc::make_mut(to)[range].fill(0);
                }
            }
        }
    }
}
