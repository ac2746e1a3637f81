//! Requests that come from other shards: their cursors' commits, their clients' requests for partitions of this shard, and
//! this shard's part of answers that are put together from all shards.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;

use tailwater_wire::code::Refusal;
use tailwater_wire::message::{Reply, Request};

use crate::fanout::committer;
use crate::ingress::local::Local;
use crate::router::mesh::Responder;
use crate::router::message::{ShardReply, ShardRequest};

/// Takes a request of another shard. What has an order, a produce's offset above all, is decided before this returns.
pub fn handle(local: &Rc<Local>, request: ShardRequest, answer: Responder) {
    let local = Rc::clone(local);
    match request {
        ShardRequest::OpenOrigin(child) => later(async move {
            let opened = committer::open_origin_here(local.shared(), &child).await;
            answer.reply(ShardReply::Opened(opened));
        }),
        ShardRequest::Commit { child, batch } => later(async move {
            let committed = committer::commit_here(local.shared(), &child, batch).await;
            answer.reply(ShardReply::Committed(committed));
        }),
        ShardRequest::Wait(request) => later(async move {
            local.wait(&request).await;
            answer.reply(ShardReply::Waited);
        }),
        ShardRequest::Part(request) => {
            answer.reply(ShardReply::Client(Box::new(local.part(&request).map(plain))))
        }
        ShardRequest::Client { request, payload } => client(local, request, payload, answer),
    }
}

fn client(local: Rc<Local>, request: Request, payload: Bytes, answer: Responder) {
    let reply =
        move |answered: Result<(Reply, Bytes), Refusal>| answer.reply(ShardReply::Client(Box::new(answered)));
    match request {
        Request::Produce(request) => match local.produce(&request, payload) {
            Err(refusal) => reply(Err(refusal)),
            Ok(settled) => later(async move { reply(settled.await.map(plain)) }),
        },
        Request::Fetch(request) => later(async move { reply(local.fetch_copied(&request).await) }),
        request => later(async move { reply(local.ask(request).await.map(plain)) }),
    }
}

fn plain(reply: Reply) -> (Reply, Bytes) {
    (reply, Bytes::new())
}

fn later(work: impl Future<Output = ()> + 'static) {
    glommio::spawn_local(work).detach();
}
