//! Traps of glommio 0.9.0 that this folder keeps its callers out of, each as a test that falls into it without us.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::disk::device::{BLOCK, Disk, DiskErrorKind, File, OpenMode};
use crate::disk::flush_watch::FailedFlushes;
use crate::disk::testing::on_executor;
use crate::disk::uring::handle::UringDisk;

// The first file that was opened on an executor was a new, empty one: every read after it failed with EOPNOTSUPP, because
// the probe for polled completions had "succeeded" on zero bytes.
#[test]
fn an_empty_file_first_does_not_break_the_reads_after_it() {
    on_executor(|dir| async move {
        let disk = UringDisk::start(&dir, FailedFlushes::default()).await.unwrap();
        let empty = disk.open(&dir.join("empty"), OpenMode::CreateNew).await.unwrap();
        assert!(empty.read_at(0, BLOCK).await.unwrap().is_empty());
        disk.write_small(&dir.join("full"), &[7; BLOCK]).await.unwrap();
        let full = disk.open(&dir.join("full"), OpenMode::Read).await.unwrap();
        assert_eq!(full.read_at(0, BLOCK).await.unwrap(), [7; BLOCK][..]);
    });
}

// A select in a busy task polled one pending read 32,765 times, and the executor panicked: each poll of glommio's own
// future leaves one more waker on it, and the count is an i16.
#[test]
fn a_pending_read_can_be_polled_any_number_of_times() {
    on_executor(|dir| async move {
        let disk = UringDisk::start(&dir, FailedFlushes::default()).await.unwrap();
        let file = disk.open(&dir.join("a"), OpenMode::CreateNew).await.unwrap();
        file.prepare(0, BLOCK as u64).await.unwrap();
        let waker = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let mut read = pin!(file.read_at(0, BLOCK));
        for _ in 0..40_000 {
            assert!(
                read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(),
                "nothing ran in between"
            );
        }
        assert_eq!(read.await.unwrap().len(), BLOCK);
    });
}

#[test]
fn the_self_test_leaves_nothing_behind_and_fails_where_it_cannot_write() {
    on_executor(|dir| async move {
        let disk = UringDisk::start(&dir, FailedFlushes::default()).await.unwrap();
        assert_eq!(disk.list(&dir).await.unwrap(), []);
        let error = UringDisk::start(&dir.join("absent"), FailedFlushes::default())
            .await
            .unwrap_err();
        assert_eq!((error.op, error.kind), ("self-test", DiskErrorKind::NotFound));
    });
}

// Files on another device would run into the first trap unseen: its probe is per device.
#[test]
fn a_file_on_another_device_is_refused() {
    on_executor(|dir| async move {
        let disk = UringDisk::start(&dir, FailedFlushes::default()).await.unwrap();
        let elsewhere = std::path::Path::new("/dev/shm");
        let there = std::fs::metadata(elsewhere).map(|meta| std::os::unix::fs::MetadataExt::dev(&meta));
        let here = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(&dir).unwrap());
        if there.is_ok_and(|there| there != here) {
            let path = elsewhere.join(format!("tailwater-test-{}", std::process::id()));
            std::fs::write(&path, [0; BLOCK]).unwrap();
            let opened = disk.open(&path, OpenMode::Read).await;
            std::fs::remove_file(&path).unwrap();
            assert!(opened.unwrap_err().detail.contains("not on the device"));
        }
    });
}

// Sixteen writes were dropped by a cancelled request, and whether they reached the disk depended on the moment.
#[test]
fn steps_on_names_run_to_their_end_when_dropped() {
    on_executor(|dir| async move {
        let disk = UringDisk::start(&dir, FailedFlushes::default()).await.unwrap();
        for n in 0..16 {
            let path = dir.join(format!("{n:02}"));
            let written = pin!(disk.write_small(&path, b"x")).poll(&mut Context::from_waker(Waker::noop()));
            assert!(written.is_pending());
        }
        // The pool has two threads: these wait behind the sixteen.
        for _ in 0..1000 {
            if disk.list(&dir).await.unwrap().len() == 16 {
                return;
            }
        }
        panic!("dropped steps did not happen");
    });
}

// Retention removed a segment while a reader was opening it: after its open, glommio asks for the filesystem by the path
// once more, and panics when the name has gone.
#[test]
fn a_name_that_goes_away_during_an_open_is_no_panic() {
    on_executor(|dir| async move {
        let disk = UringDisk::start(&dir, FailedFlushes::default()).await.unwrap();
        let (path, moved) = (dir.join("a"), dir.join("b"));
        disk.write_small(&path, &[7; BLOCK]).await.unwrap();
        let mut opened = 0;
        for _ in 0..300 {
            let open = disk.open(&path, OpenMode::Read);
            let rename = disk.rename(&path, &moved);
            let (open, renamed) = futures_lite::future::zip(open, rename).await;
            renamed.unwrap();
            match open {
                Ok(file) => {
                    assert_eq!(file.read_at(0, BLOCK).await.unwrap(), [7; BLOCK][..]);
                    opened += 1;
                }
                Err(error) => assert_eq!(error.kind, DiskErrorKind::NotFound, "{error}"),
            }
            disk.rename(&moved, &path).await.unwrap();
        }
        assert!(opened > 0);
    });
}
