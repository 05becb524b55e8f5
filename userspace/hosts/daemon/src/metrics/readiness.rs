//! Readiness: whether all configured interfaces are attached and complete.

use dcqcn_control_api::Failing;
use dcqcn_loader::attach::{self, Error, Info, Part, Sweep};
use serde::Serialize;

use crate::shared_state::SharedState;

/// Body of `/readyz`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Readiness {
    /// All configured interfaces are attached and complete.
    pub(crate) is_ready: bool,
    pub(crate) interfaces: Vec<String>,
    pub(crate) failing: Vec<Failing>,
    pub(crate) waiting: usize,
}

/// Checks readiness; `shared` is the state of the enclosing daemon, if any.
pub(crate) fn check(shared: Option<&SharedState>) -> Readiness {
    let mut readiness = Readiness { is_ready: true, interfaces: Vec::new(), failing: Vec::new(), waiting: 0 };
    let mut unreadable = Vec::new();
    let read = || -> Result<_, Error> { Ok((attach::alive()?, Sweep::take()?)) };
    match read() {
        Ok((alive, sweep)) => {
            unreadable = alive.unreadable;
            for info in alive.attached {
                match problem(&sweep, &info) {
                    None => readiness.interfaces.push(info.iface),
                    Some(error) => readiness.failing.push(Failing::new(&info.iface, &error)),
                }
            }
        }
        Err(error) => readiness.failing.push(Failing::new("", &error.to_string())),
    }
    if let Some(snapshot) = shared.map(SharedState::snapshot) {
        readiness.waiting = snapshot.waiting;
        readiness.is_ready = snapshot.is_ready;
        readiness
            .interfaces
            .retain(|name| snapshot.bypassed.iter().all(|bypassed| bypassed.interface != *name));
        let absent = snapshot.served.iter().filter(|name| !readiness.interfaces.contains(name));
        let absent = absent.map(|interface| Failing::new(interface, "managed, but not attached"));
        for other in snapshot.failing.iter().cloned().chain(absent) {
            // The kernel was just asked.
            let is_complete_again =
                snapshot.incomplete.contains(&other) && readiness.interfaces.contains(&other.interface);
            if !is_complete_again
                && readiness.failing.iter().all(|failing| failing.interface != other.interface)
            {
                readiness.failing.push(other);
            }
        }
    }
    for (interface, error) in unreadable {
        if readiness.failing.iter().all(|failing| failing.interface != interface) {
            readiness.failing.push(Failing::new(&interface, &error.to_string()));
        }
    }
    readiness.is_ready &= readiness.failing.is_empty() && readiness.waiting == 0;
    readiness
}

fn problem(sweep: &Sweep, info: &Info) -> Option<String> {
    match sweep.verify(info) {
        Ok(parts) => parts.iter().find_map(Part::complaint),
        Err(error) => Some(error.to_string()),
    }
}
