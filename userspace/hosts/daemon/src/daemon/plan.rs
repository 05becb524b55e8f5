//! What is to be done, decided before anything is: from what there is and what the file says. Nothing here speaks to the
//! kernel.

use std::collections::BTreeSet;

use dcqcn_loader::attach::Id;

use super::config::Config;

/// Which interfaces the daemon is for.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// Those a file names: they are attached, and have the file's parameters.
    File(Box<Config>),
    /// These, as they are attached.
    Named(Vec<String>),
}

impl Scope {
    /// Whether the daemon is for the interface of this name.
    pub(super) fn names(&self, iface: &str) -> bool {
        match self {
            Self::File(config) => names(config, iface),
            Self::Named(ifaces) => ifaces.iter().any(|name| name == iface),
        }
    }

    /// Whether it names the interface letter by letter, and not by a pattern.
    fn spells(&self, iface: &str) -> bool {
        match self {
            Self::File(config) => config.spells(iface),
            Self::Named(_) => true,
        }
    }
}

/// Whether the file wants the interface to be attached for its own sake.
fn names(config: &Config, iface: &str) -> bool {
    config.request(iface).is_some() && !config.is_inline_peer(iface)
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    /// Its index.
    pub(super) index: u32,
    /// Its name now.
    pub(super) name: String,
    /// RoCE can be on it: it has an Ethernet address, which is not the loopback's.
    pub(super) is_ethernet: bool,
}

/// What is attached to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    /// Which attachment it is.
    pub(super) id: Id,
    /// The interface's name when it was attached.
    pub(super) name: String,
    /// The other interface of an inline attachment.
    pub(super) inline_peer: Option<String>,
    /// This daemon serves it.
    pub(super) is_served: bool,
    /// Another daemon serves it.
    pub(super) is_foreign: bool,
}

/// What there is.
#[derive(Clone, Debug, Default)]
pub(super) struct World {
    /// Interfaces.
    pub(super) interfaces: Vec<Interface>,
    /// What is attached to them, or to such that are gone.
    pub(super) attached: Vec<Attached>,
}

impl World {
    fn interface(&self, id: Id) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.index == id.ifindex)
    }

    fn attached_to(&self, interface: &Interface) -> Option<&Attached> {
        self.attached.iter().find(|attached| attached.id.ifindex == interface.index)
    }
}

/// An attachment to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Drop {
    /// Which.
    pub(super) id: Id,
    /// What is to be attached needs an interface of it: it goes before that comes. Others go when all else has been done.
    pub(super) is_in_the_way: bool,
}

/// What a reload does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reload {
    /// Detached: the file no longer names them.
    pub(super) drop: Vec<Drop>,
    /// Served on, with the parameters they have.
    pub(super) keep: Vec<Id>,
    /// Served on, with the parameters the file says.
    pub(super) change: Vec<Id>,
    /// Attached again, by name.
    pub(super) attach: Vec<String>,
    /// Metrics are served elsewhere, otherwise, or not at all.
    pub(super) listen: bool,
}

/// What was requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// Somebody requested the reload. Then parameters that were set since are restored to the file's, too; otherwise only
    /// where the file says something else than before.
    pub(super) explicitly: bool,
    /// Nothing need be left.
    pub(super) allow_empty: bool,
}

/// What going over from one file to another means.
///
/// # Errors
/// It would leave nothing of what is served.
pub(super) fn reload(old: &Config, new: &Config, asked: Asked, world: &World) -> Result<Reload, String> {
    let mut plan = Reload { listen: old.metrics != new.metrics, ..Reload::default() };
    for interface in world.interfaces.iter().filter(|interface| names(new, &interface.name)) {
        let is_new_to_the_file = || !old.agrees_on(new, &interface.name);
        match world.attached_to(interface) {
            // What another daemon looks after is told of when it is tried to be served.
            Some(attached) if attached.is_foreign => {}
            Some(attached) if asked.explicitly || !attached.is_served || is_new_to_the_file() => {
                plan.change.push(attached.id);
            }
            Some(attached) => plan.keep.push(attached.id),
            None if interface.is_ethernet => plan.attach.push(interface.name.clone()),
            None => {}
        }
    }
    let needed: BTreeSet<String> = plan
        .attach
        .iter()
        .flat_map(|name| [Some(name.clone()), new.request(name).and_then(|request| request.settings.inline)])
        .flatten()
        .collect();
    for attached in world.attached.iter().filter(|attached| attached.is_served) {
        if plan.keep.contains(&attached.id) || plan.change.contains(&attached.id) {
            continue;
        }
        let now = world.interface(attached.id).map(|interface| &interface.name);
        let has = [Some(&attached.name), now, attached.inline_peer.as_ref()];
        let is_in_the_way = has.into_iter().flatten().any(|name| needed.contains(name));
        plan.drop.push(Drop { id: attached.id, is_in_the_way });
    }
    let leaves_nothing = plan.keep.is_empty() && plan.change.is_empty() && plan.attach.is_empty();
    if leaves_nothing && !plan.drop.is_empty() && !asked.allow_empty {
        return Err(format!(
            "it names none of the interfaces that are served ({} would be detached): `dcqcn run --allow-empty` takes \
             such a file",
            plan.drop.len()
        ));
    }
    Ok(plan)
}

/// What there is to do when interfaces or attachments have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Follow {
    /// Served, and their interface is gone.
    pub(super) gone: Vec<Id>,
    /// Served, and detached by somebody else.
    pub(super) released: Vec<Id>,
    /// Attached, unserved, and their interface is gone: what they left is removed.
    pub(super) leftover: Vec<Id>,
    /// Attached, and to be served as they are, or as the file says.
    pub(super) take_over: Vec<Id>,
    /// To be attached, by index and name.
    pub(super) attach: Vec<(u32, String)>,
    /// Named on the command line, and not attached.
    pub(super) missing: Vec<String>,
}

/// What there is to do; `served` is what is served, also if it is no longer attached. Interfaces in `released` are left
/// alone while nothing is attached to them, and those in `resting` for now.
pub(super) fn follow(
    scope: &Scope,
    world: &World,
    served: &BTreeSet<Id>,
    released: &BTreeSet<u32>,
    resting: &BTreeSet<u32>,
) -> Follow {
    let mut plan = Follow::default();
    for id in served {
        let is_attached = world.attached.iter().any(|attached| attached.id == *id);
        match (world.interface(*id), is_attached) {
            (Some(_), true) => {}
            (Some(_), false) => plan.released.push(*id),
            (None, _) => plan.gone.push(*id),
        }
    }
    for attached in &world.attached {
        if world.interface(attached.id).is_none() && scope.names(&attached.name) {
            plan.leftover.push(attached.id);
        }
    }
    for interface in world.interfaces.iter().filter(|interface| !resting.contains(&interface.index)) {
        match world.attached_to(interface) {
            Some(attached) if served.contains(&attached.id) => {}
            Some(attached) if scope.names(&interface.name) => plan.take_over.push(attached.id),
            None if !scope.names(&interface.name) => {}
            None if matches!(scope, Scope::Named(_)) => plan.missing.push(interface.name.clone()),
            // One that is spelled out and can have no RoCE is tried, so that the log says why.
            None if (interface.is_ethernet || scope.spells(&interface.name))
                && !is_released(&plan, released, interface) =>
            {
                plan.attach.push((interface.index, interface.name.clone()));
            }
            _ => {}
        }
    }
    plan
}

fn is_released(plan: &Follow, released: &BTreeSet<u32>, interface: &Interface) -> bool {
    released.contains(&interface.index) || plan.released.iter().any(|id| id.ifindex == interface.index)
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::super::config::parse;
    use super::*;

    #[test]
    fn non_ethernet_needs_exact_name() {
        let tun = Interface { index: 1, name: "tun0".into(), is_ethernet: false };
        let world = World { interfaces: vec![tun], ..World::default() };
        let tried = |name: &str| {
            let file = parse("file", &format!("[[interface]]\nname = '{name}'\n")).unwrap();
            let scope = Scope::File(Box::new(file));
            follow(&scope, &world, &BTreeSet::new(), &BTreeSet::new(), &BTreeSet::new()).attach.len()
        };
        assert_eq!((tried("tun*"), tried("*"), tried("tun0")), (0, 0, 1));
    }

    const NAMES: [&str; 5] = ["a0", "a1", "b0", "b1", "lo"];

    /// Files that name some of the interfaces, some inline.
    fn file() -> impl Strategy<Value = Config> {
        let entry = ("[ab][01*]", prop::option::of("[ab][01]"), 10..13_u32);
        (vec(entry, 0..4), 0..2_u32).prop_filter_map("not a file", |(entries, metrics)| {
            let mut text = String::new();
            for (name, peer, gd) in entries {
                text += &format!("[[interface]]\nname = '{name}'\n");
                if let Some(peer) = peer.filter(|_| !name.ends_with('*')) {
                    text += &format!("inline = '{peer}'\n");
                }
                text += &format!("[interface.parameters]\nrpg_gd = {gd}\n");
            }
            if metrics == 1 {
                text += "[metrics]\nlisten = '127.0.0.1:9310'\n";
            }
            parse("file", &text).ok()
        })
    }

    /// Interfaces, and what is attached to some of them: 1 served, 2 another daemon's, 3 nobody's.
    fn world() -> impl Strategy<Value = World> {
        (btree_set(0..NAMES.len(), 0..=NAMES.len()), vec(0..4_u8, NAMES.len())).prop_map(|(there, kinds)| {
            let mut world = World::default();
            for (index, (name, kind)) in NAMES.iter().zip(kinds).enumerate() {
                let ifindex = index as u32 + 1;
                if there.contains(&index) {
                    let is_ethernet = *name != "lo";
                    world.interfaces.push(Interface { index: ifindex, name: (*name).into(), is_ethernet });
                }
                if kind != 0 {
                    world.attached.push(Attached {
                        id: Id { netns_cookie: 5, ifindex, attached_at_ns: 7 },
                        name: (*name).into(),
                        inline_peer: None,
                        is_served: kind == 1,
                        is_foreign: kind == 2,
                    });
                }
            }
            world
        })
    }

    fn asked() -> impl Strategy<Value = Asked> {
        (any::<bool>(), any::<bool>()).prop_map(|(explicitly, allow_empty)| Asked { explicitly, allow_empty })
    }

    proptest! {
        #[test]
        fn reload_covers_own_interfaces_only(
            (old, new, asked, world) in (file(), file(), asked(), world()),
        ) {
            let Ok(plan) = reload(&old, &new, asked, &world) else {
                // Refused only if nothing would be left, and never if that is allowed.
                prop_assert!(!asked.allow_empty && world.attached.iter().any(|attached| attached.is_served));
                for attached in &world.attached {
                    let there = world.interface(attached.id).is_some();
                    prop_assert!(!attached.is_served || !there || !names(&new, &attached.name));
                }
                return Ok(());
            };
            let drops: Vec<Id> = plan.drop.iter().map(|drop| drop.id).collect();
            for attached in &world.attached {
                let times = [&drops, &plan.keep, &plan.change]
                    .map(|ids| ids.iter().filter(|id| **id == attached.id).count());
                let there = world.interface(attached.id).is_some();
                let wanted = there && names(&new, &attached.name);
                let expected = match attached {
                    Attached { is_foreign: true, .. } => 0,
                    Attached { is_served: true, .. } => 1,
                    _ => usize::from(wanted),
                };
                prop_assert_eq!(times.iter().sum::<usize>(), expected, "{:?} of {:?}", attached, plan);
                prop_assert_eq!(times[0] == 1, attached.is_served && !wanted);
            }
            for name in &plan.attach {
                prop_assert!(names(&new, name) && name != "lo");
                prop_assert!(world.attached.iter().all(|attached| attached.name != *name));
            }
            prop_assert_eq!(plan.listen, old.metrics != new.metrics);
            if !asked.allow_empty && plan.keep.is_empty() && plan.change.is_empty() && plan.attach.is_empty() {
                prop_assert!(plan.drop.is_empty());
            }
        }

        #[test]
        fn unchanged_file_changes_nothing((file, world) in (file(), world())) {
            let served = |id: &Id| world.attached.iter().any(|attached| attached.id == *id && attached.is_served);
            let allowed = Asked { allow_empty: true, explicitly: false };
            let plan = reload(&file, &file, allowed, &world).unwrap();
            prop_assert!(!plan.change.iter().any(served), "{plan:?}");
            let plan = reload(&file, &file, Asked { explicitly: true, ..allowed }, &world).unwrap();
            prop_assert!(!plan.keep.iter().any(served), "{plan:?}");
        }

        #[test]
        fn detach_precedes_attach((old, new, world) in (file(), file(), world())) {
            let allowed = Asked { allow_empty: true, explicitly: false };
            let plan = reload(&old, &new, allowed, &world).unwrap();
            for name in &plan.attach {
                let peer = new.request(name).and_then(|request| request.settings.inline);
                for drop in &plan.drop {
                    let dropped = world.attached.iter().find(|attached| attached.id == drop.id).unwrap();
                    let conflicts = dropped.name == *name || Some(&dropped.name) == peer.as_ref();
                    prop_assert!(drop.is_in_the_way || !conflicts, "{plan:?}");
                }
            }
        }

        #[test]
        fn follow_attaches_named_unattached_links(
            (file, world, released) in (file(), world(), btree_set(1..6_u32, 0..3)),
        ) {
            let served: BTreeSet<Id> =
                world.attached.iter().filter(|attached| attached.is_served).map(|attached| attached.id).collect();
            let scope = Scope::File(Box::new(file.clone()));
            let plan = follow(&scope, &world, &served, &released, &BTreeSet::new());
            for (index, name) in &plan.attach {
                prop_assert!(names(&file, name) && name != "lo" && !released.contains(index));
                prop_assert!(world.attached.iter().all(|attached| attached.id.ifindex != *index));
            }
            for interface in world.interfaces.iter().filter(|interface| interface.is_ethernet) {
                let attached = world.attached_to(interface).is_some();
                let expected = names(&file, &interface.name) && !attached && !released.contains(&interface.index);
                let found = plan.attach.iter().any(|(index, _)| *index == interface.index);
                prop_assert_eq!(found, expected);
            }
            let there = |id: &Id| world.interface(*id).is_some();
            prop_assert!(plan.gone.iter().all(|id| served.contains(id) && !there(id)));
            prop_assert!(plan.released.is_empty());
            prop_assert!(plan.take_over.iter().all(|id| !served.contains(id) && there(id)));
            let resting = world.interfaces.iter().map(|interface| interface.index).collect();
            let at_rest = follow(&scope, &world, &served, &released, &resting);
            prop_assert!(at_rest.attach.is_empty() && at_rest.take_over.is_empty() && at_rest.missing.is_empty());
        }
    }

    #[test]
    fn manually_detached_link_stays_detached() {
        let file = parse("file", "[[interface]]\nname = 'a*'\n").unwrap();
        let a0 = Interface { index: 1, name: "a0".into(), is_ethernet: true };
        let world = World { interfaces: vec![a0], attached: Vec::new() };
        let id = Id { netns_cookie: 5, ifindex: 1, attached_at_ns: 7 };
        let none = BTreeSet::new();
        let plan = follow(&Scope::File(Box::new(file)), &world, &[id].into(), &none, &none);
        assert_eq!(plan, Follow { released: vec![id], ..Follow::default() });
    }
}
