//! The client library against a node in miniature, over real sockets: what users are told when things go wrong.
#![cfg(feature = "client")]

mod consuming;
mod fake;
mod producing;
mod requests;
mod routing;

use std::time::Duration;

use bytes::Bytes;
use fake::Fake;
use tailwater_wire::client::{Client, ClientConfig};
use tailwater_wire::record::Record;

async fn client(fake: &Fake) -> Client {
    Client::connect(config(fake)).await.expect("the fake is there")
}

fn config(fake: &Fake) -> ClientConfig {
    ClientConfig {
        request_timeout: Duration::from_millis(400),
        connect_timeout: Duration::from_millis(400),
        name: "a test".to_owned(),
        ..ClientConfig::new(fake.address.to_string())
    }
}

fn record(value: u32) -> Record {
    Record {
        key: Some(Bytes::from(format!("key-{}", value % 50))),
        value: Bytes::from(value.to_string()),
        ..Record::default()
    }
}
