//! A sparse disk image in memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The unit in which an image is held; blocks never written, or written with zeros alone, cost nothing.
const BLOCK_BYTES: usize = 4096;

type Block = [u8; BLOCK_BYTES];

/// Bytes by position, zero wherever nothing was written. A clone shares every block that neither of the two overwrites.
#[derive(Debug, Clone)]
pub struct SparseImage {
    size_bytes: u64,
    blocks: BTreeMap<u64, Arc<Block>>,
}

impl SparseImage {
    /// An image of `size_bytes` zeros.
    pub fn new(size_bytes: u64) -> SparseImage {
        SparseImage {
            size_bytes,
            blocks: BTreeMap::new(),
        }
    }

    /// The length of the image, written or not.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Overwrites `data.len()` bytes at `at`. The caller has checked that they lie within the image.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        assert!(
            at + data.len() as u64 <= self.size_bytes,
            "write past the end of the image"
        );
        for (index, within, part) in spans(at, data.len()) {
            let data = &data[part];
            if let Some(block) = self.blocks.get_mut(&index) {
                Arc::make_mut(block)[within..within + data.len()].copy_from_slice(data);
            } else if data.iter().any(|&byte| byte != 0) {
                let mut block = [0; BLOCK_BYTES];
                block[within..within + data.len()].copy_from_slice(data);
                self.blocks.insert(index, Arc::new(block));
            }
        }
    }

    /// The bytes at `at`, fewer than `len` at the end of the image.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let len = self.size_bytes.saturating_sub(at).min(len as u64) as usize;
        let mut out = vec![0; len];
        for (index, within, part) in spans(at, len) {
            if let Some(block) = self.blocks.get(&index) {
                let part_bytes = part.len();
                out[part].copy_from_slice(&block[within..within + part_bytes]);
            }
        }
        out
    }

    /// Writes the image to a new sparse file.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.size_bytes)?;
        for (index, block) in &self.blocks {
            let at = index * BLOCK_BYTES as u64;
            let len = (self.size_bytes - at).min(BLOCK_BYTES as u64) as usize;
            file.write_all_at(&block[..len], at)?;
        }
        Ok(())
    }
}

/// Cuts `len` bytes at `at` along block boundaries: (block, position within it, range of the caller's buffer).
fn spans(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let position = at + done as u64;
        let within = (position % BLOCK_BYTES as u64) as usize;
        let part = done..(done + BLOCK_BYTES - within).min(len);
        done = part.end;
        Some((position / BLOCK_BYTES as u64, within, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_writes_read_back_across_blocks() {
        let mut image = SparseImage::new(5 * 4096 + 100);
        let data: Vec<u8> = (0..9000).map(|n| (n % 251) as u8 + 1).collect();
        image.write(4000, &data);
        assert_eq!(image.read(4000, 9000), data);
        assert_eq!(image.read(3999, 2), [0, 1]);
        assert_eq!(image.read(5 * 4096, 4096).len(), 100);
    }

    #[test]
    fn zeros_overwrite_data_and_cost_nothing_elsewhere() {
        let mut image = SparseImage::new(1 << 20);
        image.write(0, &[0; 65536]);
        assert!(image.blocks.is_empty());
        image.write(8192, &[7; 4096]);
        image.write(8192, &[0; 100]);
        assert_eq!(image.read(8190, 104), [[0; 102].as_slice(), &[7, 7]].concat());
    }

    #[test]
    fn a_clone_goes_its_own_way() {
        let mut image = SparseImage::new(8192);
        image.write(0, &[1; 8192]);
        let before = image.clone();
        image.write(100, &[2; 50]);
        assert_eq!(before.read(0, 8192), [1; 8192]);
        assert_eq!(image.read(99, 2), [1, 2]);
    }

    #[test]
    fn a_saved_image_is_the_image() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut image = SparseImage::new(3 * 4096 + 512);
        image.write(3 * 4096, &[9; 512]);
        image.save(&dir.path().join("image")).expect("saved");
        let bytes = std::fs::read(dir.path().join("image")).expect("read back");
        assert_eq!(bytes, image.read(0, usize::MAX));
    }
}
