//! The files of the spike: prepared as a segment would be, filled with bytes that say where they belong.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::cases::Prepared;
use crate::writers::Aligned;

/// Length of a segment: short, so that segments turn over often.
pub const SEGMENT_BYTES: u64 = 1 << 20;
const SECTOR_BYTES: usize = 512;

/// One file being appended to.
pub struct Segment {
    /// Its place in the set; part of every byte's stamp.
    pub index: usize,
    /// Counts the files that this place has had.
    pub generation: u64,
    /// Open for direct writes.
    pub file: Arc<File>,
    /// End of what was handed to the disk.
    pub written_bytes: u64,
    dir: PathBuf,
}

impl Segment {
    /// The first file of a place.
    pub fn first(dir: &Path, index: usize, prepared: Prepared) -> io::Result<Segment> {
        if prepared == Prepared::Recycled {
            let old = dir.join(name(index, 0));
            fs::write(&old, stamped(index, 0, 0, SEGMENT_BYTES))?;
            File::open(&old)?.sync_all()?;
        }
        Segment::prepare(dir, index, 1, prepared)
    }

    /// The file after this one, once this one is full.
    pub fn next(self, prepared: Prepared) -> io::Result<Segment> {
        Segment::prepare(&self.dir, self.index, self.generation + 1, prepared)
    }

    fn prepare(dir: &Path, index: usize, generation: u64, prepared: Prepared) -> io::Result<Segment> {
        let path = dir.join(name(index, generation));
        let retired = dir.join(name(index, generation - 1));
        if prepared == Prepared::Recycled {
            fs::rename(&retired, &path)?;
        } else {
            if generation > 1 {
                fs::remove_file(&retired)?;
            }
            File::create_new(&path)?;
        }
        let file = direct(&path)?;
        match prepared {
            Prepared::Zeroed | Prepared::ZeroedNotSynced | Prepared::Cloned => {
                let zeros = Aligned::new(&vec![0; SEGMENT_BYTES as usize]);
                file.write_all_at(zeros.bytes(), 0)?;
            }
            Prepared::Fallocated => {
                run(Command::new("fallocate")
                    .args(["-l", &SEGMENT_BYTES.to_string()])
                    .arg(&path))?;
            }
            Prepared::Recycled | Prepared::Growing => {}
        }
        if prepared != Prepared::ZeroedNotSynced {
            file.sync_all()?;
            File::open(dir)?.sync_all()?;
        }
        if prepared == Prepared::Cloned {
            let backup = dir.join(format!("backup-{index}"));
            run(Command::new("cp").arg("--reflink=always").arg(&path).arg(&backup))?;
            File::open(&backup)?.sync_all()?;
        }
        let dir = dir.to_path_buf();
        Ok(Segment {
            index,
            generation,
            file: Arc::new(file),
            written_bytes: 0,
            dir,
        })
    }

    /// The file's path.
    pub fn path(&self) -> PathBuf {
        self.dir.join(name(self.index, self.generation))
    }

    /// Room left for writes.
    pub fn room_bytes(&self) -> u64 {
        SEGMENT_BYTES - self.written_bytes
    }

    /// The next `len` bytes of this segment, and where they go.
    pub fn append(&mut self, len: u64) -> (u64, Vec<u8>) {
        let at = self.written_bytes;
        self.written_bytes += len;
        assert!(self.written_bytes <= SEGMENT_BYTES, "the segment is full");
        (at, stamped(self.index, self.generation, at, len))
    }
}

/// How many bytes of the first `flushed_bytes` of a segment are not what was written, after recovery on `dir`.
pub fn lost_bytes(dir: &Path, index: usize, generation: u64, flushed_bytes: u64) -> u64 {
    let found = fs::read(dir.join(name(index, generation))).unwrap_or_default();
    let wanted = stamped(index, generation, 0, flushed_bytes);
    let sectors = wanted.chunks(SECTOR_BYTES).enumerate();
    let lost = sectors.filter(|(sector, wanted)| {
        let at = sector * SECTOR_BYTES;
        found.get(at..at + SECTOR_BYTES) != Some(wanted)
    });
    (lost.count() * SECTOR_BYTES) as u64
}

/// Opens an existing file for direct writes.
pub fn direct(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
}

fn name(index: usize, generation: u64) -> String {
    format!("segment-{index}-{generation}")
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{command:?}: {status}")))
    }
}

/// Bytes in which no sector is like any other of any segment, and none is zero.
fn stamped(index: usize, generation: u64, at: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len as usize);
    for sector in at / SECTOR_BYTES as u64..(at + len) / SECTOR_BYTES as u64 {
        let stamp = (generation << 40 | (index as u64) << 32 | sector) + 1;
        for word in 0..SECTOR_BYTES as u64 / 8 {
            let mixed = (stamp << 8 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bytes
                .write_all(&(mixed | 1).to_le_bytes())
                .expect("a Vec takes every write");
        }
    }
    bytes
}
