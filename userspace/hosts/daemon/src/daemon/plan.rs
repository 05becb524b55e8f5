//! Planning: actions derived from the current state and the file, as pure functions.

use std::collections::BTreeSet;

use dcqcn_loader::attach::Id;

use super::config::Config;
use super::repair::Repair;

/// Interfaces that the daemon manages.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// Interfaces in a file: attached with the file's parameters.
    File(Box<Config>),
    /// Existing attachments, unchanged.
    Named(Vec<String>),
}

impl Scope {
    /// Whether the daemon manages the interface with this name.
    pub(super) fn names(&self, iface: &str) -> bool {
        match self {
            Self::File(config) => names(config, iface),
            Self::Named(ifaces) => ifaces.iter().any(|name| name == iface),
        }
    }

    /// Repair mode of the interface with this name; `None` without a file.
    pub(super) fn repair(&self, iface: &str) -> Option<Repair> {
        match self {
            Self::File(config) => Some(config.repair(iface)),
            Self::Named(_) => None,
        }
    }

    /// Whether the file has the interface's literal name, not a pattern.
    fn has_literal(&self, iface: &str) -> bool {
        match self {
            Self::File(config) => config.has_literal(iface),
            Self::Named(_) => true,
        }
    }
}

/// Whether the file attaches the interface itself, not as the other end of another.
fn names(config: &Config, iface: &str) -> bool {
    config.request(iface).is_some() && !config.is_inline_peer(iface)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    /// Whether RoCE is possible: it has an Ethernet address and is not the loopback.
    pub(super) is_ethernet: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) id: Id,
    /// Current name of the interface; the recorded one if it was removed.
    pub(super) name: String,
    /// Another interface has its interface's index now.
    pub(super) is_replaced: bool,
    /// The other interface of an inline attachment.
    pub(super) inline_peer: Option<String>,
    /// Managed by this daemon.
    pub(super) is_served: bool,
    /// Managed by another daemon.
    pub(super) is_foreign: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct HostState {
    pub(super) interfaces: Vec<Interface>,
    /// Attachments, also of deleted interfaces.
    pub(super) attached: Vec<Attached>,
    /// Indexes of interfaces whose journal was removed, but not their programs.
    pub(super) without_journal: BTreeSet<u32>,
}

impl HostState {
    pub(super) fn interface(&self, id: Id) -> Option<&Interface> {
        let is_replaced = self.attached.iter().any(|attached| attached.id == id && attached.is_replaced);
        self.interfaces.iter().find(|interface| interface.index == id.ifindex && !is_replaced)
    }

    fn attached_to(&self, interface: &Interface) -> Option<&Attached> {
        self.attached.iter().find(|attached| attached.id.ifindex == interface.index && !attached.is_replaced)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reload {
    /// To detach first: no longer in the file, and a new attachment needs its interface.
    pub(super) drop_first: Vec<Id>,
    /// To detach last: no longer in the file.
    pub(super) drop: Vec<Id>,
    /// To remain managed, with unchanged parameters.
    pub(super) keep: Vec<Id>,
    /// To remain managed, with the file's parameters.
    pub(super) change: Vec<Id>,
    /// To attach again, by name.
    pub(super) attach: Vec<String>,
    pub(super) listen: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReloadOptions {
    /// An explicit request, which also resets parameters changed since to the file's; otherwise only changes of the
    /// file are applied.
    pub(super) explicitly: bool,
    /// The file may drop every managed interface.
    pub(super) allow_empty: bool,
    /// Reverts an override, and unconfirmed changes on top of it.
    pub(super) is_revert: bool,
}

/// Plans the switch from one file to another.
pub(super) fn reload(
    old: &Config,
    new: &Config,
    options: ReloadOptions,
    host_state: &HostState,
) -> Result<Reload, String> {
    let mut plan = Reload { listen: old.metrics != new.metrics, ..Reload::default() };
    for interface in host_state.interfaces.iter().filter(|interface| names(new, &interface.name)) {
        let is_new_to_the_file = || !old.agrees_on(new, &interface.name);
        match host_state.attached_to(interface) {
            // Attachments of another daemon are reported when this one tries to manage them.
            Some(attached) if attached.is_foreign => {}
            Some(attached) if options.explicitly || !attached.is_served || is_new_to_the_file() => {
                plan.change.push(attached.id);
            }
            Some(attached) => plan.keep.push(attached.id),
            None if interface.is_ethernet => plan.attach.push(interface.name.clone()),
            None => {}
        }
    }
    let peer = |name: &str| new.request(name).and_then(|request| request.settings.inline);
    let needed = plan.attach.iter().flat_map(|name| [Some(name.clone()), peer(name)]);
    let needed: BTreeSet<String> = needed.flatten().collect();
    for attached in host_state.attached.iter().filter(|attached| attached.is_served) {
        if plan.keep.contains(&attached.id) || plan.change.contains(&attached.id) {
            continue;
        }
        let now = host_state.interface(attached.id).map(|interface| &interface.name);
        let has = [Some(&attached.name), now, attached.inline_peer.as_ref()];
        let is_in_the_way = has.into_iter().flatten().any(|name| needed.contains(name));
        let drops = if is_in_the_way { &mut plan.drop_first } else { &mut plan.drop };
        drops.push(attached.id);
    }
    // Without new attachments none is in the way.
    let leaves_nothing = plan.keep.is_empty() && plan.change.is_empty() && plan.attach.is_empty();
    if leaves_nothing && !plan.drop.is_empty() && !options.allow_empty {
        return Err(format!(
            "the file drops every managed interface ({} would be detached); `dcqcn run --allow-empty` accepts \
             such a file",
            plan.drop.len()
        ));
    }
    Ok(plan)
}

/// Actions after a change of interfaces or attachments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Follow {
    /// Managed, but the interface was removed.
    pub(super) gone: Vec<Id>,
    /// Managed, but detached by another process.
    pub(super) released: Vec<Id>,
    /// Managed, but another program removed their journals: to attach again.
    pub(super) without_journal: Vec<Id>,
    /// Attached, but the interface was removed: clean up.
    pub(super) leftover: Vec<Id>,
    /// Attached, to be managed unchanged or with the file's parameters.
    pub(super) take_over: Vec<Id>,
    /// To attach, by index and name.
    pub(super) attach: Vec<(u32, String)>,
    /// On the command line, but not attached.
    pub(super) missing: Vec<String>,
}

/// Plans the actions. `served` includes attachments that no longer exist. Interfaces in `released` are ignored while
/// they are not attached, and those in `resting` for now.
pub(super) fn follow(
    scope: &Scope,
    host_state: &HostState,
    served: &BTreeSet<Id>,
    released: &BTreeSet<u32>,
    resting: &BTreeSet<u32>,
) -> Follow {
    let mut plan = Follow::default();
    for id in served {
        let is_attached = host_state.attached.iter().any(|attached| attached.id == *id);
        match (host_state.interface(*id), is_attached) {
            (Some(_), true) => {}
            (Some(_), false) if host_state.without_journal.contains(&id.ifindex) => {
                plan.without_journal.push(*id);
            }
            (Some(_), false) => plan.released.push(*id),
            (None, _) => plan.gone.push(*id),
        }
    }
    for attached in &host_state.attached {
        // The recorded name of a managed one may be that before a rename.
        let is_ours = served.contains(&attached.id) || scope.names(&attached.name);
        if host_state.interface(attached.id).is_none() && is_ours {
            plan.leftover.push(attached.id);
        }
    }
    for interface in host_state.interfaces.iter().filter(|interface| !resting.contains(&interface.index)) {
        match host_state.attached_to(interface) {
            Some(attached) if served.contains(&attached.id) => {}
            Some(attached) if scope.names(&interface.name) => plan.take_over.push(attached.id),
            None if !scope.names(&interface.name) => {}
            None if matches!(scope, Scope::Named(_)) => plan.missing.push(interface.name.clone()),
            _ if released.contains(&interface.index)
                || plan.released.iter().any(|id| id.ifindex == interface.index) => {}
            // A literal name without RoCE support is tried, so that the log has the reason.
            None if interface.is_ethernet || scope.has_literal(&interface.name) => {
                plan.attach.push((interface.index, interface.name.clone()));
            }
            _ => {}
        }
    }
    plan
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
        let host_state = HostState { interfaces: vec![tun], ..HostState::default() };
        let tried = |name: &str| {
            let file = parse("file", &format!("[[interface]]\nname = '{name}'\n")).unwrap();
            let scope = Scope::File(Box::new(file));
            follow(&scope, &host_state, &BTreeSet::new(), &BTreeSet::new(), &BTreeSet::new()).attach.len()
        };
        assert_eq!((tried("tun*"), tried("*"), tried("tun0")), (0, 0, 1));
    }

    const NAMES: [&str; 5] = ["a0", "a1", "b0", "b1", "lo"];

    /// Files with some of the interfaces, some of them inline.
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

    /// Interfaces, some attached: 1 managed, 2 managed by another daemon, 3 unmanaged.
    fn host_state() -> impl Strategy<Value = HostState> {
        (btree_set(0..NAMES.len(), 0..=NAMES.len()), vec(0..4_u8, NAMES.len())).prop_map(|(there, kinds)| {
            let mut host_state = HostState::default();
            for (index, (name, kind)) in NAMES.iter().zip(kinds).enumerate() {
                let ifindex = index as u32 + 1;
                if there.contains(&index) {
                    let is_ethernet = *name != "lo";
                    let name = (*name).into();
                    host_state.interfaces.push(Interface { index: ifindex, name, is_ethernet });
                }
                if kind != 0 {
                    host_state.attached.push(Attached {
                        id: Id { netns_cookie: 5, ifindex, attached_at_ns: 7 },
                        name: (*name).into(),
                        is_replaced: false,
                        inline_peer: None,
                        is_served: kind == 1,
                        is_foreign: kind == 2,
                    });
                }
            }
            host_state
        })
    }

    fn options() -> impl Strategy<Value = ReloadOptions> {
        let options = |(explicitly, allow_empty)| ReloadOptions { explicitly, allow_empty, is_revert: false };
        (any::<bool>(), any::<bool>()).prop_map(options)
    }

    proptest! {
        #[test]
        fn reload_covers_own_interfaces_only(
            (old, new, options, host_state) in (file(), file(), options(), host_state()),
        ) {
            let Ok(plan) = reload(&old, &new, options, &host_state) else {
                // Rejected only if no managed interface would remain, and never if that is allowed.
                prop_assert!(!options.allow_empty && host_state.attached.iter().any(|attached| attached.is_served));
                for attached in &host_state.attached {
                    let there = host_state.interface(attached.id).is_some();
                    prop_assert!(!attached.is_served || !there || !names(&new, &attached.name));
                }
                return Ok(());
            };
            let drops = [plan.drop_first.as_slice(), &plan.drop].concat();
            for attached in &host_state.attached {
                let times = [&drops, &plan.keep, &plan.change]
                    .map(|ids| ids.iter().filter(|id| **id == attached.id).count());
                let there = host_state.interface(attached.id).is_some();
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
                prop_assert!(host_state.attached.iter().all(|attached| attached.name != *name));
            }
            prop_assert_eq!(plan.listen, old.metrics != new.metrics);
            if !options.allow_empty && plan.keep.is_empty() && plan.change.is_empty() && plan.attach.is_empty() {
                prop_assert!(plan.drop.is_empty());
            }
        }

        #[test]
        fn unchanged_file_changes_nothing((file, host_state) in (file(), host_state())) {
            let served = |id: &Id| host_state.attached.iter().any(|attached| attached.id == *id && attached.is_served);
            let allowed = ReloadOptions { allow_empty: true, ..ReloadOptions::default() };
            let plan = reload(&file, &file, allowed, &host_state).unwrap();
            prop_assert!(!plan.change.iter().any(served), "{plan:?}");
            let plan = reload(&file, &file, ReloadOptions { explicitly: true, ..allowed }, &host_state).unwrap();
            prop_assert!(!plan.keep.iter().any(served), "{plan:?}");
        }

        #[test]
        fn detach_precedes_attach((old, new, host_state) in (file(), file(), host_state())) {
            let allowed = ReloadOptions { allow_empty: true, ..ReloadOptions::default() };
            let plan = reload(&old, &new, allowed, &host_state).unwrap();
            for name in &plan.attach {
                let peer = new.request(name).and_then(|request| request.settings.inline);
                for id in &plan.drop {
                    let dropped = host_state.attached.iter().find(|attached| attached.id == *id).unwrap();
                    let conflicts = dropped.name == *name || Some(&dropped.name) == peer.as_ref();
                    prop_assert!(!conflicts, "{plan:?}");
                }
            }
        }

        #[test]
        fn follow_attaches_named_unattached_links(
            (file, host_state, released) in (file(), host_state(), btree_set(1..6_u32, 0..3)),
        ) {
            let served: BTreeSet<Id> =
                host_state.attached.iter().filter(|attached| attached.is_served).map(|attached| attached.id).collect();
            let scope = Scope::File(Box::new(file.clone()));
            let plan = follow(&scope, &host_state, &served, &released, &BTreeSet::new());
            for (index, name) in &plan.attach {
                prop_assert!(names(&file, name) && name != "lo" && !released.contains(index));
                prop_assert!(host_state.attached.iter().all(|attached| attached.id.ifindex != *index));
            }
            for interface in host_state.interfaces.iter().filter(|interface| interface.is_ethernet) {
                let attached = host_state.attached_to(interface).is_some();
                let expected = names(&file, &interface.name) && !attached && !released.contains(&interface.index);
                let found = plan.attach.iter().any(|(index, _)| *index == interface.index);
                prop_assert_eq!(found, expected);
            }
            let there = |id: &Id| host_state.interface(*id).is_some();
            prop_assert!(plan.gone.iter().all(|id| served.contains(id) && !there(id)));
            prop_assert!(plan.released.is_empty());
            prop_assert!(plan.take_over.iter().all(|id| !served.contains(id) && there(id)));
            let resting = host_state.interfaces.iter().map(|interface| interface.index).collect();
            let at_rest = follow(&scope, &host_state, &served, &released, &resting);
            prop_assert!(at_rest.attach.is_empty() && at_rest.take_over.is_empty() && at_rest.missing.is_empty());
        }
    }

    #[test]
    fn manually_detached_link_stays_detached() {
        let file = parse("file", "[[interface]]\nname = 'a*'\n").unwrap();
        let a0 = Interface { index: 1, name: "a0".into(), is_ethernet: true };
        let mut host_state = HostState { interfaces: vec![a0], ..HostState::default() };
        let id = Id { netns_cookie: 5, ifindex: 1, attached_at_ns: 7 };
        let none = BTreeSet::new();
        let scope = Scope::File(Box::new(file));
        let plan = follow(&scope, &host_state, &[id].into(), &none, &none);
        assert_eq!(plan, Follow { released: vec![id], ..Follow::default() });
        // Its programs are still attached.
        host_state.without_journal.insert(1);
        let plan = follow(&scope, &host_state, &[id].into(), &none, &none);
        let attach = vec![(1, "a0".into())];
        assert_eq!(plan, Follow { without_journal: vec![id], attach, ..Follow::default() });
    }

    #[test]
    fn removed_link_freed_despite_old_name() {
        let id = Id { netns_cookie: 5, ifindex: 1, attached_at_ns: 7 };
        let attached = Attached {
            id,
            name: "a0".into(),
            is_replaced: false,
            inline_peer: None,
            is_served: true,
            is_foreign: false,
        };
        let host_state = HostState { attached: vec![attached], ..HostState::default() };
        let none = BTreeSet::new();
        // Renamed before the daemon started.
        let scope = Scope::Named(vec!["a9".into()]);
        let plan = follow(&scope, &host_state, &[id].into(), &none, &none);
        assert_eq!(plan, Follow { gone: vec![id], leftover: vec![id], ..Follow::default() });
        let plan = follow(&scope, &host_state, &BTreeSet::new(), &none, &none);
        assert_eq!(plan, Follow::default());
    }
}
