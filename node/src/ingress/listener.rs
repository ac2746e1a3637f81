//! Accepts clients, up to the limit, until the shard drains.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tailwater_wire::code::{ErrorCode, Refusal};

use crate::ingress::connection;
use crate::ingress::dispatch::Dispatch;
use crate::ingress::outbox::Outbox;
use crate::ingress::socket::{Listener, Reader, Writer};
use crate::telemetry::counters::ShardCounters;

/// How long to wait when the process is out of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How many clients the node serves, all shards together.
pub struct Limit {
    connections_max: usize,
    counters: Vec<Arc<ShardCounters>>,
}

impl Limit {
    /// At most so many, over all these shards.
    #[must_use]
    pub fn new(connections_max: usize, counters: Vec<Arc<ShardCounters>>) -> Limit {
        Limit {
            connections_max,
            counters,
        }
    }

    /// Shards that accept at the same instant may pass the limit by one each.
    fn is_reached(&self) -> bool {
        let open: u64 = self.counters.iter().map(|shard| shard.connections.get()).sum();
        open >= self.connections_max as u64
    }
}

/// Accepts for the life of the shard. Each connection is a task of its own.
pub async fn accept_loop(listener: Listener, dispatch: Rc<Dispatch>, limit: Limit) {
    loop {
        let (reader, writer) = match listener.accept().await {
            Ok(halves) => halves,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client; trying again");
                glommio::timer::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let counters = dispatch.partitions().counters();
        if limit.is_reached() {
            counters.connections_refused.add(1);
            glommio::spawn_local(refuse(reader, writer, limit.connections_max)).detach();
            continue;
        }
        counters.connections.add(1);
        let dispatch = Rc::clone(&dispatch);
        glommio::spawn_local(async move {
            connection::serve(reader, writer, Rc::clone(&dispatch)).await;
            let open = &dispatch.partitions().counters().connections;
            open.set(open.get() - 1);
        })
        .detach();
    }
}

async fn refuse(mut reader: Reader, mut writer: Writer, connections_max: usize) {
    let outbox = Outbox::default();
    let what = format!("this node serves {connections_max} clients already (connections_max)");
    outbox.refuse(0, &Refusal::new(ErrorCode::Busy, what));
    outbox.close();
    if outbox.send_all(&mut writer).await.is_ok() {
        writer.finish().await;
        reader.discard(ACCEPT_AGAIN).await;
    }
}
