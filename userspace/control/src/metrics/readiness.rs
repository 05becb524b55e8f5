//! Whether everything is attached that should be, and whole.

use dcqcn_view::attached;
use serde::Serialize;

use crate::daemon::{Desk, Failing};

/// What `/readyz` says.
#[derive(Debug, Serialize)]
pub struct Readiness {
    /// All is attached that should be, and whole.
    pub is_ready: bool,
    /// What is attached and whole.
    pub interfaces: Vec<String>,
    /// What is attached and not whole, or should be attached and is not.
    pub failing: Vec<Failing>,
    /// Interfaces that are still to be attached.
    pub waiting: usize,
}

/// Looks; `desk` is the controller's, if this is one.
pub(super) fn look(desk: Option<&Desk>) -> Readiness {
    let mut readiness = Readiness { is_ready: true, interfaces: Vec::new(), failing: Vec::new(), waiting: 0 };
    match attached() {
        Ok(names) => {
            for interface in names {
                match dcqcn_plane::attach::open(&interface) {
                    Ok(_) => readiness.interfaces.push(interface),
                    Err(error) => readiness.failing.push(Failing { interface, error: error.to_string() }),
                }
            }
        }
        Err(error) => readiness.failing.push(Failing { interface: String::new(), error: error.to_string() }),
    }
    if let Some(snapshot) = desk.map(Desk::snapshot) {
        readiness.failing.extend(snapshot.failing.iter().cloned());
        readiness.waiting = snapshot.waiting;
        readiness.is_ready = snapshot.is_ready;
        for interface in snapshot.served.iter().filter(|name| !readiness.interfaces.contains(name)) {
            let error = "it is served, and nothing is attached to it".into();
            readiness.failing.push(Failing { interface: interface.clone(), error });
        }
    }
    readiness.is_ready &= readiness.failing.is_empty() && readiness.waiting == 0;
    readiness
}
