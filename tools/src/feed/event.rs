//! One market event, and the record that it travels as.
//!
//! The record: key = symbol; value = the event as one CSV line without its end, `time_ms,symbol,kind,price_1e4,size`;
//! header `kind` = `trade`, `bid` or `ask`; timestamp = `time_ms` in nanoseconds (since midnight of the recorded
//! day, for feeds that carry no date).

use bytes::Bytes;
use tailwater_wire::record::Record;

use crate::feed::rows::push_field;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Shares changed hands.
    Trade,
    /// The best price that someone pays.
    Bid,
    /// The best price that someone asks.
    Ask,
}

impl Kind {
    /// The name in files, values and headers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Trade => "trade",
            Kind::Bid => "bid",
            Kind::Ask => "ask",
        }
    }

    /// The kind of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Kind> {
        [Kind::Trade, Kind::Bid, Kind::Ask]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// One event of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Milliseconds since midnight, or since the epoch: the feed says.
    pub time_ms: u64,
    /// Which share.
    pub symbol: String,
    /// What happened.
    pub kind: Kind,
    /// The price times 10,000.
    pub price_1e4: i64,
    /// Shares.
    pub size: u64,
}

impl Event {
    /// The record that carries this event.
    #[must_use]
    pub fn to_record(&self) -> Record {
        let kind = self.kind.name();
        let mut value = format!("{},", self.time_ms).into_bytes();
        push_field(&mut value, self.symbol.as_bytes());
        value.extend_from_slice(format!(",{kind},{},{}", self.price_1e4, self.size).as_bytes());
        Record {
            key: Some(Bytes::copy_from_slice(self.symbol.as_bytes())),
            value: Bytes::from(value),
            headers: vec![("kind".to_owned(), Bytes::from_static(kind.as_bytes()))],
            timestamp: i64::try_from(self.time_ms.saturating_mul(1_000_000)).unwrap_or(i64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_carries_the_whole_event() {
        let event = Event {
            time_ms: 34_140_200,
            symbol: "IBM".to_owned(),
            kind: Kind::Bid,
            price_1e4: 1_792_100,
            size: 100,
        };
        let record = event.to_record();
        assert_eq!(record.key.as_deref(), Some(&b"IBM"[..]));
        assert_eq!(&record.value[..], b"34140200,IBM,bid,1792100,100");
        assert_eq!(record.headers, [("kind".to_owned(), Bytes::from_static(b"bid"))]);
        assert_eq!(record.timestamp, 34_140_200_000_000);
    }

    #[test]
    fn a_symbol_with_a_comma_is_still_one_field() {
        // A feed with the symbol "BRK,B" in quotes was replayed with lines of six fields, which nobody could read back.
        let event = Event {
            time_ms: 1,
            symbol: "BRK,\"B\"".to_owned(),
            kind: Kind::Ask,
            price_1e4: 5,
            size: 2,
        };
        assert_eq!(&event.to_record().value[..], br#"1,"BRK,""B""",ask,5,2"#);
    }
}
