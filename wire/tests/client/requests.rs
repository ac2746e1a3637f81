//! Connecting, and single round trips.

use bytes::Bytes;
use tailwater_wire::client::{Client, ClientError, Consumer, Delivery, Producer};
use tailwater_wire::code::{ErrorCode, Retry};
use tailwater_wire::message::Request;
use tailwater_wire::record::Record;

use crate::fake::{Fake, Fault, topic_name};
use crate::{client, config};

#[tokio::test]
async fn a_client_greets_and_asks() {
    let fake = Fake::start(4).await;
    let client = client(&fake).await;
    assert_eq!(client.welcome().node, 1);
    assert_eq!(fake.state().hello, "a test");
    client.ping().await.expect("pong");
    let topic = client.topic(&topic_name()).await.expect("it is there");
    assert_eq!(topic.spec.partitions, 4);
}

#[tokio::test]
async fn refusals_keep_their_code_and_say_their_exit_code() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let name = "nowhere".parse().expect("a name");
    let error = client.topic(&name).await.expect_err("it is not there");
    assert_eq!(error.code(), ErrorCode::UnknownTopic);
    assert_eq!((error.exit_code(), error.retry()), (3, Retry::Refresh));
    assert!(error.to_string().ends_with("(UNKNOWN_TOPIC)"), "{error}");

    fake.state().refuse_hello = Some(ErrorCode::UnsupportedVersion);
    let error = Client::connect(config(&fake)).await.expect_err("refused");
    assert_eq!(error.code(), ErrorCode::UnsupportedVersion);
}

#[tokio::test]
async fn nobody_there_is_unreachable_at_once() {
    let fake = Fake::start(1).await;
    let mut config = config(&fake);
    config.server = "127.0.0.1:1".to_owned();
    let error = Client::connect(config).await.expect_err("nobody listens");
    assert!(matches!(error, ClientError::Unreachable { .. }));
    assert_eq!(error.exit_code(), 4);
}

#[tokio::test]
async fn half_a_frame_and_silence_times_out_and_the_next_request_works() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    fake.state().faults.push_back(Fault::HalfFrame);
    let error = client.ping().await.expect_err("half an answer");
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
    assert_eq!(error.exit_code(), 4);
    client.ping().await.expect("over a new connection");
    assert_eq!(fake.state().connections, 2);
}

#[tokio::test]
async fn garbage_is_a_protocol_error_and_the_next_request_works() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    for fault in [Fault::Garbage, Fault::WrongReply] {
        fake.state().faults.push_back(fault);
        let error = client.ping().await.expect_err("no pong");
        assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
        client.ping().await.expect("pong");
    }
}

#[tokio::test]
async fn a_silent_listener_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let fake = Fake::start(1).await;
    let mut config = config(&fake);
    config.server = listener.local_addr().expect("bound").to_string();
    let error = Client::connect(config).await.expect_err("no welcome");
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn many_requests_share_a_connection() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    let pings: Vec<_> = (0..1_000)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.request(Request::Ping, Bytes::new()).await })
        })
        .collect();
    for ping in pings {
        ping.await.expect("no panic").expect("pong");
    }
    assert_eq!(fake.state().connections, 1);
}

#[tokio::test]
async fn a_node_that_is_not_ready_yet_is_asked_again_one_that_leaves_is_not() {
    let fake = Fake::start(1).await;
    let client = client(&fake).await;
    for code in [ErrorCode::NoLeader, ErrorCode::Busy] {
        fake.state().faults.push_back(Fault::Refuse(code));
    }
    client.describe_topics(None).await.expect("at the third attempt");
    fake.state().faults.push_back(Fault::Refuse(ErrorCode::Draining));
    let error = client.describe_topics(None).await.expect_err("draining");
    assert_eq!((error.code(), error.exit_code()), (ErrorCode::Draining, 4));
}

/// Only has to compile: all futures may move between threads.
#[test]
fn everything_may_move_between_threads() {
    fn movable<T: Send>(_: &T) {}
    fn futures(client: &Client, producer: &Producer, consumer: &mut Consumer) {
        let name = topic_name();
        movable(&client.describe_topics(None));
        movable(&client.topic(&name));
        movable(&producer.send(Record::default()));
        movable(&producer.flush());
        movable(&consumer.next());
    }
    let _ = futures;
    fn shared<T: Send + Sync>() {}
    shared::<Client>();
    shared::<Producer>();
    shared::<Delivery>();
    shared::<Consumer>();
}
