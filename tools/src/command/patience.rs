//! Says once why a producer stands still, so that nobody looks at a silent terminal for a minute.

use std::time::Duration;

use tailwater_wire::client::producer::Producer;

use crate::output;

/// How long nothing may be acknowledged before something is said.
const SILENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(100);

/// Whether it is time to speak: a plain value.
#[derive(Debug, Default)]
struct Watch {
    settled: u64,
    /// Looks in a row at which something waited and nothing had been settled.
    silent: u32,
    said: bool,
}

impl Watch {
    /// Takes what was `sent` and what of it is `waiting`. True once for each time that it stands still.
    fn look(&mut self, sent: u64, waiting: u64) -> bool {
        let settled = sent - waiting;
        if waiting == 0 || settled != self.settled {
            *self = Watch {
                settled,
                ..Watch::default()
            };
            return false;
        }
        self.silent += 1;
        if self.said || self.silent * LOOK.as_millis() as u32 <= SILENCE.as_millis() as u32 {
            return false;
        }
        self.said = true;
        true
    }
}

/// Watches for as long as it is polled; `counts` says what was sent and what of it is neither acknowledged nor failed.
pub async fn watch(
    producer: &Producer,
    give_up: Duration,
    counts: impl Fn() -> (u64, u64),
) -> std::convert::Infallible {
    let mut watch = Watch::default();
    loop {
        tokio::time::sleep(LOOK).await;
        let (sent, waiting) = counts();
        if watch.look(sent, waiting) {
            let why = match producer.trouble() {
                Some(error) => error.to_string(),
                None => "the node has not answered".to_owned(),
            };
            output::note(&format!(
                "waiting: nothing was acknowledged for {} s: {why}; trying again, for {} s a record at most",
                SILENCE.as_secs(),
                give_up.as_secs()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it speaks in so many looks.
    fn spoken(watch: &mut Watch, looks: u32, sent: u64, waiting: u64) -> usize {
        (0..looks).filter(|_| watch.look(sent, waiting)).count()
    }

    #[test]
    fn a_standstill_is_told_once() {
        let mut watch = Watch::default();
        assert_eq!(
            spoken(&mut watch, 500, 7, 0),
            0,
            "an idle producer stands not still"
        );
        assert_eq!(spoken(&mut watch, 20, 9, 2), 0, "not yet");
        assert_eq!(spoken(&mut watch, 500, 9, 2), 1);
        assert_eq!(spoken(&mut watch, 10, 9, 1), 0);
        assert_eq!(spoken(&mut watch, 500, 9, 1), 1, "it moved in between");
    }
}
