//! What changes in the course of a simulation, from its list of faults.

use crate::network::scenario::{FaultKind, Scenario};

/// Something that happens to some nodes at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) at_ns: u64,
    pub(crate) what: What,
}

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// A link breaks or works again.
    Link { link: u32, up: bool },
    /// All switches have the routes after so many changes of links.
    Routes { epoch: usize },
    /// A host pauses these classes for good; none: it lets go.
    Storm { host: u32, classes: u8 },
}

/// The changes of `scenario` in order of time, and after each change of a link the links that are down.
pub(crate) fn plan(scenario: &Scenario) -> (Vec<Change>, Vec<Vec<u32>>) {
    let mut faults = scenario.faults.clone();
    faults.sort_by_key(|fault| fault.at_ns);
    let mut changes = Vec::new();
    let mut down = Vec::new();
    let mut epochs = vec![Vec::new()];
    for fault in faults {
        let at_ns = fault.at_ns;
        let what = match fault.kind {
            FaultKind::LinkDown(link) => What::Link { link, up: false },
            FaultKind::LinkUp(link) => What::Link { link, up: true },
            FaultKind::StormBegins { host, classes } => What::Storm { host, classes },
            FaultKind::StormEnds { host } => What::Storm { host, classes: 0 },
        };
        changes.push(Change { at_ns, what });
        if let What::Link { link, up } = what {
            down.retain(|other| *other != link);
            if !up {
                down.push(link);
            }
            let what = What::Routes { epoch: epochs.len() };
            changes.push(Change { at_ns: at_ns.saturating_add(scenario.switch.reroute_ns), what });
            epochs.push(down.clone());
        }
    }
    changes.sort_by_key(|change| change.at_ns);
    (changes, epochs)
}
