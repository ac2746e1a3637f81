//! Two streams of one pair of partitions, with every fault planted that a comparison must find.

use bytes::Bytes;

use crate::verify::decider::{Advance, ChildItem, Content, Decider, Head, ParentItem, Tally};

const DELAY: u64 = 1_000;

fn content(of: u64) -> Content {
    Content {
        value: Bytes::from(of.to_string()),
        ..Content::default()
    }
}

/// Parent record `n` is committed at `n * 10`.
fn parent(offset: u64) -> ParentItem {
    ParentItem {
        offset,
        commit_time: offset * 10,
        content: content(offset),
    }
}

/// Its copy, released when it is due and committed 3 later.
fn child(offset: u64) -> ChildItem {
    ChildItem {
        parent_offset: offset,
        commit_time: offset * 10 + DELAY + 3,
        released_at: offset * 10 + DELAY,
        foreign: false,
        content: content(offset),
    }
}

enum Part {
    Has(std::ops::Range<u64>),
    Gap(u64),
}

/// Runs the merge as the driver does, all parent records from `overdue_before` on not being due.
fn run(mut decider: Decider, parents: &[Part], children: &[ChildItem], overdue_before: u64) -> Tally {
    let mut stream = parents.iter().flat_map(|part| -> Vec<Result<ParentItem, u64>> {
        match part {
            Part::Has(range) => range.clone().map(|offset| Ok(parent(offset))).collect(),
            Part::Gap(to) => vec![Err(*to)],
        }
    });
    let mut front = stream.next();
    for child in children {
        loop {
            let head = match &front {
                Some(Ok(item)) => Head::Item(item),
                Some(Err(to)) => Head::Gap { to: *to },
                None => Head::End,
            };
            let advance = decider.compare(head, child);
            if advance != Advance::Child {
                front = stream.next();
            }
            if advance != Advance::Parent {
                break;
            }
        }
    }
    while let Some(one) = front {
        if let Ok(item) = one {
            decider.child_ended(&item, overdue_before);
        }
        front = stream.next();
    }
    *decider.tally()
}

/// Parent records 10..20 of a link that was attached at 10, against these child records.
fn check(children: &[ChildItem], want: Tally) {
    let decider = Decider::new(10, 10, 20, DELAY);
    let have = run(decider, &[Part::Has(10..20)], children, u64::MAX);
    assert_eq!(have, want);
    let findings = want.missing + want.duplicate + want.early + want.unexpected + want.differing;
    assert_eq!(want.is_ok(), findings == 0);
}

fn children(offsets: impl IntoIterator<Item = u64>) -> Vec<ChildItem> {
    offsets.into_iter().map(child).collect()
}

fn clean() -> Tally {
    Tally {
        records: 10,
        expected: 10,
        max_late_ns: 3,
        ..Tally::default()
    }
}

#[test]
fn a_whole_child_is_clean() {
    check(&children(10..20), clean());
}

/// Parent records 10..20 verified while the parent has committed up to `end` by now, against children 10..25.
fn beyond(end: u64) -> Decider {
    let mut decider = Decider::new(10, 10, 20, DELAY);
    decider.parent_reaches(end);
    let parents: Vec<ParentItem> = (10..20).map(parent).collect();
    for (at, child) in children(10..25).iter().enumerate() {
        let head = parents.get(at).map_or(Head::End, Head::Item);
        assert_ne!(decider.compare(head, child), Advance::Parent);
    }
    decider
}

#[test]
fn what_was_committed_and_copied_meanwhile_is_passed_over() {
    let decider = beyond(25);
    assert_eq!((decider.tally(), decider.unexpected()), (&clean(), &[][..]));
}

#[test]
fn what_the_parent_does_not_have_yet_is_unexpected() {
    for (end, from) in [(0, 20), (22, 22), (24, 24)] {
        let decider = beyond(end);
        let want = Tally {
            unexpected: 25 - from,
            first_finding: Some(from),
            ..clean()
        };
        assert_eq!(decider.tally(), &want);
        assert!(!want.is_ok());
        assert_eq!(decider.unexpected(), std::slice::from_ref(&(from..25)));
    }
}

#[test]
fn copies_from_another_history_are_good_where_the_parent_has_the_same_and_unexpected_elsewhere() {
    let mut foreign = children(10..20);
    foreign.iter_mut().for_each(|child| child.foreign = true);
    check(&foreign, clean());
    foreign[3..6]
        .iter_mut()
        .for_each(|child| child.content.value = Bytes::from_static(b"of another history"));
    let want = Tally {
        unexpected: 3,
        differing: 3,
        first_finding: Some(13),
        ..clean()
    };
    check(&foreign, want);

    let mut decider = Decider::new(10, 10, 20, DELAY);
    decider.parent_reaches(25);
    let copy = |offset| ChildItem {
        foreign: true,
        ..child(offset)
    };
    decider.compare(Head::End, &copy(21));
    assert_eq!(
        decider.unexpected(),
        std::slice::from_ref(&(21..22)),
        "nothing shows that the parent has it"
    );
    let mut decider = Decider::new(0, 10, 20, DELAY);
    decider.compare(Head::Item(&parent(10)), &copy(5));
    assert!(decider.tally().is_ok(), "nothing is said of what retention took");
}

#[test]
fn only_the_first_ranges_of_the_unexpected_are_kept() {
    let mut decider = Decider::new(0, 0, 0, DELAY);
    for offset in 0..1_000 {
        decider.parent_reaches(offset + u64::from(offset % 10 == 0));
        decider.compare(Head::End, &child(offset));
    }
    assert_eq!(decider.tally().unexpected, 900);
    assert_eq!(decider.unexpected(), &[1..10, 11..20, 21..30, 31..40]);
}

#[test]
fn a_missing_record_is_found_wherever_it_is() {
    for lost in 10..20 {
        let want = Tally {
            records: 9,
            missing: 1,
            first_finding: Some(lost),
            ..clean()
        };
        check(&children((10..20).filter(|&offset| offset != lost)), want);
    }
}

#[test]
fn a_duplicate_is_found_wherever_it_is() {
    for (twice, at) in [(10, 11), (12, 15), (19, 20), (10, 20)] {
        let mut offsets: Vec<u64> = (10..20).collect();
        offsets.insert(at - 10, twice);
        let want = Tally {
            records: 11,
            duplicate: 1,
            first_finding: Some(twice),
            ..clean()
        };
        check(&children(offsets), want);
    }
}

#[test]
fn a_reordered_record_is_missing_at_its_place_and_a_duplicate_where_it_stands() {
    let want = Tally {
        missing: 1,
        duplicate: 1,
        first_finding: Some(13),
        ..clean()
    };
    check(&children([10, 11, 12, 14, 13, 15, 16, 17, 18, 19]), want);
}

#[test]
fn an_early_record_is_found() {
    let mut early = children(10..20);
    early[4].released_at -= 1;
    let want = Tally {
        early: 1,
        first_finding: Some(14),
        ..clean()
    };
    check(&early, want);
}

#[test]
fn without_a_delay_nothing_is_early() {
    let mut children = children(10..20);
    children.iter_mut().for_each(|child| child.released_at = 0);
    let have = run(
        Decider::new(10, 10, 20, 0),
        &[Part::Has(10..20)],
        &children,
        u64::MAX,
    );
    assert_eq!((have.early, have.records, have.is_ok()), (0, 10, true));
}

#[test]
fn an_altered_record_is_found() {
    let alter: [fn(&mut Content); 4] = [
        |content| content.value = Bytes::from_static(b"other"),
        |content| content.key = Some(Bytes::new()),
        |content| content.headers = Bytes::from_static(b"h"),
        |content| content.timestamp = 1,
    ];
    for alter in alter {
        let mut altered = children(10..20);
        alter(&mut altered[9].content);
        let want = Tally {
            differing: 1,
            first_finding: Some(19),
            ..clean()
        };
        check(&altered, want);
    }
}

#[test]
fn a_copy_from_before_the_attach_is_unexpected() {
    let want = Tally {
        records: 11,
        unexpected: 1,
        first_finding: Some(9),
        ..clean()
    };
    check(&children(9..20), want);
}

#[test]
fn a_copy_that_the_filter_should_have_held_back_is_unexpected() {
    let decider = Decider::new(10, 10, 20, DELAY);
    let have = run(
        decider,
        &[Part::Has(10..14), Part::Has(15..20)],
        &children(10..20),
        u64::MAX,
    );
    let want = Tally {
        expected: 9,
        unexpected: 1,
        first_finding: Some(14),
        ..clean()
    };
    assert_eq!(have, want);
}

#[test]
fn what_is_not_due_is_pending_and_what_is_due_is_missing() {
    let decider = Decider::new(10, 10, 20, DELAY);
    let have = run(decider, &[Part::Has(10..20)], &children(10..15), 170);
    let want = Tally {
        records: 5,
        expected: 7,
        missing: 2,
        pending: 3,
        first_finding: Some(15),
        ..clean()
    };
    assert_eq!(have, want);
}

#[test]
fn what_retention_took_is_neither_missing_nor_unexpected() {
    let decider = Decider::new(10, 14, 20, DELAY);
    let have = run(decider, &[Part::Has(14..20)], &children(12..20), u64::MAX);
    let six = Tally {
        records: 6,
        expected: 6,
        ..clean()
    };
    assert_eq!(have, six, "the parent's log starts after the attach offset");

    let decider = Decider::new(10, 10, 20, DELAY);
    let parents = [Part::Has(10..12), Part::Gap(16), Part::Has(16..20)];
    let have = run(
        decider,
        &parents,
        &children([10, 11, 13, 16, 17, 18, 19]),
        u64::MAX,
    );
    assert_eq!(have, six, "a gap opened in the parent's log");

    let mut decider = Decider::new(10, 10, 20, DELAY);
    decider.child_starts_after(14);
    let have = run(decider, &[Part::Has(10..20)], &children(14..20), u64::MAX);
    assert_eq!(have, six, "the child's log starts late");
}

#[test]
fn an_empty_child_misses_everything_that_is_due() {
    let want = Tally {
        records: 0,
        missing: 10,
        max_late_ns: 0,
        first_finding: Some(10),
        ..clean()
    };
    check(&[], want);
}
