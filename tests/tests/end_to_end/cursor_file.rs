//! The cursor file: what it says, and what becomes of a link whose file was lost, damaged or swapped while the node
//! was stopped.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tailwater_tests::cluster::load::{Load, LoadOptions, produce, topic};
use tailwater_tests::cluster::node::TestNode;
use tailwater_tests::cluster::oracle::{Span, flawless};
use tailwater_tests::cluster::place::share_machine;
use tailwater_tests::cluster::reading::{copies, drained, ends, link, log};
use tailwater_wire::meta::Link;

/// Cursor files are replaced at most 50 times a second, oldest first.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// What is produced before a stop and after a start.
const SOME: u64 = 400;

/// A parent of one partition; a child that gets everything at once, and one that is always behind.
struct Rig {
    node: TestNode,
    next_number: u64,
}

const CHILDREN: [&str; 2] = ["now", "later"];

impl Rig {
    async fn start() -> Rig {
        let node = TestNode::start().await;
        let cli = node.cli();
        for line in [
            "topic create ticks",
            "topic create now --partitions 2",
            "topic create later --partitions 2",
        ] {
            cli.run(line).await.succeeded();
        }
        let mut rig = Rig { node, next_number: 0 };
        // The attach point is neither the parent's start nor its end when a cursor starts again.
        rig.produce().await;
        cli.run("link attach ticks now").await.succeeded();
        cli.run("link attach ticks later --delay 1500ms")
            .await
            .succeeded();
        rig.produce().await;
        rig
    }

    async fn produce(&mut self) {
        let client = self.node.client().await;
        produce(&client, &topic("ticks"), LoadOptions::new(self.next_number, SOME)).await;
        self.next_number += SOME;
    }

    async fn link(&self, child: &str) -> Link {
        let client = self.node.client().await;
        link(&client, &topic("ticks"), &topic(child))
            .await
            .expect("an attached pair")
            .link
    }

    fn file(&self, child: &str) -> PathBuf {
        self.node
            .data()
            .join(format!("topics/ticks/p00000/fanout-{child}.offset"))
    }

    /// Both children have everything once, and both files say so.
    async fn is_whole(&self, what: &str) {
        let client = self.node.client().await;
        let parent = log(&client, &topic("ticks")).await;
        assert_eq!(
            parent.len(),
            self.next_number,
            "{what}: nothing of the parent is lost"
        );
        for child in CHILDREN {
            drained(&client, &topic("ticks"), &topic(child)).await;
            let link = self.link(child).await;
            let copies = copies(&client, &topic(child)).await;
            flawless(
                &format!("{what}: {child}"),
                &parent,
                &copies,
                &Span::of(&link, &parent.ends()),
            );
            self.node.cli().verify("ticks", child).await;
            says(&self.file(child), &content(&link, parent.len())).await;
        }
    }
}

fn content(link: &Link, next_offset: u64) -> String {
    format!(r#"{{"epoch":"{}","next_offset":{next_offset}}}"#, link.epoch)
}

/// Waits until a file has exactly this content.
async fn says(file: &Path, expected: &str) {
    let started = Instant::now();
    loop {
        let found = std::fs::read_to_string(file).unwrap_or_else(|error| format!("({error})"));
        if found == expected {
            return;
        }
        assert!(
            started.elapsed() < WRITTEN_WITHIN,
            "{}: `{found}` instead of `{expected}`",
            file.display()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_is_one_line_of_json_that_follows_the_children() {
    let _shared = share_machine().await;
    let mut rig = Rig::start().await;
    rig.is_whole("at first").await;
    rig.produce().await;
    rig.is_whole("after more").await;
    let before = CHILDREN.map(|child| std::fs::read(rig.file(child)).expect("a cursor file"));
    rig.node.stop().await;
    rig.node.restart().await;
    rig.is_whole("after a stop").await;
    let after = CHILDREN.map(|child| std::fs::read(rig.file(child)).expect("a cursor file"));
    assert_eq!(before, after, "a stop and a start move no cursor");

    rig.node.cli().run("link detach ticks now").await.succeeded();
    let link = rig.link("later").await;
    says(&rig.file("later"), &content(&link, rig.next_number)).await;
}

/// What is done to a file while the node is stopped: the name, and its new content from the old one; none removes it.
type Damage = (&'static str, fn(&str) -> Option<Vec<u8>>);

const DAMAGES: [Damage; 9] = [
    ("deleted", |_| None),
    ("truncated to half", |text| {
        Some(text.as_bytes()[..text.len() / 2].to_vec())
    }),
    ("zeroed", |text| Some(vec![0; text.len()])),
    ("emptied", |_| Some(Vec::new())),
    ("of another epoch, at its start", |_| {
        Some(br#"{"epoch":"0123456789abcdef","next_offset":0}"#.to_vec())
    }),
    ("of another epoch, far ahead", |_| {
        Some(br#"{"epoch":"0123456789abcdef","next_offset":987654321}"#.to_vec())
    }),
    ("of its epoch, further back", |text| {
        let end = text.rfind(':').expect("JSON");
        Some(format!("{}:{}}}", &text[..end], SOME + 3).into_bytes())
    }),
    ("followed by something", |text| {
        Some(format!("{text}\n{text}").into_bytes())
    }),
    ("something else", |_| Some(b"next_offset = 12\n".to_vec())),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_costs_no_record_and_makes_no_duplicate() {
    let _shared = share_machine().await;
    let mut rig = Rig::start().await;
    rig.is_whole("at first").await;
    for (round, (name, damage)) in DAMAGES.iter().enumerate() {
        // The delayed child still waits for these when the node goes; a cursor that began at the tail would lose them.
        rig.produce().await;
        if round % 2 == 0 {
            rig.node.stop().await;
        } else {
            rig.node.kill();
        }
        for child in CHILDREN {
            let file = rig.file(child);
            let old = std::fs::read_to_string(&file).expect("a cursor file");
            match damage(&old) {
                Some(new) => std::fs::write(&file, new).expect("a writable file"),
                None => std::fs::remove_file(&file).expect("a file that can be removed"),
            }
        }
        rig.node.restart().await;
        rig.produce().await;
        rig.is_whole(name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_ahead_of_the_parent_stalls_its_link_alone_until_it_is_attached_anew() {
    let _shared = share_machine().await;
    let mut rig = Rig::start().await;
    rig.is_whole("at first").await;
    let attached = rig.link("now").await;
    rig.node.stop().await;
    let ahead = content(&attached, rig.next_number + 100_000);
    std::fs::write(rig.file("now"), &ahead).expect("a writable file");
    rig.node.restart().await;

    let client = rig.node.client().await;
    let copied = ends(&client, &topic("now")).await;
    rig.produce().await;
    drained(&client, &topic("ticks"), &topic("later")).await;
    let row = stalled_row(&rig.node).await;
    assert_eq!(row["state"], "stalled", "{row}");
    let why = row["stalled"].as_str().unwrap_or_default();
    assert!(why.contains("position ahead"), "{row}");
    assert_eq!(
        ends(&client, &topic("now")).await,
        copied,
        "a stalled link copies nothing"
    );
    assert_eq!(
        std::fs::read_to_string(rig.file("now")).expect("a cursor file"),
        ahead,
        "and is not reset"
    );
    let (_, metrics) = rig.node.get("/metrics").await;
    let stalled = "tailwater_fanout_stalled{parent=\"ticks\",child=\"now\"} 1";
    assert!(
        metrics.lines().any(|line| line == stalled),
        "no `{stalled}` in\n{metrics}"
    );

    // Another start changes nothing; the operator's word does.
    rig.node.stop().await;
    rig.node.restart().await;
    assert_eq!(stalled_row(&rig.node).await["state"], "stalled");
    assert_eq!(
        std::fs::read_to_string(rig.file("now")).expect("a cursor file"),
        ahead
    );
    let cli = rig.node.cli();
    cli.run("link detach ticks now").await.succeeded();
    cli.run("link attach ticks now").await.succeeded();
    assert_ne!(rig.link("now").await.epoch, attached.epoch);
    rig.produce().await;
    rig.is_whole("attached anew").await;
}

/// The row of `ticks -> now`, once its cursor has come to rest.
async fn stalled_row(node: &TestNode) -> serde_json::Value {
    let started = Instant::now();
    loop {
        let rows = node.cli().json("link list ticks").await;
        let rows = rows.as_array().expect("a list");
        let row = rows
            .iter()
            .find(|row| row["child"] == "now")
            .expect("the link")
            .clone();
        if row["state"] == "stalled" || started.elapsed() > Duration::from_secs(10) {
            return row;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attachments_in_quick_succession_leave_one_file_of_the_last_epoch() {
    let _shared = share_machine().await;
    let mut rig = Rig::start().await;
    rig.is_whole("at first").await;
    let load = Load::start(
        &rig.node.client().await,
        &topic("ticks"),
        LoadOptions::new(rig.next_number, SOME),
    )
    .await;
    let cli = rig.node.cli();
    for _ in 0..5 {
        cli.run("link detach ticks now").await.succeeded();
        cli.run("link attach ticks now --from earliest").await.succeeded();
    }
    load.ended().await.complete();
    rig.next_number += SOME;
    rig.is_whole("after five attachments").await;
}
