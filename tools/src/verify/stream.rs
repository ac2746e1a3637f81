//! One parent partition read for one child partition: the records that must be in it, and the gaps between them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tailwater_node::fanout::filter::Filter;
use tailwater_node::fanout::rekey::Rekey;
use tailwater_wire::batch::header::{BatchHeader, BatchKind};
use tailwater_wire::batch::view::{BatchError, BatchView, RecordView};
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::handle::Client;
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Incarnation, Lineage, Offset, PartitionId, TopicName};
use tailwater_wire::message::{FetchRequest, Fetched, Place};
use tokio::task::JoinHandle;

use crate::verify::decider::{Content, Head, ParentItem};

/// One history of one partition, and the range of it that is read.
#[derive(Debug, Clone)]
pub struct Source {
    /// The topic.
    pub topic: TopicName,
    /// Its life.
    pub incarnation: Incarnation,
    /// The partition.
    pub partition: PartitionId,
    /// Its history.
    pub lineage: Lineage,
    /// The first offset.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
}

impl Source {
    /// Reads from an offset.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn fetch(
        &self,
        client: &Client,
        from: u64,
        bytes_max: u32,
        wait_millis: u32,
    ) -> Result<(Fetched, Bytes), ClientError> {
        let request = FetchRequest {
            topic: self.topic.clone(),
            incarnation: Some(self.incarnation),
            lineage: Some(self.lineage),
            partition: self.partition,
            from: Offset(from),
            bytes_max,
            wait_millis,
        };
        client.fetch(request).await
    }
}

/// Which parent records are wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Where records go.
    pub rekey: Rekey,
    /// The child partition.
    pub bucket: PartitionId,
    /// Which records pass.
    pub filter: Option<Arc<Filter>>,
}

/// A record, or a gap up to an offset.
#[derive(Debug)]
enum Front {
    Item(ParentItem),
    Gap(u64),
}

/// The stream. At most two slabs are in memory.
pub struct ParentStream {
    client: Client,
    source: Source,
    wanted: Wanted,
    bytes_max: u32,
    /// Everything below is in `fronts`, or was.
    next: u64,
    fronts: VecDeque<Front>,
    ahead: Option<JoinHandle<Result<(Fetched, Bytes), ClientError>>>,
    /// Records that the filter held back, whose keys lead to the child partition.
    pub filtered: u64,
    /// Ranges that the parent's log does not have.
    pub gaps: Vec<(u64, u64)>,
}

impl ParentStream {
    /// From the source's start.
    #[must_use]
    pub fn new(client: Client, source: Source, wanted: Wanted, bytes_max: u32) -> ParentStream {
        ParentStream {
            client,
            next: source.from,
            source,
            wanted,
            bytes_max,
            fronts: VecDeque::new(),
            ahead: None,
            filtered: 0,
            gaps: Vec::new(),
        }
    }

    /// The front; `None` when it has to be read first.
    #[must_use]
    pub fn peek(&self) -> Option<Head<'_>> {
        match self.fronts.front() {
            Some(Front::Item(item)) => Some(Head::Item(item)),
            Some(&Front::Gap(to)) => Some(Head::Gap { to }),
            None if self.next >= self.source.to => Some(Head::End),
            None => None,
        }
    }

    /// Moves past the front.
    pub fn advance(&mut self) {
        self.fronts.pop_front();
    }

    /// The next record, past gaps; `None` at the end.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn item(&mut self) -> Result<Option<&ParentItem>, ClientError> {
        loop {
            match self.fronts.front() {
                Some(Front::Item(_)) => break,
                Some(Front::Gap(_)) => self.advance(),
                None if self.next >= self.source.to => return Ok(None),
                None => self.fill().await?,
            }
        }
        match self.fronts.front() {
            Some(Front::Item(item)) => Ok(Some(item)),
            _ => Ok(None),
        }
    }

    /// Reads on.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn fill(&mut self) -> Result<(), ClientError> {
        let read = match self.ahead.take() {
            Some(ahead) => ahead
                .await
                .unwrap_or(Err(ClientError::Closed { what: "the client" })),
            None => self.read(self.next).await,
        };
        let (fetched, slab) = match read {
            Ok(read) => read,
            Err(error) if error.code() == ErrorCode::PositionBehind => return self.skip_to_start().await,
            Err(error) => return Err(error),
        };
        let next = fetched.next.0.min(self.source.to);
        if next <= self.next {
            return Err(corrupt(
                &self.source,
                self.next,
                "the node has nothing below its high-water mark",
            ));
        }
        if next < self.source.to {
            let (client, source, bytes_max) = (self.client.clone(), self.source.clone(), self.bytes_max);
            let ahead = async move { source.fetch(&client, next, bytes_max, 0).await };
            self.ahead = Some(tokio::spawn(ahead));
        }
        self.take(&slab)?;
        self.gap(next);
        Ok(())
    }

    async fn read(&self, from: u64) -> Result<(Fetched, Bytes), ClientError> {
        self.source.fetch(&self.client, from, self.bytes_max, 0).await
    }

    /// Retention removed what was to be read next.
    async fn skip_to_start(&mut self) -> Result<(), ClientError> {
        let (topic, partition) = (&self.source.topic, self.source.partition);
        let found = self.client.find_offset(topic, partition, Place::Earliest).await?;
        if found.log_start.0 <= self.next {
            return Err(corrupt(
                &self.source,
                self.next,
                "the node refuses a position that it has",
            ));
        }
        self.gap(found.log_start.0.min(self.source.to));
        Ok(())
    }

    /// Takes what is wanted of a slab.
    fn take(&mut self, slab: &Bytes) -> Result<(), ClientError> {
        let mut rest = slab.clone();
        while !rest.is_empty() {
            let view = BatchView::parse(&rest).map_err(|error| self.damaged(error))?;
            let header = view.header();
            let (base, end) = (header.base_offset.0, header.end_offset().0);
            let len = header.batch_len();
            if end > self.next && base < self.source.to {
                self.gap(base);
                if header.kind == BatchKind::Data {
                    self.take_batch(&rest, &view);
                }
                self.next = self.next.max(end.min(self.source.to));
            }
            rest = rest.slice(len..);
        }
        Ok(())
    }

    fn take_batch(&mut self, slab: &Bytes, view: &BatchView<'_>) {
        let header = view.header();
        let skip = self.next.saturating_sub(header.base_offset.0) as usize;
        for record in (skip..view.len()).filter_map(|k| view.record(k)) {
            if record.offset.0 >= self.source.to {
                break;
            }
            let placed = self.wanted.rekey.place(&record, header.partitioner);
            if placed.partition != self.wanted.bucket {
                continue;
            }
            let filter = self.wanted.filter.as_deref();
            if filter.is_some_and(|filter| !filter.passes(&record)) {
                self.filtered += 1;
                continue;
            }
            self.fronts.push_back(Front::Item(ParentItem {
                offset: record.offset.0,
                commit_time: header.commit_time.0,
                content: content(slab, &record),
            }));
        }
    }

    /// Notes that the log has nothing from here to `to`.
    fn gap(&mut self, to: u64) {
        if to > self.next {
            self.gaps.push((self.next, to));
            self.fronts.push_back(Front::Gap(to));
            self.next = to;
        }
    }

    fn damaged(&self, error: BatchError) -> ClientError {
        corrupt(&self.source, self.next, &error.to_string())
    }
}

/// A batch that the node handed out and that is not sound.
#[must_use]
pub fn corrupt(source: &Source, near: u64, why: &str) -> ClientError {
    ClientError::Corrupt {
        place: format!(
            "topic {}, partition {}, near offset {near}",
            source.topic, source.partition
        ),
        why: why.to_owned(),
    }
}

/// What is compared of a record, shared with the slab that it lies in.
#[must_use]
pub fn content(slab: &Bytes, record: &RecordView<'_>) -> Content {
    let share = |part: &[u8]| {
        if part.is_empty() {
            Bytes::new()
        } else {
            slab.slice_ref(part)
        }
    };
    Content {
        key: record.key.map(share),
        value: share(record.value),
        headers: share(record.headers.encoded()),
        timestamp: record.timestamp,
    }
}

/// The header of the batch at the start of a slab, and its bytes; `None` at the end.
///
/// # Errors
/// [`ClientError::Corrupt`] when no whole batch begins there.
pub fn next_batch(
    source: &Source,
    near: u64,
    slab: &mut Bytes,
) -> Result<Option<(BatchHeader, Bytes)>, ClientError> {
    if slab.is_empty() {
        return Ok(None);
    }
    let header = BatchHeader::decode(slab).map_err(|error| corrupt(source, near, &error.to_string()))?;
    if slab.len() < header.batch_len() {
        return Err(corrupt(source, near, "the slab ends inside a batch"));
    }
    let batch = slab.split_to(header.batch_len());
    Ok(Some((header, batch)))
}
