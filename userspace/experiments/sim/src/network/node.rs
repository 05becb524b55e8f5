//! Nodes: what happens by itself between two messages of others.

use std::sync::Arc;

use crate::network::host::Host;
use crate::network::switch::Switch;
use crate::network::topology::PortSpec;
use crate::network::wire::{Delivery, Outbox};

/// A node.
#[derive(Debug)]
pub(crate) enum Node {
    Host(Box<Host>),
    Switch(Box<Switch>),
}

impl Node {
    pub(crate) fn run(&mut self, end_ns: u64, out: &mut Outbox) {
        match self {
            Self::Host(host) => host.run(end_ns, out),
            Self::Switch(switch) => switch.run(end_ns, out),
        }
    }

    #[inline]
    pub(crate) fn enter(&mut self, at_ns: u64, what: Delivery) {
        match (self, what) {
            (Self::Host(host), what) => host.enter(at_ns, what),
            (Self::Switch(switch), Delivery::Packet(port, packet)) => switch.enter(port, at_ns, packet),
            // Only hosts have flows.
            (Self::Switch(_), Delivery::Notice(_)) => {}
        }
    }

    pub(crate) fn next_ns(&self) -> u64 {
        match self {
            Self::Host(host) => host.agenda.next_ns(),
            Self::Switch(switch) => switch.agenda.next_ns(),
        }
    }

    pub(crate) fn done(&self) -> u64 {
        match self {
            Self::Host(host) => host.records.len() as u64,
            Self::Switch(_) => 0,
        }
    }
}

/// Everything a simulation consists of.
pub(crate) struct Built {
    pub(crate) nodes: Vec<Node>,
    pub(crate) ports: Arc<[Vec<PortSpec>]>,
}
