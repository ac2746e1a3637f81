//! Retention on a shard, and the accounting before it: what is about to go is counted for every live link, the ledgers
//! are stored, and only then are segments removed (SPEC.md D8, F9).
//!
//! Runs beside the commit loop, one partition after another, one slab of memory at a time. It waits for no child, and
//! for a cursor that is about to start only a few passes; after that it counts for it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tailwater_storage::cursor_file::{self, CursorFile};
use tailwater_storage::disk::device::DiskError;
use tailwater_storage::error::ReadError;
use tailwater_storage::gap_file::{self, GapFile, GapFileError};
use tailwater_storage::gaps::{GAPS_MAX, Gaps};
use tailwater_storage::layout::CursorPath;
use tailwater_storage::proof::Accounted;
use tailwater_storage::slab::ReadLimits;
use tailwater_wire::code::Refusal;
use tailwater_wire::ids::{Epoch, Offset, PartitionId};

use crate::fanout::cursor::message::Event;
use crate::fanout::cursors::Cursors;
use crate::fanout::desired::{CursorKey, CursorSpec, of_partition};
use crate::fanout::diff::{self, Sweep};
use crate::fanout::filter::Filter;
use crate::fanout::gaps::{Count, Counted, Doomed, first_ledger};
use crate::fanout::rekey::Rekey;
use crate::fanout::runner::Runner;
use crate::fanout::shared::Shared;
use crate::partition::owner::Partition;

/// How often retention is applied.
const RETENTION_EVERY: Duration = Duration::from_secs(5);
/// So many passes a removal waits for cursors that should run and do not, and for reads that fail.
const PATIENCE_PASSES: u32 = 6;
/// Bytes of one counting read.
const SLAB_BYTES: usize = 1 << 20;

/// Why a removal waits for the next pass.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// A link came, went or changed meanwhile.
    #[error("the topic's links have changed meanwhile")]
    LinksChanged,
    /// A cursor that should run does not run yet, or is ending.
    #[error("the cursor of `{0}` does not run yet")]
    NotRunning(String),
    /// A cursor's own files could not be read.
    #[error("a cursor's files cannot be read")]
    Files(#[source] DiskError),
    /// What is about to go could not be read.
    #[error("what is about to go cannot be read")]
    Read(#[from] ReadError),
    /// The metadata leader could not be asked.
    #[error("the metadata leader could not be asked: {}", .0.what)]
    Unconfirmed(Refusal),
    /// A ledger could not be stored.
    #[error(transparent)]
    Ledger(#[from] GapFileError),
}

/// How many passes in a row each partition's removal has waited.
type Waited = BTreeMap<(String, PartitionId), u32>;

/// Applies retention to every partition, again and again, for the life of the shard.
pub async fn retention_loop(cursors: Rc<Cursors>) {
    let mut waited = Waited::new();
    loop {
        glommio::timer::sleep(RETENTION_EVERY).await;
        let partitions = cursors.shared().partitions.all();
        waited.retain(|(topic, id), _| {
            partitions
                .iter()
                .any(|p| p.topic.as_str() == topic && p.id == *id)
        });
        for partition in partitions {
            expire(&cursors, &partition, &mut waited).await;
        }
    }
}

async fn expire(cursors: &Cursors, partition: &Partition, waited: &mut Waited) {
    let clock = cursors.shared().partitions.clock();
    // A clock that is held vouches for no age.
    let now = (!clock.is_held()).then(|| clock.now());
    let Some(to) = partition.log.expired(now, partition.retention.get()) else {
        return;
    };
    let (topic, number) = (&partition.topic, partition.id.0);
    let passes = waited.entry((topic.to_string(), partition.id)).or_default();
    let accounted = match account(cursors, partition, to, *passes >= PATIENCE_PASSES).await {
        Ok(accounted) => accounted,
        Err(error) => {
            *passes = passes.saturating_add(1);
            tracing::warn!(%topic, partition = number, to = to.0, %error, "retention waits: what it would take cannot be accounted for");
            return;
        }
    };
    *passes = 0;
    match partition.log.remove_expired(&accounted).await {
        Ok(removed) => removed.iter().for_each(|segment| {
            let (from, to, bytes) = (segment.offsets.start.0, segment.offsets.end.0, segment.bytes);
            tracing::info!(%topic, partition = number, from, to, bytes, "retention removed a segment");
        }),
        Err(error) => tracing::warn!(%topic, partition = number, %error, "retention failed"),
    }
}

/// Counts and stores what every live link loses below `to`.
///
/// # Errors
/// [`AccountError`]: nothing may be removed. Every cursor was told either way.
async fn account(
    cursors: &Cursors,
    partition: &Partition,
    to: Offset,
    impatient: bool,
) -> Result<Accounted, AccountError> {
    let shared = cursors.shared();
    let links = of_partition(&shared.metadata(), &partition.topic, partition.id);
    let mut books = Vec::with_capacity(links.len());
    for (key, spec) in &links {
        books.push(Book::open(shared, partition, key, spec).await?);
    }
    let same = || of_partition(&shared.metadata(), &partition.topic, partition.id) == links;
    if !same() {
        return Err(AccountError::LinksChanged);
    }
    let counted = count_all(cursors, partition, to, impatient, &mut books).await;
    let mut stored = counted;
    for book in &mut books {
        if stored.is_ok() {
            stored = book.store(shared, to).await;
        }
        book.tell(cursors);
    }
    stored?;
    // A link that is new has no ledger, and its cursor takes what it does not find for never counted.
    if !same() {
        return Err(AccountError::LinksChanged);
    }
    Ok(Accounted::by_ledgers(to))
}

async fn count_all(
    cursors: &Cursors,
    partition: &Partition,
    to: Offset,
    impatient: bool,
    books: &mut [Book],
) -> Result<(), AccountError> {
    // No cursor takes a step in between: where they stand is of one moment.
    for book in books.iter_mut() {
        book.doom(cursors, to, impatient)?;
    }
    let log = &partition.log;
    let log_start = log.log_start();
    books.iter_mut().for_each(|book| book.begin(log_start));
    let limits = ReadLimits {
        bytes_max: SLAB_BYTES,
        flushed_only: true,
        ..ReadLimits::default()
    };
    loop {
        let counts = books.iter().filter_map(|book| book.count.as_ref());
        let next = counts.map(Count::next).min().unwrap_or(to);
        if next >= to {
            break;
        }
        let (runs, read_to) = match log.read(next, limits).await {
            Ok(slab) if slab.next_offset > next => (slab.runs, slab.next_offset),
            Ok(_) => (Vec::new(), to),
            // What stays unreadable does not hold the log back for ever: it counts as what has rotted.
            Err(_) if impatient => (Vec::new(), to),
            Err(error) => return Err(error.into()),
        };
        for book in books.iter_mut() {
            book.slab(partition, &runs, read_to);
        }
        glommio::yield_if_needed().await;
    }
    Ok(())
}

/// The accounting of one link.
struct Book {
    key: CursorKey,
    spec: CursorSpec,
    at: CursorPath,
    /// What the ledger's file said.
    seen: GapFile,
    /// What it is going to say.
    ledger: Gaps,
    /// Where the cursor's file stands, for a cursor that does not run.
    position: Offset,
    filter: Option<Filter>,
    /// The cursor that was asked where it stands.
    runner: Option<Rc<Runner>>,
    doomed: Option<Doomed>,
    count: Option<Count>,
    /// Of what was counted and stored: what the filter holds back.
    filtered: Option<u64>,
}

impl Book {
    async fn open(
        shared: &Shared,
        partition: &Partition,
        key: &CursorKey,
        spec: &CursorSpec,
    ) -> Result<Book, AccountError> {
        let data = shared.partitions.data();
        let at = CursorPath::new(data, &key.parent, key.partition, &key.child);
        let disk = shared.partitions.disk();
        let seen = gap_file::read(disk, &at).await.map_err(AccountError::Files)?;
        let file = cursor_file::read(disk, &at).await.map_err(AccountError::Files)?;
        let position = match file {
            CursorFile::Present { epoch, next_offset } if epoch == spec.identity.epoch => next_offset,
            _ => spec.attach_offset,
        };
        let log_start = partition.log.log_start();
        let ledger = seen.of(spec.identity.epoch).cloned();
        let filter = spec.options.filter.as_deref();
        Ok(Book {
            key: key.clone(),
            spec: spec.clone(),
            at,
            ledger: ledger.unwrap_or_else(|| first_ledger(spec.attach_offset, log_start)),
            seen,
            position,
            // A filter that cannot be read lets no cursor start either; what it would hold back counts as lost.
            filter: filter.and_then(|text| Filter::parse(text).ok()),
            runner: None,
            doomed: None,
            count: None,
            filtered: None,
        })
    }

    fn doom(&mut self, cursors: &Cursors, to: Offset, impatient: bool) -> Result<(), AccountError> {
        let runner = cursors.runner(&self.key, &self.spec.identity);
        let asked = runner.and_then(|runner| Some((runner.doom(to)?, runner)));
        let doomed = match asked {
            Some((doomed, runner)) => {
                self.runner = Some(runner);
                doomed
            }
            None if impatient || self.ledger.through >= to => {
                Doomed::unheard(to, self.position, self.spec.child_partitions)
            }
            None => return Err(AccountError::NotRunning(self.key.child.to_string())),
        };
        self.doomed = Some(doomed);
        Ok(())
    }

    fn begin(&mut self, log_start: Offset) {
        if let Some(doomed) = self.doomed.as_ref().filter(|doomed| !doomed.is_passed()) {
            let rekey = Rekey {
                partitioner: self.spec.child_partitioner,
                partitions: self.spec.child_partitions,
                parent: self.key.partition,
            };
            let from = self.ledger.through.max(log_start);
            self.count = Some(Count::new(rekey, doomed.clone(), from));
        }
    }

    fn slab(&mut self, partition: &Partition, runs: &[bytes::Bytes], read_to: Offset) {
        let Some(count) = &mut self.count else { return };
        if let Err(error) = count.slab(runs, read_to, self.filter.as_ref()) {
            let (topic, number) = (&partition.topic, partition.id.0);
            tracing::error!(%topic, partition = number, %error, "what retention takes cannot be read; it counts as rotten");
            count.pass(read_to);
        }
    }

    /// Stores the ledger if it has anything new to say, or if there is none yet: a link without one has lost what it does
    /// not find.
    async fn store(&mut self, shared: &Shared, to: Offset) -> Result<(), AccountError> {
        let Some(doomed) = &self.doomed else { return Ok(()) };
        let epoch = self.spec.identity.epoch;
        let counted = match self.count.take() {
            Some(count) => count.finish(),
            None if self.seen.of(epoch).is_some() => return Ok(()),
            None => Counted::default(),
        };
        if !doomed.is_passed() {
            self.ledger.note(to, counted.gaps);
            for (bucket, standing) in (0..).map(PartitionId).zip(&doomed.buckets) {
                self.ledger
                    .settle(bucket, standing.position, standing.ends.as_deref());
            }
            if self.ledger.bound(GAPS_MAX) {
                let (parent, child) = (&self.key.parent, &self.key.child);
                tracing::warn!(%parent, %child, "a gap ledger is full: counts of what a silent child partition lost become upper bounds");
            }
        }
        put(shared, &self.at, epoch, &self.ledger, &self.seen).await?;
        self.filtered = (!doomed.is_passed()).then_some(counted.filtered);
        Ok(())
    }

    /// Tells the cursor, whichever runs by now, what became of it.
    fn tell(&self, cursors: &Cursors) {
        let running = cursors.runner(&self.key, &self.spec.identity);
        let same = |runner: &Rc<Runner>| {
            self.runner
                .as_ref()
                .is_some_and(|asked| Rc::ptr_eq(asked, runner))
        };
        match (running, self.filtered) {
            (Some(runner), Some(filtered)) => {
                let filtered = if same(&runner) { filtered } else { 0 };
                let gaps = self.ledger.clone();
                runner.doom_decided(Event::Accounted { gaps, filtered });
            }
            (Some(runner), None) => runner.doom_decided(Event::Spared),
            (None, _) => {}
        }
    }
}

/// The ledger that a cursor starts with, or goes on with when a read from `from` finds that the log starts later. A link
/// whose records went before it was live has its first ledger written.
///
/// # Errors
/// [`AccountError`]: not now.
pub async fn ledger(
    shared: &Shared,
    at: &CursorPath,
    epoch: Epoch,
    from: Offset,
    log_start: Offset,
) -> Result<Gaps, AccountError> {
    let seen = gap_file::read(shared.partitions.disk(), at)
        .await
        .map_err(AccountError::Files)?;
    if let Some(gaps) = seen.of(epoch) {
        return Ok(gaps.clone());
    }
    let gaps = first_ledger(from, log_start);
    if gaps.through > Offset::ZERO {
        put(shared, at, epoch, &gaps, &seen).await?;
    }
    Ok(gaps)
}

/// Stores a ledger; over one that is not of its epoch only with the leader's word.
async fn put(
    shared: &Shared,
    at: &CursorPath,
    epoch: Epoch,
    gaps: &Gaps,
    seen: &GapFile,
) -> Result<(), AccountError> {
    if let GapFile::Damaged(why) = seen {
        tracing::error!(file = %at.gaps().display(), why, "a gap ledger is damaged: what it counted is lost");
    }
    let proof = match seen {
        GapFile::Absent => None,
        seen if seen.of(epoch).is_some() => None,
        _ => {
            let word = shared.confirm_link(at.parent(), at.child()).await;
            Some(word.map_err(AccountError::Unconfirmed)?)
        }
    };
    let (disk, unique) = (shared.partitions.disk(), shared.unique());
    Ok(gap_file::store(disk, at, unique, epoch, gaps, seen, proof.as_ref()).await?)
}

/// Removes a ledger that no live link has a use for, with the leader's word, as a cursor file is.
pub async fn sweep(shared: &Shared, key: &CursorKey, in_use: bool) {
    let (disk, data) = (shared.partitions.disk(), shared.partitions.data());
    let at = CursorPath::new(data, &key.parent, key.partition, &key.child);
    let Ok(seen) = gap_file::read(disk, &at).await else {
        return;
    };
    let file = match &seen {
        GapFile::Absent => CursorFile::Absent,
        GapFile::Damaged(why) => CursorFile::Damaged(why),
        GapFile::Present { epoch, gaps } => CursorFile::Present {
            epoch: *epoch,
            next_offset: gaps.through,
        },
    };
    if diff::sweep(key, &file, in_use, None) != Sweep::Ask {
        return;
    }
    let Ok(word) = shared.confirm_link(&key.parent, &key.child).await else {
        return;
    };
    let Sweep::Remove(proof) = diff::sweep(key, &file, in_use, Some(&word)) else {
        return;
    };
    match gap_file::remove(disk, &at, &seen, proof).await {
        Ok(()) => tracing::info!(file = %at.gaps().display(), "removed the gap ledger of a dead link"),
        Err(GapFileError::NotConfirmed | GapFileError::Changed) => {}
        Err(error) => tracing::warn!(%error, "cannot remove a gap ledger; trying again later"),
    }
}
