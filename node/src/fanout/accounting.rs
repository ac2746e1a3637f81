//! Retention on a shard, and the accounting before it: what is about to go is counted for every live link, the ledgers
//! are stored, and only then are segments removed (SPEC.md D8, F9).
//!
//! Runs beside the commit loop, one partition after another, one slab of memory at a time. It waits for no child, and
//! for a cursor that is about to start only a few passes; after that it counts for it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tailwater_storage::cursor_file::{self, CursorFile};
use tailwater_storage::gap_file::{self, GapFile};
use tailwater_storage::gaps::{GAPS_MAX, Gaps};
use tailwater_storage::layout::CursorPath;
use tailwater_storage::proof::Accounted;
use tailwater_storage::slab::ReadLimits;
use tailwater_wire::ids::{Offset, PartitionId};

use crate::fanout::cursor::message::Event;
use crate::fanout::cursors::Cursors;
use crate::fanout::desired::{CursorKey, CursorSpec, of_partition};
use crate::fanout::filter::Filter;
use crate::fanout::gaps::{Count, Counted, Doomed, first_ledger, note};
use crate::fanout::ledger::{self, AccountError};
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
            stored = book.store(shared).await;
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
    books.iter_mut().for_each(Book::begin);
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
    /// Where the parent's log starts.
    log_start: Offset,
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
            log_start,
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

    fn begin(&mut self) {
        if let Some(doomed) = self.doomed.as_ref().filter(|doomed| !doomed.is_passed()) {
            let rekey = Rekey {
                partitioner: self.spec.child_partitioner,
                partitions: self.spec.child_partitions,
                parent: self.key.partition,
            };
            let from = self.ledger.through.max(self.log_start);
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
    async fn store(&mut self, shared: &Shared) -> Result<(), AccountError> {
        let Some(doomed) = &self.doomed else { return Ok(()) };
        let epoch = self.spec.identity.epoch;
        let counted = match self.count.take() {
            Some(count) => count.finish(),
            None if self.seen.of(epoch).is_some() => return Ok(()),
            None => Counted::default(),
        };
        if !doomed.is_passed() {
            note(&mut self.ledger, doomed, counted.gaps, self.log_start);
            if self.ledger.bound(GAPS_MAX) {
                let (parent, child) = (&self.key.parent, &self.key.child);
                tracing::warn!(%parent, %child, "a gap ledger is full: counts of what a silent child partition lost become upper bounds");
            }
        }
        ledger::put(shared, &self.at, epoch, &self.ledger, &self.seen).await?;
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
