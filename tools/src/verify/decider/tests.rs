//! Two streams of one pair of partitions, with every fault planted that a comparison must find.

use bytes::Bytes;

use crate::verify::decider::{Advance, ChildItem, Content, Decider, DroppedItem, Head, ParentItem, Tally};

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

// A `written` parent that crashed gets a new history, and keeps most of its records: their copies are what they were.
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

/// Parent records 10..20, of which the child says that these were dropped, in a child that has the others.
fn check_dropped(decider: Decider, parents: &[Part], item: DroppedItem, want: Tally) {
    let mut decider = decider;
    let items: Vec<Result<ParentItem, u64>> = parents
        .iter()
        .flat_map(|part| match part {
            Part::Has(range) => range.clone().map(|offset| Ok(parent(offset))).collect::<Vec<_>>(),
            Part::Gap(to) => vec![Err(*to)],
        })
        .collect();
    let mut fronts = items.iter().peekable();
    let below = children(10..item.from);
    let above = children(item.to..20);
    let mut walk = |step: &mut dyn FnMut(Head<'_>) -> Advance| {
        loop {
            let head = match fronts.peek() {
                Some(Ok(item)) => Head::Item(item),
                Some(Err(to)) => Head::Gap { to: *to },
                None => Head::End,
            };
            let advance = step(head);
            if advance != Advance::Child {
                fronts.next();
            }
            if advance != Advance::Parent {
                break;
            }
        }
    };
    below
        .iter()
        .for_each(|child| walk(&mut |head| decider.compare(head, child)));
    walk(&mut |head| decider.dropped(head, &item));
    above
        .iter()
        .for_each(|child| walk(&mut |head| decider.compare(head, child)));
    assert_eq!(decider.tally(), &want);
}

fn dropped(from: u64, to: u64, records: u64) -> DroppedItem {
    DroppedItem { from, to, records }
}

#[test]
fn what_the_child_says_was_dropped_is_not_missing() {
    let decider = Decider::new(10, 10, 20, DELAY);
    let want = Tally {
        records: 7,
        expected: 7,
        dropped: 3,
        ..clean()
    };
    check_dropped(decider, &[Part::Has(10..20)], dropped(12, 15, 3), want);
    assert!(want.is_ok());
}

#[test]
fn a_count_that_does_not_add_up_is_found() {
    let decider = Decider::new(10, 10, 20, DELAY);
    let all = [Part::Has(10..20)];
    let few = Tally {
        records: 7,
        expected: 8,
        dropped: 2,
        missing: 1,
        first_finding: Some(12),
        ..clean()
    };
    check_dropped(decider.clone(), &all, dropped(12, 15, 2), few);
    let many = Tally {
        records: 7,
        expected: 7,
        dropped: 4,
        unexpected: 1,
        first_finding: Some(12),
        ..clean()
    };
    check_dropped(decider, &all, dropped(12, 15, 4), many);
}

#[test]
fn a_count_of_what_the_parent_no_longer_has_is_shown_unchecked() {
    let decider = Decider::new(10, 16, 20, DELAY);
    let want = Tally {
        records: 4,
        expected: 4,
        dropped: 77,
        ..clean()
    };
    check_dropped(decider, &[Part::Has(16..20)], dropped(12, 16, 77), want);
    let decider = Decider::new(10, 10, 20, DELAY);
    let parents = [Part::Has(10..13), Part::Gap(15), Part::Has(15..20)];
    let want = Tally {
        records: 7,
        expected: 7,
        dropped: 2,
        ..clean()
    };
    check_dropped(decider, &parents, dropped(12, 15, 2), want);
}

#[test]
fn what_lies_below_a_dropped_range_is_still_missing_when_it_is_not_there() {
    let mut decider = Decider::new(10, 10, 20, DELAY);
    let item = dropped(12, 14, 2);
    for offset in 10..14 {
        assert_eq!(
            decider.dropped(Head::Item(&parent(offset)), &item),
            Advance::Parent
        );
    }
    assert_eq!(decider.dropped(Head::Item(&parent(14)), &item), Advance::Child);
    let tally = decider.tally();
    assert_eq!((tally.missing, tally.dropped, tally.unexpected), (2, 2, 0));
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
