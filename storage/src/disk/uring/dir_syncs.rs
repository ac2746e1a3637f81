//! Flushes of directories, shared by those who ask for them at the same time.
//!
//! A flush that begins after a rename makes it durable, whoever asked. So while one flush of a directory runs, those who
//! ask for another gather, and the next flush is all of theirs; one that runs already is nobody's who comes later, for it
//! may have passed the new name by. A failure is the failure of everyone whom that flush was to serve, and none of them
//! is served by a later one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::disk::device::DiskResult;
use crate::disk::uring::task::{self, Answer, Promise};

/// The shard's directories that are being flushed.
#[derive(Default)]
pub(super) struct DirSyncs {
    groups: RefCell<Groups<Promise<DiskResult<()>>>>,
}

impl std::fmt::Debug for DirSyncs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirSyncs({} directories)", self.groups.borrow().0.len())
    }
}

impl DirSyncs {
    /// Asks for a flush that begins after this call; `flush` does one. The answer may be dropped.
    pub(super) fn sync<F: Future<Output = DiskResult<()>> + 'static>(
        self: &Rc<Self>,
        path: &Path,
        flush: impl Fn() -> F + 'static,
    ) -> Answer<DiskResult<()>> {
        let (promise, answer) = task::promise();
        if self.groups.borrow_mut().join(path, promise) {
            let (this, path) = (Rc::clone(self), path.to_path_buf());
            let _goes_on_alone = task::start(async move {
                loop {
                    let group = this.groups.borrow_mut().begin(&path);
                    if group.is_empty() {
                        return;
                    }
                    let synced = flush().await;
                    for promise in group {
                        promise.keep(synced.clone());
                    }
                }
            });
        }
        answer
    }
}

/// Those who wait for the next flush, by directory; a directory is in the map for as long as flushes of it go on.
struct Groups<W>(BTreeMap<PathBuf, Vec<W>>);

impl<W> Default for Groups<W> {
    fn default() -> Groups<W> {
        Groups(BTreeMap::new())
    }
}

impl<W> Groups<W> {
    /// Takes part in the next flush; says whether nobody sees to it yet.
    fn join(&mut self, path: &Path, who: W) -> bool {
        match self.0.entry(path.to_path_buf()) {
            Entry::Vacant(none) => {
                none.insert(vec![who]);
                true
            }
            Entry::Occupied(mut gathering) => {
                gathering.get_mut().push(who);
                false
            }
        }
    }

    /// A flush begins: whom it serves. Nobody, and the directory is forgotten, when nobody waits.
    fn begin(&mut self, path: &Path) -> Vec<W> {
        let group = self.0.get_mut(path).map(std::mem::take).unwrap_or_default();
        if group.is_empty() {
            self.0.remove(path);
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::disk::device::{DiskError, DiskErrorKind};

    #[test]
    fn a_flush_serves_those_who_asked_before_it_began() {
        let (dir, other) = (Path::new("/a"), Path::new("/b"));
        let mut groups = Groups::default();
        assert!(groups.join(dir, 1), "the first sees to it");
        assert!(!groups.join(dir, 2));
        assert!(groups.join(other, 9), "another directory has its own");
        assert_eq!(groups.begin(dir), [1, 2]);
        assert!(!groups.join(dir, 3), "the running one may have passed it by");
        assert_eq!(groups.begin(dir), [3]);
        assert_eq!(groups.begin(dir), [0; 0]);
        assert!(groups.join(dir, 4), "it was forgotten");
    }

    #[test]
    fn many_share_few_flushes_and_each_hears_of_its_own() {
        glommio::LocalExecutor::default().run(async {
            let (syncs, flushes) = (Rc::new(DirSyncs::default()), Rc::new(Cell::new(0)));
            let ask = || {
                let flushes = Rc::clone(&flushes);
                syncs.sync(Path::new("/a"), move || {
                    flushes.set(flushes.get() + 1);
                    let fails = flushes.get() == 2;
                    async move {
                        glommio::timer::sleep(std::time::Duration::from_millis(5)).await;
                        let error = DiskError {
                            op: "flush directory",
                            path: "/a".into(),
                            kind: DiskErrorKind::Io,
                            detail: "injected".into(),
                        };
                        if fails { Err(error) } else { Ok(()) }
                    }
                })
            };
            let first = ask();
            glommio::timer::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(flushes.get(), 1, "it runs");
            let second: Vec<_> = (0..100).map(|_| ask()).collect();
            drop(ask());
            first.await.expect("the first flush was good");
            for answer in second {
                answer.await.expect_err("the second was theirs");
            }
            assert_eq!(flushes.get(), 2);
            ask().await.expect("and a third is nobody's but its own");
            assert_eq!(flushes.get(), 3);
            assert!(syncs.groups.borrow().0.is_empty());
        });
    }
}
