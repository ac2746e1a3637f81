//! The rules that a change of the metadata must keep, as pure checks on a snapshot.
//!
//! They run twice: before a command is proposed, on the local replica, so that a caller hears of a mistake at once;
//! and when it is applied, where they decide. Filters are not read here: whoever compiles them refuses bad ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tailwater_wire::code::{ErrorCode, Refusal};
use tailwater_wire::ids::{Incarnation, TopicName};
use tailwater_wire::limits;
use tailwater_wire::meta::{LinkOptions, MetaSnapshot, Retention, Topic, TopicSpec};

use crate::metastore::command::{Attach, Command, TopicChange};

/// Links that a refusal names; more are counted.
const LINKS_NAMED_MAX: usize = 5;

/// Whether a command would be accepted in this state.
///
/// # Errors
/// The refusal that applying it would answer.
pub fn check(state: &MetaSnapshot, command: &Command) -> Result<(), Refusal> {
    match command {
        Command::CreateTopic { spec, incarnation } => create_topic(state, spec, *incarnation),
        Command::DeleteTopic { name, incarnation } => delete_topic(state, name, *incarnation),
        Command::AlterTopic {
            name,
            incarnation,
            change,
        } => alter_topic(state, name, *incarnation, change),
        Command::Attach(attach) => check_attach(state, attach),
        Command::Detach { parent, child, epoch } => match state.link(parent, child) {
            None => Err(unknown_link(parent, child)),
            Some(link) if link.epoch != *epoch => Err(Refusal::new(
                ErrorCode::StaleEpoch,
                format!(
                    "cannot detach `{child}` from `{parent}`: epoch {epoch} was asked for and the live one is {}",
                    link.epoch
                ),
            )),
            Some(_) => Ok(()),
        },
    }
}

/// The refusal for a pair that is not attached.
#[must_use]
pub fn unknown_link(parent: &TopicName, child: &TopicName) -> Refusal {
    Refusal::new(
        ErrorCode::UnknownLink,
        format!("`{child}` is not attached to `{parent}`"),
    )
}

/// A live topic, or the refusal that it is not there.
///
/// # Errors
/// `UnknownTopic`.
pub fn find_topic<'a>(state: &'a MetaSnapshot, name: &TopicName) -> Result<&'a Topic, Refusal> {
    state
        .topic(name)
        .ok_or_else(|| Refusal::new(ErrorCode::UnknownTopic, format!("there is no topic `{name}`")))
}

/// Whether a pair can be attached with these options: everything that can be said before the attach offsets are
/// read. Returns the parent and the child.
///
/// # Errors
/// The refusal that attaching them now would answer.
pub fn check_link<'a>(
    state: &'a MetaSnapshot,
    parent: &TopicName,
    child: &TopicName,
    options: &LinkOptions,
) -> Result<(&'a Topic, &'a Topic), Refusal> {
    let parent_topic = find_topic(state, parent)?;
    let child_topic = find_topic(state, child)?;
    if options.delay.millis > limits::DELAY_MILLIS_MAX {
        let what = format!(
            "a delay is at most {} ms (365 days), and {} ms were asked for",
            limits::DELAY_MILLIS_MAX,
            options.delay.millis
        );
        return Err(Refusal::new(ErrorCode::DelayTooLong, what));
    }
    if let Some(live) = state.link(parent, child) {
        let what = format!(
            "`{child}` is attached to `{parent}` already, with epoch {}",
            live.epoch
        );
        return Err(Refusal::new(ErrorCode::LinkExists, what));
    }
    if let Some(path) = path_down(state, child, parent) {
        let names: Vec<&str> = path.iter().map(|name| name.as_str()).collect();
        let what = format!(
            "attaching `{child}` to `{parent}` would close the circle {parent} -> {}",
            names.join(" -> ")
        );
        return Err(Refusal::new(ErrorCode::LinkCycle, what));
    }
    let children = state.links.get(parent).map_or(0, BTreeMap::len);
    if children >= limits::CHILDREN_MAX {
        let what = format!(
            "`{parent}` has {children} children, and a topic has at most {}",
            limits::CHILDREN_MAX
        );
        return Err(Refusal::new(ErrorCode::TooManyChildren, what));
    }
    retention_fits(parent, parent_topic.spec.retention, child, options)?;
    Ok((parent_topic, child_topic))
}

fn check_attach(state: &MetaSnapshot, attach: &Attach) -> Result<(), Refusal> {
    let (parent, child) = check_link(state, &attach.parent, &attach.child, &attach.options)?;
    same_life(parent, Some(attach.parent_incarnation))?;
    same_life(child, Some(attach.child_incarnation))?;
    per_partition(parent, "attach offsets", attach.attach_offsets.len())?;
    per_partition(parent, "owner epochs", attach.owner_epochs.len())?;
    let owners = parent.owner_epochs.iter().zip(&attach.owner_epochs);
    if let Some((partition, (now, read))) = owners.enumerate().find(|(_, (now, read))| now != read) {
        let what = format!(
            "the offset of partition {partition} of `{}` was read under owner epoch {}, and it is now {}",
            attach.parent, read.0, now.0
        );
        return Err(Refusal::new(ErrorCode::NotOwner, what));
    }
    // Dedup state is keyed by epoch, so two live links must never share one.
    if let Some(twin) = state.all_links().find(|link| link.epoch == attach.epoch) {
        let what = format!(
            "epoch {} belongs to the link from `{}` to `{}`",
            attach.epoch, twin.parent, twin.child
        );
        return Err(Refusal::new(ErrorCode::InvalidRequest, what));
    }
    Ok(())
}

fn create_topic(state: &MetaSnapshot, spec: &TopicSpec, incarnation: Incarnation) -> Result<(), Refusal> {
    partition_count(&spec.name, spec.partitions)?;
    match state.topic(&spec.name) {
        Some(live) if live.incarnation == incarnation && live.spec == *spec => Ok(()),
        Some(live) => {
            let what = format!(
                "topic `{}` exists, with {} partitions and incarnation {}",
                spec.name, live.spec.partitions, live.incarnation
            );
            Err(Refusal::new(ErrorCode::TopicExists, what))
        }
        None => Ok(()),
    }
}

fn delete_topic(
    state: &MetaSnapshot,
    name: &TopicName,
    incarnation: Option<Incarnation>,
) -> Result<(), Refusal> {
    same_life(find_topic(state, name)?, incarnation)?;
    let links: Vec<String> = state
        .all_links()
        .filter(|link| link.parent == *name || link.child == *name)
        .map(|link| format!("{} -> {}", link.parent, link.child))
        .collect();
    if links.is_empty() {
        return Ok(());
    }
    let mut what = format!("topic `{name}` is part of {} live links: ", links.len());
    what += &links[..links.len().min(LINKS_NAMED_MAX)].join(", ");
    if links.len() > LINKS_NAMED_MAX {
        what += &format!(" and {} more", links.len() - LINKS_NAMED_MAX);
    }
    what += "; detach them first";
    Err(Refusal::new(ErrorCode::TopicInUse, what))
}

fn alter_topic(
    state: &MetaSnapshot,
    name: &TopicName,
    incarnation: Option<Incarnation>,
    change: &TopicChange,
) -> Result<(), Refusal> {
    let topic = find_topic(state, name)?;
    same_life(topic, incarnation)?;
    if let Some(partitions) = change.partitions {
        partition_count(name, partitions)?;
        if partitions < topic.spec.partitions {
            let what = format!(
                "topic `{name}` has {} partitions, and their number can only grow, not become {partitions}",
                topic.spec.partitions
            );
            return Err(Refusal::new(ErrorCode::InvalidPartitions, what));
        }
        let link = state.all_links().find(|link| link.child == *name);
        if let Some(link) = link.filter(|_| partitions > topic.spec.partitions) {
            let what = format!(
                "the partitions of `{name}` cannot grow while it is attached to `{}`",
                link.parent
            );
            return Err(Refusal::new(ErrorCode::TopicInUse, what));
        }
    }
    if let Some(retention) = change.retention {
        for link in state.links.get(name).into_iter().flat_map(BTreeMap::values) {
            retention_fits(name, retention, &link.child, &link.options)?;
        }
    }
    Ok(())
}

/// G4: the parent of a delay child keeps records for the delay and an hour, and by bytes only if drops are allowed.
fn retention_fits(
    parent: &TopicName,
    retention: Retention,
    child: &TopicName,
    options: &LinkOptions,
) -> Result<(), Refusal> {
    if options.delay.is_none() {
        return Ok(());
    }
    let delay = options.delay.millis;
    let floor = delay.saturating_add(limits::DELAY_RETENTION_MARGIN_MILLIS);
    if let Some(millis) = retention.millis.filter(|&millis| millis < floor) {
        let what = format!(
            "`{parent}` retains records for {millis} ms, and the floor for `{child}` with its delay of {delay} ms \
             is {floor} ms (the delay and one hour)"
        );
        return Err(Refusal::new(ErrorCode::RetentionBelowFloor, what));
    }
    if let Some(bytes) = retention.bytes.filter(|_| !options.allow_drop) {
        let what = format!(
            "`{parent}` retains at most {bytes} bytes a partition, which may run out before the delay of {delay} ms \
             of `{child}`; the floor is {floor} ms by time alone, or the link must allow drops"
        );
        return Err(Refusal::new(ErrorCode::RetentionBelowFloor, what));
    }
    Ok(())
}

fn partition_count(name: &TopicName, partitions: u32) -> Result<(), Refusal> {
    if (1..=limits::PARTITIONS_MAX).contains(&partitions) {
        return Ok(());
    }
    let what = format!(
        "a topic has 1 to {} partitions, and {partitions} were asked for `{name}`",
        limits::PARTITIONS_MAX
    );
    Err(Refusal::new(ErrorCode::InvalidPartitions, what))
}

fn same_life(topic: &Topic, meant: Option<Incarnation>) -> Result<(), Refusal> {
    match meant {
        Some(meant) if meant != topic.incarnation => Err(Refusal::new(
            ErrorCode::StaleIncarnation,
            format!(
                "topic `{}` has incarnation {}, and {meant} was meant",
                topic.spec.name, topic.incarnation
            ),
        )),
        _ => Ok(()),
    }
}

fn per_partition(parent: &Topic, of_what: &str, given: usize) -> Result<(), Refusal> {
    if given == parent.spec.partitions as usize {
        return Ok(());
    }
    let what = format!(
        "{given} {of_what} were given for the {} partitions of `{}`",
        parent.spec.partitions, parent.spec.name
    );
    Err(Refusal::new(ErrorCode::InvalidRequest, what))
}

/// The shortest way down the links `from .. to`, both included, if there is one.
fn path_down<'a>(state: &'a MetaSnapshot, from: &'a TopicName, to: &TopicName) -> Option<Vec<&'a TopicName>> {
    let mut came_from: BTreeMap<&TopicName, Option<&TopicName>> = BTreeMap::from([(from, None)]);
    let mut queue = VecDeque::from([from]);
    while let Some(name) = queue.pop_front() {
        if name == to {
            let mut path = vec![name];
            while let Some(&Some(above)) = path.last().and_then(|last| came_from.get(last)) {
                path.push(above);
            }
            path.reverse();
            return Some(path);
        }
        for child in state.links.get(name).into_iter().flat_map(BTreeMap::keys) {
            came_from.entry(child).or_insert_with(|| {
                queue.push_back(child);
                Some(name)
            });
        }
    }
    None
}

/// What holds in every state that was reached by commands.
///
/// # Errors
/// A sentence that names what does not hold; such a state was not made by this program.
pub fn check_invariants(state: &MetaSnapshot) -> Result<(), String> {
    for (name, topic) in &state.topics {
        let partitions = topic.spec.partitions;
        if topic.spec.name != *name {
            return Err(format!("topic `{}` stands under `{name}`", topic.spec.name));
        }
        if !(1..=limits::PARTITIONS_MAX).contains(&partitions) {
            return Err(format!("topic `{name}` has {partitions} partitions"));
        }
        if topic.owner_epochs.len() != partitions as usize {
            let epochs = topic.owner_epochs.len();
            return Err(format!(
                "topic `{name}` has {partitions} partitions and {epochs} owner epochs"
            ));
        }
    }
    let mut epochs = BTreeMap::new();
    for (parent, children) in &state.links {
        if children.is_empty() || children.len() > limits::CHILDREN_MAX {
            return Err(format!("`{parent}` has {} children", children.len()));
        }
        for (child, link) in children {
            if link.parent != *parent || link.child != *child {
                return Err(format!(
                    "link {} -> {} stands under {parent} -> {child}",
                    link.parent, link.child
                ));
            }
            let lives = state.topic(parent).map(|topic| topic.incarnation) == Some(link.parent_incarnation)
                && state.topic(child).map(|topic| topic.incarnation) == Some(link.child_incarnation);
            if !lives {
                return Err(format!(
                    "link {parent} -> {child} joins a topic that is not alive"
                ));
            }
            if let Some(twin) = epochs.insert(link.epoch, parent) {
                return Err(format!(
                    "links of `{twin}` and `{parent}` share epoch {}",
                    link.epoch
                ));
            }
            if let Err(refusal) =
                retention_fits(parent, state.topics[parent].spec.retention, child, &link.options)
            {
                return Err(refusal.what);
            }
            if link.index > state.version {
                return Err(format!(
                    "link {parent} -> {child} has index {} in version {}",
                    link.index, state.version
                ));
            }
        }
    }
    match circle(state) {
        Some(name) => Err(format!("the links of `{name}` close a circle")),
        None => Ok(()),
    }
}

/// A parent that is left when all topics without parents are taken away again and again.
fn circle(state: &MetaSnapshot) -> Option<&TopicName> {
    let mut parents: BTreeMap<&TopicName, usize> = BTreeMap::new();
    for link in state.all_links() {
        *parents.entry(&link.child).or_default() += 1;
    }
    let mut left: BTreeSet<&TopicName> = state.links.keys().collect();
    let mut free: Vec<&TopicName> = left
        .iter()
        .copied()
        .filter(|name| !parents.contains_key(name))
        .collect();
    while let Some(name) = free.pop() {
        left.remove(name);
        for child in state.links.get(name).into_iter().flat_map(BTreeMap::keys) {
            if let Some(count) = parents.get_mut(child) {
                *count -= 1;
                if *count == 0 {
                    free.push(child);
                }
            }
        }
    }
    left.first().copied()
}
