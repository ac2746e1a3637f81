//! Topics and links come, go, and are there after a kill as their acknowledgements said.

use std::collections::BTreeSet;
use std::time::Duration;

use tailwater_tests::cluster::load::{LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::{drained, ends, log};
use tailwater_tests::cluster::witness::spec;
use tailwater_wire::client::error::ClientError;
use tailwater_wire::client::handle::Client;
use tailwater_wire::meta::LinkOptions;
use tokio::task::JoinHandle;

const ROUNDS: u64 = 8;

/// What is there: children of `parent`, and which of them are attached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Known {
    topics: BTreeSet<String>,
    attached: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Create,
    Attach,
    Detach,
    Delete,
}

impl Known {
    fn after(&self, change: Change, name: &str) -> Known {
        let mut known = self.clone();
        match change {
            Change::Create => known.topics.insert(name.to_owned()),
            Change::Attach => known.attached.insert(name.to_owned()),
            Change::Detach => known.attached.remove(name),
            Change::Delete => known.topics.remove(name),
        };
        known
    }

    async fn of(client: &Client) -> Known {
        let topics = client.describe_topics(None).await.expect("a list of topics");
        let links = client.list_links(None).await.expect("a list of links");
        let names = topics.into_iter().map(|topic| topic.spec.name.to_string());
        Known {
            topics: names.filter(|name| name != "parent").collect(),
            attached: links
                .into_iter()
                .map(|status| status.link.child.to_string())
                .collect(),
        }
    }
}

async fn make(client: &Client, change: Change, name: &str) -> Result<(), ClientError> {
    let (parent, child) = (topic("parent"), topic(name));
    match change {
        Change::Create => client.create_topic(spec(&child, 1)).await.map(drop),
        Change::Attach => client
            .attach(&parent, &child, LinkOptions::default())
            .await
            .map(drop),
        Change::Detach => client.detach(&parent, &child).await,
        Change::Delete => client.delete_topic(&child).await,
    }
}

/// Makes changes until one is not acknowledged. Returns what is known to be there, with and without that one.
fn churn(client: Client, mut known: Known, round: u64) -> JoinHandle<(Known, Known)> {
    tokio::spawn(async move {
        for number in 0.. {
            let name = format!("child-{round}-{number}");
            let changes = [Change::Create, Change::Attach, Change::Detach, Change::Delete];
            // One child in three stays attached, one stays detached, one goes.
            for change in changes.into_iter().take(2 + number % 3) {
                let after = known.after(change, &name);
                if make(&client, change, &name).await.is_err() {
                    return (known, after);
                }
                known = after;
            }
        }
        unreachable!("the node is killed before")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_changes_survive_kills() {
    let _shared = share_machine().await;
    let mut node = TestNode::start().await;
    let client = node.client().await;
    client
        .create_topic(spec(&topic("parent"), 2))
        .await
        .expect("a topic");
    let (mut known, mut produced) = (Known::default(), 0);
    for round in 0..ROUNDS {
        let mut config = node.client_config();
        // A change that the kill has hit is not to be repeated by the client.
        config.request_timeout = Duration::from_secs(2);
        let changing = Client::connect(config).await.expect("the node takes connections");
        let changes = churn(changing, known.clone(), round);
        tokio::time::sleep(Duration::from_millis(rand::random_range(50..400))).await;
        node.kill();
        let (without, with) = changes.await.expect("the changes do not panic");
        node.restart().await;
        let client = node.client().await;
        let found = Known::of(&client).await;
        assert!(
            found == without || found == with,
            "round {round}: {found:?}, neither {without:?} nor {with:?}"
        );
        known = found;

        // Every link that is there copies what comes.
        let before: Vec<Vec<u64>> = counts(&client, &known.attached).await;
        produce(&client, &topic("parent"), LoadOptions::new(produced, 200)).await;
        produced += 200;
        for child in &known.attached {
            drained(&client, &topic("parent"), &topic(child)).await;
        }
        for ((child, before), after) in known
            .attached
            .iter()
            .zip(before)
            .zip(counts(&client, &known.attached).await)
        {
            assert_eq!(after[0], before[0] + 200, "{child} got what its parent got, once");
        }
    }
    assert!(known.attached.len() >= 3, "hardly a change was made: {known:?}");
    let client = node.client().await;
    assert_eq!(log(&client, &topic("parent")).await.len(), produced);
    let child = known.attached.first().expect("an attached child").clone();
    node.cli().verify("parent", &child).await;

    // What was deleted leaves nothing on the disk.
    let kept: BTreeSet<String> = known
        .topics
        .iter()
        .cloned()
        .chain(["parent".to_owned()])
        .collect();
    let directory = node.data().join("topics");
    let entries = std::fs::read_dir(directory).expect("a directory");
    let names: BTreeSet<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let left: Vec<&String> = names.difference(&kept).collect();
    assert!(left.is_empty(), "directories of deleted topics: {left:?}");
}

async fn counts(client: &Client, children: &BTreeSet<String>) -> Vec<Vec<u64>> {
    let mut counts = Vec::new();
    for child in children {
        counts.push(ends(client, &topic(child)).await);
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_anew_has_nothing_of_the_old_one() {
    let _shared = share_machine().await;
    let mut node = TestNode::start().await;
    let cli = node.cli();
    for line in [
        "topic create parent",
        "topic create child",
        "link attach parent child",
    ] {
        cli.run(line).await.succeeded();
    }
    let client = node.client().await;
    produce(&client, &topic("parent"), LoadOptions::new(0, 500)).await;
    drained(&client, &topic("parent"), &topic("child")).await;
    let old = cli.json("topic describe parent").await;
    for line in [
        "link detach parent child",
        "topic delete parent",
        "topic create parent",
        "link attach parent child",
    ] {
        cli.run(line).await.succeeded();
    }
    let new = cli.json("topic describe parent").await;
    assert_ne!(old["incarnation"], new["incarnation"]);
    assert_eq!(new["records"], 0, "{new}");
    for kill in [false, true] {
        if kill {
            node.kill();
            node.restart().await;
        }
        let client = node.client().await;
        produce(&client, &topic("parent"), LoadOptions::new(1_000, 300)).await;
        drained(&client, &topic("parent"), &topic("child")).await;
        cli.verify("parent", "child").await;
    }
    let client = node.client().await;
    assert_eq!(
        ends(&client, &topic("child")).await,
        [500 + 600],
        "what the child had before stays"
    );
    assert_eq!(log(&client, &topic("parent")).await.len(), 600);
}
