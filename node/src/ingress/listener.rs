//! Accepts clients, up to the limit, until the shard drains.

use std::rc::Rc;
use std::time::Duration;

use tailwater_wire::code::{ErrorCode, Refusal};

use crate::ingress::connection;
use crate::ingress::dispatch::Dispatch;
use crate::ingress::outbox::Outbox;
use crate::ingress::socket::{Listener, Reader, Writer};

/// How long to wait when the process is out of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Accepts for the life of the shard. Each connection is a task of its own.
pub async fn accept_loop(listener: Listener, dispatch: Rc<Dispatch>, connections_max: usize) {
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
        if counters.connections.get() >= connections_max as u64 {
            counters.connections_refused.add(1);
            glommio::spawn_local(refuse(reader, writer, connections_max)).detach();
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
    let what = format!("this shard serves {connections_max} clients already (connections_max)");
    outbox.refuse(0, &Refusal::new(ErrorCode::Busy, what));
    outbox.close();
    if outbox.send_all(&mut writer).await.is_ok() {
        writer.finish().await;
        reader.discard(ACCEPT_AGAIN).await;
    }
}
