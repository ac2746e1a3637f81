//! What each happening does.

use super::meta::Op;
use super::model::{Happening, Model};
use super::owner::Asking;
use super::world::{Change, Message, World};

/// Does it.
pub fn step(world: &mut World, happening: Happening, model: &Model) {
    match happening {
        Happening::Produced => {
            world.spent.produced += 1;
            let between = world.between;
            if let Some((_, records)) = &mut world.owner.data {
                records.push(between);
            }
        }
        Happening::AttachAsked(request, again) => {
            let count = if again {
                &mut world.spent.repeats
            } else {
                &mut world.spent.attaches
            };
            *count += 1;
            if let Some(change) = world.begin_attach(request) {
                world.change = change;
            }
            if let Some(cursor) = &mut world.owner.cursor {
                cursor.stopping = true;
            }
        }
        Happening::AttachProposed => {
            if let Change::Attaching {
                request,
                parent,
                child,
            } = world.change
            {
                world.propose_attach(request, parent, child);
            }
        }
        Happening::DetachAsked => {
            world.spent.detaches += 1;
            if let Some(epoch) = world.log.epoch_at(world.replica) {
                world.pending.push(Op::Detach { epoch });
                world.change = Change::Settling(epoch);
            }
        }
        Happening::DetachAnswered => {
            if let Change::Settling(epoch) = world.change {
                world.ended.push(epoch);
                world.between = world.log.epoch_at(world.log.end()).is_none() && world.pending.is_empty();
            }
            world.change = Change::None;
        }
        Happening::GivenUp => world.change = Change::None,
        Happening::DeleteAsked(parent) => {
            let deleted = if parent {
                &mut world.spent.parents_deleted
            } else {
                &mut world.spent.children_deleted
            };
            *deleted += 1;
            if let Some(incarnation) = world.log.life_at(world.replica, parent) {
                world.pending.push(Op::Delete { parent, incarnation });
                if parent {
                    world.change = Change::Removing(incarnation);
                }
            }
        }
        Happening::RemovalSent => {
            if let Change::Removing(incarnation) = world.change {
                let since = world.log.end();
                let message = |parents_shard| Message::Remove {
                    parents_shard,
                    incarnation,
                    since,
                };
                world.net.extend([true, false].map(message));
                world.net.sort();
            }
        }
        Happening::CreateAsked(parent) => {
            let incarnation = world.draw();
            world.pending.push(Op::Create { parent, incarnation });
        }
        Happening::Committed => world.commit(),
        Happening::LeaderLost => {
            world.spent.leaders += 1;
            world.pending.clear();
        }
        Happening::ReplicaSees(view) => world.replica = view,
        Happening::OwnerSees(view) => world.owner.learn(view, &world.log),
        Happening::ChildSees(view) => child_sees(world, view),
        Happening::Reconciled => world.reconcile(model),
        Happening::StartWord | Happening::SweepWord => {
            let live = world.log.epoch_at(world.log.end());
            let asking = if happening == Happening::StartWord {
                &mut world.owner.starting
            } else {
                &mut world.owner.sweeping
            };
            if let Some(asking) = asking {
                asking.word = Some(live);
            }
        }
        Happening::Starts => {
            if let Some(asking) = world.owner.starting {
                world.start(asking, model);
            }
        }
        Happening::SweepBegins => {
            let seen = world.owner.file;
            world.sweep(Asking { seen, word: None }, model);
        }
        Happening::Sweeps => {
            if let Some(asking) = world.owner.sweeping {
                world.sweep(asking, model);
            }
        }
        Happening::Asks => world.ask(),
        Happening::Ends => world.end_cursor(),
        Happening::EpochConfirmed => world.confirm_epoch(),
        Happening::Arrives(message) => {
            if let Some(at) = world.net.iter().position(|on_its_way| *on_its_way == message) {
                world.net.remove(at);
                world.deliver(&message, model);
            }
            let removals = |message: &Message| matches!(message, Message::Remove { .. });
            let is_removing = matches!(world.change, Change::Removing(_));
            if is_removing && removals(&message) && !world.net.iter().any(removals) {
                world.change = Change::None;
            }
        }
        Happening::ArrivesTwice(message) => {
            world.spent.doubles += 1;
            world.deliver(&message, model);
        }
        Happening::TimesOut => {
            world.spent.time_outs += 1;
            if let Some(cursor) = &mut world.owner.cursor {
                (cursor.asked, cursor.watermark) = (None, None);
            }
        }
        Happening::Restarts(view) => {
            world.spent.restarts += 1;
            world.owner.restart(view);
            world.net.retain(|message| !matches!(message, Message::Reply(..)));
        }
        Happening::FileLost => {
            world.spent.files_lost += 1;
            world.owner.file = super::owner::File::Absent;
        }
        Happening::Forgets(epoch) => {
            let log = &world.log;
            if let Some(data) = &mut world.child.data {
                data.forget(epoch, log);
            }
        }
        Happening::Swept => world.remove_data(),
    }
}

/// The child's data goes when its shard learns of the deletion, with the leader's word.
fn child_sees(world: &mut World, view: usize) {
    if let Some(data) = &world.child.data
        && world.log.life_at(view, false) != Some(data.incarnation)
        && world.log.topic_gone(false, data.incarnation).is_some()
    {
        world.child.data = None;
    }
    world.child.learn(view, &world.log);
}
