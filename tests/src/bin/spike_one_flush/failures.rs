//! Who learns of a failed flush: not the other files that it covered, and not a second try.

use std::fs::File;
use std::io::{Write, stdout};
use std::os::unix::fs::FileExt;
use std::path::Path;

use tailwater_tests::fakedisk::{Cut, FailedFlush, FakeDisk, Filesystem, LoopMount};

use crate::cases::Prepared;
use crate::disks::DISK_BYTES;
use crate::segments::{self, Segment};
use crate::writers::Aligned;

/// Prints what each call answers around one failed flush, and what is left after a power cut.
pub fn show() -> anyhow::Result<()> {
    for filesystem in [Filesystem::EXT4, Filesystem::XFS] {
        for how in [FailedFlush::KeepsWrites, FailedFlush::LosesWrites] {
            show_one(filesystem, how)?;
        }
    }
    Ok(())
}

fn show_one(filesystem: Filesystem, how: FailedFlush) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let disk = FakeDisk::mount(&scratch.path().join("disk"), DISK_BYTES)?;
    let live = LoopMount::create(filesystem, &disk.image(), &scratch.path().join("live"))?;
    let mut a = Segment::first(live.dir(), 0, Prepared::Zeroed)?;
    let b = Segment::first(live.dir(), 1, Prepared::Zeroed)?;
    let (at, bytes) = a.append(65536);
    a.file.write_all_at(Aligned::new(&bytes).bytes(), at)?;

    let mut out = stdout();
    writeln!(
        out,
        "{}, a flush fails and the disk {how:?}: A written, then",
        filesystem.kind
    )?;
    disk.fail_flushes(1, how);
    let answers = [
        ("fdatasync(B), the one that fails", b.file.sync_data()),
        ("fdatasync(B) again", b.file.sync_data()),
        ("fdatasync(A)", a.file.sync_data()),
        ("fsync(A)", a.file.sync_all()),
        (
            "fdatasync(A), opened anew",
            segments::direct(&a.path())?.sync_data(),
        ),
    ];
    for (call, answer) in answers {
        let answer = answer.map_or_else(|error| error.to_string(), |()| "ok".into());
        writeln!(out, "    {call:<34} {answer}")?;
    }
    let read_back = segments::lost_bytes(live.dir(), 0, 1, 65536);
    writeln!(out, "    A read back now: {read_back} of 65536 bytes wrong")?;
    let image = scratch.path().join("cut");
    disk.cut(Cut::KeepPending, &image)?;
    let after = LoopMount::open(filesystem, &image, &scratch.path().join("after"))?;
    let lost = segments::lost_bytes(after.dir(), 0, 1, 65536);
    writeln!(out, "    A after a power cut: {lost} of 65536 bytes lost")?;
    drop(after);

    show_journal(&disk, live.dir(), &a.file, &mut out)
}

/// The same when the failed flush is the journal's: a new file forces a journal commit.
fn show_journal(disk: &FakeDisk, dir: &Path, a: &File, out: &mut impl Write) -> anyhow::Result<()> {
    let new = File::create(dir.join("new"))?;
    (&new).write_all(b"metadata to commit")?;
    disk.fail_flushes(1, FailedFlush::KeepsWrites);
    let answers = [
        ("fsync(new file), the one that fails", new.sync_all()),
        ("fsync(new file) again", new.sync_all()),
        ("fdatasync(A)", a.sync_data()),
        ("overwrite A", a.write_all_at(Aligned::new(&[1; 4096]).bytes(), 0)),
        ("fdatasync(A)", a.sync_data()),
        ("create another file", File::create(dir.join("another")).map(drop)),
    ];
    for (call, answer) in answers {
        let answer = answer.map_or_else(|error| error.to_string(), |()| "ok".into());
        writeln!(out, "    {call:<34} {answer}")?;
    }
    Ok(())
}
