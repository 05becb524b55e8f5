//! Whether everything is attached that should be, and whole.

use dcqcn_loader::attach::{self, Info, Part};
use serde::Serialize;

use crate::shared_state::{Failing, SharedState};

/// What `/readyz` says.
#[derive(Debug, Serialize)]
pub(crate) struct Readiness {
    /// All is attached that should be, and whole.
    pub(crate) is_ready: bool,
    /// What is attached and whole.
    pub(crate) interfaces: Vec<String>,
    /// What is attached and not whole, or should be attached and is not.
    pub(crate) failing: Vec<Failing>,
    /// Interfaces that are still to be attached.
    pub(crate) waiting: usize,
}

/// Looks; `shared` is the controller's, if this is one.
pub(super) fn look(shared: Option<&SharedState>) -> Readiness {
    let mut readiness = Readiness { is_ready: true, interfaces: Vec::new(), failing: Vec::new(), waiting: 0 };
    let mut unreadable = Vec::new();
    match attach::alive() {
        Ok(alive) => {
            unreadable = alive.unreadable;
            for info in alive.attached {
                match problem(&info) {
                    None => readiness.interfaces.push(info.iface),
                    Some(error) => readiness.failing.push(Failing { interface: info.iface, error }),
                }
            }
        }
        Err(error) => readiness.failing.push(Failing { interface: String::new(), error: error.to_string() }),
    }
    if let Some(snapshot) = shared.map(SharedState::snapshot) {
        readiness.waiting = snapshot.waiting;
        readiness.is_ready = snapshot.is_ready;
        readiness
            .interfaces
            .retain(|name| snapshot.bypassed.iter().all(|bypassed| bypassed.interface != *name));
        let absent = snapshot.served.iter().filter(|name| !readiness.interfaces.contains(name));
        let absent = absent.map(|interface| Failing {
            interface: interface.clone(),
            error: "it is served, and nothing is attached to it".into(),
        });
        // Of an interface that is not whole the kernel has just been asked why.
        for other in snapshot.failing.iter().cloned().chain(absent) {
            let is_whole = readiness.interfaces.contains(&other.interface);
            if !is_whole && readiness.failing.iter().all(|failing| failing.interface != other.interface) {
                readiness.failing.push(other);
            }
        }
    }
    for (interface, error) in unreadable {
        if readiness.failing.iter().all(|failing| failing.interface != interface) {
            readiness.failing.push(Failing { interface, error: error.to_string() });
        }
    }
    readiness.is_ready &= readiness.failing.is_empty() && readiness.waiting == 0;
    readiness
}

/// What is wrong with an attachment, asked of the kernel.
fn problem(info: &Info) -> Option<String> {
    match attach::verify(info) {
        Ok(parts) => parts.iter().find_map(Part::complaint),
        Err(error) => Some(error.to_string()),
    }
}
