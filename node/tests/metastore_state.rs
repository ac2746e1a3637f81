//! The metadata as a value: what is refused and why, what a repeated request answers, and that any commands keep the
//! invariants and bring every replica to the same state.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tailwater_node::metastore::command::{Attach, Command, Outcome, TopicChange};
use tailwater_node::metastore::rules;
use tailwater_node::metastore::state::{FIRST_OWNER_EPOCH, MetaState, REQUEST_RESULTS_MAX};
use tailwater_wire::code::ErrorCode;
use tailwater_wire::ids::{Delay, Epoch, Incarnation, Offset, OwnerEpoch, TopicName};
use tailwater_wire::limits::{DELAY_MILLIS_MAX, PARTITIONS_MAX};
use tailwater_wire::meta::{Durability, LinkOptions, Retention, TopicSpec};
use tailwater_wire::partitioner::Partitioner;

const HOUR_MILLIS: u64 = 3_600_000;
const LIFE: Incarnation = Incarnation([1; 8]);

fn name(text: &str) -> TopicName {
    text.parse().expect("a topic name")
}

fn create(topic: &str, partitions: u32, retention: Retention) -> Command {
    Command::CreateTopic {
        spec: TopicSpec {
            name: name(topic),
            partitions,
            partitioner: Partitioner::Murmur2,
            retention,
            durability: Durability::Fsync,
        },
        incarnation: LIFE,
    }
}

/// Of two-partition topics that were made by [`create`].
fn attach(id: u8, parent: &str, child: &str) -> Attach {
    Attach {
        request_id: [id; 16],
        parent: name(parent),
        child: name(child),
        options: LinkOptions::default(),
        epoch: Epoch([id; 8]),
        attach_offsets: vec![Offset(7), Offset(8)],
        parent_incarnation: LIFE,
        child_incarnation: LIFE,
        owner_epochs: vec![FIRST_OWNER_EPOCH; 2],
    }
}

fn with_topics(names: &[&str]) -> MetaState {
    let mut state = MetaState::default();
    for (index, topic) in (1..).zip(names) {
        let created = state.apply(index, &create(topic, 2, Retention::default()));
        created.expect("a new topic");
    }
    state
}

/// Applies `before`, which must succeed, then checks that `last` is refused with this code and these words, and
/// that nothing changed.
#[track_caller]
fn check(before: Vec<Command>, last: Command, code: ErrorCode, words: &[&str]) {
    let mut state = with_topics(&["a", "b", "c"]);
    for (index, command) in (10..).zip(before) {
        state.apply(index, &command).expect("what comes before");
    }
    let clean = state.clone();
    let refusal = state.apply(10_000, &last).expect_err("refused");
    assert_eq!(refusal.code, code, "{refusal}");
    for word in words {
        assert!(refusal.what.contains(word), "`{word}` is not in: {refusal}");
    }
    assert_eq!(state, clean, "a refusal changes nothing");
    assert_eq!(clean.check(&last), Err(refusal), "and is known before proposing");
}

#[test]
fn topics_are_refused_by_name_count_and_life() {
    let retention = Retention::default();
    check(
        vec![],
        create("a", 3, retention),
        ErrorCode::TopicExists,
        &["`a`", "2 partitions"],
    );
    check(
        vec![],
        create("x", 0, retention),
        ErrorCode::InvalidPartitions,
        &["1 to 1024", "0 were"],
    );
    let many = create("x", PARTITIONS_MAX + 1, retention);
    check(vec![], many, ErrorCode::InvalidPartitions, &["1 to 1024", "1025"]);
    let delete = |topic: &str, incarnation| Command::DeleteTopic {
        name: name(topic),
        incarnation,
    };
    check(vec![], delete("x", None), ErrorCode::UnknownTopic, &["`x`"]);
    check(
        vec![],
        delete("a", Some(Incarnation([9; 8]))),
        ErrorCode::StaleIncarnation,
        &["0909"],
    );
    let linked = vec![
        Command::Attach(attach(1, "a", "b")),
        Command::Attach(attach(2, "b", "c")),
    ];
    check(
        linked,
        delete("b", Some(LIFE)),
        ErrorCode::TopicInUse,
        &["2 live links", "a -> b, b -> c"],
    );
}

#[test]
fn links_are_refused_by_what_they_would_break() {
    let first = || vec![Command::Attach(attach(1, "a", "b"))];
    let refuse = |before, attach, code, words: &[&str]| check(before, Command::Attach(attach), code, words);
    refuse(vec![], attach(2, "a", "x"), ErrorCode::UnknownTopic, &["`x`"]);
    refuse(vec![], attach(2, "x", "a"), ErrorCode::UnknownTopic, &["`x`"]);
    refuse(
        first(),
        attach(2, "a", "b"),
        ErrorCode::LinkExists,
        &["0101010101010101"],
    );
    refuse(vec![], attach(2, "a", "a"), ErrorCode::LinkCycle, &["a -> a"]);
    refuse(
        first(),
        attach(2, "b", "a"),
        ErrorCode::LinkCycle,
        &["b -> a -> b"],
    );
    let mut chain = first();
    chain.push(Command::Attach(attach(3, "b", "c")));
    refuse(
        chain,
        attach(2, "c", "a"),
        ErrorCode::LinkCycle,
        &["c -> a -> b -> c"],
    );
    refuse(
        first(),
        attach(1, "a", "c"),
        ErrorCode::InvalidRequest,
        &["request id"],
    );

    let mut stale = attach(2, "a", "b");
    stale.parent_incarnation = Incarnation([9; 8]);
    refuse(vec![], stale, ErrorCode::StaleIncarnation, &["`a`"]);
    let mut stale = attach(2, "a", "b");
    stale.child_incarnation = Incarnation([9; 8]);
    refuse(vec![], stale, ErrorCode::StaleIncarnation, &["`b`"]);
    let mut short = attach(2, "a", "b");
    short.attach_offsets.pop();
    refuse(
        vec![],
        short,
        ErrorCode::InvalidRequest,
        &["1 attach offsets", "2 partitions"],
    );
    let mut fenced = attach(2, "a", "b");
    fenced.owner_epochs[1] = OwnerEpoch(0);
    refuse(
        vec![],
        fenced,
        ErrorCode::NotOwner,
        &["partition 1", "owner epoch 0", "now 1"],
    );
    let mut twin = attach(2, "a", "c");
    twin.epoch = Epoch([1; 8]);
    refuse(first(), twin, ErrorCode::InvalidRequest, &["a` to `b"]);

    let detach = |epoch| Command::Detach {
        parent: name("a"),
        child: name("b"),
        epoch,
    };
    check(
        vec![],
        detach(Epoch([1; 8])),
        ErrorCode::UnknownLink,
        &["`b`", "`a`"],
    );
    check(
        first(),
        detach(Epoch([2; 8])),
        ErrorCode::StaleEpoch,
        &["0202", "0101"],
    );
}

#[test]
fn the_109th_child_is_refused() {
    let mut before = Vec::new();
    for n in 0..=108u8 {
        before.push(create(&format!("child{n}"), 1, Retention::default()));
    }
    for n in 0..108 {
        before.push(Command::Attach(attach(n, "a", &format!("child{n}"))));
    }
    let last = Command::Attach(attach(200, "a", "child108"));
    check(
        before,
        last,
        ErrorCode::TooManyChildren,
        &["108 children", "at most 108"],
    );
}

#[test]
fn a_delay_needs_retention_for_the_delay_and_an_hour() {
    let delayed = |millis, allow_drop| {
        let mut attach = attach(1, "p", "a");
        attach.options.delay = Delay { millis };
        attach.options.allow_drop = allow_drop;
        Command::Attach(attach)
    };
    let parent = |millis, bytes| create("p", 2, Retention { millis, bytes });
    let alter = |millis, bytes| Command::AlterTopic {
        name: name("p"),
        incarnation: None,
        change: TopicChange {
            retention: Some(Retention { millis, bytes }),
            ..TopicChange::default()
        },
    };
    let below = ErrorCode::RetentionBelowFloor;
    let floor = 2 * HOUR_MILLIS;
    let year = delayed(DELAY_MILLIS_MAX + 1, false);
    check(
        vec![parent(None, None)],
        year,
        ErrorCode::DelayTooLong,
        &["31536000001"],
    );
    let short = vec![parent(Some(floor - 1), None)];
    check(
        short,
        delayed(HOUR_MILLIS, true),
        below,
        &["7199999 ms", "is 7200000 ms"],
    );
    check(
        vec![parent(Some(floor), Some(5))],
        delayed(HOUR_MILLIS, false),
        below,
        &["5 bytes", "7200000"],
    );
    let enough = || vec![parent(Some(floor), None), delayed(HOUR_MILLIS, false)];
    check(
        enough(),
        alter(Some(floor - 1), None),
        below,
        &["7199999", "7200000"],
    );
    check(enough(), alter(None, Some(1 << 30)), below, &["bytes"]);
    let drops = vec![
        parent(Some(floor), Some(5)),
        delayed(HOUR_MILLIS, true),
        alter(None, Some(4)),
    ];
    check(drops, alter(Some(0), None), below, &["floor"]);
}

#[test]
fn partitions_grow_and_a_later_one_is_copied_from_its_start() {
    let grow = |topic: &str, partitions| Command::AlterTopic {
        name: name(topic),
        incarnation: Some(LIFE),
        change: TopicChange {
            partitions: Some(partitions),
            ..TopicChange::default()
        },
    };
    let linked = || vec![Command::Attach(attach(1, "a", "b"))];
    check(
        linked(),
        grow("a", 1),
        ErrorCode::InvalidPartitions,
        &["only grow"],
    );
    check(linked(), grow("b", 3), ErrorCode::TopicInUse, &["`b`", "`a`"]);
    let mut state = with_topics(&["a", "b"]);
    state.apply(5, &linked()[0]).expect("attached");
    let Outcome::TopicAltered(topic) = state.apply(6, &grow("a", 4)).expect("grown") else {
        panic!("altered")
    };
    assert_eq!(topic.owner_epochs, vec![FIRST_OWNER_EPOCH; 4]);
    let link = state.snapshot().link(&name("a"), &name("b")).expect("live");
    assert_eq!(
        (link.attach_offset(1), link.attach_offset(3)),
        (Offset(8), Offset::ZERO)
    );
}

#[test]
fn a_repeated_request_returns_the_first_result_until_it_is_forgotten() {
    let mut state = with_topics(&["a", "b"]);
    let Ok(Outcome::Attached(first)) = state.apply(5, &Command::Attach(attach(1, "a", "b"))) else {
        panic!("attached")
    };
    assert_eq!((first.index, state.snapshot().version), (5, 5));
    let mut repeat = attach(1, "a", "b");
    repeat.epoch = Epoch([77; 8]);
    repeat.attach_offsets = vec![Offset(100), Offset(100)];
    let again = state.apply(6, &Command::Attach(repeat.clone()));
    assert_eq!(again, Ok(Outcome::Attached(first.clone())));
    assert_eq!(state.snapshot().version, 5, "a repeat changes nothing");
    let detach = |epoch| Command::Detach {
        parent: name("a"),
        child: name("b"),
        epoch,
    };
    state.apply(7, &detach(first.epoch)).expect("detached");
    let late = state.apply(8, &Command::Attach(repeat.clone()));
    assert_eq!(
        late,
        Ok(Outcome::Attached(first)),
        "also after the link has ended"
    );
    assert_eq!(state.snapshot().link(&name("a"), &name("b")), None);

    for n in 0..REQUEST_RESULTS_MAX as u64 {
        let mut other = attach(2, "a", "b");
        other.request_id = u128::from(n + 1_000).to_le_bytes();
        other.epoch = Epoch::from_u64(n + 1_000);
        state
            .apply(10 + 2 * n, &Command::Attach(other.clone()))
            .expect("attached");
        state.apply(11 + 2 * n, &detach(other.epoch)).expect("detached");
    }
    assert_eq!(state.results().len(), REQUEST_RESULTS_MAX);
    let Ok(Outcome::Attached(new)) = state.apply(9_000, &Command::Attach(repeat)) else {
        panic!("attached")
    };
    assert_eq!(
        (new.epoch, new.index),
        (Epoch([77; 8]), 9_000),
        "the oldest was forgotten"
    );
}

#[test]
fn creating_a_topic_twice_with_one_incarnation_is_one_topic() {
    let mut state = with_topics(&["a"]);
    let again = state
        .apply(9, &create("a", 2, Retention::default()))
        .expect("the same");
    assert_eq!(
        again,
        Outcome::TopicCreated(state.snapshot().topics[&name("a")].clone())
    );
    assert_eq!(state.snapshot().version, 1);
}

#[test]
fn a_state_that_no_command_made_is_refused() {
    let mut state = with_topics(&["a", "b"]);
    state
        .apply(5, &Command::Attach(attach(1, "a", "b")))
        .expect("attached");
    let good = || (**state.snapshot()).clone();
    assert!(MetaState::from_parts(good(), BTreeMap::new()).is_ok());
    let mut dead = good();
    dead.topics.remove(&name("b"));
    let error = MetaState::from_parts(dead, BTreeMap::new()).expect_err("dead");
    assert!(error.contains("not alive"), "{error}");
    let mut circle = good();
    let mut back = circle.links[&name("a")][&name("b")].clone();
    (back.parent, back.child, back.epoch) = (name("b"), name("a"), Epoch([2; 8]));
    circle.links.entry(name("b")).or_default().insert(name("a"), back);
    let error = MetaState::from_parts(circle, BTreeMap::new()).expect_err("a circle");
    assert!(error.contains("circle"), "{error}");
}

fn any_name() -> impl Strategy<Value = TopicName> {
    prop::sample::select(vec!["a", "b", "c", "d", "e"]).prop_map(name)
}

fn any_life() -> impl Strategy<Value = Incarnation> {
    (0u64..2).prop_map(Incarnation::from_u64)
}

fn any_retention() -> impl Strategy<Value = Retention> {
    let millis = prop::option::weighted(0.3, HOUR_MILLIS..4 * HOUR_MILLIS);
    (millis, prop::option::weighted(0.2, 1u64..9)).prop_map(|(millis, bytes)| Retention { millis, bytes })
}

fn any_attach() -> impl Strategy<Value = Command> {
    let ids = (0u8..40, 0u64..40);
    let options = (prop::option::weighted(0.3, 1..2 * HOUR_MILLIS), any::<bool>());
    let lives = (any_life(), any_life());
    (ids, any_name(), any_name(), options, lives, 1usize..3).prop_map(
        |((id, epoch), parent, child, (delay, allow_drop), lives, partitions)| {
            Command::Attach(Attach {
                request_id: [id; 16],
                parent,
                child,
                options: LinkOptions {
                    delay: Delay {
                        millis: delay.unwrap_or(0),
                    },
                    allow_drop,
                    ..LinkOptions::default()
                },
                epoch: Epoch::from_u64(epoch),
                attach_offsets: vec![Offset(epoch); partitions],
                parent_incarnation: lives.0,
                child_incarnation: lives.1,
                owner_epochs: vec![FIRST_OWNER_EPOCH; partitions],
            })
        },
    )
}

fn any_command() -> impl Strategy<Value = Command> {
    let spec = (any_name(), 0u32..4, any_retention()).prop_map(|(name, partitions, retention)| TopicSpec {
        name,
        partitions,
        partitioner: Partitioner::Crc32c,
        retention,
        durability: Durability::Fsync,
    });
    let change =
        (prop::option::of(1u32..4), prop::option::of(any_retention())).prop_map(|(partitions, retention)| {
            TopicChange {
                partitions,
                retention,
                durability: None,
            }
        });
    prop_oneof![
        4 => (spec, any_life()).prop_map(|(spec, incarnation)| Command::CreateTopic { spec, incarnation }),
        1 => (any_name(), prop::option::of(any_life()))
            .prop_map(|(name, incarnation)| Command::DeleteTopic { name, incarnation }),
        2 => (any_name(), change).prop_map(|(name, change)| Command::AlterTopic {
            name,
            incarnation: None,
            change,
        }),
        8 => any_attach(),
        2 => (any_name(), any_name(), 0u64..40).prop_map(|(parent, child, epoch)| Command::Detach {
            parent,
            child,
            epoch: Epoch::from_u64(epoch),
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_commands_keep_the_invariants_and_every_replica_agrees(
        commands in prop::collection::vec(any_command(), 0..120),
    ) {
        let (mut one, mut other) = (MetaState::default(), MetaState::default());
        for (index, command) in (2..).zip(&commands) {
            let before = one.clone();
            let outcome = one.apply(index, command);
            prop_assert_eq!(&outcome, &other.apply(index, command));
            prop_assert_eq!(&one, &other);
            prop_assert_eq!(rules::check_invariants(one.snapshot()), Ok(()));
            let version = one.snapshot().version;
            prop_assert!(version == index || version == before.snapshot().version);
            if outcome.is_err() || version != index {
                prop_assert_eq!(&one, &before);
            }
            // A replica that was made from stored parts goes on like one that was there all the time.
            other = MetaState::from_parts((**one.snapshot()).clone(), one.results().clone())
                .map_err(TestCaseError::fail)?;
        }
    }
}
