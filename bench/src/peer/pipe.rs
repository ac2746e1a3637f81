//! One connection to a system with a text protocol: requests are gathered and written by a task, answers are counted.
//!
//! Both peers answer what one connection sends on one lane in order, so an answer needs no name: the n-th answer is the
//! n-th request's. Everything lives on the load's one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use anyhow::{Context, anyhow, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

/// Bytes that may wait to be written; above, a sender waits.
const UNWRITTEN_MAX: usize = 8 << 20;
/// Bytes that one read brings at most.
const READ_BYTES: usize = 256 << 10;

/// The sending half: a buffer, and the task that empties it.
pub struct Pipe {
    shared: Rc<Outgoing>,
}

#[derive(Default)]
struct Outgoing {
    bytes: RefCell<Vec<u8>>,
    filled: Notify,
    emptied: Notify,
    failed: Cell<bool>,
}

impl Pipe {
    /// Connects; returns the sending half and the receiving one.
    ///
    /// # Errors
    /// When nobody listens.
    pub async fn connect(address: &str) -> anyhow::Result<(Pipe, Incoming)> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("{address}: cannot connect"))?;
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let shared = Rc::new(Outgoing::default());
        tokio::task::spawn_local(write_all(Rc::clone(&shared), writer));
        let incoming = Incoming {
            reader,
            bytes: Vec::with_capacity(READ_BYTES),
            taken: 0,
        };
        Ok((Pipe { shared }, incoming))
    }

    /// Adds to what will be written when the caller gives way.
    pub fn push(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.shared.bytes.borrow_mut();
        if bytes.is_empty() {
            self.shared.filled.notify_one();
        }
        write(&mut bytes);
    }

    /// Waits until more may be pushed.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn room(&self) -> anyhow::Result<()> {
        loop {
            if self.shared.failed.get() {
                bail!("the connection was closed by the system");
            }
            if self.shared.bytes.borrow().len() < UNWRITTEN_MAX {
                return Ok(());
            }
            self.shared.emptied.notified().await;
        }
    }
}

/// Ends when the connection does, or when nobody can push any more.
async fn write_all(shared: Rc<Outgoing>, mut writer: OwnedWriteHalf) {
    let mut batch = Vec::new();
    loop {
        shared.filled.notified().await;
        std::mem::swap(&mut batch, &mut *shared.bytes.borrow_mut());
        shared.emptied.notify_waiters();
        if writer.write_all(&batch).await.is_err() {
            shared.failed.set(true);
            shared.emptied.notify_waiters();
            return;
        }
        batch.clear();
        if Rc::strong_count(&shared) == 1 {
            return;
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // So that the task sees that it is alone.
        self.shared.filled.notify_one();
    }
}

/// The receiving half: bytes that have arrived and were not taken yet.
pub struct Incoming {
    reader: OwnedReadHalf,
    bytes: Vec<u8>,
    taken: usize,
}

impl Incoming {
    /// Waits for more bytes. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn more(&mut self) -> anyhow::Result<()> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.reserve(READ_BYTES);
        match self.reader.read_buf(&mut self.bytes).await? {
            0 => bail!("the system closed the connection"),
            _ => Ok(()),
        }
    }

    /// What has arrived.
    #[must_use]
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Counts the first bytes as read.
    pub fn advance(&mut self, bytes: usize) {
        self.taken += bytes;
    }
}

/// How many requests were made and how many were answered, of those that are answered in order.
#[derive(Default)]
pub struct Answers {
    asked: Cell<u64>,
    answered: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    failed: RefCell<Option<String>>,
}

impl Answers {
    /// Counts one more request; what it returns is ready with its answer.
    pub fn ask(self: &Rc<Self>, durability: &'static str) -> Answer {
        self.asked.set(self.asked.get() + 1);
        Answer {
            answers: Rc::clone(self),
            number: self.asked.get(),
            durability,
        }
    }

    /// Counts answers.
    pub fn count(&self, answers: u64) {
        self.answered.set(self.answered.get() + answers);
        let mut waiting = self.waiting.borrow_mut();
        while waiting
            .front()
            .is_some_and(|(number, _)| *number <= self.answered.get())
        {
            if let Some((_, waker)) = waiting.pop_front() {
                waker.wake();
            }
        }
    }

    /// Fails everything that is not answered.
    pub fn fail(&self, why: &str) {
        self.failed.borrow_mut().get_or_insert_with(|| why.to_owned());
        for (_, waker) in self.waiting.take() {
            waker.wake();
        }
    }
}

/// A request's answer to come.
pub struct Answer {
    answers: Rc<Answers>,
    number: u64,
    durability: &'static str,
}

impl Future for Answer {
    type Output = anyhow::Result<&'static str>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if self.number <= self.answers.answered.get() {
            return Poll::Ready(Ok(self.durability));
        }
        if let Some(why) = &*self.answers.failed.borrow() {
            return Poll::Ready(Err(anyhow!("{why}")));
        }
        let mut waiting = self.answers.waiting.borrow_mut();
        // Polled anew: its place is kept, with the waker of the last poll.
        match waiting.iter().position(|(number, _)| *number >= self.number) {
            Some(at) if waiting[at].0 == self.number => waiting[at].1.clone_from(cx.waker()),
            Some(at) => waiting.insert(at, (self.number, cx.waker().clone())),
            None => waiting.push_back((self.number, cx.waker().clone())),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[test]
    fn answers_are_given_in_order_and_failures_to_all_that_wait() {
        let answers = Rc::new(Answers::default());
        let (mut first, mut second) = (pin!(answers.ask("fsync")), pin!(answers.ask("fsync")));
        let mut cx = TaskContext::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut cx).is_pending() && first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!(answers.waiting.borrow().len(), 2, "one place each");
        answers.count(1);
        assert!(matches!(first.poll(&mut cx), Poll::Ready(Ok("fsync"))));
        answers.fail("no disk");
        assert!(matches!(second.poll(&mut cx), Poll::Ready(Err(error)) if error.to_string() == "no disk"));
    }
}
