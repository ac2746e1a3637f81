//! One client's connection: frames in, requests handed on in order, answers out in any order.
//!
//! Bad input gets an error frame that says why, then the connection is closed; other connections do not notice.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::decoder::{Frame, FrameDecoder};
use tailwater_wire::frame::{FrameError, FrameKind, decode_meta};
use tailwater_wire::limits::REQUESTS_IN_FLIGHT_MAX;
use tailwater_wire::message::Request;

use crate::ingress::dispatch::Dispatch;
use crate::ingress::outbox::Outbox;
use crate::ingress::socket::{Reader, Writer};
use crate::signal::Signal;

/// A frame that has begun must end within this time, and the first one must come within it.
const FRAME_WITHIN: Duration = Duration::from_secs(10);
/// How long a closing connection waits for the client to read its last answer.
const LINGER: Duration = Duration::from_millis(500);

/// A connection as its requests see it. Shard-local.
#[derive(Default)]
pub struct Connection {
    /// Answers on their way out.
    pub outbox: Outbox,
    in_flight: Cell<usize>,
    settled: Signal,
    greeted: Cell<bool>,
}

/// A request's place among those in flight; given back when the request is answered.
pub struct InFlight(Rc<Connection>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.settled.notify();
    }
}

impl Connection {
    fn enter(self: &Rc<Connection>) -> Option<InFlight> {
        let busy = self.in_flight.get() >= REQUESTS_IN_FLIGHT_MAX;
        (!busy).then(|| {
            self.in_flight.set(self.in_flight.get() + 1);
            InFlight(Rc::clone(self))
        })
    }
}

/// Serves a client until it leaves, misbehaves, or the shard drains.
pub async fn serve(mut reader: Reader, mut writer: Writer, dispatch: Rc<Dispatch>) {
    let connection = Rc::new(Connection::default());
    let sender = {
        let connection = Rc::clone(&connection);
        glommio::spawn_local(async move {
            let sent = connection.outbox.send_all(&mut writer).await;
            writer.finish().await;
            sent
        })
    };
    let drained = async {
        dispatch.until_draining().await;
        Ok(())
    };
    let end = futures_lite::future::or(receive(&mut reader, &connection, &dispatch), drained).await;
    if let Err(End::Refused(refusal)) = &end {
        dispatch.partitions().counters().refusals.add(1);
        connection.outbox.refuse(0, refusal);
    }
    // What was accepted is answered, also to a client that has closed only its sending half.
    connection
        .settled
        .until(|| connection.in_flight.get() == 0 || connection.outbox.is_closed())
        .await;
    connection.outbox.close();
    let sent = sender.await;
    if sent.is_ok() && end.is_err() {
        reader.discard(LINGER).await;
    }
}

/// Why a connection ends other than by the client's leave.
enum End {
    Refused(Refusal),
    Gone,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Gone
    }
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> End {
        let code = match error {
            FrameError::UnsupportedVersion(_) => ErrorCode::UnsupportedVersion,
            _ => ErrorCode::BadFrame,
        };
        End::Refused(Refusal::new(code, error.to_string()))
    }
}

async fn receive(
    reader: &mut Reader,
    connection: &Rc<Connection>,
    dispatch: &Rc<Dispatch>,
) -> Result<(), End> {
    let mut decoder = FrameDecoder::new();
    loop {
        while let Some(frame) = decoder.next_frame()? {
            request(frame, connection, dispatch)?;
            connection.outbox.room().await;
            if connection.outbox.is_closed() {
                return Err(End::Gone);
            }
        }
        let in_time = decoder.is_inside_frame() || !connection.greeted.get();
        let read = if in_time {
            read_within(reader, &mut decoder).await?
        } else {
            reader.read_into(&mut decoder).await?
        };
        if read == 0 && decoder.is_inside_frame() {
            return Err(End::Refused(Refusal::new(
                ErrorCode::BadFrame,
                "the stream ends inside a frame",
            )));
        }
        if read == 0 {
            return Ok(());
        }
    }
}

async fn read_within(reader: &mut Reader, decoder: &mut FrameDecoder) -> Result<usize, End> {
    let waiting_for = if decoder.is_inside_frame() {
        "the rest of a frame"
    } else {
        "a first request"
    };
    let read = async { Ok(reader.read_into(decoder).await) };
    glommio::timer::timeout(FRAME_WITHIN, read).await.map_or_else(
        |_late| {
            let what = format!("waited {FRAME_WITHIN:?} for {waiting_for}");
            Err(End::Refused(Refusal::new(ErrorCode::BadFrame, what)))
        },
        |read: io::Result<usize>| Ok(read?),
    )
}

fn request(frame: Frame, connection: &Rc<Connection>, dispatch: &Rc<Dispatch>) -> Result<(), End> {
    if frame.header.kind != FrameKind::Request {
        return Err(End::Refused(Refusal::new(
            ErrorCode::BadFrame,
            "a client sends requests",
        )));
    }
    let request: Request = decode_meta(&frame.meta)?;
    let correlation = frame.header.correlation;
    if !connection.greeted.get() && !matches!(request, Request::Hello(_)) {
        return Err(End::Refused(Refusal::new(
            ErrorCode::BadFrame,
            "the first request is a Hello",
        )));
    }
    connection.greeted.set(true);
    let Some(place) = connection.enter() else {
        let what = format!("{REQUESTS_IN_FLIGHT_MAX} requests of this connection are unanswered already");
        connection
            .outbox
            .refuse(correlation, &Refusal::new(ErrorCode::TooManyInFlight, what));
        return Ok(());
    };
    dispatch.handle(Rc::clone(connection), place, correlation, request, frame.payload);
    Ok(())
}
