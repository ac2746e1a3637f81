//! One client's connection: frames in, requests handed on in order, answers out in any order.
//!
//! Bad input gets an error frame that says why, then the connection is closed; other connections do not notice.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::decoder::{Announced, Frame, FrameDecoder};
use tailwater_wire::frame::{FrameError, FrameKind, decode_meta};
use tailwater_wire::limits::REQUESTS_IN_FLIGHT_MAX;
use tailwater_wire::message::Request;

use crate::clock::system::elapsed_since_boot;
use crate::ingress::dispatch::Dispatch;
use crate::ingress::in_flight::Connection;
use crate::ingress::room::{Room, UNCOUNTED_BYTES_MAX, no_room};
use crate::ingress::socket::{Reader, Writer};

/// A frame that has begun must end within this time and what its bytes earn; the first one must begin within it.
const FRAME_WITHIN: Duration = Duration::from_secs(10);
/// Below this rate a frame is given up in the end, in bytes a second.
const FRAME_BYTES_PER_SECOND: f64 = 65_536.0;
/// How long a closing connection waits for the client to read its last answer.
const LINGER: Duration = Duration::from_millis(500);

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
    connection.until_settled().await;
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
    let (mut decoder, mut pace, mut room) = (FrameDecoder::new(), Pace::default(), Room::default());
    loop {
        let was_skipping = decoder.is_skipping();
        while let Some(frame) = decoder.next_frame()? {
            pace = Pace::default();
            request(frame, std::mem::take(&mut room), connection, dispatch)?;
            until_answers_are_taken(connection).await?;
        }
        let skipped_all = was_skipping && !decoder.is_skipping();
        if skipped_all || !decoder.is_inside_frame() {
            pace = Pace::default();
        }
        // Of the frame before, before the next one is given up, too: each is told once.
        let before = decoder.skipped();
        if let Some(announced) = decoder.announced() {
            admit(&announced, connection)?;
            if !room.make(dispatch.receiving(), &announced) {
                decoder.skip();
            }
        }
        for correlation in before.into_iter().chain(decoder.skipped()) {
            dispatch.refuse(connection, correlation, &no_room());
            until_answers_are_taken(connection).await?;
        }
        let read = if decoder.is_inside_frame() {
            let within = pace.left(elapsed_since_boot());
            read_within(reader, &mut decoder, within, "the rest of a frame").await?
        } else if connection.greeted() {
            reader.read_into(&mut decoder).await?
        } else {
            read_within(reader, &mut decoder, FRAME_WITHIN, "a first request").await?
        };
        pace.received += read;
        if read == 0 && decoder.is_inside_frame() {
            let what = "the stream ends inside a frame";
            return Err(End::Refused(Refusal::new(ErrorCode::BadFrame, what)));
        }
        if read == 0 {
            return Ok(());
        }
    }
}

/// Waits until the client has taken enough of its answers to be given more.
async fn until_answers_are_taken(connection: &Connection) -> Result<(), End> {
    connection.outbox.room().await;
    if connection.outbox.is_closed() {
        return Err(End::Gone);
    }
    Ok(())
}

/// Nobody has room set aside for a large frame before it has greeted.
fn admit(announced: &Announced, connection: &Connection) -> Result<(), End> {
    let header = &announced.header;
    let longest = header.meta_len.max(header.payload_len) as usize;
    if longest > UNCOUNTED_BYTES_MAX && !connection.greeted() {
        return Err(not_greeted());
    }
    Ok(())
}

fn not_greeted() -> End {
    End::Refused(Refusal::new(ErrorCode::BadFrame, "the first request is a Hello"))
}

/// How fast a frame comes in. One that trickles must not hold its connection for ever.
#[derive(Default)]
struct Pace {
    begun: Option<Duration>,
    received: usize,
}

impl Pace {
    /// The time that is left for the frame: some to begin with, and more for every byte that came.
    fn left(&mut self, now: Duration) -> Duration {
        let begun = *self.begun.get_or_insert(now);
        let earned = Duration::from_secs_f64(self.received as f64 / FRAME_BYTES_PER_SECOND);
        (FRAME_WITHIN + earned).saturating_sub(now.saturating_sub(begun))
    }
}

async fn read_within(
    reader: &mut Reader,
    decoder: &mut FrameDecoder,
    within: Duration,
    waiting_for: &str,
) -> Result<usize, End> {
    let read = async { Ok(reader.read_into(decoder).await) };
    glommio::timer::timeout(within, read).await.map_or_else(
        |_late| {
            let what = format!("waited too long for {waiting_for}");
            Err(End::Refused(Refusal::new(ErrorCode::BadFrame, what)))
        },
        |read: io::Result<usize>| Ok(read?),
    )
}

fn request(
    frame: Frame,
    mut room: Room,
    connection: &Rc<Connection>,
    dispatch: &Rc<Dispatch>,
) -> Result<(), End> {
    if frame.header.kind != FrameKind::Request {
        return Err(End::Refused(Refusal::new(
            ErrorCode::BadFrame,
            "a client sends requests",
        )));
    }
    let request: Request = decode_meta(&frame.meta)?;
    let correlation = frame.header.correlation;
    if !connection.greeted() && !matches!(request, Request::Hello(_)) {
        return Err(not_greeted());
    }
    connection.greet();
    let Some(place) = connection.enter() else {
        let what = format!("{REQUESTS_IN_FLIGHT_MAX} requests of this connection are unanswered already");
        connection
            .outbox
            .refuse(correlation, &Refusal::new(ErrorCode::TooManyInFlight, what));
        return Ok(());
    };
    // One that came in a single read was announced to nobody.
    let announced = Announced {
        header: frame.header,
        verified: true,
    };
    if !room.make(dispatch.receiving(), &announced) {
        dispatch.refuse(connection, correlation, &no_room());
        return Ok(());
    }
    let connection = Rc::clone(connection);
    dispatch.handle(connection, place, correlation, request, frame.payload, room);
    Ok(())
}
