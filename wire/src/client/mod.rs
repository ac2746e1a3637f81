//! The async client library for the durable tier, on tokio (feature `client`).
//!
//! ```no_run
//! # async fn example() -> Result<(), tailwater_wire::client::error::ClientError> {
//! use tailwater_wire::client::{Client, ClientConfig, ConsumerOptions, Consumed, ProducerOptions, StartAt};
//! use tailwater_wire::record::Record;
//!
//! let client = Client::connect(ClientConfig::new("127.0.0.1:7400")).await?;
//! let ticks = "ticks".parse().expect("a topic name");
//! let producer = client.producer(&ticks, ProducerOptions::default()).await?;
//! let delivery = producer.send(Record { value: "42.10".into(), ..Record::default() }).await?;
//! println!("committed at {:?}", delivery.await?.offset);
//!
//! let options = ConsumerOptions { from: StartAt::Earliest, stop_at_end: true, ..ConsumerOptions::default() };
//! let mut consumer = client.consumer(&ticks, options).await?;
//! while let Some(Consumed::Batch(batch)) = consumer.next().await? {
//!     batch.records().for_each(|record| println!("{} {:?}", record.offset, record.value));
//! }
//! # Ok(()) }
//! ```

pub mod config;
mod connection;
pub mod consumer;
pub mod delivery;
pub mod error;
pub mod handle;
mod open;
mod pool;
pub mod producer;
mod sender;

pub use config::{ClientConfig, ConsumerOptions, Idempotence, ProducerOptions, StartAt};
pub use consumer::{Consumed, ConsumedBatch, Consumer, Gap, GapReason};
pub use delivery::{Delivered, Delivery};
pub use error::ClientError;
pub use handle::Client;
pub use producer::Producer;
