//! Reads the running machine into a snapshot. Failed readings are recorded, and the others continue.

mod attached;
mod host;
mod links;
mod rdma;
mod sample;
mod text;

use std::error::Error;
use std::time::Duration;

use dcqcn_netlink::Netlink;
use dcqcn_support::causes::one_line;
use dcqcn_support::clock::monotonic_ns;

use super::snapshot::{Link, Snapshot, Unread, VERSION};
use sample::Sampler;

/// Reads this machine twice, `observe` apart, in the calling thread's network namespace.
pub(crate) fn take(observe: Duration, rtt_ns: u64) -> Snapshot {
    let mut notes = Notes::default();
    let started_ns = monotonic_ns();
    let mut snapshot = Snapshot {
        version: VERSION,
        dcqcn: env!("CARGO_PKG_VERSION").into(),
        rtt_ns,
        host: host::take(&mut notes),
        ..Snapshot::default()
    };
    let netlink = Netlink::connect()
        .map_err(|error| notes.essential("interfaces", &error, "allow netlink sockets to this process"))
        .ok();
    if let Some(netlink) = &netlink {
        snapshot.links = links::take(netlink, &mut notes);
        snapshot.rdma = rdma::take(netlink, &snapshot.links, &mut notes);
        if netlink.has_rdma() {
            snapshot.rdma_elsewhere = rdma::elsewhere();
        }
    }
    let opened = attached::first(netlink.as_ref(), &mut notes);
    let first_read_ns = monotonic_ns();
    let silent = |link: &&Link| attached::without_roce(&opened).any(|iface| iface == link.name);
    let mut sampler = Sampler::open(snapshot.links.iter().filter(silent).map(|link| link.index));
    match &netlink {
        Some(netlink) => links::watch(netlink, &mut snapshot.links, sampler.as_mut(), observe),
        None => std::thread::sleep(observe),
    }
    if let Some(sampler) = sampler {
        sampler.finish(&mut snapshot.links);
    }
    snapshot.attachments = attached::second(opened, first_read_ns, &mut notes);
    if let Some(netlink) = &netlink {
        links::second(netlink, &mut snapshot.links);
    }
    rdma::second(&mut snapshot.rdma);
    host::second(&mut snapshot.host);
    // Not used for rates, so the time of the readings may be included.
    snapshot.observed_ns = monotonic_ns().saturating_sub(started_ns).max(observe.as_nanos() as u64);
    snapshot.unread = notes.0;
    snapshot
}

/// Failed readings.
#[derive(Default)]
struct Notes(Vec<Unread>);

impl Notes {
    fn push(&mut self, what: &str, why: &dyn Error, next: &str, essential: bool) {
        let unread = Unread { what: what.into(), why: one_line(why), next: next.into(), essential };
        if !self.0.contains(&unread) {
            self.0.push(unread);
        }
    }

    fn essential(&mut self, what: &str, why: &dyn Error, next: &str) {
        self.push(what, why, next, true);
    }

    fn minor(&mut self, what: &str, why: &dyn Error, next: &str) {
        self.push(what, why, next, false);
    }
}
