//! Does what a cursor asks for. Every action that waits is a task of its own, which ends by putting one event into the
//! runner's queue.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::or;

use tailwater_storage::dedup::verdict::OriginMark;
use tailwater_storage::error::ReadError;
use tailwater_storage::slab::ReadLimits;
use tailwater_wire::ids::{Offset, PartitionId};

use crate::fanout::committer::{self, Committed};
use crate::fanout::cursor::message::{Action, EpochVerdict, Event, ParentVerdict, RequestId, Slab};
use crate::fanout::ledger;
use crate::fanout::runner::{Arrival, Runner};
use crate::partition::refusal;
use crate::router::message::Child;

/// How long a wait that ended for nothing is left alone: the parent is closed, or takes no more records.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Runner {
    pub(super) fn perform(self: &Rc<Runner>, action: Action) {
        match action {
            Action::OpenOrigin { request, bucket } => {
                self.spawn(|this| async move { this.open_origin(request, bucket).await })
            }
            Action::VerifyParent {
                request,
                bucket,
                offset,
                mark,
            } => self.spawn(|this| async move { this.verify_parent(request, bucket, offset, mark).await }),
            Action::Read {
                request,
                from,
                committed_at_max,
                records_max,
                bytes_max,
                wait_millis,
            } => {
                let limits = ReadLimits {
                    records_max,
                    bytes_max,
                    committed_at_max,
                    flushed_only: true,
                };
                self.spawn(
                    move |this| async move { this.read(request, from, limits, wait_millis > 0).await },
                );
            }
            Action::Commit {
                request,
                bucket,
                batch,
            } => self.spawn(move |this| async move {
                let outcome = committer::commit(&this.shared, this.child_of(bucket), batch).await;
                Arrival::Event(match outcome {
                    Committed::Acked { receipt, duplicate } => Event::Acked {
                        request,
                        bucket,
                        receipt,
                        duplicate,
                    },
                    Committed::Expected(watermark) => Event::Expected {
                        request,
                        bucket,
                        watermark,
                    },
                    Committed::Failed(code) => Event::Failed {
                        request,
                        bucket,
                        code,
                    },
                })
            }),
            Action::Persist(persist) => self.spawn(move |this| async move { this.persist(persist).await }),
            Action::ConfirmEpoch => self.spawn(|this| async move { this.confirm_epoch().await }),
            Action::Stall { bucket, reason } => {
                let (topic, partition, child) = (&self.parent.topic, self.parent.id.0, &self.child);
                let bucket = bucket.map(|bucket| bucket.0);
                tracing::warn!(%topic, partition, %child, bucket, %reason, "a cursor stalls");
            }
            Action::Unstall { bucket } => {
                let (topic, partition, child) = (&self.parent.topic, self.parent.id.0, &self.child);
                let bucket = bucket.map(|bucket| bucket.0);
                tracing::info!(%topic, partition, %child, bucket, "a cursor goes on");
            }
            Action::Dropped {
                bucket,
                from,
                to,
                records,
                at_most,
            } => {
                let (topic, partition, child) = (&self.parent.topic, self.parent.id.0, &self.child);
                let (bucket, from, to) = (bucket.0, from.0, to.0);
                tracing::error!(%topic, partition, %child, bucket, from, to, records, at_most, "retention or damage took records before they were copied");
            }
            Action::Stop => {
                self.ended.set(true);
                self.arrived.notify();
            }
        }
    }

    fn spawn<F: Future<Output = Arrival> + 'static>(self: &Rc<Runner>, work: impl FnOnce(Rc<Runner>) -> F) {
        let this = Rc::clone(self);
        let work = work(Rc::clone(self));
        glommio::spawn_local(async move {
            let arrival = this.measured(work).await;
            this.push(arrival);
        })
        .detach();
    }

    fn child_of(&self, bucket: PartitionId) -> Child {
        Child {
            topic: self.child.clone(),
            bucket,
            origin: self.cursor.borrow().config().origin,
            index: self.index,
        }
    }

    async fn open_origin(&self, request: RequestId, bucket: PartitionId) -> Arrival {
        let opened = committer::open_origin(&self.shared, self.child_of(bucket)).await;
        Arrival::Event(match opened {
            Ok((watermark, mark)) => Event::Opened {
                request,
                bucket,
                watermark,
                mark,
            },
            Err(code) => Event::Failed {
                request,
                bucket,
                code,
            },
        })
    }

    async fn verify_parent(
        &self,
        request: RequestId,
        bucket: PartitionId,
        offset: Offset,
        mark: OriginMark,
    ) -> Arrival {
        let log = &self.parent.log;
        let verdict = if offset < log.log_start() {
            ParentVerdict::Gone
        } else if offset >= log.flushed() {
            ParentVerdict::Differs
        } else {
            match log.batch_containing(offset).await {
                Ok(None) => ParentVerdict::Gone,
                Ok(Some(h)) if h.body_crc == mark.parent_crc && h.commit_time == mark.parent_commit_time => {
                    ParentVerdict::Same
                }
                Ok(Some(_)) => ParentVerdict::Differs,
                Err(error) => {
                    return Arrival::Event(Event::Failed {
                        request,
                        bucket,
                        code: refusal::read_code(&error),
                    });
                }
            }
        };
        Arrival::Event(Event::Verified {
            request,
            bucket,
            verdict,
        })
    }

    /// Waits until something is flushed at `from`, without a timer: an idle cursor costs nothing. Not for a place above
    /// all that is committed, which no wait makes sound; and no longer than the cursor lives.
    async fn wait_at(&self, from: Offset) {
        let log = &self.parent.log;
        if from < log.flushed() || from > log.high_water_mark() {
            return;
        }
        let ended = || self.end.until(|| self.ended.get());
        or(log.flushed_beyond(from), ended()).await;
        if log.flushed() <= from && !self.ended.get() {
            // The log is closed or latched: reading says which, and is not to be asked again at once.
            let again = async {
                ended().await;
                Ok(())
            };
            let _ended_or_not = glommio::timer::timeout(LOOK_AGAIN, again).await;
        }
    }

    async fn read(&self, request: RequestId, from: Offset, limits: ReadLimits, may_wait: bool) -> Arrival {
        let log = &self.parent.log;
        if may_wait {
            self.wait_at(from).await;
            if self.ended.get() {
                // Nobody asks any more.
                return Arrival::Event(Event::Tick);
            }
        }
        // While it is being read and cut, the slab counts with what it may hold at most.
        let _charge = self.shared.budget.take(limits.bytes_max).await;
        match log.read(from, limits).await {
            Ok(read) => {
                let slab = Slab {
                    request,
                    next: read.next_offset,
                    full: read.next_due.is_none() && read.next_offset < log.flushed(),
                    next_commit: read.next_due,
                };
                self.shared
                    .partitions
                    .counters()
                    .corrupt_batches
                    .add(read.quarantined.len() as u64);
                Arrival::Slab {
                    slab,
                    runs: read.runs,
                }
            }
            Err(ReadError::Behind { log_start }) => Arrival::Event(
                ledger::behind(&self.shared, &self.file, self.epoch(), request, from, log_start).await,
            ),
            Err(ReadError::Ahead { high_water_mark }) => Arrival::Event(Event::Ahead {
                request,
                high_water_mark,
            }),
            Err(error) => Arrival::Event(Event::ReadFailed {
                request,
                code: refusal::read_code(&error),
            }),
        }
    }

    async fn confirm_epoch(&self) -> Arrival {
        let epoch = self.epoch();
        let verdict = match self.shared.confirm_link(&self.parent.topic, &self.child).await {
            Ok(confirmed) if confirmed.current() == Some(epoch) => EpochVerdict::Current,
            Ok(_) => EpochVerdict::Gone,
            Err(_) => EpochVerdict::Unconfirmed,
        };
        Arrival::Event(Event::Epoch(verdict))
    }
}
