//! Opening producers and consumers from a client.

use crate::client::config::{ConsumerOptions, ProducerOptions};
use crate::client::consumer::Consumer;
use crate::client::error::ClientError;
use crate::client::handle::Client;
use crate::client::producer::Producer;
use crate::ids::TopicName;

impl Client {
    /// A producer to a topic.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, options that make no sense, or any [`ClientError`].
    pub async fn producer(
        &self,
        topic: &TopicName,
        options: ProducerOptions,
    ) -> Result<Producer, ClientError> {
        // Asked anew: it may have been made anew, or have more partitions.
        self.forget(topic);
        Producer::open(self.clone(), self.topic(topic).await?, options)
    }

    /// A consumer of a topic.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, `UNKNOWN_PARTITION`, or any [`ClientError`].
    pub async fn consumer(
        &self,
        topic: &TopicName,
        options: ConsumerOptions,
    ) -> Result<Consumer, ClientError> {
        self.forget(topic);
        Consumer::open(self.clone(), self.topic(topic).await?, options).await
    }
}
